//! Relay endpoints: rooms of WebSocket connections in which every message of one connection goes to all others.
//!
//! An endpoint is a configuration object ([`EndpointDefinition`]) with an id. Its clients connect to `/ws/{id}`. The broker
//! carries the connections and the messages ([`hooks::relay`]). This crate decides who may connect, in which form
//! receivers get messages ([`RelayMode`]), keeps the last messages and counts. Messages of devices are recognised here and
//! passed to the device platform ([`RelayDevices`]). Everything works on the shards' threads without blocking;
//! [`StoredStatistics::write_changed`] is called from another thread.

mod access_key;
mod client;
mod definition;
mod device_messages;
mod devices;
mod endpoint;
mod envelope;
mod events;
mod message_batch;
mod message_history;
mod owner_ban;
mod service;
mod statistics;
mod store;
mod system_message;
mod units;

pub use crate::store::{StoredStatistics, open_endpoints};
pub use access_key::AccessKeyHash;
pub use definition::{
    DEFAULT_MAX_BACKLOG_BYTES, EndpointDefinition, EndpointError, KIND, MAX_ENDPOINTS, RelayMode,
    SlowReceivers,
};
pub use device_messages::{DeviceRequest, Identity, RequestError};
pub use devices::{DeviceConnection, DeviceMessage, RelayDevices};
pub use endpoint::{ConnectionSummary, EndpointStatus};
pub use events::RelayEvents;
pub use message_history::{HistoryEntry, HistoryPayload};
pub use owner_ban::OwnerBan;
pub use service::RelayService;
pub use statistics::EndpointStatistics;
