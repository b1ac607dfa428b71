//! The wire format, two ends of a link under a simulated clock, and links on tokio.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod durability;
mod interruptions;
mod invalid_frames;
mod journals;
mod kills;
mod net;
mod simulation;
mod support;
mod vectors;
