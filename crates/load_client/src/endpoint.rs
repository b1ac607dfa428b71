//! Where a broker listens (`HOST:PORT` or a URL) and which addresses the generator connects from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::LazyLock;

use anyhow::Context;

/// Most addresses a range of source addresses may hold.
const MAX_SOURCE_ADDRESSES: u128 = 65_536;

/// A broker's address and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    pub tls: bool,
    /// The path of the WebSocket endpoint, `None` for plain MQTT.
    pub websocket_path: Option<String>,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("mqtt", text));
        let (tls, websocket, default_port) = match scheme {
            "mqtt" | "tcp" => (false, false, 1883),
            "mqtts" | "tls" | "ssl" => (true, false, 8883),
            "ws" => (false, true, 80),
            "wss" => (true, true, 443),
            _ => {
                return Err(format!(
                    "`{scheme}` is not a supported protocol; use mqtt, mqtts, ws or wss"
                ));
            }
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, ""),
        };
        if !websocket && path.len() > 1 {
            return Err(format!(
                "`{text}` has the path `{path}`; only ws and wss have one"
            ));
        }
        let (host, port) = split_authority(authority, default_port)?;
        let path = if path.is_empty() { "/mqtt" } else { path };
        Ok(Self {
            host,
            port,
            tls,
            websocket_path: websocket.then(|| path.to_owned()),
        })
    }
}

fn split_authority(authority: &str, default_port: u16) -> Result<(String, u16), String> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest
            .split_once(']')
            .ok_or_else(|| format!("`{authority}` has `[` without `]`"))?;
        (host, after.strip_prefix(':'))
    } else {
        match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() || (host.contains(':') && !authority.starts_with('[')) {
        return Err(format!(
            "`{authority}` is not HOST:PORT; write an IPv6 address as [::1]:1883"
        ));
    }
    let port = match port {
        Some(text) => text
            .parse()
            .map_err(|_| format!("`{text}` in `{authority}` is not a port from 1 to 65535"))?,
        None => default_port,
    };
    if port == 0 {
        return Err(format!(
            "`{authority}` has port 0, which cannot be connected to"
        ));
    }
    Ok((host.to_owned(), port))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.tls, &self.websocket_path) {
            (false, None) => "mqtt",
            (true, None) => "mqtts",
            (false, Some(_)) => "ws",
            (true, Some(_)) => "wss",
        };
        let path = self.websocket_path.as_deref().unwrap_or("");
        write!(f, "{scheme}://{}{path}", self.authority())
    }
}

impl Endpoint {
    /// `HOST:PORT`, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The address to connect to: the first that the name resolves to and `sources` can reach.
    pub fn resolve(&self, sources: &SourceAddresses) -> anyhow::Result<SocketAddr> {
        (self.host.as_str(), self.port)
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve the broker's name `{}`", self.host))?
            .find(|address| sources.can_reach(address.ip()))
            .with_context(|| {
                format!(
                    "`{}` has no address of the same family as the source addresses",
                    self.host
                )
            })
    }
}

/// A broker to compare with: `HOST:PORT[,PID...]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparisonBroker {
    pub endpoint: Endpoint,
    /// Its processes on this machine.
    pub pids: Vec<u32>,
}

impl FromStr for ComparisonBroker {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (endpoint, pids) = text.split_once(',').unwrap_or((text, ""));
        let pids = pids.split(',').filter(|pid| !pid.is_empty());
        let pids = pids.map(|pid| {
            pid.trim()
                .parse()
                .map_err(|_| format!("`{pid}` in `{text}` is not a process id"))
        });
        Ok(Self {
            endpoint: endpoint.parse()?,
            pids: pids.collect::<Result<_, _>>()?,
        })
    }
}

/// Addresses to connect from, used in turn: single ones and ranges, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceAddresses(Vec<IpAddr>);

impl FromStr for SourceAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut addresses = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let address = |text: &str| -> Result<IpAddr, String> {
                text.trim()
                    .parse()
                    .map_err(|_| format!("`{text}` is not an IP address"))
            };
            append_range(address(first)?, address(last)?, &mut addresses)
                .map_err(|reason| format!("`{part}` {reason}"))?;
        }
        if addresses
            .iter()
            .any(|a| a.is_ipv4() != addresses[0].is_ipv4())
        {
            return Err("IPv4 and IPv6 source addresses cannot be mixed".to_owned());
        }
        Ok(Self(addresses))
    }
}

fn append_range(first: IpAddr, last: IpAddr, out: &mut Vec<IpAddr>) -> Result<(), String> {
    let (first, last, is_v4) = match (first, last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), true),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), false),
        _ => return Err("mixes IPv4 and IPv6".to_owned()),
    };
    if last < first {
        return Err("ends before it starts".to_owned());
    }
    if last - first >= MAX_SOURCE_ADDRESSES - out.len() as u128 {
        return Err(format!("makes more than {MAX_SOURCE_ADDRESSES} addresses"));
    }
    out.extend((first..=last).map(|bits| {
        if is_v4 {
            IpAddr::V4((bits as u32).into())
        } else {
            IpAddr::V6(bits.into())
        }
    }));
    Ok(())
}

