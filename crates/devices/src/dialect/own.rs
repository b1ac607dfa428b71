//! What devices say on Tidegate's own topics, in JSON or CBOR. CBOR is told by its first byte: no JSON begins with it.

use bumpalo::Bump;

use super::cbor;
use super::thingsboard::{json_or_text, members, object, records, text};
use super::topic::{Kind, Reply};
use super::{Ears, Malformed, Raw, Replied, Said, Wanted};
use crate::scan::{Cursor, Scanned};

pub(super) fn read<'a>(
    kind: Kind<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Result<(), Malformed> {
    let is_cbor = cbor::begins(payload);
    if kind == Kind::Telemetry {
        if is_cbor {
            return cbor::records(payload, arena, ears);
        }
        let mut cursor = Cursor::of_bytes(payload)?;
        records(&mut cursor, arena, ears)?;
        return cursor.end();
    }
    // Everything else is rare: CBOR is read as the JSON of the same meaning.
    let payload = match is_cbor {
        true => cbor::to_json(payload, arena)?.as_bytes(),
        false => payload,
    };
    let mut cursor = Cursor::of_bytes(payload)?;
    let said = match kind {
        Kind::Attributes => Said::Attributes {
            json: object(&mut cursor)?,
        },
        Kind::AttributesRequest(id) => wanted(id, &mut cursor, arena)?,
        Kind::Event(id) => {
            let data_json = json_or_text(payload, arena)?.unwrap_or("null");
            ears.said(Said::Event {
                id,
                ts_ms: None,
                data_json,
            });
            return Ok(());
        }
        Kind::Reply(to, id) => {
            let reply = reply(to, id, payload, arena)?;
            ears.said(reply);
            return Ok(());
        }
        Kind::RpcRequest(id) => {
            let mut method = None;
            let mut params_json = "null";
            members(&mut cursor, arena, |cursor, name| {
                match name {
                    "method" => method = text(cursor, arena)?,
                    "params" => params_json = super::thingsboard::json(cursor)?,
                    _ => cursor.skip()?,
                }
                Ok(())
            })?;
            let Some(method) = method else {
                return cursor.wrong("an object with a method");
            };
            Said::RpcRequest {
                id,
                method,
                params_json,
            }
        }
        Kind::Online | Kind::Offline => {
            ears.said(match kind {
                Kind::Online => Said::Online,
                _ => Said::Offline,
            });
            return Ok(());
        }
        // No other topic of this dialect has a route.
        _ => return Ok(()),
    };
    cursor.end()?;
    ears.said(said);
    Ok(())
}

/// `{"client": "a,b", "shared": true}`; nothing at all asks for everything.
fn wanted<'a>(id: &'a str, cursor: &mut Cursor<'a>, arena: &'a Bump) -> Scanned<Said<'a>> {
    let (mut client, mut shared) = (Wanted::Nothing, Wanted::Nothing);
    if cursor.peek().is_none() {
        (client, shared) = (Wanted::All, Wanted::All);
    } else {
        members(cursor, arena, |cursor, name| {
            let before = cursor.clone();
            let wanted = match cursor.value(arena)? {
                Raw::Text(keys) => Wanted::Keys(keys),
                Raw::Bool(true) => Wanted::All,
                Raw::Bool(false) | Raw::Null => Wanted::Nothing,
                _ => return before.wrong("keys separated by commas, or true for all"),
            };
            match name {
                "client" => client = wanted,
                "shared" => shared = wanted,
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(Said::AttributesRequest { id, client, shared })
}

/// `{"success": false, "code", "message"}` or `{"success": true, "data"}`; anything else is what came of it.
fn reply<'a>(
    to: Reply,
    id: Option<&'a str>,
    payload: &'a [u8],
    arena: &'a Bump,
) -> Scanned<Said<'a>> {
    let mut replied = Replied {
        to,
        id,
        is_success: true,
        body_json: json_or_text(payload, arena)?,
        code: None,
        message: None,
    };
    let mut cursor = Cursor::of_bytes(payload)?;
    if cursor.peek() == Some(b'{') {
        let (mut says_success, mut data) = (false, None);
        let read = members(&mut cursor, arena, |cursor, name| {
            match name {
                "success" => {
                    says_success = true;
                    replied.is_success = cursor.value(arena)? == Raw::Bool(true);
                }
                "data" => data = Some(super::thingsboard::json(cursor)?),
                "code" => replied.code = text(cursor, arena)?,
                "message" => replied.message = text(cursor, arena)?,
                _ => cursor.skip()?,
            }
            Ok(())
        });
        if read.is_ok() && says_success {
            replied.body_json = data;
        }
    }
    Ok(Said::Reply(replied))
}
