//! What devices and gateways say in ThingsBoard's device API.

use bumpalo::Bump;

use super::topic::{Gateway, Kind, Reply};
use super::{Ears, Malformed, Raw, Replied, RowInfo, Said, Wanted};
use crate::scan::{Cursor, Scanned};

/// A place that is not to be remembered.
pub(super) const NOWHERE: usize = usize::MAX;

pub(super) fn read<'a>(
    kind: Kind<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Result<(), Malformed> {
    let mut cursor = Cursor::of_bytes(payload)?;
    match kind {
        Kind::Telemetry => records(&mut cursor, arena, ears)?,
        Kind::Attributes => {
            let json = object(&mut cursor)?;
            ears.said(Said::Attributes { json });
        }
        Kind::AttributesRequest(id) => {
            let (client, shared) = wanted_keys(&mut cursor, arena)?;
            ears.said(Said::AttributesRequest { id, client, shared });
        }
        Kind::RpcRequest(id) => {
            let (method, params_json) = call(&mut cursor, arena)?;
            ears.said(Said::RpcRequest {
                id,
                method,
                params_json,
            });
        }
        Kind::Reply(to, id) => {
            let body_json = json_or_text(payload, arena)?;
            ears.said(Said::Reply(Replied {
                to,
                id,
                is_success: true,
                body_json,
                code: None,
                message: None,
            }));
            return Ok(());
        }
        Kind::Claim => {
            let claim = claim(&mut cursor, arena)?;
            ears.said(claim);
        }
        Kind::Provision => {
            let json = object(&mut cursor)?;
            ears.said(Said::Provision { json });
        }
        Kind::Gateway(what) => gateway(what, &mut cursor, arena, ears)?,
        // No other topic of this dialect has a route.
        _ => {}
    }
    cursor.end()
}

/// One record, or an array of them.
pub(super) fn records<'a>(
    cursor: &mut Cursor<'a>,
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Scanned<()> {
    if cursor.peek() != Some(b'[') {
        return record(cursor, arena, ears);
    }
    if !cursor.enter(b'[', "an array")? {
        return Ok(());
    }
    loop {
        record(cursor, arena, ears)?;
        if !cursor.more(b'[')? {
            return Ok(());
        }
    }
}

/// `{"key": value, ..}`, or the same with a time: `{"ts": .., "values": {..}}`.
fn record<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump, ears: &mut impl Ears<'a>) -> Scanned<()> {
    let start = cursor.clone();
    if !cursor.enter(b'{', "an object of keys and values, or an array of them")? {
        return Ok(());
    }
    let (mut place, mut is_plain) = (0, false);
    loop {
        let slot = match ears.guess(place, cursor.rest()) {
            Some((length, slot)) => {
                cursor.step(length);
                cursor.blanks();
                slot
            }
            None => {
                let from = cursor.offset();
                let name = cursor.name(arena)?;
                let may_be_timed = matches!(name, "ts" | "values");
                if may_be_timed && !is_plain {
                    if is_timed(start.clone(), arena)? {
                        ears.discard();
                        *cursor = start;
                        return timed(cursor, arena, ears);
                    }
                    is_plain = true;
                }
                let place = if may_be_timed { NOWHERE } else { place };
                ears.key(place, cursor.since(from).as_bytes(), name)
            }
        };
        ears.value(slot, cursor.value(arena)?);
        place += 1;
        if !cursor.more(b'{')? {
            ears.row(RowInfo::at(None));
            return Ok(());
        }
    }
}

/// Whether the object here has both names.
fn is_timed<'a>(mut cursor: Cursor<'a>, arena: &'a Bump) -> Scanned<bool> {
    let (mut has_ts, mut has_values) = (false, false);
    let mut has_more = cursor.enter(b'{', "an object")?;
    while has_more {
        match cursor.name(arena)? {
            "ts" => has_ts = true,
            "values" => has_values = cursor.peek() == Some(b'{'),
            _ => {}
        }
        if has_ts && has_values {
            return Ok(true);
        }
        cursor.skip()?;
        has_more = cursor.more(b'{')?;
    }
    Ok(false)
}

fn timed<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump, ears: &mut impl Ears<'a>) -> Scanned<()> {
    let mut ts_ms = None;
    cursor.enter(b'{', "an object")?;
    loop {
        match cursor.name(arena)? {
            "ts" => ts_ms = Some(time(cursor, arena)?),
            "values" => values(cursor, arena, ears)?,
            _ => cursor.skip()?,
        }
        if !cursor.more(b'{')? {
            ears.row(RowInfo::at(ts_ms));
            return Ok(());
        }
    }
}

