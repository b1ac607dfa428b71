//! The target policy: which addresses this process may connect to on behalf of configuration objects such as
//! connectors, web hooks, pull sources, authenticators and key sets.
//!
//! The policy is global to the process, so that no client can bypass it. It is applied to the addresses a name
//! resolves to, and the connection uses one of the allowed addresses. A name that changes between check and connection
//! (DNS rebinding) therefore has no effect.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

/// Maximum number of entries per list; longer lists are a mistake.
pub const MAX_ENTRIES: usize = 256;

static POLICY: OnceLock<TargetPolicy> = OnceLock::new();

/// Addresses that may be connected to. An address that is both allowed and denied is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPolicy {
    deny: Vec<PolicyEntry>,
    allow: Vec<PolicyEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicyEntry {
    LinkLocal,
    Loopback,
    Private,
    Network(IpNetwork),
}

/// An address and the number of its leading bits that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IpNetwork {
    address: IpAddr,
    bits: u8,
}

impl Default for TargetPolicy {
    /// Denies link-local addresses, which include those of cloud metadata services.
    fn default() -> Self {
        Self {
            deny: vec![PolicyEntry::LinkLocal],
            allow: Vec::new(),
        }
    }
}

impl TargetPolicy {
    /// Parses two comma-separated lists of entries: `link-local`, `loopback`, `private`, an address, or a network such
    /// as `10.0.0.0/8`.
    ///
    /// # Errors
    /// The error names the invalid entry and the accepted forms.
    pub fn parse(deny: &str, allow: &str) -> Result<Self, String> {
        Ok(Self {
            deny: parse_entries(deny)?,
            allow: parse_entries(allow)?,
        })
    }

    /// Whether connections to an address are allowed.
    #[must_use]
    pub fn allows(&self, address: IpAddr) -> bool {
        let address = embedded_v4(address);
        let is_in = |entries: &[PolicyEntry]| entries.iter().any(|entry| entry.contains(address));
        is_in(&self.allow) || !is_in(&self.deny)
    }
}

/// Sets the policy of the process. Only the first call has an effect: existing connections would not follow a later
/// change.
pub fn set_policy(policy: TargetPolicy) {
    let _ = POLICY.set(policy);
}

fn policy() -> &'static TargetPolicy {
    POLICY.get_or_init(TargetPolicy::default)
}

fn parse_entries(text: &str) -> Result<Vec<PolicyEntry>, String> {
    let entries = text
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty());
    let entries: Vec<_> = entries.map(PolicyEntry::parse).collect::<Result<_, _>>()?;
    match entries.len() > MAX_ENTRIES {
        true => Err(format!("expected at most {MAX_ENTRIES} entries")),
        false => Ok(entries),
    }
}

impl PolicyEntry {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "link-local" => Ok(Self::LinkLocal),
            "loopback" => Ok(Self::Loopback),
            "private" => Ok(Self::Private),
            _ => IpNetwork::parse(text).map(Self::Network).ok_or_else(|| {
                format!(
                    "{text:?}: expected link-local, loopback, private, an address or a network such as 10.0.0.0/8"
                )
            }),
        }
    }

    fn contains(self, address: IpAddr) -> bool {
        let is_in =
            |networks: &[IpNetwork]| networks.iter().any(|network| network.contains(address));
        match self {
            Self::LinkLocal => is_in(LINK_LOCAL),
            // The unspecified address reaches the local host.
            Self::Loopback => address.is_loopback() || address.is_unspecified(),
            Self::Private => is_in(PRIVATE),
            Self::Network(network) => network.contains(address),
        }
    }
}

/// Link-local addresses, and the addresses of cloud metadata services, which hand out credentials.
const LINK_LOCAL: &[IpNetwork] = &[
    IpNetwork::v4([169, 254, 0, 0], 16),
    IpNetwork::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    // Metadata services other than 169.254.169.254.
    IpNetwork::v6([0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254], 128),
    IpNetwork::v6([0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254], 128),
    IpNetwork::v4([100, 100, 100, 200], 32),
    IpNetwork::v4([192, 0, 0, 192], 32),
];

/// RFC 1918, RFC 6598, RFC 4193.
const PRIVATE: &[IpNetwork] = &[
    IpNetwork::v4([10, 0, 0, 0], 8),
    IpNetwork::v4([172, 16, 0, 0], 12),
    IpNetwork::v4([192, 168, 0, 0], 16),
    IpNetwork::v4([100, 64, 0, 0], 10),
    IpNetwork::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
];

impl IpNetwork {
    const fn v4(octets: [u8; 4], bits: u8) -> Self {
        let [a, b, c, d] = octets;
        Self {
            address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            bits,
        }
    }

