//! Keys of the registry's tables.
//!
//! | table | key | value |
//! |---|---|---|
//! | `device` | number (4 bytes, big-endian) | the record, see `device.rs` |
//! | `device_index` | a letter and a name | the number, or nothing where the number ends the key |
//! | `device_index` | `x`, the key of a name, number | nothing: the device has a name that belongs to another one |
//! | `device_index` | `y`, number | the id that has the number, while there is no device with this id |
//! | `device_state` | number | when it was first connected and last seen, in seconds |
//! | `device_attribute` | number, scope, key | time in milliseconds, JSON |
//! | `device_event` | number, the event's number counted down (8 bytes) | JSON |
//! | `device_meta` | `key`, `next`, `count` and a product | the digests' key, the next number, how many devices |
//! | `device_meta` | `keys`, `key_used` | keys of digests of other nodes, whether others need the own one |
//! | `device_version` | bucket (2 bytes, big-endian), id | see `shared_versions.rs`; only in a cluster |
//! | `device_awaiting` | id | a record of another node whose product is not known yet |
//! | `attribute_version` | bucket, id of the record (see `attribute_sharing.rs`) | as `device_version` |
//! | `attribute_awaiting` | id of the record | a record of another node whose device is not known yet |

use series::DeviceNo;

use super::attribute_scope::AttributeScope;
use crate::credential::Credential;
use crate::device::Device;

/// A name that identifies one device.
#[allow(
    clippy::enum_variant_names,
    reason = "a common name is called so in certificates"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DeviceName<'a> {
    Id(&'a str),
    Token(&'a [u8; 32]),
    Username(&'a str),
    CommonName(&'a str),
}

/// Prefixes of the index rows for names.
pub(super) const NAME_PREFIXES: [u8; 4] = *b"ituc";

impl<'a> DeviceName<'a> {
    pub(crate) fn names_of(device: &'a Device) -> impl Iterator<Item = DeviceName<'a>> {
        let credentials = device.credentials.iter().filter_map(Self::from_credential);
        std::iter::once(DeviceName::Id(device.id.as_str())).chain(credentials)
    }

    fn from_credential(credential: &'a Credential) -> Option<Self> {
        match credential {
            Credential::Token { digest } => Some(DeviceName::Token(digest)),
            Credential::Password { username, .. } => Some(DeviceName::Username(username)),
            Credential::Certificate { common_name } => Some(DeviceName::CommonName(common_name)),
            Credential::Secure { .. } | Credential::Jwt { .. } => None,
        }
    }

    pub(crate) fn belongs_to(&self, device: &Device) -> bool {
        DeviceName::names_of(device).any(|name| name == *self)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            DeviceName::Id(id) => [b"i", id.as_bytes()].concat(),
            // Half of the digest is enough to distinguish tokens.
            DeviceName::Token(digest) => [b"t", &digest[..16]].concat(),
            DeviceName::Username(username) => [b"u", username.as_bytes()].concat(),
            DeviceName::CommonName(name) => [b"c", name.as_bytes()].concat(),
        }
    }
}

/// A property by which devices are indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceIndexKey<'a> {
    Product(&'a str),
    Group(&'a str),
    Tag(&'a str, &'a str),
    Parent(DeviceNo),
}

impl<'a> DeviceIndexKey<'a> {
    pub(crate) fn keys_of(device: &'a Device) -> impl Iterator<Item = DeviceIndexKey<'a>> {
        let product = std::iter::once(DeviceIndexKey::Product(device.product.id().as_str()));
        let group = device.group.as_deref().map(DeviceIndexKey::Group);
        let tags = device
            .tags
            .iter()
            .map(|(key, value)| DeviceIndexKey::Tag(key, value));
        product
            .chain(group)
            .chain(tags)
            .chain(device.parent.map(DeviceIndexKey::Parent))
    }

    /// The prefix of its index rows.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        match self {
            DeviceIndexKey::Product(id) => [b"p", id.as_bytes(), b"\0"].concat(),
            DeviceIndexKey::Group(group) => [b"g", group.as_bytes(), b"\0"].concat(),
            DeviceIndexKey::Tag(key, value) => {
                [b"k", key.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat()
            }
            DeviceIndexKey::Parent(no) => [&b"r"[..], &no.0.to_be_bytes()].concat(),
        }
    }

    pub(crate) fn encode(&self, no: DeviceNo) -> Vec<u8> {
        let mut row = self.prefix();
        row.extend_from_slice(&no.0.to_be_bytes());
        row
    }
}

/// Prefix of the rows of devices that have a name without owning it.
pub(super) const CONTESTED_PREFIX: u8 = b'x';

/// The row of a device that has the name of another one.
pub(super) fn contested_row(name: &[u8], no: DeviceNo) -> Vec<u8> {
    [&[CONTESTED_PREFIX], name, &no.0.to_be_bytes()].concat()
}

/// The row of an id that has a number, while there is no device with this id.
pub(super) fn reserved_row(no: DeviceNo) -> Vec<u8> {
    [&b"y"[..], &no.0.to_be_bytes()].concat()
}

/// The device number at the end of a key or value.
pub(crate) fn no_at_end(bytes: &[u8]) -> Option<DeviceNo> {
    let (_, no) = bytes.split_last_chunk::<4>()?;
    Some(DeviceNo(u32::from_be_bytes(*no)))
}

/// The row of an attribute: the number of the device, the letter of the scope, and the key.
pub(super) fn attribute_row(no: DeviceNo, scope: AttributeScope, key: &str) -> Vec<u8> {
    [&no.0.to_be_bytes()[..], &[scope.letter()], key.as_bytes()].concat()
}

/// The scope and the key of an attribute in its row.
pub(super) fn split_attribute_row(row: &[u8]) -> Option<(AttributeScope, String)> {
    let (letter, key) = row.get(4..)?.split_first()?;
    let scope = AttributeScope::ALL
        .into_iter()
        .find(|scope| scope.letter() == *letter)?;
    Some((scope, String::from_utf8(key.to_vec()).ok()?))
}
