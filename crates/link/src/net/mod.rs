//! Links on tokio: any byte stream is a carrier.

mod carrier;
mod carrier_task;
mod connector;
mod journal_directory;
mod link;
mod link_journal;
mod listener;
mod memory;
mod piece_buffers;
mod slice_queue;
mod stream;

pub use carrier::Carrier;
pub use carrier_task::CarrierError;
pub use connector::{ConnectOptions, connect, connect_with_journal};
pub use link::{Link, LinkError};
pub use listener::{AcceptedLink, AdmittedCarrier, LinkDecision, LinkListener, PendingLink};
pub use memory::{MemoryNetwork, NetworkConditions};
pub use piece_buffers::PieceBuffers;
pub use stream::{IncomingStream, OutgoingStream};
