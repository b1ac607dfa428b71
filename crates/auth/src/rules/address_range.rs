//! Address ranges: `10.0.0.0/8`, `fd00::/8`, or a single address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network or a single address. IPv4-mapped IPv6 addresses are treated as IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressRange {
    first: u128,
    last: u128,
    is_v4: bool,
    prefix: u8,
}

impl AddressRange {
    pub fn contains(&self, address: IpAddr) -> bool {
        let (bits, is_v4) = bits(address);
        is_v4 == self.is_v4 && (self.first..=self.last).contains(&bits)
    }

    /// The address, if the range contains only one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.first == self.last).then(|| self.first())
    }

    fn first(&self) -> IpAddr {
        match self.is_v4 {
            true => IpAddr::V4((self.first as u32).into()),
            false => IpAddr::V6(self.first.into()),
        }
    }
}

fn bits(address: IpAddr) -> (u128, bool) {
    match address.to_canonical() {
        IpAddr::V4(address) => (u32::from(address).into(), true),
        IpAddr::V6(address) => (address.into(), false),
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: expected an address or a range such as 10.0.0.0/8");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
        let (bits, is_v4) = bits(address);
        let width: u8 = if is_v4 { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.trim().parse().map_err(|_| wrong())?,
            None => width,
        };
        if prefix > width {
            return Err(format!("{text:?}: a prefix is at most {width} bits here"));
        }
        let free = u32::from(width - prefix);
        let mask = 1_u128.checked_shl(free).map_or(u128::MAX, |top| top - 1);
        Ok(Self {
            first: bits & !mask,
            last: bits | mask,
            is_v4,
            prefix,
        })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.single() {
            Some(address) => address.fmt(f),
            None => write!(f, "{}/{}", self.first(), self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(range: &str, address: &str) -> bool {
        let range: AddressRange = range.parse().unwrap();
        range.contains(address.parse().unwrap())
    }

    #[test]
    fn ranges_contain_what_they_should() {
        assert!(contains("10.0.0.0/8", "10.255.1.2"));
        assert!(!contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("10.1.2.3", "10.1.2.3"));
        assert!(contains("10.1.2.3", "::ffff:10.1.2.3"));
        assert!(contains("0.0.0.0/0", "1.2.3.4"));
        assert!(!contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "fd00::1"));
        assert!(contains("fd00::/8", "fdff::1"));
        assert!(!contains("fd00::/8", "fe80::1"));
    }

    #[test]
    fn ranges_are_written_as_they_are_read() {
        for text in ["10.0.0.0/8", "10.1.2.3", "fd00::/8", "::1", "0.0.0.0/0"] {
            assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), text);
        }
        let masked: AddressRange = "10.9.9.9/8".parse().unwrap();
        assert_eq!(masked.to_string(), "10.0.0.0/8");
    }

    #[test]
    fn errors_are_reported() {
        for (text, expected) in [
            ("10.0.0", "expected an address"),
            ("10.0.0.0/33", "at most 32 bits"),
            ("::/129", "at most 128 bits"),
            ("a/8", "expected an address"),
            ("10.0.0.0/x", "expected an address"),
        ] {
            let message = text.parse::<AddressRange>().unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
