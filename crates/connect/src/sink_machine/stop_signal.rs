//! Commands that end the machine of a sink.

/// Commands to the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Run,
    /// Write what is queued, then end. Rows in files stay there.
    Drain,
    /// End: no further attempts; remaining rows are returned.
    GiveUp,
}
