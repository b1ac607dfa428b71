//! MQTT 3.1, 3.1.1 and 5.0: packets, their codec, topic names and filters.
//!
//! Sans-io: bytes in, packets out; no sockets, no clock. Decoding borrows from the input and allocates nothing.
//! [`split_frame`] finds one complete packet at the front of a buffer, [`Packet::decode`] reads it,
//! [`Packet::encode`] writes one. Malformed packets and protocol errors are reported as an [`Error`] with the
//! reason code of MQTT 5.0 section 2.4.

mod ack;
mod auth;
mod byte_scan;
mod connack;
mod connect;
mod disconnect;
mod error;
mod frame;
mod packet;
mod properties;
mod publish;
mod reader;
mod subscribe;
#[cfg(test)]
mod test_support;
mod topic;
mod types;
mod unsubscribe;
mod varint;

pub use ack::Ack;
pub use auth::Auth;
pub use connack::{ConnAck, v3_return_code};
pub use connect::{Connect, Will};
pub use disconnect::Disconnect;
pub use error::{Error, ReasonCode};
pub use frame::{Frame, frame_len, split_frame};
pub use packet::Packet;
pub use properties::{Properties, PropertiesBuf, Property};
pub use publish::Publish;
pub use subscribe::{
    SubAck, Subscribe, SubscribeBuf, SubscribeFilter, SubscribeFilters, SubscriptionOptions,
};
pub use topic::{
    SubscriptionFilter, TopicError, TopicLimits, filter_matches, has_wildcards, levels,
    parse_filter, validate_topic_filter, validate_topic_name,
};
pub use types::{Direction, PacketType, QoS, Version};
pub use unsubscribe::{UnsubAck, Unsubscribe, UnsubscribeBuf, UnsubscribeFilters};
pub use varint::{MAX_VARINT, decode_varint, encode_varint, varint_len};