/// The ports that the system hands out to clients, first and last.
static PORT_RANGE: LazyLock<(u16, u16)> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let parsed = text.ok().and_then(|text| {
        let (first, last) = text.trim().split_once(char::is_whitespace)?;
        let range: (u16, u16) = (first.parse().ok()?, last.trim().parse().ok()?);
        (0 < range.0 && range.0 < range.1).then_some(range)
    });
    parsed.unwrap_or((32_768, 60_999))
});

/// Connections that the system finds free ports for without trouble: Linux looks at every other port first, which is
/// some 14,000, and at all of those before the rest.
const EASY_PORTS: usize = 8_000;
/// Connections from each address where the generator chooses.
const PORTS_PER_ADDRESS: usize = 20_000;

impl SourceAddresses {
    /// Loopback addresses for `connections` to `target`; none, so that the system chooses, for a few connections or
    /// where the target is elsewhere.
    pub fn for_connections(target: IpAddr, connections: usize) -> Self {
        if connections <= EASY_PORTS || !target.is_ipv4() || !target.is_loopback() {
            return Self::default();
        }
        let count = connections.div_ceil(PORTS_PER_ADDRESS).min(250);
        let addresses = (Ipv4Addr::LOCALHOST.to_bits()..).take(count);
        Self(addresses.map(|bits| IpAddr::V4(bits.into())).collect())
    }

    /// How many there are; 0 leaves the choice to the system.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Where connection `number` comes from; `None` leaves the choice to the system.
    ///
    /// The port is chosen as well, because the system searches for one all the longer the more are taken. Ports are
    /// taken in turn, beginning at a place that depends on `seed`; `attempt` counts the ports found to be taken.
    pub fn pick(&self, number: usize, attempt: usize, seed: u32) -> Option<SocketAddr> {
        let address = *self.0.get(number % self.0.len().max(1))?;
        let (first, last) = *PORT_RANGE;
        let span = usize::from(last - first) + 1;
        let at = seed as usize % span + number / self.0.len() + attempt * 7;
        Some(SocketAddr::new(address, first + (at % span) as u16))
    }

    fn can_reach(&self, target: IpAddr) -> bool {
        self.0
            .first()
            .is_none_or(|source| source.is_ipv4() == target.is_ipv4())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn reads_addresses_and_urls() {
        let show = |text: &str| text.parse::<Endpoint>().map(|e| e.to_string());
        assert_eq!(show("localhost").as_deref(), Ok("mqtt://localhost:1883"));
        assert_eq!(show("[::1]:1884").as_deref(), Ok("mqtt://[::1]:1884"));
        assert_eq!(show("mqtts://a").as_deref(), Ok("mqtts://a:8883"));
        assert_eq!(show("ws://a:8083").as_deref(), Ok("ws://a:8083/mqtt"));
        assert_eq!(show("wss://a/x/y").as_deref(), Ok("wss://a:443/x/y"));
        assert!(show("http://a").unwrap_err().contains("mqtts"));
        assert!(show("a:0").unwrap_err().contains("port 0"));
        assert!(show("a:x").unwrap_err().contains("`x`"));
        assert!(show("::1").unwrap_err().contains("[::1]:1883"));
        assert!(show("mqtt://a/path").unwrap_err().contains("/path"));
    }

    #[test]
    fn reads_a_rival() {
        let rival: ComparisonBroker = "127.0.0.1:1884,4242".parse().expect("well-formed");
        assert_eq!((rival.endpoint.port, rival.pids), (1884, vec![4242]));
        let rival: ComparisonBroker = "a:1,4,5".parse().expect("well-formed");
        assert_eq!(rival.pids, [4, 5]);
        let rival: ComparisonBroker = "127.0.0.1:1884".parse().expect("well-formed");
        assert_eq!(rival.pids, Vec::<u32>::new());
        assert!(
            "a:1,b"
                .parse::<ComparisonBroker>()
                .unwrap_err()
                .contains("process id")
        );
    }

    #[test]
    fn source_addresses_go_round() {
        let sources: SourceAddresses = "127.0.0.1-127.0.0.3,127.0.1.9"
            .parse()
            .expect("well-formed");
        let pick = |number, attempt| sources.pick(number, attempt, 5).expect("there are some");
        let picked: Vec<String> = (2..6).map(|i| pick(i, 0).ip().to_string()).collect();
        assert_eq!(picked, ["127.0.0.3", "127.0.1.9", "127.0.0.1", "127.0.0.2"]);
        let all: HashSet<SocketAddr> = (0..40_000).map(|number| pick(number, 0)).collect();
        assert_eq!(all.len(), 40_000);
        assert_ne!(pick(7, 0), pick(7, 1));
        assert_eq!(SourceAddresses::default().pick(7, 0, 5), None);
        let many = |target: &str, connections| {
            let target = target.parse().expect("an address");
            SourceAddresses::for_connections(target, connections).count()
        };
        assert_eq!(many("127.0.0.1", 8_000), 0);
        assert_eq!(many("127.0.0.1", 16_000), 1);
        assert_eq!(many("127.0.0.1", 50_000), 3);
        assert_eq!(many("10.0.0.1", 16_000), 0);
        assert_eq!(many("::1", 16_000), 0);
        let bad = |text: &str| text.parse::<SourceAddresses>().unwrap_err();
        assert!(bad("127.0.0.2-127.0.0.1").contains("ends before"));
        assert!(bad("10.0.0.0-10.255.255.255").contains("65536"));
        assert!(bad("127.0.0.1,::1").contains("mixed"));
        assert!(bad("nowhere").contains("nowhere"));
    }
}
