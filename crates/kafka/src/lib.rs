//! Kafka client: a producer that keeps the order of each partition and recognises messages that are passed again, and a
//! consumer, alone or as a member of a group.
//!
//! A [`KafkaCluster`] holds metadata and connections. A [`Producer`] sends the messages of a [`WriteTicket`], which collects
//! the result of each. A [`PartitionFetcher`] reads partitions, which a [`GroupMember`] may assign.
//!
//! The usual clients reconnect by themselves, cannot report which messages of a batch failed, and cannot recognise
//! messages that the caller retries.

mod cluster;
mod compression;
mod connection;
mod consumer_group;
mod error;
mod fetcher;
mod in_flight;
mod options;
mod partitioning;
mod producer;
mod protocol;
mod record;
mod sasl;

pub use cluster::{KafkaCluster, TopicError};
pub use compression::Compression;
pub use consumer_group::{ConsumerGroup, GroupMember, MembershipChange, count_partitions};
pub use error::KafkaError;
pub use fetcher::{
    FetchedMessages, IsolationLevel, PartitionFetcher, PartitionOffsets, PartitionRecords,
    StartPosition, TopicPartition,
};
pub use in_flight::{MessageId, WriteTicket};
pub use options::{KafkaConnectionOptions, SaslCredentials, SaslMechanism};
pub use partitioning::{Assignment, partition_for_key};
pub use producer::{OutgoingMessage, Producer, ProducerOptions};
pub use protocol::ErrorCode;
pub use record::{FetchedRecord, KafkaMessage};
