//! Decodes messages of devices and gateways in JetLinks' official protocol.

use bumpalo::Bump;

use super::message::{ControlMessage, DeviceReply, MessageVisitor, RowInfo};
use super::thingsboard::{
    decode_values, for_each_member, read_json, read_object, read_optional_text, read_time,
};
use super::topic::{ReplyKind, TopicKind};
use crate::json_scanner::{JsonCursor, PayloadError, RawValue, ScanResult};

pub(super) fn read<'a>(
    kind: TopicKind<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> Result<(), PayloadError> {
    if kind == TopicKind::Direct {
        // The payload has a proprietary format.
        visitor.visit_control_message(ControlMessage::Ignored { what: "direct" });
        return Ok(());
    }
    let mut cursor = JsonCursor::from_bytes(payload)?;
    if kind == TopicKind::Telemetry {
        decode_report(&mut cursor, arena, visitor)?;
        return cursor.expect_end();
    }
    // Some message types need no payload.
    if cursor.peek().is_none() {
        match kind {
            TopicKind::Online => visitor.visit_control_message(ControlMessage::Online),
            TopicKind::Offline => visitor.visit_control_message(ControlMessage::Offline),
            TopicKind::Unregister => visitor.visit_control_message(ControlMessage::Unregistered),
            TopicKind::TimeSync => {
                visitor.visit_control_message(ControlMessage::TimeSync { id: None })
            }
            _ => return cursor.error("an object"),
        }
        return Ok(());
    }
    let start = cursor.offset();
    let words = MessageFields::read(&mut cursor, arena)?;
    let whole = cursor.text_since(start);
    let missing = cursor.clone();
    cursor.expect_end()?;
    let control_message = match kind {
        TopicKind::Reply(to, _) => {
            // The reply to a property request is also a report.
            let is_report = matches!(to, ReplyKind::Read | ReplyKind::Write) && !words.has_failed;
            let properties = words.properties.filter(|json| json.starts_with('{'));
            if let Some(json) = properties.filter(|_| is_report) {
                decode_properties(json, &words, arena, visitor)?;
            }
            words.to_reply(to)
        }
        TopicKind::Event(id) => {
            if let Some(json) = words.data.filter(|_| words.reports_properties) {
                return decode_properties(json, &words, arena, visitor);
            }
            ControlMessage::Event {
                id,
                ts_ms: words.ts_ms,
                data_json: words.data.unwrap_or("null"),
            }
        }
        TopicKind::Online => ControlMessage::Online,
        TopicKind::Offline => ControlMessage::Offline,
        TopicKind::Register => ControlMessage::Registered {
            product: words.product,
            name: words.name,
            configuration_json: words.configuration,
        },
        TopicKind::Unregister => ControlMessage::Unregistered,
        TopicKind::TimeSync => ControlMessage::TimeSync {
            id: words.message_id,
        },
        TopicKind::Tags => match words.tags {
            Some(json) => ControlMessage::Tags { json },
            None => return missing.error("an object with tags"),
        },
        TopicKind::Log => ControlMessage::Log { json: whole },
        TopicKind::DerivedModel => ControlMessage::DerivedModel { json: whole },
        TopicKind::Firmware(step) => ControlMessage::Firmware { step, json: whole },
        // No other topic of this protocol has a route.
        _ => return Ok(()),
    };
    visitor.visit_control_message(control_message);
    Ok(())
}

/// `{"messageId", "timestamp", "properties": {..}, "headers": {"ignoreStorage", "ignoreLog"}}`
fn decode_report<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    let mut info = RowInfo::with_timestamp(None);
    let (mut has_properties, mut has_source_times) = (false, false);
    for_each_member(cursor, arena, |cursor, name| {
        match name {
            "properties" => {
                has_properties = true;
                decode_values(cursor, arena, visitor)?;
            }
            "timestamp" => info.ts_ms = read_timestamp(cursor, arena)?,
            "propertySourceTimes" => {
                has_source_times = cursor.peek() == Some(b'{');
                cursor.skip()?;
            }
            "headers" => read_headers(cursor, arena, |cursor, name| {
                match name {
                    "ignoreStorage" => info.is_stored = !read_bool(cursor, arena)?,
                    "ignoreLog" => info.is_logged = !read_bool(cursor, arena)?,
                    _ => cursor.skip()?,
                }
                Ok(())
            })?,
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    if !has_properties {
        return cursor.error("an object with properties");
    }
    visitor.finish_row(info);
    if has_source_times {
        let what = "propertySourceTimes";
        visitor.visit_control_message(ControlMessage::Ignored { what });
    }
    Ok(())
}

/// Properties in other messages than reports: version 1.0 sends them as events, and replies contain them.
fn decode_properties<'a>(
    json: &'a str,
    words: &MessageFields<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    decode_values(&mut JsonCursor::new(json), arena, visitor)?;
    visitor.finish_row(RowInfo {
        ts_ms: words.ts_ms,
        is_stored: !words.ignores_storage,
        is_logged: !words.ignores_log,
    });
    Ok(())
}

/// A time; `null` or 0 means none.
fn read_timestamp<'a>(cursor: &mut JsonCursor<'a>, arena: &'a Bump) -> ScanResult<Option<i64>> {
    let mut look = cursor.clone();
    if let RawValue::Null | RawValue::Int(0) = look.value(arena)? {
        *cursor = look;
        return Ok(None);
    }
    read_time(cursor, arena).map(Some)
}

