//! The sans-io core of a shard. Input: bytes and the time. Output: bytes and messages to other shards. It uses no
//! socket, no clock and no async code.
//!
//! State is in state machines that document their contract on their type. [`shard::Shard`] orchestrates them, in one file
//! for each kind of input; the head of such a file names the state machines that it uses.

pub(crate) mod ack_watchers;
pub(crate) mod acknowledgements;
pub(crate) mod adoption;
pub(crate) mod announcements;
pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod connack;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod connection_deadlines;
pub(crate) mod control_plane;
pub(crate) mod cross_shard_batch;
pub(crate) mod delivery;
pub(crate) mod derived_messages;
pub(crate) mod derived_queue;
pub(crate) mod directory;
pub(crate) mod dispatch;
pub(crate) mod drain;
pub(crate) mod encoding;
pub(crate) mod handover;
pub(crate) mod inspection;
mod interest_snapshot;
pub(crate) mod journal;
pub(crate) mod lifecycle;
pub(crate) mod message;
mod message_drops;
pub(crate) mod message_info;
pub(crate) mod node;
mod node_batches;
mod node_interest;
pub(crate) mod node_messages;
pub(crate) mod node_router;
mod numbered_publications;
pub(crate) mod outbox;
mod packet_input;
pub(crate) mod partial_packet_budget;
pub(crate) mod partial_packets;
pub(crate) mod peer_loss;
mod peer_node;
pub(crate) mod peer_node_ix;
mod pending_claims;
pub(crate) mod pending_responses;
pub(crate) mod pending_suback;
pub(crate) mod persistence;
pub(crate) mod protocol_detection;
pub(crate) mod publish;
pub(crate) mod pump;
pub(crate) mod queue_control;
pub(crate) mod records;
pub(crate) mod recovery;
mod redelivery;
mod redistribution;
pub(crate) mod relay;
pub(crate) mod relay_backlog;
mod relay_delivery;
pub(crate) mod relay_peer;
pub(crate) mod retained_delivery;
pub(crate) mod retained_store;
mod retained_transfer;
pub(crate) mod retained_versions;
pub(crate) mod routing;
pub(crate) mod session;
mod session_claims;
pub(crate) mod session_directory;
pub(crate) mod session_filter;
pub(crate) mod session_queue;
pub(crate) mod shard;
pub(crate) mod shard_messages;
pub(crate) mod shared_backlog;
pub(crate) mod shared_subscription;
pub(crate) mod stored_reads;
pub(crate) mod subscribe;
pub(crate) mod subscriber_list;
pub(crate) mod subscription_tree;
pub(crate) mod succession;
pub(crate) mod tables;
pub(crate) mod timers;
pub(crate) mod tunnel;
mod tunnel_entry;
pub(crate) mod unsubscribe;

#[cfg(test)]
mod tests;
