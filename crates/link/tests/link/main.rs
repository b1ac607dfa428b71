//! Links without a network: the wire format, and two ends under a simulated clock.

mod durability;
mod simulation;
mod support;
mod vectors;
