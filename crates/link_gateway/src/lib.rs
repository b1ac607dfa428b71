//! Link listeners of a node: their peers log in as clients of MQTT do, publish messages, and send and receive files.
//!
//! Each carrier is a connection of a client of the broker. The gateway logs the client in through a
//! [`broker::GatewayListener`], so that authentication, bans, limits, permissions and presence are those of all clients.
//! A message is published over that connection, and acknowledged on the link when the broker has acknowledged it. A message
//! for the peer is acknowledged to the broker when the peer has acknowledged it. Files pass [`transfer::FileService`]
//! directly: what is acknowledged survives a kill of the node.

mod attached_client;
mod broker_client;
mod carriers;
mod deliveries;
mod downloads;
pub mod exchange;
mod gateway;
mod identity;
mod link_logins;
mod link_server;
mod metrics;
mod outgoing_files;
mod publications;
mod settings;
mod shared;
mod subscriptions;
mod uploads;

pub use gateway::{GatewayParts, LinkGateway};
pub use settings::LinkSettings;
