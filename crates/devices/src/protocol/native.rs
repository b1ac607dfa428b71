//! Decodes messages on Tidegate's own topics, in JSON or CBOR. The first byte identifies CBOR: no JSON text
//! begins with it.

use bumpalo::Bump;

use super::cbor;
use super::message::{AttributeSelection, ControlMessage, DeviceReply, MessageVisitor};
use super::thingsboard::{
    decode_records, for_each_member, json_or_text, read_object, read_optional_text,
};
use super::topic::{ReplyKind, TopicKind};
use crate::json_scanner::{JsonCursor, PayloadError, RawValue, ScanResult};

pub(super) fn read<'a>(
    kind: TopicKind<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> Result<(), PayloadError> {
    let is_cbor = cbor::is_cbor(payload);
    if kind == TopicKind::Telemetry {
        if is_cbor {
            return cbor::decode_records(payload, arena, visitor);
        }
        let mut cursor = JsonCursor::from_bytes(payload)?;
        decode_records(&mut cursor, arena, visitor)?;
        return cursor.expect_end();
    }
    // Everything else is rare: CBOR is converted to the equivalent JSON.
    let payload = match is_cbor {
        true => cbor::to_json(payload, arena)?.as_bytes(),
        false => payload,
    };
    let mut cursor = JsonCursor::from_bytes(payload)?;
    let control_message = match kind {
        TopicKind::Attributes => ControlMessage::Attributes {
            json: read_object(&mut cursor)?,
        },
        TopicKind::AttributesRequest(id) => read_attributes_request(id, &mut cursor, arena)?,
        TopicKind::Event(id) => {
            let data_json = json_or_text(payload, arena)?.unwrap_or("null");
            visitor.visit_control_message(ControlMessage::Event {
                id,
                ts_ms: None,
                data_json,
            });
            return Ok(());
        }
        TopicKind::Reply(to, id) => {
            let reply = read_reply(to, id, payload, arena)?;
            visitor.visit_control_message(reply);
            return Ok(());
        }
        TopicKind::RpcRequest(id) => {
            let mut method = None;
            let mut params_json = "null";
            for_each_member(&mut cursor, arena, |cursor, name| {
                match name {
                    "method" => method = read_optional_text(cursor, arena)?,
                    "params" => params_json = super::thingsboard::read_json(cursor)?,
                    _ => cursor.skip()?,
                }
                Ok(())
            })?;
            let Some(method) = method else {
                return cursor.error("an object with a method");
            };
            ControlMessage::RpcRequest {
                id,
                method,
                params_json,
            }
        }
        TopicKind::Online | TopicKind::Offline => {
            visitor.visit_control_message(match kind {
                TopicKind::Online => ControlMessage::Online,
                _ => ControlMessage::Offline,
            });
            return Ok(());
        }
        // No other topic of this protocol has a route.
        _ => return Ok(()),
    };
    cursor.expect_end()?;
    visitor.visit_control_message(control_message);
    Ok(())
}

/// `{"client": "a,b", "shared": true}`; an empty payload requests all attributes.
fn read_attributes_request<'a>(
    id: &'a str,
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
) -> ScanResult<ControlMessage<'a>> {
    let (mut client, mut shared) = (AttributeSelection::None, AttributeSelection::None);
    if cursor.peek().is_none() {
        (client, shared) = (AttributeSelection::All, AttributeSelection::All);
    } else {
        for_each_member(cursor, arena, |cursor, name| {
            let before = cursor.clone();
            let wanted = match cursor.value(arena)? {
                RawValue::Text(keys) => AttributeSelection::Keys(keys),
                RawValue::Bool(true) => AttributeSelection::All,
                RawValue::Bool(false) | RawValue::Null => AttributeSelection::None,
                _ => return before.error("keys separated by commas, or true for all"),
            };
            match name {
                "client" => client = wanted,
                "shared" => shared = wanted,
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(ControlMessage::AttributesRequest { id, client, shared })
}

/// `{"success": false, "code", "message"}` or `{"success": true, "data"}`; any other content is the result
/// itself.
fn read_reply<'a>(
    to: ReplyKind,
    id: Option<&'a str>,
    payload: &'a [u8],
    arena: &'a Bump,
) -> ScanResult<ControlMessage<'a>> {
    let mut replied = DeviceReply {
        to,
        id,
        is_success: true,
        body_json: json_or_text(payload, arena)?,
        code: None,
        message: None,
    };
    let mut cursor = JsonCursor::from_bytes(payload)?;
    if cursor.peek() == Some(b'{') {
        let (mut says_success, mut data) = (false, None);
        let read = for_each_member(&mut cursor, arena, |cursor, name| {
            match name {
                "success" => {
                    says_success = true;
                    replied.is_success = cursor.value(arena)? == RawValue::Bool(true);
                }
                "data" => data = Some(super::thingsboard::read_json(cursor)?),
                "code" => replied.code = read_optional_text(cursor, arena)?,
                "message" => replied.message = read_optional_text(cursor, arena)?,
                _ => cursor.skip()?,
            }
            Ok(())
        });
        if read.is_ok() && says_success {
            replied.body_json = data;
        }
    }
    Ok(ControlMessage::Reply(replied))
}
