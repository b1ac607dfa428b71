//! The wire format, two ends of a link under a simulated clock, and links on tokio.

mod durability;
mod net;
mod simulation;
mod support;
mod vectors;
