//! Decodes messages of devices and gateways in ThingsBoard's device API.

use bumpalo::Bump;

use super::message::{
    AttributeSelection, ControlMessage, DeviceReply, MessageVisitor, NO_KEY_POSITION, RowInfo,
};
use super::topic::{GatewayTopic, ReplyKind, TopicKind};
use crate::json_scanner::{JsonCursor, PayloadError, RawValue, ScanResult};

pub(super) fn read<'a>(
    kind: TopicKind<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> Result<(), PayloadError> {
    let mut cursor = JsonCursor::from_bytes(payload)?;
    match kind {
        TopicKind::Telemetry => decode_records(&mut cursor, arena, visitor)?,
        TopicKind::Attributes => {
            let json = read_object(&mut cursor)?;
            visitor.visit_control_message(ControlMessage::Attributes { json });
        }
        TopicKind::AttributesRequest(id) => {
            let (client, shared) = read_requested_keys(&mut cursor, arena)?;
            visitor.visit_control_message(ControlMessage::AttributesRequest { id, client, shared });
        }
        TopicKind::RpcRequest(id) => {
            let (method, params_json) = read_rpc_call(&mut cursor, arena)?;
            visitor.visit_control_message(ControlMessage::RpcRequest {
                id,
                method,
                params_json,
            });
        }
        TopicKind::Reply(to, id) => {
            let body_json = json_or_text(payload, arena)?;
            visitor.visit_control_message(ControlMessage::Reply(DeviceReply {
                to,
                id,
                is_success: true,
                body_json,
                code: None,
                message: None,
            }));
            return Ok(());
        }
        TopicKind::Claim => {
            let claim = read_claim(&mut cursor, arena)?;
            visitor.visit_control_message(claim);
        }
        TopicKind::Provision => {
            let json = read_object(&mut cursor)?;
            visitor.visit_control_message(ControlMessage::Provision { json });
        }
        TopicKind::Gateway(what) => decode_gateway_message(what, &mut cursor, arena, visitor)?,
        // No other topic of this protocol has a route.
        _ => {}
    }
    cursor.expect_end()
}

/// One record, or an array of them.
pub(super) fn decode_records<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    if cursor.peek() != Some(b'[') {
        return decode_record(cursor, arena, visitor);
    }
    if !cursor.enter_container(b'[', "an array")? {
        return Ok(());
    }
    loop {
        decode_record(cursor, arena, visitor)?;
        if !cursor.has_next_member(b'[')? {
            return Ok(());
        }
    }
}

/// `{"key": value, ..}`, or the same with a time: `{"ts": .., "values": {..}}`.
fn decode_record<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    let start = cursor.clone();
    if !cursor.enter_container(b'{', "an object of keys and values, or an array of them")? {
        return Ok(());
    }
    let (mut place, mut is_plain) = (0, false);
    loop {
        let slot = match visitor.predict_key(place, cursor.rest()) {
            Some((length, slot)) => {
                cursor.advance(length);
                cursor.skip_whitespace();
                slot
            }
            None => {
                let from = cursor.offset();
                let name = cursor.member_name(arena)?;
                let may_be_timed = matches!(name, "ts" | "values");
                if may_be_timed && !is_plain {
                    if is_timed(start.clone(), arena)? {
                        visitor.discard_row();
                        *cursor = start;
                        return decode_timed_record(cursor, arena, visitor);
                    }
                    is_plain = true;
                }
                let place = if may_be_timed { NO_KEY_POSITION } else { place };
                visitor.resolve_key(place, cursor.text_since(from).as_bytes(), name)
            }
        };
        visitor.visit_value(slot, cursor.value(arena)?);
        place += 1;
        if !cursor.has_next_member(b'{')? {
            visitor.finish_row(RowInfo::with_timestamp(None));
            return Ok(());
        }
    }
}

/// Whether the object has both members, `ts` and `values`.
fn is_timed<'a>(mut cursor: JsonCursor<'a>, arena: &'a Bump) -> ScanResult<bool> {
    let (mut has_ts, mut has_values) = (false, false);
    let mut has_more = cursor.enter_container(b'{', "an object")?;
    while has_more {
        match cursor.member_name(arena)? {
            "ts" => has_ts = true,
            "values" => has_values = cursor.peek() == Some(b'{'),
            _ => {}
        }
        if has_ts && has_values {
            return Ok(true);
        }
        cursor.skip()?;
        has_more = cursor.has_next_member(b'{')?;
    }
    Ok(false)
}

fn decode_timed_record<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    let mut ts_ms = None;
    cursor.enter_container(b'{', "an object")?;
    loop {
        match cursor.member_name(arena)? {
            "ts" => ts_ms = Some(read_time(cursor, arena)?),
            "values" => decode_values(cursor, arena, visitor)?,
            _ => cursor.skip()?,
        }
        if !cursor.has_next_member(b'{')? {
            visitor.finish_row(RowInfo::with_timestamp(ts_ms));
            return Ok(());
        }
    }
}

