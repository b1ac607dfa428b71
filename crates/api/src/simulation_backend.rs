//! The interface between the API and simulations of device fleets that the program runs within the node.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

/// Runs ready-made simulations, whose devices connect to the listeners of the node.
pub trait SimulationBackend: Send + Sync {
    /// All ready-made simulations as this node would run them.
    fn simulations(&self) -> Vec<ReadyMadeSimulation>;
    /// Simulations that may run at a time; 0: none.
    fn max_running(&self) -> u32;
    /// Runs one to its end, or until it is cancelled. Blocks.
    fn run(
        &self,
        task: &SimulationTask,
        observer: &dyn SimulationObserver,
    ) -> Result<Vec<SimulationCondition>, String>;
}

/// Sends requests to the API of the node as an operator, without a connection.
pub trait NodeCaller: Send + Sync {
    /// The status and the content of the response. Blocks; must not be called on a thread of the runtime.
    ///
    /// # Errors
    /// If the API stops, or the request or response is invalid.
    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &str)>,
        is_creation: bool,
    ) -> Result<(u16, String), String>;
}

/// What is to be done with a simulation.
pub struct SimulationTask {
    pub name: String,
    pub action: SimulationAction,
    /// Maximum number of devices, at most that of the node.
    pub max_devices: Option<u32>,
    /// The API of the node.
    pub node: Arc<dyn NodeCaller>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SimulationAction {
    /// Creates products and devices, goes through all phases, and removes them.
    Run,
    /// Removes what an earlier run has left.
    Clean,
}

/// Follows a run.
pub trait SimulationObserver: Sync {
    /// Whether the run is to end now.
    fn is_cancelled(&self) -> bool;
    fn report(&self, progress: SimulationProgress);
}

/// A simulation that is part of the program.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ReadyMadeSimulation {
    pub name: String,
    pub description: String,
    /// Number of devices in this node, limited by `simulations.max_devices`.
    pub devices: u64,
    /// Number of devices of the simulation as it is defined.
    pub defined_devices: u64,
    /// Messages of all devices per second in this node, without responses.
    pub messages_per_s: f64,
    pub phases: Vec<String>,
    /// Duration in seconds, without the time for connecting; `null`: it runs until it is stopped.
    pub duration_s: Option<f64>,
    /// Products whose devices it creates.
    pub products: Vec<String>,
    /// Why this node cannot run it; `null`: it can.
    pub unavailable: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SimulationStage {
    #[default]
    Creating,
    Running,
    Removing,
}

/// How far a run is.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct SimulationProgress {
    pub stage: SimulationStage,
    /// Number of devices created or removed in this stage.
    pub done: u64,
    /// Number of devices to create or remove.
    pub total: u64,
    pub phases: Vec<SimulationPhase>,
    /// Number of connected devices.
    pub connected: u64,
    /// Number of messages of all devices.
    pub sent: u64,
    /// Messages in the last second.
    pub sent_per_s: f64,
    pub acknowledged: u64,
    /// Number of messages that devices received.
    pub received: u64,
    /// Number of requests that devices answered.
    pub answers: u64,
    /// Number of failed and interrupted connections.
    pub failures: u64,
    /// Upper bound of the time to acknowledgement of 99 % of the messages, in milliseconds.
    pub ack_p99_ms: Option<f64>,
    /// Failures by kind, the most frequent first.
    pub failures_by_kind: Vec<SimulationFailure>,
    /// The last 20 lines, the latest first.
    pub log: Vec<SimulationLogLine>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SimulationPhaseState {
    Waiting,
    Running,
    Done,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SimulationPhase {
    pub name: String,
    pub state: SimulationPhaseState,
    pub elapsed_s: f64,
    /// `null`: it ends when all devices are connected, or when it is stopped.
    pub duration_s: Option<f64>,
    /// Completed part from 0 to 1; `null`: its end is not known.
    pub progress: Option<f64>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SimulationFailure {
    pub kind: String,
    pub count: u64,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SimulationLogLine {
    pub at_ms: u64,
    pub text: String,
}

/// A condition of the simulation, and whether it held.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SimulationCondition {
    pub phase: String,
    pub condition: String,
    /// The value.
    pub found: String,
    pub holds: bool,
}
