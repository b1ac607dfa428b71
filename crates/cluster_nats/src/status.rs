//! What is known about the connection to NATS servers.

use std::time::Duration;

/// The state of the connection for objects and members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NatsState {
    /// There is no connection; attempts continue.
    #[default]
    Disconnected,
    /// There is a connection, and it is examined whether the server can be used.
    Examining,
    /// The server cannot be used, for example because it is too old; attempts continue.
    Refused,
    Ready,
}

/// What is known about the connection to NATS servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NatsStatus {
    pub state: NatsState,
    /// When the state began, in milliseconds since 1970.
    pub since_ms: u64,
    /// Name and version of the connected server.
    pub server_name: Option<String>,
    pub server_version: Option<String>,
    /// Why there is no usable connection, and what to do about it. The last reason is kept while there is one.
    pub last_error: Option<String>,
    /// Time of the last message from this node to itself through the server.
    pub round_trip: Option<Duration>,
    /// Successful connects after the first one.
    pub reconnects: u64,
    /// Whether the connection for links exists.
    pub are_links_connected: bool,
    /// Successful connects for links after the first one.
    pub link_reconnects: u64,
    /// Frames that [`cluster::NodeLinks::send`] accepted and that were dropped, for example by an interruption.
    pub dropped_outgoing_frames: u64,
    /// Received frames that were dropped because the node did not read them in time.
    pub dropped_incoming_frames: u64,
}