/// Milliseconds since 1970, as a number or a text of digits.
pub(super) fn time<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<i64> {
    let before = cursor.clone();
    match cursor.value(arena)? {
        Raw::Int(ts_ms) => Ok(ts_ms),
        Raw::Float(ts_ms) if ts_ms.abs() < 1e15 => Ok(ts_ms as i64),
        Raw::Text(text) => match text.parse() {
            Ok(ts_ms) => Ok(ts_ms),
            Err(_) => before.wrong("a time in milliseconds since 1970"),
        },
        _ => before.wrong("a time in milliseconds since 1970"),
    }
}

/// The members of an object of keys and values.
#[inline]
pub(super) fn values<'a>(
    cursor: &mut Cursor<'a>,
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Scanned<()> {
    if !cursor.enter(b'{', "an object of keys and values")? {
        return Ok(());
    }
    let mut place = 0;
    loop {
        let slot = match ears.guess(place, cursor.rest()) {
            Some((length, slot)) => {
                cursor.step(length);
                cursor.blanks();
                slot
            }
            None => {
                let from = cursor.offset();
                let name = cursor.name(arena)?;
                ears.key(place, cursor.since(from).as_bytes(), name)
            }
        };
        ears.value(slot, cursor.value(arena)?);
        place += 1;
        if !cursor.more(b'{')? {
            return Ok(());
        }
    }
}

/// The text of an object, checked.
pub(super) fn object<'a>(cursor: &mut Cursor<'a>) -> Scanned<&'a str> {
    if cursor.peek() != Some(b'{') {
        return cursor.wrong("an object");
    }
    json(cursor)
}

/// The text of a value, checked.
pub(super) fn json<'a>(cursor: &mut Cursor<'a>) -> Scanned<&'a str> {
    let start = cursor.offset();
    cursor.skip()?;
    Ok(cursor.since(start))
}

/// A payload as JSON: as it is, or as a JSON string of its text; `None`: it is empty.
pub(super) fn json_or_text<'a>(payload: &'a [u8], arena: &'a Bump) -> Scanned<Option<&'a str>> {
    let mut cursor = Cursor::of_bytes(payload)?;
    if cursor.peek().is_none() {
        return Ok(None);
    }
    let start = cursor.offset();
    if cursor.skip().is_ok() {
        let json = cursor.since(start);
        if cursor.end().is_ok() {
            return Ok(Some(json));
        }
    }
    let text = String::from_utf8_lossy(payload);
    let quoted = serde_json::Value::from(text).to_string();
    Ok(Some(arena.alloc_str(&quoted)))
}

/// A value that is a text, or nothing.
pub(super) fn text<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Option<&'a str>> {
    let before = cursor.clone();
    Ok(match cursor.value(arena)? {
        Raw::Text(text) => Some(text),
        Raw::Null => None,
        Raw::Int(_) | Raw::Float(_) | Raw::Bool(_) => {
            let mut again = before.clone();
            Some(json(&mut again)?)
        }
        Raw::Json(_) => return before.wrong("a text"),
    })
}

/// Calls `each` with the name of each member, which reads its value.
pub(super) fn members<'a>(
    cursor: &mut Cursor<'a>,
    arena: &'a Bump,
    mut each: impl FnMut(&mut Cursor<'a>, &'a str) -> Scanned<()>,
) -> Scanned<()> {
    let mut has_more = cursor.enter(b'{', "an object")?;
    while has_more {
        let name = cursor.name(arena)?;
        each(cursor, name)?;
        has_more = cursor.more(b'{')?;
    }
    Ok(())
}

/// Names in an array or in one text, separated by commas.
fn keys<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Wanted<'a>> {
    if cursor.peek() != Some(b'[') {
        return Ok(text(cursor, arena)?.map_or(Wanted::All, Wanted::Keys));
    }
    let mut names = bumpalo::collections::String::new_in(arena);
    let mut has_more = cursor.enter(b'[', "an array")?;
    while has_more {
        if !names.is_empty() {
            names.push(',');
        }
        names.push_str(text(cursor, arena)?.unwrap_or_default());
        has_more = cursor.more(b'[')?;
    }
    Ok(Wanted::Keys(names.into_bump_str()))
}

