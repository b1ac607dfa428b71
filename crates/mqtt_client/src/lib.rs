//! The client side of MQTT 3.1, 3.1.1 and 5.0 without I/O: bytes in, events out, output in a buffer.
//!
//! The bridge (`connect`) and the command line (`tidegate pub`, `tidegate sub`) use it with a transport each. The load
//! generator (`bench`) has a loop of its own; the head of its `worker` module says why.
//!
//! Completes QoS 1 and 2 messages in both directions, resolves topic aliases and keeps to the broker's limits. The
//! state of incoming QoS 2 messages outlives a connection, so that a resumed session delivers them once.

mod session;
#[cfg(test)]
mod tests;

pub use session::{
    AckMode, AckResult, ClientSession, ConnackInfo, OutgoingMessage, PendingAck, ReceivedMessage,
    SessionEvent,
};
