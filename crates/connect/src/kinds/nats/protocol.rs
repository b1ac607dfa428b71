//! Parser and encoder of the NATS protocol.

use std::fmt::Write as _;

use bytes::{Buf as _, BytesMut};

/// Limit on control lines, of which INFO is the longest.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Limit on messages. Servers allow 1 MiB by default and 64 MiB at most.
const MAX_MESSAGE_BYTES: usize = 128 << 20;

/// A message of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerOp {
    Info(String),
    Message(NatsMessage),
    Ping,
    Pong,
    Error(String),
    /// `+OK`, or an unknown newer operation.
    Other,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct NatsMessage {
    pub(super) subject: String,
    pub(super) subscription: u64,
    pub(super) reply: Option<String>,
    /// The header block with its first line, `NATS/1.0`, which may contain a status.
    pub(super) headers: Option<String>,
    pub(super) payload: Vec<u8>,
}

impl NatsMessage {
    /// The status of a server message: `503` of `NATS/1.0 503 No Responders`.
    pub(super) fn status(&self) -> Option<u16> {
        let first = self.headers.as_deref()?.lines().next()?;
        let mut words = first.strip_prefix("NATS/1.0")?.split_whitespace();
        words.next()?.parse().ok()
    }

    /// The text after the status.
    pub(super) fn status_text(&self) -> &str {
        let first = self.headers.as_deref().and_then(|all| all.lines().next());
        let behind = first.and_then(|line| line.splitn(3, ' ').nth(2));
        behind.unwrap_or_default()
    }

    pub(super) fn header_fields(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.headers.as_deref().unwrap_or_default().lines().skip(1);
        lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim(), value.trim()))
    }
}

/// Removes the first complete operation from the buffer; `None` if more bytes are needed.
pub(super) fn parse(buffer: &mut BytesMut) -> Result<Option<ServerOp>, String> {
    let Some(end) = buffer.iter().take(MAX_LINE_BYTES).position(|b| *b == b'\n') else {
        return match buffer.len() < MAX_LINE_BYTES {
            true => Ok(None),
            false => Err(format!("a line of more than {MAX_LINE_BYTES} bytes")),
        };
    };
    let line = std::str::from_utf8(&buffer[..end]).map_err(|_| "a line that is not UTF-8")?;
    let line = line.trim_end_matches('\r');
    let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let op = match verb.to_ascii_uppercase().as_str() {
        "MSG" => return parse_message(rest.to_owned(), false, end + 1, buffer),
        "HMSG" => return parse_message(rest.to_owned(), true, end + 1, buffer),
        "INFO" => ServerOp::Info(rest.trim().to_owned()),
        "PING" => ServerOp::Ping,
        "PONG" => ServerOp::Pong,
        "-ERR" => ServerOp::Error(rest.trim().trim_matches('\'').to_owned()),
        _ => ServerOp::Other,
    };
    buffer.advance(end + 1);
    Ok(Some(op))
}

/// `SUBJECT SID [REPLY] [HEADER BYTES] BYTES`, then the payload and a line break.
fn parse_message(
    line: String,
    has_headers: bool,
    start: usize,
    buffer: &mut BytesMut,
) -> Result<Option<ServerOp>, String> {
    let wrong = || format!("a message begins with {line:?}");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (names, sizes) = words
        .split_at_checked(words.len().saturating_sub(1 + usize::from(has_headers)))
        .ok_or_else(wrong)?;
    let size = |text: &str| text.parse::<usize>().map_err(|_| wrong());
    let (header_bytes, bytes) = match sizes {
        [bytes] => (0, size(bytes)?),
        [headers, bytes] => (size(headers)?, size(bytes)?),
        _ => return Err(wrong()),
    };
    let (subject, subscription, reply) = match names {
        [subject, subscription] => (subject, subscription, None),
        [subject, subscription, reply] => (subject, subscription, Some((*reply).to_owned())),
        _ => return Err(wrong()),
    };
    if header_bytes > bytes || bytes > MAX_MESSAGE_BYTES {
        return Err(wrong());
    }
    if buffer.len() < start + bytes + 2 {
        buffer.reserve(start + bytes + 2 - buffer.len());
        return Ok(None);
    }
    let subscription = subscription.parse().map_err(|_| wrong())?;
    let subject = (*subject).to_owned();
    buffer.advance(start);
    let body = buffer.split_to(bytes);
    buffer.advance(2);
    let (headers, payload) = body.split_at(header_bytes);
    Ok(Some(ServerOp::Message(NatsMessage {
        subject,
        subscription,
        reply,
        headers: has_headers.then(|| String::from_utf8_lossy(headers).into_owned()),
        payload: payload.to_vec(),
    })))
}