    const fn v6(groups: [u16; 8], bits: u8) -> Self {
        let [a, b, c, d, e, f, g, h] = groups;
        Self {
            address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)),
            bits,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Self { address, bits })
    }

    fn contains(self, address: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

/// The IPv4 address embedded in an IPv6 address (mapped, compatible, NAT64, 6to4), or the address itself.
fn embedded_v4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let groups = v6.segments();
    let of =
        |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match groups {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => of(high, low),
        [0x2002, high, low, ..] => of(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => of(high, low),
        _ => address,
    }
}

/// An address denied by the policy, with the name that resolved to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct TargetDeniedError {
    host: String,
    address: IpAddr,
}

impl fmt::Display for TargetDeniedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address } = self;
        match host.parse::<IpAddr>().is_ok() {
            true => write!(f, "{address}")?,
            false => write!(f, "{host} ({address})")?,
        }
        f.write_str(
            ": the node may not connect to this address (outbound.deny); an administrator of the node may list it in outbound.allow",
        )
    }
}

/// Resolves a host to the allowed addresses. `host` is a name or an address, with or without brackets.
///
/// # Errors
/// If the name has no address, or none that the policy allows ([`TargetDeniedError`], kind `PermissionDenied`).
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![(address, port).into()],
        Err(_) => tokio::net::lookup_host((host, port)).await?.collect(),
    };
    retain_allowed(host, found, policy())
}

fn retain_allowed(
    host: &str,
    found: Vec<SocketAddr>,
    policy: &TargetPolicy,
) -> io::Result<Vec<SocketAddr>> {
    let Some(first) = found.first().map(SocketAddr::ip) else {
        let what = format!("{host} has no address");
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    };
    let found: Vec<_> = found
        .into_iter()
        .filter(|address| policy.allows(address.ip()))
        .collect();
    match found.is_empty() {
        false => Ok(found),
        true => {
            let denied = TargetDeniedError {
                host: host.to_owned(),
                address: first,
            };
            Err(io::Error::new(io::ErrorKind::PermissionDenied, denied))
        }
    }
}

/// Connects to an allowed address of a host.
///
/// # Errors
/// The errors of [`resolve`], and errors of the connection.
pub async fn connect(host: &str, port: u16) -> io::Result<tokio::net::TcpStream> {
    let addresses = resolve(host, port).await?;
    let connecting = tokio::net::TcpStream::connect(&addresses[..]);
    // The error of the system does not say what was connected to.
    (connecting.await)
        .map_err(|error| io::Error::new(error.kind(), format!("{host}:{port}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(policy: &TargetPolicy, address: &str) -> bool {
        policy.allows(address.parse().unwrap())
    }

    #[test]
    fn metadata_services_are_denied_unless_allowed() {
        let usual = TargetPolicy::default();
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(!allows(&usual, address), "{address}");
        }
        for address in ["127.0.0.1", "::1", "10.1.2.3", "192.0.2.1", "2001:db8::1"] {
            assert!(allows(&usual, address), "{address}");
        }
        let wide = TargetPolicy::parse("link-local", "169.254.169.254").unwrap();
        assert!(allows(&wide, "169.254.169.254"));
        assert!(!allows(&wide, "169.254.169.253"));
    }

    #[test]
    fn classes_and_networks_are_read() {
        let strict = TargetPolicy::parse("link-local, loopback,private", "10.9.0.0/16").unwrap();
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "0.0.0.0",
            "::",
            "::ffff:127.0.0.1",
            "10.8.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "fd12::1",
        ] {
            assert!(!allows(&strict, address), "{address}");
        }
        for address in ["10.9.1.1", "172.32.0.1", "192.0.2.1", "2001:db8::1"] {
            assert!(allows(&strict, address), "{address}");
        }
        let nothing = TargetPolicy::parse("0.0.0.0/0, ::/0", "192.0.2.0/24").unwrap();
        assert!(!allows(&nothing, "198.51.100.1") && !allows(&nothing, "2001:db8::1"));
        assert!(allows(&nothing, "192.0.2.7"));
        for wrong in ["local", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/x"] {
            let error = TargetPolicy::parse(wrong, "").unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn only_allowed_addresses_of_a_name_are_used() {
        let addresses = |all: &[&str]| -> Vec<SocketAddr> {
            all.iter().map(|text| text.parse().unwrap()).collect()
        };
        let policy = TargetPolicy::default();
        let mixed = addresses(&["169.254.169.254:80", "192.0.2.1:80"]);
        let found = retain_allowed("a.example", mixed, &policy).unwrap();
        assert_eq!(found, addresses(&["192.0.2.1:80"]));
        let denied = retain_allowed("a.example", addresses(&["169.254.169.254:80"]), &policy);
        let error = denied.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("a.example (169.254.169.254)"));
        assert!(error.to_string().contains("outbound.allow"));
    }
}
