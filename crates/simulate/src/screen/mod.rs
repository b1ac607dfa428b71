//! The full screen of a run: what it shows, and the keys that change the run.
//!
//! [`screen_state`] is what is shown, [`view`] draws it, and [`terminal`] owns the terminal and reads keys.

mod bars;
mod rate_history;
mod screen_state;
mod terminal;
mod view;

pub(crate) use rate_history::RateHistory;
pub(crate) use screen_state::{PhaseRow, PhaseStage, ScreenState};
pub(crate) use terminal::{RunScreen, is_available};

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScreenCommand {
    /// Or the end of a pause.
    Pause,
    Faster,
    Slower,
    NextPhase,
    Stop,
}
