//! A registered device and the encoding of its record.
//!
//! Record: layout version, flags, then texts (length and bytes) and numbers (LEB128). An absent field takes one byte.

use std::sync::{Arc, OnceLock};

use disk::varint;
use series::DeviceNo;

use crate::credential::Credential;
use crate::id::{DeviceId, id_for_name};
use crate::product::ProductSlot;
use crate::record_codec::{decode_array, decode_text, encode_text};

const LAYOUT: u8 = 1;
const DISABLED: u64 = 1;
const GATEWAY: u64 = 1 << 1;
const ACTIVATED: u64 = 1 << 2;

/// Limits of one device.
pub(crate) const MAX_TAGS: usize = 64;
pub(crate) const MAX_TAG_BYTES: usize = 128;
pub(crate) const MAX_NAME_BYTES: usize = 256;
pub(crate) const MAX_CREDENTIALS: usize = 8;

/// A registered device. Immutable: a change creates a new `Device`.
#[derive(Debug)]
pub struct Device {
    pub no: DeviceNo,
    pub id: DeviceId,
    pub product: Arc<ProductSlot>,
    /// Display name; if empty, the id is used.
    pub name: Box<str>,
    /// The gateway in front of this device.
    pub parent: Option<DeviceNo>,
    pub group: Option<Box<str>>,
    pub tags: Box<[(Box<str>, Box<str>)]>,
    pub is_enabled: bool,
    /// The device may have child devices, whatever its product allows.
    pub is_gateway: bool,
    pub created_ms: u64,
    /// Increases with each change.
    pub revision: u32,
    pub(crate) credentials: Box<[Credential]>,
    pub(crate) claim: Option<DeviceClaim>,
    /// The device was active once, perhaps at another node. Only for devices that register again until they are active.
    pub(crate) was_activated: bool,
    /// Digest of the last password that was verified, which avoids repeating argon2 for the same password.
    pub(crate) verified_password_digest: OnceLock<[u8; 32]>,
}

/// What a client must present to claim the device.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DeviceClaim {
    pub(crate) digest: [u8; 32],
    pub(crate) until_ms: u64,
}

impl std::fmt::Debug for DeviceClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim")
            .field("until_ms", &self.until_ms)
            .finish_non_exhaustive()
    }
}

impl Device {
    #[must_use]
    pub fn name(&self) -> &str {
        match &*self.name {
            "" => self.id.as_str(),
            name => name,
        }
    }

    /// The name by which its gateway addresses the device.
    #[must_use]
    pub fn name_at_gateway(&self) -> &str {
        match id_for_name(&self.name) == self.id.as_str() {
            true => &self.name,
            false => self.id.as_str(),
        }
    }

    #[must_use]
    pub fn tag(&self, key: &str) -> Option<&str> {
        let tag = self.tags.iter().find(|(name, _)| &**name == key);
        tag.map(|(_, value)| &**value)
    }

    /// Whether the device may have child devices.
    #[must_use]
    pub fn is_gateway(&self) -> bool {
        self.is_gateway || self.product.get().definition.gateway
    }