/// Client and shared ones. Who asks for nothing gets all of both.
fn wanted_keys<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<(Wanted<'a>, Wanted<'a>)> {
    let (mut client, mut shared) = (Wanted::Nothing, Wanted::Nothing);
    members(cursor, arena, |cursor, name| {
        match name {
            "clientKeys" => client = keys(cursor, arena)?,
            "sharedKeys" => shared = keys(cursor, arena)?,
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    Ok(match (client, shared) {
        (Wanted::Nothing, Wanted::Nothing) => (Wanted::All, Wanted::All),
        asked => asked,
    })
}

fn call<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<(&'a str, &'a str)> {
    let before = cursor.clone();
    let (mut method, mut params) = (None, "null");
    members(cursor, arena, |cursor, name| {
        match name {
            "method" => method = text(cursor, arena)?,
            "params" => params = json(cursor)?,
            _ => cursor.skip()?,
        }
        Ok(())
    })?;
    match method {
        Some(method) => Ok((method, params)),
        None => before.wrong("an object with a method"),
    }
}

fn claim<'a>(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Said<'a>> {
    let (mut secret, mut duration_ms) = (None, None);
    if cursor.peek().is_some() {
        members(cursor, arena, |cursor, name| {
            match name {
                "secretKey" => secret = text(cursor, arena)?,
                "durationMs" => duration_ms = Some(time(cursor, arena)?),
                _ => cursor.skip()?,
            }
            Ok(())
        })?;
    }
    Ok(Said::Claim {
        secret,
        duration_ms,
    })
}

fn gateway<'a>(
    what: Gateway,
    cursor: &mut Cursor<'a>,
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Scanned<()> {
    match what {
        Gateway::Telemetry => members(cursor, arena, |cursor, name| match ears.about(Some(name)) {
            true => records(cursor, arena, ears),
            false => cursor.skip(),
        }),
        Gateway::Attributes => members(cursor, arena, |cursor, name| {
            let json = object(cursor)?;
            if ears.about(Some(name)) {
                ears.said(Said::Attributes { json });
            }
            Ok(())
        }),
        Gateway::Claim => members(cursor, arena, |cursor, name| {
            let claim = claim(cursor, arena)?;
            if ears.about(Some(name)) {
                ears.said(claim);
            }
            Ok(())
        }),
        Gateway::Connect | Gateway::Disconnect => {
            let about = About::read(cursor, arena)?;
            if ears.about(Some(about.device)) {
                ears.said(match what {
                    Gateway::Connect => Said::Connected {
                        product: about.product,
                    },
                    _ => Said::Disconnected,
                });
            }
            Ok(())
        }
        Gateway::AttributesRequest => {
            let about = About::read(cursor, arena)?;
            let (client, shared) = match about.is_client {
                true => (about.keys, Wanted::Nothing),
                false => (Wanted::Nothing, about.keys),
            };
            let Some(id) = about.id else {
                return cursor.wrong("an object with an id");
            };
            if ears.about(Some(about.device)) {
                ears.said(Said::AttributesRequest { id, client, shared });
            }
            Ok(())
        }
        Gateway::Rpc => {
            let about = About::read(cursor, arena)?;
            if ears.about(Some(about.device)) {
                ears.said(Said::Reply(Replied {
                    to: Reply::Rpc,
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

/// What a gateway may say of one device.
struct About<'a> {
    device: &'a str,
    product: Option<&'a str>,
    id: Option<&'a str>,
    data: Option<&'a str>,
    is_client: bool,
    keys: Wanted<'a>,
}

impl<'a> About<'a> {
    fn read(cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Self> {
        let before = cursor.clone();
        let mut about = Self {
            device: "",
            product: None,
            id: None,
            data: None,
            is_client: false,
            keys: Wanted::All,
        };
        members(cursor, arena, |cursor, name| {
            match name {
                "device" => about.device = text(cursor, arena)?.unwrap_or_default(),
                "type" => about.product = text(cursor, arena)?,
                "id" => about.id = text(cursor, arena)?,
                "data" => about.data = Some(json(cursor)?),
                "client" => about.is_client = cursor.value(arena)? == Raw::Bool(true),
                "key" | "keys" => about.keys = keys(cursor, arena)?,
                _ => cursor.skip()?,
            }
            Ok(())
        })?;
        match about.device.is_empty() {
            true => before.wrong("an object with a device"),
            false => Ok(about),
        }
    }
}