/// Milliseconds since 1970, as a number or a text of digits.
pub(super) fn read_time<'a>(cursor: &mut JsonCursor<'a>, arena: &'a Bump) -> ScanResult<i64> {
    let before = cursor.clone();
    match cursor.value(arena)? {
        RawValue::Int(ts_ms) => Ok(ts_ms),
        RawValue::Float(ts_ms) if ts_ms.abs() < 1e15 => Ok(ts_ms as i64),
        RawValue::Text(text) => match text.parse() {
            Ok(ts_ms) => Ok(ts_ms),
            Err(_) => before.error("a time in milliseconds since 1970"),
        },
        _ => before.error("a time in milliseconds since 1970"),
    }
}

/// The members of an object of keys and values.
#[inline]
pub(super) fn decode_values<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    if !cursor.enter_container(b'{', "an object of keys and values")? {
        return Ok(());
    }
    let mut place = 0;
    loop {
        let slot = match visitor.predict_key(place, cursor.rest()) {
            Some((length, slot)) => {
                cursor.advance(length);
                cursor.skip_whitespace();
                slot
            }
            None => {
                let from = cursor.offset();
                let name = cursor.member_name(arena)?;
                visitor.resolve_key(place, cursor.text_since(from).as_bytes(), name)
            }
        };
        visitor.visit_value(slot, cursor.value(arena)?);
        place += 1;
        if !cursor.has_next_member(b'{')? {
            return Ok(());
        }
    }
}

/// The validated text of an object.
pub(super) fn read_object<'a>(cursor: &mut JsonCursor<'a>) -> ScanResult<&'a str> {
    if cursor.peek() != Some(b'{') {
        return cursor.error("an object");
    }
    read_json(cursor)
}

/// The validated text of a value.
pub(super) fn read_json<'a>(cursor: &mut JsonCursor<'a>) -> ScanResult<&'a str> {
    let start = cursor.offset();
    cursor.skip()?;
    Ok(cursor.text_since(start))
}

/// The payload if it is JSON, otherwise a JSON string of its text; `None` if it is empty.
pub(super) fn json_or_text<'a>(payload: &'a [u8], arena: &'a Bump) -> ScanResult<Option<&'a str>> {
    let mut cursor = JsonCursor::from_bytes(payload)?;
    if cursor.peek().is_none() {
        return Ok(None);
    }
    let start = cursor.offset();
    if cursor.skip().is_ok() {
        let json = cursor.text_since(start);
        if cursor.expect_end().is_ok() {
            return Ok(Some(json));
        }
    }
    let text = String::from_utf8_lossy(payload);
    let quoted = serde_json::Value::from(text).to_string();
    Ok(Some(arena.alloc_str(&quoted)))
}

/// A text, or nothing for other values.
pub(super) fn read_optional_text<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
) -> ScanResult<Option<&'a str>> {
    let before = cursor.clone();
    Ok(match cursor.value(arena)? {
        RawValue::Text(text) => Some(text),
        RawValue::Null => None,
        RawValue::Int(_) | RawValue::Float(_) | RawValue::Bool(_) => {
            let mut again = before.clone();
            Some(read_json(&mut again)?)
        }
        RawValue::Json(_) => return before.error("a text"),
    })
}

/// Calls `each` with the name of each member; `each` reads the value.
pub(super) fn for_each_member<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    mut each: impl FnMut(&mut JsonCursor<'a>, &'a str) -> ScanResult<()>,
) -> ScanResult<()> {
    let mut has_more = cursor.enter_container(b'{', "an object")?;
    while has_more {
        let name = cursor.member_name(arena)?;
        each(cursor, name)?;
        has_more = cursor.has_next_member(b'{')?;
    }
    Ok(())
}

/// Names in an array or in one text, separated by commas.
fn read_key_list<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
) -> ScanResult<AttributeSelection<'a>> {
    if cursor.peek() != Some(b'[') {
        return Ok(read_optional_text(cursor, arena)?
            .map_or(AttributeSelection::All, AttributeSelection::Keys));
    }
    let mut names = bumpalo::collections::String::new_in(arena);
    let mut has_more = cursor.enter_container(b'[', "an array")?;
    while has_more {
        if !names.is_empty() {
            names.push(',');
        }
        names.push_str(read_optional_text(cursor, arena)?.unwrap_or_default());
        has_more = cursor.has_next_member(b'[')?;
    }
    Ok(AttributeSelection::Keys(names.into_bump_str()))
}

