//! Decodes a message by the protocol of its topic.

use bumpalo::Bump;

use super::device_protocol::DeviceProtocol;
use super::message::MessageVisitor;
use super::topic::DeviceTopic;
use super::{jetlinks, native, relay, thingsboard};
use crate::json_scanner::PayloadError;

/// Decodes a message and passes its content to the visitor.
///
/// # Errors
/// If the payload does not conform to the protocol; discard what the visitor has received until then.
#[inline]
pub fn decode_message<'a>(
    route: &DeviceTopic<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> Result<(), PayloadError> {
    match route.protocol {
        DeviceProtocol::ThingsBoard => thingsboard::read(route.kind, payload, arena, visitor),
        DeviceProtocol::JetLinks => jetlinks::read(route.kind, payload, arena, visitor),
        DeviceProtocol::Native => native::read(route.kind, payload, arena, visitor),
        DeviceProtocol::Relay => relay::read(route.kind, payload, arena, visitor),
    }
}
