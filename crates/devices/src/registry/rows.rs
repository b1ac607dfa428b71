//! Keys of the registry's tables.
//!
//! | table | key | value |
//! |---|---|---|
//! | `device` | number (4 bytes, big-endian) | the record, see `device.rs` |
//! | `device_index` | a letter and a name | the number, or nothing where the number ends the key |
//! | `device_state` | number | when it was first connected and last seen, in seconds |
//! | `device_attribute` | number, scope, key | time in milliseconds, JSON |
//! | `device_event` | number, the event's number counted down (8 bytes) | JSON |
//! | `device_meta` | `key`, `next`, `count` and a product | the digests' key, the next number, how many devices |

use series::DeviceNo;

use crate::credential::Credential;
use crate::device::Device;

/// A name that finds one device.
#[allow(
    clippy::enum_variant_names,
    reason = "a common name is called so in certificates"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Name<'a> {
    Id(&'a str),
    Token(&'a [u8; 32]),
    Username(&'a str),
    CommonName(&'a str),
}

/// The letters that rows of names begin with.
pub(super) const NAMES: [u8; 4] = *b"ituc";

impl<'a> Name<'a> {
    pub(crate) fn all_of(device: &'a Device) -> impl Iterator<Item = Name<'a>> {
        let credentials = device.credentials.iter().filter_map(Self::of);
        std::iter::once(Name::Id(device.id.as_str())).chain(credentials)
    }

    fn of(credential: &'a Credential) -> Option<Self> {
        match credential {
            Credential::Token { digest } => Some(Name::Token(digest)),
            Credential::Password { username, .. } => Some(Name::Username(username)),
            Credential::Certificate { common_name } => Some(Name::CommonName(common_name)),
            Credential::Secure { .. } | Credential::Jwt { .. } => None,
        }
    }

    pub(crate) fn is_of(&self, device: &Device) -> bool {
        Name::all_of(device).any(|name| name == *self)
    }

    pub(crate) fn row(&self) -> Vec<u8> {
        match self {
            Name::Id(id) => [b"i", id.as_bytes()].concat(),
            // Half of a digest is as good as all of it to tell tokens apart.
            Name::Token(digest) => [b"t", &digest[..16]].concat(),
            Name::Username(username) => [b"u", username.as_bytes()].concat(),
            Name::CommonName(name) => [b"c", name.as_bytes()].concat(),
        }
    }
}

/// What many devices have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trait<'a> {
    Product(&'a str),
    Group(&'a str),
    Tag(&'a str, &'a str),
    Parent(DeviceNo),
}

impl<'a> Trait<'a> {
    pub(crate) fn all_of(device: &'a Device) -> impl Iterator<Item = Trait<'a>> {
        let product = std::iter::once(Trait::Product(device.product.id().as_str()));
        let group = device.group.as_deref().map(Trait::Group);
        let tags = device
            .tags
            .iter()
            .map(|(key, value)| Trait::Tag(key, value));
        product
            .chain(group)
            .chain(tags)
            .chain(device.parent.map(Trait::Parent))
    }

    /// The beginning of its rows.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        match self {
            Trait::Product(id) => [b"p", id.as_bytes(), b"\0"].concat(),
            Trait::Group(group) => [b"g", group.as_bytes(), b"\0"].concat(),
            Trait::Tag(key, value) => {
                [b"k", key.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat()
            }
            Trait::Parent(no) => [&b"r"[..], &no.0.to_be_bytes()].concat(),
        }
    }

    pub(crate) fn row(&self, no: DeviceNo) -> Vec<u8> {
        let mut row = self.prefix();
        row.extend_from_slice(&no.0.to_be_bytes());
        row
    }
}

/// The number at the end of a key or in a value.
pub(crate) fn no_at_end(bytes: &[u8]) -> Option<DeviceNo> {
    let (_, no) = bytes.split_last_chunk::<4>()?;
    Some(DeviceNo(u32::from_be_bytes(*no)))
}