/// Appends a PUB or HPUB.
pub(super) fn put_publish(
    out: &mut Vec<u8>,
    subject: &str,
    reply: Option<&str>,
    headers: &[(&str, &str)],
    payload: &[u8],
) {
    let (space, reply) = reply.map_or(("", ""), |reply| (" ", reply));
    let line = match headers {
        [] => format!("PUB {subject}{space}{reply} {}\r\n", payload.len()),
        _ => {
            let mut block = String::from("NATS/1.0\r\n");
            for (name, value) in headers {
                // A line break would end the header.
                let value = value.replace(['\r', '\n'], " ");
                let _ = write!(block, "{name}: {value}\r\n");
            }
            block.push_str("\r\n");
            let total = block.len() + payload.len();
            format!(
                "HPUB {subject}{space}{reply} {} {total}\r\n{block}",
                block.len()
            )
        }
    };
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// Whether messages can be published to this subject.
pub(super) fn is_subject(subject: &str) -> bool {
    let is_token = |token: &str| {
        !token.is_empty() && token != "*" && token != ">" && !token.contains(char::is_whitespace)
    };
    !subject.contains(char::is_control) && subject.split('.').all(is_token)
}

/// Whether this is a valid subscription.
pub(super) fn is_filter(subject: &str) -> bool {
    let tokens = subject.split('.').count();
    subject
        .split('.')
        .enumerate()
        .all(|(at, token)| (token == "*" || token == ">" && at + 1 == tokens) || is_subject(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut bytes: BytesMut) -> Result<Vec<ServerOp>, String> {
        let mut ops = Vec::new();
        while let Some(op) = parse(&mut bytes)? {
            ops.push(op);
        }
        Ok(ops)
    }

    #[test]
    fn what_servers_say_is_read() {
        let input = "INFO {\"a\":1} \r\nPING\r\npong\r\n+OK\r\n-ERR 'Unknown Protocol'\r\n\
                    MSG a.b 9 5\r\nhe\nlo\r\nMSG a 1 reply.to 0\r\n\r\n\
                    HMSG x 2 22 24\r\nNATS/1.0 503 A\r\nK: v\r\nhi\r\n";
        // Makes the length of the header block match.
        let input = input
            .replace("22 24", "24 26")
            .replace("v\r\nhi", "v\r\n\r\nhi");
        let ops = all(BytesMut::from(input.as_str())).unwrap();
        let message =
            |subject: &str, subscription, reply: Option<&str>, payload: &str| NatsMessage {
                subject: subject.into(),
                subscription,
                reply: reply.map(Into::into),
                headers: None,
                payload: payload.into(),
            };
        let [
            info,
            ping,
            pong,
            ok,
            error,
            first,
            second,
            ServerOp::Message(third),
        ] = &ops[..]
        else {
            panic!("{ops:?}");
        };
        assert_eq!(*info, ServerOp::Info("{\"a\":1}".into()));
        assert_eq!(
            (ping, pong, ok),
            (&ServerOp::Ping, &ServerOp::Pong, &ServerOp::Other)
        );
        assert_eq!(*error, ServerOp::Error("Unknown Protocol".into()));
        assert_eq!(*first, ServerOp::Message(message("a.b", 9, None, "he\nlo")));
        assert_eq!(
            *second,
            ServerOp::Message(message("a", 1, Some("reply.to"), ""))
        );
        assert_eq!((third.status(), third.status_text()), (Some(503), "A"));
        assert_eq!(third.header_fields().collect::<Vec<_>>(), [("K", "v")]);
        assert_eq!(third.payload, b"hi");
        // Parsing byte by byte gives the same result.
        let mut buffer = BytesMut::new();
        let mut again = Vec::new();
        for byte in input.bytes() {
            buffer.extend_from_slice(&[byte]);
            again.extend(parse(&mut buffer).unwrap());
        }
        assert_eq!(again, ops);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        for input in [
            "MSG\r\n",
            "MSG a\r\n",
            "MSG a b c\r\n",
            "MSG a 1 -5\r\n",
            "MSG a 1 99999999999\r\n",
            "HMSG a 1 9 5\r\n12345\r\n",
            "HMSG a 1 5\r\n",
            "MSG a b 0\r\n\r\n",
        ] {
            assert!(all(BytesMut::from(input)).is_err(), "{input}");
        }
    }

    #[test]
    fn messages_are_written() {
        let mut out = Vec::new();
        put_publish(&mut out, "a.b", None, &[], b"xy");
        put_publish(&mut out, "a", Some("r"), &[("K", "v\nw")], b"z");
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "PUB a.b 2\r\nxy\r\nHPUB a r 20 21\r\nNATS/1.0\r\nK: v w\r\n\r\nz\r\n"
        );
    }

    #[test]
    fn subjects_are_checked() {
        for good in ["a", "a.b-c_1.ü", "$JS.x"] {
            assert!(is_subject(good), "{good}");
        }
        for bad in [
            "", ".", "a.", ".a", "a..b", "a b", "a\n", "a.*", ">", "a\u{1}",
        ] {
            assert!(!is_subject(bad), "{bad}");
        }
        assert!(is_filter("a.*.>") && is_filter(">") && !is_filter("a.>.b") && !is_filter("a..*"));
    }
}
