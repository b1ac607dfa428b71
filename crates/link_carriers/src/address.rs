//! Addresses of carriers, such as `tls://gateway.example:7600`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of an address that names none.
const DEFAULT_PORT: u16 = 7600;
/// The path of a WebSocket address that names none.
const DEFAULT_PATH: &str = "/link";

/// What transports the bytes of a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
    WebSocket {
        path: String,
        /// Whether it is inside TLS.
        is_secure: bool,
    },
    Quic,
}

impl Transport {
    /// Whether a carrier needs a TLS configuration.
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::Tcp => false,
            Self::Tls | Self::Quic => true,
            Self::WebSocket { is_secure, .. } => *is_secure,
        }
    }
}

/// Where a carrier leads, or where carriers are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CarrierAddress {
    Network {
        transport: Transport,
        /// A name or an IP address; IPv6 without brackets.
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// A text that is not the address of a carrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("address of a link: {problem}, not {text:?}")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

impl FromStr for CarrierAddress {
    type Err = AddressError;

    /// Parses `[SCHEME://]HOST[:PORT][/PATH]` or `unix://PATH`. Without a scheme it is TCP.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let failed = |problem| AddressError {
            text: text.to_owned(),
            problem,
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("tcp", text));
        if scheme == "unix" {
            if rest.is_empty() {
                return Err(failed("expected a path after unix://"));
            }
            return Ok(Self::Unix(rest.into()));
        }
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let websocket = |is_secure| Transport::WebSocket {
            path: if path.is_empty() { DEFAULT_PATH } else { path }.to_owned(),
            is_secure,
        };
        let transport = match scheme {
            "tcp" => Transport::Tcp,
            "tls" => Transport::Tls,
            "ws" => websocket(false),
            "wss" => websocket(true),
            "quic" => Transport::Quic,
            _ => {
                return Err(failed(
                    "expected tcp://, tls://, ws://, wss://, quic:// or unix://",
                ));
            }
        };
        if !matches!(transport, Transport::WebSocket { .. }) && !matches!(path, "" | "/") {
            return Err(failed("expected a path only after ws:// and wss://"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest
                .split_once(']')
                .ok_or_else(|| failed("expected a closing bracket after the IPv6 address"))?,
            None => authority.split_at(authority.rfind(':').unwrap_or(authority.len())),
        };
        if host.is_empty() || (host.contains(':') && !authority.starts_with('[')) {
            return Err(failed("expected HOST:PORT, with IPv6 in brackets"));
        }
        let port = match port.strip_prefix(':') {
            Some(port) => port
                .parse()
                .map_err(|_| failed("expected a port from 0 to 65535"))?,
            None if port.is_empty() => DEFAULT_PORT,
            None => return Err(failed("expected a colon after the IPv6 address")),
        };
        Ok(Self::Network {
            transport,
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for CarrierAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transport, host, port) = match self {
            Self::Unix(path) => return write!(f, "unix://{}", path.display()),
            Self::Network {
                transport,
                host,
                port,
            } => (transport, host, port),
        };
        let (scheme, path) = match transport {
            Transport::Tcp => ("tcp", ""),
            Transport::Tls => ("tls", ""),
            Transport::Quic => ("quic", ""),
            Transport::WebSocket { path, is_secure } => {
                (if *is_secure { "wss" } else { "ws" }, path.as_str())
            }
        };
        let (open, close) = if host.contains(':') {
            ("[", "]")
        } else {
            ("", "")
        };
        write!(f, "{scheme}://{open}{host}{close}:{port}{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_written() {
        let cases = [
            ("host", "tcp://host:7600"),
            ("127.0.0.1:80", "tcp://127.0.0.1:80"),
            ("tls://host:1", "tls://host:1"),
            ("ws://host", "ws://host:7600/link"),
            ("wss://[::1]:9/a/b", "wss://[::1]:9/a/b"),
            ("quic://[::1]", "quic://[::1]:7600"),
            ("unix:///run/link.sock", "unix:///run/link.sock"),
        ];
        for (text, expected) in cases {
            let address: CarrierAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
            assert_eq!(expected.parse(), Ok(address));
        }
    }

    #[test]
    fn wrong_addresses_are_explained() {
        let cases = [
            ("unix://", "a path after unix://"),
            ("http://host", "tcp://, tls://"),
            ("tcp://host:1/path", "only after ws://"),
            ("::1", "IPv6 in brackets"),
            ("[::1", "closing bracket"),
            ("[::1]x", "a colon"),
            (":80", "HOST:PORT"),
            ("host:65536", "from 0 to 65535"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<CarrierAddress>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
