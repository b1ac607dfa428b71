//! Links on tokio: any byte stream is a carrier.

mod carrier;
mod carrier_task;
mod connector;
mod link;
mod listener;
mod memory;
mod slice_queue;
mod stream;

pub use carrier::Carrier;
pub use carrier_task::CarrierError;
pub use connector::{ConnectOptions, connect};
pub use link::{Link, LinkError};
pub use listener::{AcceptedLink, AdmittedCarrier, Decision, LinkListener, PendingLink};
pub use memory::{MemoryNetwork, NetworkConditions};
pub use stream::{IncomingStream, OutgoingStream};
