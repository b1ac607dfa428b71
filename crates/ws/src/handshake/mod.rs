//! The opening handshake (RFC 6455 section 4): parts shared by both sides.

pub(crate) mod client;
pub(crate) mod server;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// Default limit of a request or response head, in bytes.
pub const DEFAULT_MAX_HEADER_BYTES: usize = 8 * 1024;
const MAX_HEADERS: usize = 64;

/// The value of `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` (section 4.2.2).
pub fn accept_key(key: &str) -> String {
    // SHA-1 provides no security here; the protocol uses it to show that the server understood the
    // request.
    let mut input = Vec::with_capacity(64);
    input.extend_from_slice(key.as_bytes());
    input.extend_from_slice(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &input))
}

/// Finds the end of a head that arrives in pieces, examining each byte about once.
#[derive(Debug, Default)]
pub(crate) struct HeaderEndScanner {
    searched: usize,
}

impl HeaderEndScanner {
    /// The length of the head including the empty line. `buf` begins with the head; each call passes
    /// the same buffer, possibly longer.
    pub(crate) fn find(&mut self, buf: &[u8]) -> Option<usize> {
        const END: &[u8] = b"\r\n\r\n";
        let from = self.searched.saturating_sub(END.len() - 1).min(buf.len());
        let found = buf[from..]
            .windows(END.len())
            .position(|window| window == END);
        self.searched = buf.len();
        found.map(|position| from + position + END.len())
    }
}

/// Parsed header fields with lookup by name.
pub(crate) struct HeaderFields<'h, 'b>(pub(crate) &'h [httparse::Header<'b>]);

impl<'b> HeaderFields<'_, 'b> {
    /// Every value of a field that is valid text, in order.
    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &'b str> {
        self.0
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .filter_map(|header| std::str::from_utf8(header.value).ok())
            .map(str::trim)
    }

    /// The value of a field that must occur exactly once.
    pub(crate) fn single_value(&self, name: &str) -> Option<&'b str> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0
            .iter()
            .any(|header| header.name.eq_ignore_ascii_case(name))
    }

    /// The elements of a comma-separated list, which may be split over several fields.
    pub(crate) fn list_values(&self, name: &str) -> impl Iterator<Item = &'b str> {
        self.values(name)
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|element| !element.is_empty())
    }

    /// Whether a list contains `token`, ignoring case.
    pub(crate) fn list_contains(&self, name: &str, token: &str) -> bool {
        self.list_values(name)
            .any(|element| element.eq_ignore_ascii_case(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_key_of_the_rfc() {
        assert_eq!(
            accept_key("dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn the_end_of_a_head_is_found_however_it_arrives() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
        for first in 0..head.len() {
            let mut search = HeaderEndScanner::default();
            let early = search.find(&head[..first]);
            assert_eq!(
                early.or_else(|| search.find(head)),
                Some(27),
                "cut at {first}"
            );
        }
    }
}
