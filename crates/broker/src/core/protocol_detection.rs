//! Detects clients that use another protocol than MQTT on an MQTT listener, and suggests a remedy.

use mqtt::ReasonCode;

use super::connection::{CloseReason, ConnectionPhase};
use super::shard::Shard;
use super::tables::ConnectionIx;

/// At most one warning about such clients per interval.
const WARNING_INTERVAL_MS: u64 = 10_000;
/// Beginnings of HTTP requests.
const HTTP_METHODS: [&[u8]; 9] = [
    b"GET ",
    b"POST ",
    b"PUT ",
    b"HEAD ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"PRI * ",
];

/// Describes the protocol of these first bytes and the remedy, if it is a known protocol other than MQTT.
fn detect_foreign_protocol(first: &[u8]) -> Option<&'static str> {
    // A TLS handshake record; as MQTT it would be a CONNECT with invalid flags.
    if let [0x16, 0x03, ..] = first {
        return Some(
            "the client speaks TLS to a listener without TLS; use mqtt:// or ws://, or connect to a listener with protocol mqtts or wss",
        );
    }
    if HTTP_METHODS.iter().any(|method| first.starts_with(method)) {
        return Some(
            "the client speaks HTTP or WebSocket to a plain MQTT listener; connect to a listener with protocol ws, or to the HTTP API",
        );
    }
    if first.starts_with(b"PROXY ") || first.starts_with(b"\r\n\r\n\0\r\nQUIT\n") {
        return Some(
            "a proxy sends PROXY protocol headers to a listener that expects none; set proxy_protocol = true for this listener",
        );
    }
    None
}

/// Whether these bytes begin a CONNECT.
pub(crate) fn is_mqtt_connect(first: &[u8]) -> bool {
    first.first() == Some(&0x10)
}

impl Shard {
    /// Why a connection cannot begin with these bytes, if they belong to another protocol.
    pub(crate) fn check_first_bytes(
        &mut self,
        at: ConnectionIx,
        first: &[u8],
    ) -> Option<CloseReason> {
        if is_mqtt_connect(first) {
            return None;
        }
        let what = detect_foreign_protocol(first)?;
        self.warn_foreign_protocol(at, what);
        Some(CloseReason::without_code("protocol_error").with_detail(what))
    }

    /// The close reason for a malformed packet; for an oversized CONNECT it names the setting that limits it.
    pub(crate) fn close_reason_for(&self, at: ConnectionIx, error: mqtt::Error) -> CloseReason {
        let connection = &self.delivery.connections[at];
        let max = self.limits.max_connect_bytes;
        let is_connect =
            connection.phase == ConnectionPhase::AwaitConnect && max < connection.max_packet_in;
        match error.reason == ReasonCode::PACKET_TOO_LARGE && is_connect {
            true => CloseReason::new(error.reason, "protocol_error").with_detail(format!(
                "CONNECT is larger than {max} bytes (limits.max_connect_bytes); use a smaller will or password"
            )),
            false => error.into(),
        }
    }

    /// Logs a client that uses another protocol, at most once per interval.
    pub(crate) fn warn_foreign_protocol(&mut self, at: ConnectionIx, what: &str) {
        let now_ms = self.now_ms();
        if self.last_foreign_warning_ms + WARNING_INTERVAL_MS > now_ms {
            return;
        }
        self.last_foreign_warning_ms = now_ms;
        let connection = &self.delivery.connections[at];
        let listener = self.node.listeners[usize::from(connection.listener)].config();
        tracing::warn!(listener = listener.name, peer = %connection.peer, "connection rejected: {what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_distinguished_from_mqtt() {
        for (first, word) in [
            (&b"\x16\x03\x01\x02\x00\x01"[..], "TLS"),
            (b"GET /mqtt HTTP/1.1\r\n", "WebSocket"),
            (b"POST / HTTP/1.1\r\n", "HTTP"),
            (b"PROXY TCP4 1.2.3.4", "proxy_protocol"),
        ] {
            let detected = detect_foreign_protocol(first);
            assert!(
                detected.is_some_and(|detected| detected.contains(word)),
                "{word}: {detected:?}"
            );
        }
        assert_eq!(detect_foreign_protocol(b"\x10\x0c\x00\x04MQTT"), None);
        assert_eq!(detect_foreign_protocol(b"\x16\x02"), None);
    }
}
