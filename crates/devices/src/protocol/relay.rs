//! Decodes messages of devices on connections of relay endpoints.

use bumpalo::Bump;

use super::message::{ControlMessage, DeviceReply, MessageVisitor, NO_KEY_POSITION, RowInfo};
use super::thingsboard::{
    decode_values, for_each_member, read_json, read_optional_text, read_time,
};
use super::topic::{ReplyKind, TopicKind};
use crate::json_scanner::{JsonCursor, PayloadError, ScanResult};

pub(super) fn read<'a>(
    kind: TopicKind<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> Result<(), PayloadError> {
    let mut cursor = JsonCursor::from_bytes(payload)?;
    match kind {
        TopicKind::Telemetry => decode_data(&mut cursor, arena, visitor)?,
        TopicKind::Reply(to, _) => {
            let reply = read_ack(to, &mut cursor, arena)?;
            visitor.visit_control_message(ControlMessage::Reply(reply));
        }
        // No other topic of this protocol has a route.
        _ => {}
    }
    cursor.expect_end()
}

/// Data in one of three forms: `{"type":"data","data":{..},"timestamp"?}`, the same without `type`, or an object of
/// keys and values. A `timestamp` that is no number applies to nothing: clients also send it as readable text.
fn decode_data<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    let start = cursor.clone();
    let (mut data, mut ts_ms, mut has_type) = (None, None, false);
    for_each_member(cursor, arena, |cursor, name| {
        match name {
            "data" => data = Some(cursor.clone()),
            "timestamp" => ts_ms = read_time(&mut cursor.clone(), arena).ok(),
            "type" => has_type = true,
            _ => {}
        }
        cursor.skip()
    })?;
    match data {
        Some(mut data) if has_type || data.peek() == Some(b'{') => {
            decode_values(&mut data, arena, visitor)?;
        }
        _ => decode_plain_object(start, arena, visitor)?,
    }
    visitor.finish_row(RowInfo::with_timestamp(ts_ms));
    Ok(())
}

fn decode_plain_object<'a>(
    mut cursor: JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    for_each_member(&mut cursor, arena, |cursor, name| {
        if matches!(name, "type" | "timestamp") {
            return cursor.skip();
        }
        let slot = visitor.resolve_key(NO_KEY_POSITION, b"", name);
        visitor.visit_value(slot, cursor.value(arena)?);
        Ok(())
    })
}

/// `{"type":"control_ack","status":"success"|"failed","commandId"?,"message"?,"data"?}`
fn read_ack<'a>(
    to: ReplyKind,
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
) -> ScanResult<DeviceReply<'a>> {
    let mut status = None;
    let mut reply = DeviceReply {
        to,
        id: None,
        is_success: false,
        body_json: None,
        code: None,
        message: None,
    };
    let start = cursor.clone();
    for_each_member(cursor, arena, |cursor, name| {
        match name {
            "status" => status = read_optional_text(cursor, arena)?,
            "commandId" => reply.id = read_optional_text(cursor, arena)?,
            "message" => reply.message = read_optional_text(cursor, arena)?,
            "data" => reply.body_json = Some(read_json(cursor)?),
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    reply.is_success = match status {
        Some("success") => true,
        Some("failed") => false,
        _ => return start.error("an object with the status success or failed"),
    };
    Ok(reply)
}
