//! Numbers of the streams of a client.

/// The control stream is 0, data streams are numbered in the order in which they are opened.
pub(super) type StreamNumber = u32;

pub(super) const CONTROL_STREAM: StreamNumber = 0;
