//! The state of a session that outlives its connection: subscriptions, messages in flight in both directions, the
//! queue.

mod accepted_numbers;
mod outbound_messages;
mod packet_ids;

use hooks::Permissions;

use super::message::Message;
use super::origin_node::SessionAdoption;
use super::tables::{ConnectionIx, FilterId, GroupId};
use super::timers::SessionTimers;

pub(crate) use accepted_numbers::{AcceptedNumbers, PublicationNumber};
pub use accepted_numbers::{FIRST_NUMBERS_PROPERTY, NUMBER_PROPERTY, PUBLISHER_PROPERTY};
pub(crate) use outbound_messages::{
    AckOutcome, OutboundMessages, QueueFilter, QueueLimits, QueueRoom, QueueSize, SendWindow,
    SessionMessage, Transmit,
};
pub(crate) use packet_ids::PacketIdSet;

/// The will of the current or the last connection.
pub(crate) struct SessionWill {
    pub(crate) message: Message,
    pub(crate) delay_s: u32,
}

pub(crate) struct Session {
    /// Shared with the directory of the node.
    pub(crate) client_id: std::sync::Arc<str>,
    /// Number of the session in the store; 0: it is not stored.
    pub(crate) store_number: u64,
    /// Sequence number of the last message stored for it.
    pub(crate) last_seq: u64,
    /// Number in the key of its record in the store, if it has a record.
    pub(crate) record_number: Option<u64>,
    pub(crate) username: Option<Box<str>>,
    /// Permissions of its client, as granted at the last connect.
    pub(crate) permissions: Option<std::sync::Arc<dyn Permissions>>,
    /// The connection, if there is one.
    pub(crate) connection: Option<ConnectionIx>,
    /// Address of its last connection, if it has no connection.
    pub(crate) last_address: Option<Box<std::net::SocketAddr>>,
    /// Sorted; the positions of this session in the subscription tree.
    pub(crate) subscriptions: Vec<(FilterId, GroupId)>,
    /// Bytes that the subscriptions count for.
    pub(crate) subscription_bytes: u64,
    pub(crate) outbound: Option<Box<OutboundMessages>>,
    pub(crate) incoming_qos2: Option<Box<PacketIdSet>>,
    /// Of a session that this node has adopted from another one.
    pub(crate) adoption: Option<Box<SessionAdoption>>,
    /// Of a gateway that numbers its messages.
    pub(crate) accepted_numbers: Option<Box<AcceptedNumbers>>,
    pub(crate) will: Option<Box<SessionWill>>,
    pub(crate) expiry_s: u32,
    pub(crate) is_clean_start: bool,
    /// A mosquitto bridge before version 5: it receives none of its own messages, and retain flags are unchanged.
    pub(crate) is_bridge: bool,
    /// The connection belongs to a relay endpoint.
    pub(crate) is_relay: bool,
    /// The client wanted its earlier session, and got this one because not all nodes of the cluster had registered theirs.
    pub(crate) is_provisional: bool,
    /// It began in place of an earlier one of its client at this node, and the owner of the client id may not know it yet.
    pub(crate) is_replacement: bool,
    pub(crate) version: mqtt::Version,
    /// They run while the session has no connection.
    pub(crate) timers: SessionTimers,
    pub(crate) created_ms: u64,
    pub(crate) connected_ms: u64,
    pub(crate) disconnected_ms: u64,
    /// Why its last connection ended; `None` with a connection, and after a restart of the node.
    pub(crate) disconnect_reason: Option<&'static str>,
    pub(crate) messages_received: u64,
    pub(crate) messages_sent: u64,
    pub(crate) messages_dropped: u64,
}

impl Session {
    pub(crate) fn new(client_id: std::sync::Arc<str>, now_ms: u64) -> Self {
        Self {
            client_id,
            store_number: 0,
            last_seq: 0,
            record_number: None,
            username: None,
            permissions: None,
            connection: None,
            last_address: None,
            subscriptions: Vec::new(),
            subscription_bytes: 0,
            outbound: None,
            incoming_qos2: None,
            adoption: None,
            accepted_numbers: None,
            will: None,
            expiry_s: 0,
            is_clean_start: true,
            is_bridge: false,
            is_relay: false,
            is_provisional: false,
            is_replacement: false,
            version: mqtt::Version::V311,
            timers: SessionTimers::default(),
            created_ms: now_ms,
            connected_ms: now_ms,
            disconnected_ms: 0,
            disconnect_reason: None,
            messages_received: 0,
            messages_sent: 0,
            messages_dropped: 0,
        }
    }
}
