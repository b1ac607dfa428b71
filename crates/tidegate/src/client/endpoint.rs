//! The address of a broker and its transport: host and port, TLS, WebSocket, QUIC, Unix socket.

use std::fmt;
use std::path::PathBuf;

/// The address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerEndpoint {
    pub(crate) address: BrokerAddress,
    pub(crate) tls: bool,
    /// Over QUIC, which includes TLS.
    pub(crate) quic: bool,
    /// The path, if MQTT is carried by a WebSocket.
    pub(crate) websocket_path: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BrokerAddress {
    /// A host name or an IP address (IPv6 without brackets), and a port.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// The parts of a URL such as `mqtts://ann:secret@broker.example:8883`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BrokerUrl {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) unix: Option<PathBuf>,
    pub(super) tls: bool,
    pub(super) quic: bool,
    pub(super) websocket: bool,
    /// The path after host and port, beginning with a slash; empty if there is none.
    pub(super) path: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

impl BrokerUrl {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("expected a URL such as mqtt://localhost:1883")?;
        let (tls, websocket) = match scheme {
            "mqtt" | "tcp" => (false, false),
            "mqtts" | "ssl" | "tls" => (true, false),
            "ws" => (false, true),
            "wss" => (true, true),
            "quic" => (true, false),
            "unix" => {
                return Ok(Self {
                    unix: Some(rest.into()),
                    ..Self::default()
                });
            }
            _ => {
                return Err("expected mqtt://, mqtts://, ws://, wss://, quic:// or unix://".into());
            }
        };
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (user_info, host_port) = match authority.rsplit_once('@') {
            Some((user_info, host_port)) => (Some(user_info), host_port),
            None => (None, authority),
        };
        let (host, port) = split_host_port(host_port)?;
        let (username, password) = match user_info.map(|info| (info, info.split_once(':'))) {
            Some((_, Some((name, password)))) => (Some(decode(name)?), Some(decode(password)?)),
            Some((name, None)) => (Some(decode(name)?), None),
            None => (None, None),
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            unix: None,
            tls,
            quic: scheme == "quic",
            websocket,
            path: path.to_owned(),
            username,
            password,
        })
    }
}

fn split_host_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest
                .split_once(']')
                .ok_or("an IPv6 address needs a closing bracket")?;
            (host, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("the URL has no host".into());
    }
    let port = port
        .map(|port| {
            let expected = format!("expected a port from 1 to 65535, found {port:?}");
            port.parse().map_err(|_| expected)
        })
        .transpose()?;
    Ok((host, port))
}

/// Decodes percent encoding.
fn decode(text: &str) -> Result<String, String> {
    let bad = || format!("%-encoding is broken in {text:?}");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2).ok_or_else(bad)?;
        let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

impl BrokerEndpoint {
    /// The default port of a transport.
    pub(super) fn default_port(tls: bool, websocket: bool, quic: bool) -> u16 {
        match (tls, websocket) {
            _ if quic => 14567,
            (false, false) => 1883,
            (true, false) => 8883,
            (false, true) => 8083,
            (true, true) => 8084,
        }
    }
}

impl fmt::Display for BrokerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (&self.address, self.tls, &self.websocket_path) {
            (BrokerAddress::Unix(_), ..) => "unix",
            _ if self.quic => "quic",
            (_, false, None) => "mqtt",
            (_, true, None) => "mqtts",
            (_, false, Some(_)) => "ws",
            (_, true, Some(_)) => "wss",
        };
        let path = self.websocket_path.as_deref().unwrap_or_default();
        match &self.address {
            BrokerAddress::Tcp { host, port } if host.contains(':') => {
                write!(f, "{scheme}://[{host}]:{port}{path}")
            }
            BrokerAddress::Tcp { host, port } => write!(f, "{scheme}://{host}:{port}{path}"),
            BrokerAddress::Unix(socket) => write!(f, "{scheme}://{}", socket.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_scheme_user_host_port_and_path() {
        let url = BrokerUrl::parse("wss://ann%40home:a%2Fb@[::1]:9/x/y").unwrap();
        assert_eq!(
            url,
            BrokerUrl {
                host: "::1".into(),
                port: Some(9),
                unix: None,
                tls: true,
                quic: false,
                websocket: true,
                path: "/x/y".into(),
                username: Some("ann@home".into()),
                password: Some("a/b".into()),
            }
        );
        let url = BrokerUrl::parse("mqtt://broker").unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.tls),
            ("broker", None, false)
        );
        let url = BrokerUrl::parse("unix:///run/tidegate.sock").unwrap();
        assert_eq!(url.unix, Some("/run/tidegate.sock".into()));
    }

    #[test]
    fn errors_in_a_url_are_reported() {
        let error = |text| BrokerUrl::parse(text).unwrap_err();
        assert!(error("localhost:1883").starts_with("expected a URL such as"));
        assert!(error("http://x").starts_with("expected mqtt://"));
        assert_eq!(error("mqtt://:1883"), "the URL has no host");
        assert_eq!(
            error("mqtt://h:x"),
            "expected a port from 1 to 65535, found \"x\""
        );
        assert_eq!(error("mqtt://%4@h"), "%-encoding is broken in \"%4\"");
    }

    #[test]
    fn an_endpoint_shows_as_a_url() {
        let endpoint = BrokerEndpoint {
            address: BrokerAddress::Tcp {
                host: "::1".into(),
                port: 8083,
            },
            tls: false,
            quic: false,
            websocket_path: Some("/mqtt".into()),
        };
        assert_eq!(endpoint.to_string(), "ws://[::1]:8083/mqtt");
        let endpoint = BrokerEndpoint {
            tls: true,
            quic: true,
            websocket_path: None,
            ..endpoint
        };
        assert_eq!(endpoint.to_string(), "quic://[::1]:8083");
    }
}