    /// Whether the device may connect: the device, its product and its namespace are enabled.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.is_enabled && self.product.admits_devices()
    }

    /// Whether the device belongs to this namespace, which is that of its product.
    #[must_use]
    pub fn is_in_namespace(&self, namespace: &str) -> bool {
        self.product.get().namespace() == namespace
    }

    /// A copy that can be modified.
    pub(crate) fn draft(&self) -> Device {
        Device {
            no: self.no,
            id: self.id.clone(),
            product: Arc::clone(&self.product),
            name: self.name.clone(),
            parent: self.parent,
            group: self.group.clone(),
            tags: self.tags.clone(),
            is_enabled: self.is_enabled,
            is_gateway: self.is_gateway,
            created_ms: self.created_ms,
            revision: self.revision,
            credentials: self.credentials.clone(),
            claim: self.claim.clone(),
            was_activated: self.was_activated,
            verified_password_digest: OnceLock::new(),
        }
    }

    /// Whether clients of both versions of a device have the same permissions, unless its product has changed.
    pub(crate) fn has_same_access(&self, other: &Device) -> bool {
        self.is_enabled == other.is_enabled
            && self.product.id() == other.product.id()
            && self.credentials == other.credentials
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_with_parent(self.parent)
    }

    /// The record with another parent. Numbers of devices are those of one node.
    pub(crate) fn encode_with_parent(&self, parent: Option<DeviceNo>) -> Vec<u8> {
        let mut out = Vec::with_capacity(96);
        out.push(LAYOUT);
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let flags = flag(!self.is_enabled, DISABLED)
            | flag(self.is_gateway, GATEWAY)
            | flag(self.was_activated, ACTIVATED);
        varint::put(&mut out, flags);
        encode_text(&mut out, self.id.as_str());
        encode_text(&mut out, self.product.id().as_str());
        encode_text(&mut out, &self.name);
        varint::put(&mut out, parent.map_or(0, |no| u64::from(no.0) + 1));
        encode_text(&mut out, self.group.as_deref().unwrap_or_default());
        varint::put(&mut out, self.created_ms);
        varint::put(&mut out, u64::from(self.revision));
        varint::put(&mut out, self.tags.len() as u64);
        for (key, value) in &self.tags {
            encode_text(&mut out, key);
            encode_text(&mut out, value);
        }
        varint::put(&mut out, self.credentials.len() as u64);
        for credential in &self.credentials {
            credential.encode(&mut out);
        }
        match &self.claim {
            None => out.push(0),
            Some(claim) => {
                out.push(1);
                varint::put(&mut out, claim.until_ms);
                out.extend_from_slice(&claim.digest);
            }
        }
        out
    }

    /// The product in a record.
    pub(crate) fn product_in(mut bytes: &[u8]) -> Option<&str> {
        let [LAYOUT] = decode_array(&mut bytes)? else {
            return None;
        };
        let _flags = varint::take(&mut bytes)?;
        let _id = decode_text(&mut bytes)?;
        decode_text(&mut bytes)
    }

    /// Returns `None` if the record is damaged or its product does not exist.
    pub(crate) fn decode(
        no: DeviceNo,
        mut bytes: &[u8],
        product: impl FnOnce(&str) -> Option<Arc<ProductSlot>>,
    ) -> Option<Device> {
        let bytes = &mut bytes;
        let (&LAYOUT, rest) = bytes.split_first()? else {
            return None;
        };
        *bytes = rest;
        let flags = varint::take(bytes)?;
        let id = DeviceId::new(decode_text(bytes)?).ok()?;
        let product = product(decode_text(bytes)?)?;
        let name = decode_text(bytes)?.into();
        let parent = match varint::take(bytes)? {
            0 => None,
            no => Some(DeviceNo(u32::try_from(no - 1).ok()?)),
        };
        let group = Some(decode_text(bytes)?).filter(|group| !group.is_empty());
        let group = group.map(Into::into);
        let created_ms = varint::take(bytes)?;
        let revision = varint::take(bytes)? as u32;
        let count = varint::take(bytes)?.min(MAX_TAGS as u64);
        let tags =
            (0..count).map(|_| Some((decode_text(bytes)?.into(), decode_text(bytes)?.into())));
        let tags = tags.collect::<Option<_>>()?;
        let count = varint::take(bytes)?.min(MAX_CREDENTIALS as u64);
        let credentials = (0..count).map(|_| Credential::decode(bytes));
        let credentials = credentials.collect::<Option<_>>()?;
        let claim = match decode_array::<1>(bytes)? {
            [0] => None,
            _ => Some(DeviceClaim {
                until_ms: varint::take(bytes)?,
                digest: decode_array(bytes)?,
            }),
        };
        Some(Device {
            no,
            id,
            product,
            name,
            parent,
            group,
            tags,
            is_enabled: flags & DISABLED == 0,
            is_gateway: flags & GATEWAY != 0,
            created_ms,
            revision,
            credentials,
            claim,
            was_activated: flags & ACTIVATED != 0,
            verified_password_digest: OnceLock::new(),
        })
    }
}
