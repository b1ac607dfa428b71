//! Device protocols: decode the messages of devices, and encode messages to them. Pure functions of topic and
//! payload; identity and authorization of the device are handled elsewhere.
//!
//! A message is decoded in one pass. The decoder passes its values to a [`MessageVisitor`] as it reads them,
//! without an intermediate structure.

mod cbor;
mod decode;
mod device_protocol;
mod downlink;
mod jetlinks;
mod message;
mod native;
mod relay;
mod thingsboard;
mod topic;

#[cfg(test)]
mod tests;

pub use crate::json_scanner::{PayloadError, RawValue};
pub use decode::decode_message;
pub use device_protocol::{DeviceProtocol, DeviceProtocols};
pub use downlink::{DownlinkMessage, DownlinkTarget, UnsupportedDownlinkError, encode_downlink};
pub use message::{
    AttributeSelection, ControlMessage, DeviceReply, KeySlot, MessageVisitor, RowInfo,
};
pub use topic::{
    DeviceTopic, DownlinkTopic, FIRST_TOPIC_BYTES, GatewayTopic, ReplyKind, TopicKind,
    carries_telemetry, is_about_children, is_firmware_downlink, may_be_device_topic,
    parse_device_topic, parse_downlink_topic, relay_ack_topic, relay_data_topic,
};
