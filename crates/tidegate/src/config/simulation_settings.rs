//! The section `simulations`.

/// Limits of simulations that the node runs against itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimulationSettings {
    /// Larger fleets shrink.
    pub(crate) max_devices: u32,
    /// 0: none can be started.
    pub(crate) max_running: u32,
}

impl Default for SimulationSettings {
    fn default() -> Self {
        Self {
            max_devices: 1000,
            max_running: 1,
        }
    }
}