fn read_bool<'a>(cursor: &mut JsonCursor<'a>, arena: &'a Bump) -> ScanResult<bool> {
    let value = cursor.value(arena)?;
    Ok(matches!(
        value,
        RawValue::Bool(true) | RawValue::Text("true")
    ))
}

fn read_headers<'a>(
    cursor: &mut JsonCursor<'a>,
    arena: &'a Bump,
    each: impl FnMut(&mut JsonCursor<'a>, &'a str) -> ScanResult<()>,
) -> ScanResult<()> {
    if cursor.peek() == Some(b'n') {
        return cursor.skip();
    }
    for_each_member(cursor, arena, each)
}

/// All fields that a message other than a report may have.
#[derive(Default)]
struct MessageFields<'a> {
    message_id: Option<&'a str>,
    ts_ms: Option<i64>,
    /// As stated by the message; without a statement it has succeeded.
    has_failed: bool,
    code: Option<&'a str>,
    message: Option<&'a str>,
    properties: Option<&'a str>,
    output: Option<&'a str>,
    state: Option<&'a str>,
    data: Option<&'a str>,
    tags: Option<&'a str>,
    product: Option<&'a str>,
    name: Option<&'a str>,
    configuration: Option<&'a str>,
    reports_properties: bool,
    ignores_storage: bool,
    ignores_log: bool,
}

impl<'a> MessageFields<'a> {
    fn read(cursor: &mut JsonCursor<'a>, arena: &'a Bump) -> ScanResult<Self> {
        let mut words = Self::default();
        for_each_member(cursor, arena, |cursor, name| {
            match name {
                "messageId" => words.message_id = read_optional_text(cursor, arena)?,
                "timestamp" => words.ts_ms = read_timestamp(cursor, arena)?,
                "success" => words.has_failed = !read_bool(cursor, arena)?,
                "code" => words.code = read_optional_text(cursor, arena)?,
                "message" => words.message = text_or_json(cursor, arena)?,
                "properties" => words.properties = Some(read_json(cursor)?),
                "output" => words.output = Some(read_json(cursor)?),
                "state" => words.state = Some(read_json(cursor)?),
                "data" => words.data = Some(read_json(cursor)?),
                "tags" => words.tags = Some(read_object(cursor)?),
                "headers" => read_headers(cursor, arena, |cursor, name| {
                    match name {
                        "productId" => words.product = read_optional_text(cursor, arena)?,
                        "deviceName" => words.name = read_optional_text(cursor, arena)?,
                        "configuration" => words.configuration = Some(read_json(cursor)?),
                        "report-properties" => words.reports_properties = read_bool(cursor, arena)?,
                        "ignoreStorage" => words.ignores_storage = read_bool(cursor, arena)?,
                        "ignoreLog" => words.ignores_log = read_bool(cursor, arena)?,
                        _ => cursor.skip()?,
                    }
                    Ok(())
                })?,
                _ => cursor.skip()?,
            }
            Ok(())
        })?;
        Ok(words)
    }

    fn to_reply(&self, to: ReplyKind) -> ControlMessage<'a> {
        let body_json = match to {
            ReplyKind::Read | ReplyKind::Write => self.properties,
            ReplyKind::Invoke => self.output,
            ReplyKind::StateCheck => self.state,
            ReplyKind::Rpc | ReplyKind::Command | ReplyKind::Disconnect => None,
        };
        ControlMessage::Reply(DeviceReply {
            to,
            id: self.message_id,
            is_success: !self.has_failed,
            body_json,
            code: self.code,
            message: self.message,
        })
    }
}

fn text_or_json<'a>(cursor: &mut JsonCursor<'a>, arena: &'a Bump) -> ScanResult<Option<&'a str>> {
    match cursor.peek() {
        Some(b'{' | b'[') => read_json(cursor).map(Some),
        _ => read_optional_text(cursor, arena),
    }
}
