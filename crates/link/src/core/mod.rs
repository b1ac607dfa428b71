//! The state machine of one end of a link, without I/O.

mod carrier;
mod carrier_backlog;
mod chunk_size;
mod credit;
mod handshake;
mod incoming_lane;
mod incoming_stream;
mod link_core;
mod outgoing_lane;
mod outgoing_stream;
mod receiving;
mod scheduler;
mod sending;
mod transmission;

pub use incoming_stream::{Chunk, StreamRead};
pub use link_core::{
    CoreStatistics, IncomingStreamInfo, LinkCore, LinkEvent, LinkStateRecord, NewStream,
    OutgoingStreamState, SendError,
};
pub use outgoing_stream::StreamError;
