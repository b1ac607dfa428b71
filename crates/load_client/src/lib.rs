//! The client side of load generators: many connections in one event loop, over TCP, TLS and WebSocket, and what they have in
//! common when they count and report.
//!
//! `bench` measures brokers with it, `simulate` connects fleets of devices.

pub mod assertion;
pub mod client_error;
pub mod endpoint;
pub mod host;
pub mod interrupt;
pub mod latency;
pub mod metrics;
pub mod node_api;
pub mod packet_scanner;
pub mod payload_stamp;
pub mod plot;
pub mod sequence_checker;
pub mod timer;
pub mod transport;
pub mod units;