/// Requested client and shared attributes. A request without keys asks for all of both.
fn read_requested_keys<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
) -> ScanResult<(AttributeSelection<'a>, AttributeSelection<'a>)> {
    let (mut client, mut shared) = (AttributeSelection::None, AttributeSelection::None);
    for_each_member(cursor, arena, |cursor, name| {
        match name {
            "clientKeys" => client = read_key_list(cursor, arena)?,
            "sharedKeys" => shared = read_key_list(cursor, arena)?,
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    Ok(match (client, shared) {
        (AttributeSelection::None, AttributeSelection::None) => {
            (AttributeSelection::All, AttributeSelection::All)
        }
        requested => requested,
    })
}

fn read_rpc_call<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
) -> ScanResult<(&'a str, &'a str)> {
    let before = cursor.clone();
    let (mut method, mut params) = (None, "null");
    for_each_member(cursor, arena, |cursor, name| {
        match name {
            "method" => method = read_optional_text(cursor, arena)?,
            "params" => params = read_json(cursor)?,
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    match method {
        Some(method) => Ok((method, params)),
        None => before.error("an object with a method"),
    }
}

fn read_claim<'a>(cursor: &mut JsonCursor<'a>, arena: &'a Bump) -> ScanResult<ControlMessage<'a>> {
    let (mut secret, mut duration_ms) = (None, None);
    if cursor.peek().is_some() {
        for_each_member(cursor, arena, |cursor, name| {
            match name {
                "secretKey" => secret = read_optional_text(cursor, arena)?,
                "durationMs" => duration_ms = Some(read_time(cursor, arena)?),
                _ => cursor.skip()?,
            }
            Ok(())
        })?;
    }
    Ok(ControlMessage::Claim {
        secret,
        duration_ms,
    })
}

fn decode_gateway_message<'a>(
    what: GatewayTopic,
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    match what {
        GatewayTopic::Telemetry => for_each_member(cursor, arena, |cursor, name| {
            match visitor.enter_device(Some(name)) {
                true => decode_records(cursor, arena, visitor),
                false => cursor.skip(),
            }
        }),
        GatewayTopic::Attributes => for_each_member(cursor, arena, |cursor, name| {
            let json = read_object(cursor)?;
            if visitor.enter_device(Some(name)) {
                visitor.visit_control_message(ControlMessage::Attributes { json });
            }
            Ok(())
        }),
        GatewayTopic::Claim => for_each_member(cursor, arena, |cursor, name| {
            let claim = read_claim(cursor, arena)?;
            if visitor.enter_device(Some(name)) {
                visitor.visit_control_message(claim);
            }
            Ok(())
        }),
        GatewayTopic::Connect | GatewayTopic::Disconnect => {
            let about = GatewayItem::read(cursor, arena)?;
            if visitor.enter_device(Some(about.device)) {
                visitor.visit_control_message(match what {
                    GatewayTopic::Connect => ControlMessage::Connected {
                        product: about.product,
                    },
                    _ => ControlMessage::Disconnected,
                });
            }
            Ok(())
        }
        GatewayTopic::AttributesRequest => {
            let about = GatewayItem::read(cursor, arena)?;
            let (client, shared) = match about.is_client {
                true => (about.keys, AttributeSelection::None),
                false => (AttributeSelection::None, about.keys),
            };
            let Some(id) = about.id else {
                return cursor.error("an object with an id");
            };
            if visitor.enter_device(Some(about.device)) {
                visitor.visit_control_message(ControlMessage::AttributesRequest {
                    id,
                    client,
                    shared,
                });
            }
            Ok(())
        }
        GatewayTopic::Rpc => {
            let about = GatewayItem::read(cursor, arena)?;
            if visitor.enter_device(Some(about.device)) {
                visitor.visit_control_message(ControlMessage::Reply(DeviceReply {
                    to: ReplyKind::Rpc,
                    id: about.id,
                    is_success: true,
                    body_json: about.data,
                    code: None,
                    message: None,
                }));
            }
            Ok(())
        }
    }
}

/// A gateway's entry about one device.
struct GatewayItem<'a> {
    device: &'a str,
    product: Option<&'a str>,
    id: Option<&'a str>,
    data: Option<&'a str>,
    is_client: bool,
    keys: AttributeSelection<'a>,
}

impl<'a> GatewayItem<'a> {
    fn read(cursor: &mut JsonCursor<'a>, arena: &'a Bump) -> ScanResult<Self> {
        let before = cursor.clone();
        let mut about = Self {
            device: "",
            product: None,
            id: None,
            data: None,
            is_client: false,
            keys: AttributeSelection::All,
        };
        for_each_member(cursor, arena, |cursor, name| {
            match name {
                "device" => about.device = read_optional_text(cursor, arena)?.unwrap_or_default(),
                "type" => about.product = read_optional_text(cursor, arena)?,
                "id" => about.id = read_optional_text(cursor, arena)?,
                "data" => about.data = Some(read_json(cursor)?),
                "client" => about.is_client = cursor.value(arena)? == RawValue::Bool(true),
                "key" | "keys" => about.keys = read_key_list(cursor, arena)?,
                _ => cursor.skip()?,
            }
            Ok(())
        })?;
        match about.device.is_empty() {
            true => before.error("an object with a device"),
            false => Ok(about),
        }
    }
}
