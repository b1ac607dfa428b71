//! Tests of the core without sockets: shards in memory, messages between them delivered when the test says so.

mod bounds;
mod cluster_sim;
mod cross_shard_batches;
mod deadlines;
mod deferred_acks;
mod derived_messages;
mod drain;
mod exactly_once;
mod grants;
mod inspection;
mod journal;
mod matching;
mod node_retained_messages;
mod node_sessions;
mod nodes;
mod numbered_publications;
mod partial_packets;
mod qos;
mod relay;
mod relay_backlog;
mod remote_filter_figures;
mod remote_interest;
mod scaling;
mod shards;
mod sim;
mod successions;
