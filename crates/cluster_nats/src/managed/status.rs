//! What is known about a NATS server that the node has started.

/// What a managed server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ManagedNatsState {
    /// The process runs and does not accept connections yet. It may be reading its files.
    #[default]
    Starting,
    /// The process accepts connections.
    Running,
    /// The process has ended and is started again soon.
    Restarting,
    Stopped,
}

/// What is known about a managed server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagedNatsStatus {
    pub state: ManagedNatsState,
    /// When the state began, in milliseconds since 1970.
    pub since_ms: u64,
    pub pid: Option<u32>,
    pub version: String,
    /// Where the node connects to, on 127.0.0.1.
    pub client_port: u16,
    /// Starts after the first one.
    pub restarts: u64,
    /// Why the process has ended the last time, or cannot be started. Kept while it is not running.
    pub last_error: Option<String>,
    /// Memory of the process, where the operating system tells.
    pub resident_bytes: Option<u64>,
    /// Processor time of the process, where the operating system tells.
    pub cpu_ms: Option<u64>,
}
