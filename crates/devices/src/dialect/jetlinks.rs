//! What devices and gateways say in JetLinks' official protocol.

use bumpalo::Bump;

use super::thingsboard::{json, members, object, text, time, values};
use super::topic::{Kind, Reply};
use super::{Ears, Malformed, Raw, Replied, RowInfo, Said};
use crate::scan::{Cursor, Scanned};

pub(super) fn read<'a>(
    kind: Kind<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Result<(), Malformed> {
    if kind == Kind::Direct {
        // Whatever it is, in a format of its own.
        ears.said(Said::Ignored { what: "direct" });
        return Ok(());
    }
    let mut cursor = Cursor::of_bytes(payload)?;
    if kind == Kind::Telemetry {
        report(&mut cursor, arena, ears)?;
        return cursor.end();
    }
    // What needs no words may come without any.
    if cursor.peek().is_none() {
        match kind {
            Kind::Online => ears.said(Said::Online),
            Kind::Offline => ears.said(Said::Offline),
            Kind::Unregister => ears.said(Said::Unregistered),
            Kind::TimeSync => ears.said(Said::TimeSync { id: None }),
            _ => return cursor.wrong("an object"),
        }
        return Ok(());
    }
    let start = cursor.offset();
    let words = Words::read(&mut cursor, arena)?;
    let whole = cursor.since(start);
    let missing = cursor.clone();
    cursor.end()?;
    let said = match kind {
        Kind::Reply(to, _) => {
            // Whoever was asked for properties reports them, too.
            let is_report = matches!(to, Reply::Read | Reply::Write) && !words.has_failed;
            let properties = words.properties.filter(|json| json.starts_with('{'));
            if let Some(json) = properties.filter(|_| is_report) {
                reported(json, &words, arena, ears)?;
            }
            words.reply(to)
        }
        Kind::Event(id) => {
            if let Some(json) = words.data.filter(|_| words.reports_properties) {
                return reported(json, &words, arena, ears);
            }
            Said::Event {
                id,
                ts_ms: words.ts_ms,
                data_json: words.data.unwrap_or("null"),
            }
        }
        Kind::Online => Said::Online,
        Kind::Offline => Said::Offline,
        Kind::Register => Said::Registered {
            product: words.product,
            name: words.name,
            configuration_json: words.configuration,
        },
        Kind::Unregister => Said::Unregistered,
        Kind::TimeSync => Said::TimeSync {
            id: words.message_id,
        },
        Kind::Tags => match words.tags {
            Some(json) => Said::Tags { json },
            None => return missing.wrong("an object with tags"),
        },
        Kind::Log => Said::Log { json: whole },
        Kind::DerivedModel => Said::DerivedModel { json: whole },
        Kind::Firmware(step) => Said::Firmware { step, json: whole },
        // No other topic of this dialect has a route.
        _ => return Ok(()),
    };
    ears.said(said);
    Ok(())
}

/// `{"messageId", "timestamp", "properties": {..}, "headers": {"ignoreStorage", "ignoreLog"}}`
fn report<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump, ears: &mut impl Ears<'a>) -> Scanned<()> {
    let mut info = RowInfo::at(None);
    let (mut has_properties, mut has_source_times) = (false, false);
    members(cursor, arena, |cursor, name| {
        match name {
            "properties" => {
                has_properties = true;
                values(cursor, arena, ears)?;
            }
            "timestamp" => info.ts_ms = timestamp(cursor, arena)?,
            "propertySourceTimes" => {
                has_source_times = cursor.peek() == Some(b'{');
                cursor.skip()?;
            }
            "headers" => headers(cursor, arena, |cursor, name| {
                match name {
                    "ignoreStorage" => info.is_stored = !is_true(cursor, arena)?,
                    "ignoreLog" => info.is_logged = !is_true(cursor, arena)?,
                    _ => cursor.skip()?,
                }
                Ok(())
            })?,
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    if !has_properties {
        return cursor.wrong("an object with properties");
    }
    ears.row(info);
    if has_source_times {
        let what = "propertySourceTimes";
        ears.said(Said::Ignored { what });
    }
    Ok(())
}

/// Properties in a message that is not called a report: version 1.0 has them as events, and replies hold them.
fn reported<'a>(
    json: &'a str,
    words: &Words<'a>,
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Scanned<()> {
    values(&mut Cursor::new(json), arena, ears)?;
    ears.row(RowInfo {
        ts_ms: words.ts_ms,
        is_stored: !words.ignores_storage,
        is_logged: !words.ignores_log,
    });
    Ok(())
}

/// A time, or `null` or 0 for none.
fn timestamp<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Option<i64>> {
    let mut look = cursor.clone();
    if let Raw::Null | Raw::Int(0) = look.value(arena)? {
        *cursor = look;
        return Ok(None);
    }
    time(cursor, arena).map(Some)
}

fn is_true<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<bool> {
    let value = cursor.value(arena)?;
    Ok(matches!(value, Raw::Bool(true) | Raw::Text("true")))
}

fn headers<'a>(
    cursor: &mut Cursor<'a>,
    arena: &'a Bump,
    each: impl FnMut(&mut Cursor<'a>, &'a str) -> Scanned<()>,
) -> Scanned<()> {
    if cursor.peek() == Some(b'n') {
        return cursor.skip();
    }
    members(cursor, arena, each)
}

/// All that may be in a message that is no report.
#[derive(Default)]
struct Words<'a> {
    message_id: Option<&'a str>,
    ts_ms: Option<i64>,
    /// As it says; without saying it has succeeded.
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

impl<'a> Words<'a> {
    fn read(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Self> {
        let mut words = Self::default();
        members(cursor, arena, |cursor, name| {
            match name {
                "messageId" => words.message_id = text(cursor, arena)?,
                "timestamp" => words.ts_ms = timestamp(cursor, arena)?,
                "success" => words.has_failed = !is_true(cursor, arena)?,
                "code" => words.code = text(cursor, arena)?,
                "message" => words.message = text_or_json(cursor, arena)?,
                "properties" => words.properties = Some(json(cursor)?),
                "output" => words.output = Some(json(cursor)?),
                "state" => words.state = Some(json(cursor)?),
                "data" => words.data = Some(json(cursor)?),
                "tags" => words.tags = Some(object(cursor)?),
                "headers" => headers(cursor, arena, |cursor, name| {
                    match name {
                        "productId" => words.product = text(cursor, arena)?,
                        "deviceName" => words.name = text(cursor, arena)?,
                        "configuration" => words.configuration = Some(json(cursor)?),
                        "report-properties" => words.reports_properties = is_true(cursor, arena)?,
                        "ignoreStorage" => words.ignores_storage = is_true(cursor, arena)?,
                        "ignoreLog" => words.ignores_log = is_true(cursor, arena)?,
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

    fn reply(&self, to: Reply) -> Said<'a> {
        let body_json = match to {
            Reply::Read | Reply::Write => self.properties,
            Reply::Invoke => self.output,
            Reply::StateCheck => self.state,
            Reply::Rpc | Reply::Command | Reply::Disconnect => None,
        };
        Said::Reply(Replied {
            to,
            id: self.message_id,
            is_success: !self.has_failed,
            body_json,
            code: self.code,
            message: self.message,
        })
    }
}

fn text_or_json<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Option<&'a str>> {
    match cursor.peek() {
        Some(b'{' | b'[') => json(cursor).map(Some),
        _ => text(cursor, arena),
    }
}
