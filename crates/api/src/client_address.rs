//! The client address of requests that pass through proxies. A forwarding header is used only if a proxy trusted by the
//! settings sent it. Only what trusted proxies have written counts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use auth::rules::AddressRange;
use axum::http::{HeaderMap, HeaderName, header};

/// The proxies whose forwarding header is used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustedProxies {
    networks: Vec<AddressRange>,
    /// Whether peers on a Unix socket are trusted.
    unix: bool,
}

/// The header that names the client. Only one is read, because a proxy that sets one of them passes
/// the other on unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardedHeader {
    #[default]
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

/// Maximum number of addresses read from the header.
const MAX_HOPS: usize = 32;

impl TrustedProxies {
    /// Whether a connection comes from a trusted proxy; `None` means through a Unix socket.
    pub(crate) fn contains(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            Some(peer) => self.networks.iter().any(|range| range.contains(peer)),
            None => self.unix,
        }
    }

    /// The client of a request forwarded by a trusted proxy: the last address that is not a trusted
    /// proxy. `None`: the header is missing or invalid.
    pub(crate) fn client(&self, headers: &HeaderMap, header: ForwardedHeader) -> Option<IpAddr> {
        const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
        let name = match header {
            ForwardedHeader::XForwardedFor => X_FORWARDED_FOR,
            ForwardedHeader::Forwarded => header::FORWARDED,
        };
        let mut client = None;
        let fields: Vec<&str> = headers
            .get_all(name)
            .iter()
            .map(|field| field.to_str().unwrap_or_default())
            .collect();
        let hops = fields.iter().rev().flat_map(|field| field.rsplit(','));
        for hop in hops.take(MAX_HOPS) {
            let address = match header {
                ForwardedHeader::XForwardedFor => address(hop),
                ForwardedHeader::Forwarded => forwarded_for(hop),
            };
            // Entries before an unreadable one were not checked by a trusted proxy.
            let Some(address) = address else { break };
            client = Some(address);
            if !self.contains(Some(address)) {
                break;
            }
        }
        client
    }
}

/// `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::1` or `[2001:db8::1]:4711`.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse::<IpAddr>();
    let address = address.or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    address.ok().map(|address| address.to_canonical())
}

fn forwarded_for(hop: &str) -> Option<IpAddr> {
    let parameter = hop.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value)
    });
    address(parameter?)
}

impl FromStr for TrustedProxies {
    type Err = String;

    /// Parses addresses and networks separated by commas, and `unix`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut trusted = Self::default();
        let words = text.split(',').map(str::trim);
        for word in words.filter(|word| !word.is_empty()) {
            match word {
                "unix" => trusted.unix = true,
                range => trusted.networks.push(range.parse()?),
            }
        }
        Ok(trusted)
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unix = self.unix.then(|| "unix".to_owned());
        let words = self.networks.iter().map(ToString::to_string).chain(unix);
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(trusted: &str, header: ForwardedHeader, fields: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        let trusted: TrustedProxies = trusted.parse().unwrap();
        let client = trusted.client(&headers, header);
        client.map_or_else(|| "none".to_owned(), |address| address.to_string())
    }

    #[test]
    fn the_last_address_that_no_trusted_proxy_has_is_the_client() {
        use ForwardedHeader::{Forwarded, XForwardedFor};
        let trusted = "10.0.0.0/8, 2001:db8::1";
        for (header, fields, expected) in [
            (
                XForwardedFor,
                vec![("x-forwarded-for", "192.0.2.7")],
                "192.0.2.7",
            ),
            // The entries that the client wrote itself come first and are ignored.
            (
                XForwardedFor,
                vec![("x-forwarded-for", "127.0.0.1, 192.0.2.7, 10.1.1.1")],
                "192.0.2.7",
            ),
            (
                XForwardedFor,
                vec![
                    ("x-forwarded-for", "127.0.0.1"),
                    ("x-forwarded-for", "192.0.2.7:99"),
                ],
                "192.0.2.7",
            ),
            (
                XForwardedFor,
                vec![("x-forwarded-for", "192.0.2.7, nonsense")],
                "none",
            ),
            (
                XForwardedFor,
                vec![("x-forwarded-for", "127.0.0.1, x, 10.0.0.1")],
                "10.0.0.1",
            ),
            (XForwardedFor, vec![("forwarded", "for=192.0.2.7")], "none"),
            (
                Forwarded,
                vec![(
                    "forwarded",
                    "for=127.0.0.1, by=x;For=\"[2001:db8::7]:80\";proto=https",
                )],
                "2001:db8::7",
            ),
            (Forwarded, vec![("forwarded", "for=_hidden")], "none"),
        ] {
            assert_eq!(client(trusted, header, &fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn networks_are_written_as_they_are_read() {
        let text = "10.0.0.0/8, 2001:db8::1, unix";
        assert_eq!(text.parse::<TrustedProxies>().unwrap().to_string(), text);
        assert!("10.0.0.0/33".parse::<TrustedProxies>().is_err());
        assert!("proxy.example".parse::<TrustedProxies>().is_err());
    }
}
