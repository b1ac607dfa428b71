//! The script of a fleet, and its limits.

use std::path::PathBuf;

use serde::Deserialize;

use super::quantity::TimeSpan;

/// Either a file or a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptDefinition {
    /// Relative to the simulation file.
    pub(crate) file: Option<PathBuf>,
    pub(crate) text: Option<String>,
    /// Interval of `onTimer`.
    pub(crate) timer: Option<TimeSpan>,
    /// Loops and calls of one call of a hook.
    #[serde(default = "million")]
    pub(crate) max_steps: u64,
    /// Of each thread.
    #[serde(default = "default_memory")]
    pub(crate) max_memory_mib: u32,
    #[serde(default = "default_stack")]
    pub(crate) max_stack_kib: u32,
}

fn million() -> u64 {
    1_000_000
}

fn default_memory() -> u32 {
    64
}

fn default_stack() -> u32 {
    256
}
