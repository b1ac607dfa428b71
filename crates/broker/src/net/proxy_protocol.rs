//! The PROXY protocol, versions 1 and 2: a proxy in front of the node reports the client's real address.

use hooks::PeerAddress;
use ppp::{HeaderResult, PartialResult, v1, v2};
use std::net::SocketAddr;

/// Longest header accepted: version 1 has at most 107 bytes, version 2 sixteen and the length it announces.
const MAX_HEADER_BYTES: usize = 1024;

/// Result of examining the first bytes of a connection.
#[derive(Debug, PartialEq)]
pub enum ProxyHeader {
    /// The beginning of a header.
    Incomplete,
    /// The header's length and the address it contains; `None` for the proxy's own checks (`LOCAL`, `UNKNOWN`).
    Complete(usize, Option<PeerAddress>),
    /// Not a header.
    Invalid,
}

/// Longest line of version 1, line end included.
const MAX_LINE_BYTES: usize = 107;

/// Parses a header at the front of `buffer`.
pub fn parse_proxy_header(buffer: &[u8]) -> ProxyHeader {
    // The parser rejects a line that is cut within an address or port, so it gets whole lines only.
    let is_line = buffer.starts_with(b"PROXY ") || b"PROXY ".starts_with(buffer);
    if is_line && buffer.len() < MAX_LINE_BYTES && !buffer.contains(&b'\n') {
        return ProxyHeader::Incomplete;
    }
    let result = HeaderResult::parse(buffer);
    if result.is_incomplete() {
        return if buffer.len() > MAX_HEADER_BYTES {
            ProxyHeader::Invalid
        } else {
            ProxyHeader::Incomplete
        };
    }
    match result {
        HeaderResult::V1(Ok(header)) => {
            let source: Option<SocketAddr> = match header.addresses {
                v1::Addresses::Tcp4(tcp) => Some((tcp.source_address, tcp.source_port).into()),
                v1::Addresses::Tcp6(tcp) => Some((tcp.source_address, tcp.source_port).into()),
                v1::Addresses::Unknown => None,
            };
            ProxyHeader::Complete(header.header.len(), source.map(PeerAddress::Tcp))
        }
        HeaderResult::V2(Ok(header)) => {
            let source: Option<SocketAddr> = match header.addresses {
                _ if header.command == v2::Command::Local => None,
                v2::Addresses::IPv4(tcp) => Some((tcp.source_address, tcp.source_port).into()),
                v2::Addresses::IPv6(tcp) => Some((tcp.source_address, tcp.source_port).into()),
                v2::Addresses::Unix(_) | v2::Addresses::Unspecified => None,
            };
            ProxyHeader::Complete(header.as_bytes().len(), source.map(PeerAddress::Tcp))
        }
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => ProxyHeader::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_header_is_parsed_and_the_rest_is_left() {
        let input = b"PROXY TCP4 192.0.2.7 198.51.100.1 5555 1883\r\n\x10\x0c";
        for cut in 0..input.len() - 2 {
            assert_eq!(
                parse_proxy_header(&input[..cut]),
                ProxyHeader::Incomplete,
                "{cut} bytes"
            );
        }
        let peer = PeerAddress::Tcp("192.0.2.7:5555".parse().unwrap());
        assert_eq!(
            parse_proxy_header(input),
            ProxyHeader::Complete(input.len() - 2, Some(peer))
        );
    }

    #[test]
    fn version_2_header_is_parsed() {
        let mut input = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
        input.extend_from_slice(&[192, 0, 2, 7, 198, 51, 100, 1, 0x15, 0xb3, 0x07, 0x5b]);
        let peer = PeerAddress::Tcp("192.0.2.7:5555".parse().unwrap());
        assert_eq!(
            parse_proxy_header(&input),
            ProxyHeader::Complete(input.len(), Some(peer))
        );
        assert_eq!(parse_proxy_header(&input[..15]), ProxyHeader::Incomplete);
    }

    #[test]
    fn anything_else_is_rejected() {
        assert_eq!(
            parse_proxy_header(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"),
            ProxyHeader::Invalid
        );
    }
}
