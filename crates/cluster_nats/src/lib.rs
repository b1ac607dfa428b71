//! The nodes of a cluster connected by NATS servers with JetStream: [`cluster::MemberEntries`], [`cluster::ClusterObjects`] and
//! [`cluster::NodeLinks`].
//!
//! - [`NatsFabric`] connects to servers and restores its connections.
//! - [`ManagedNats`] starts a server as a child process, and starts it again when it ends.
//!
//! Nothing here ends the process or a connection of a client: without servers, requests return
//! [`cluster::ClusterError::Unreachable`], and watches continue when there are servers again.

mod bucket;
mod bucket_watch;
mod client;
mod connection;
mod fabric;
mod links;
mod managed;
mod members;
mod objects;
mod settings;
mod status;
mod version;

pub use fabric::NatsFabric;
pub use links::NatsLinks;
pub use managed::{
    FormerNatsServer, ManagedNats, ManagedNatsError, ManagedNatsSettings, ManagedNatsState,
    ManagedNatsStatus, ManagedNatsTls, NatsServer, NatsServerMonitor, NatsSync,
};
pub use members::NatsMembers;
pub use objects::NatsObjects;
pub use settings::{NatsAuth, NatsIdentity, NatsSettings, NatsSettingsError, NatsTls};
pub use status::{NatsState, NatsStatus};
pub use version::{MIN_SERVER_VERSION, ServerVersion};
