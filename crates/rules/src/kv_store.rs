//! The bounded key-value store of a rule, which keeps values between messages: `kv_store_put`,
//! `kv_store_get`, `kv_store_del`.

use std::collections::BTreeMap;

use crate::value::OwnedValue;
use crate::windows::DecodeError;
use crate::windows::codec::{WindowReader, put_bytes, put_owned, put_u64};

/// Version of the snapshot format.
const VERSION: u8 = 1;

/// Limits of one rule's store.
#[derive(Clone, Copy, Debug)]
pub struct KvLimits {
    pub max_entries: usize,
    pub max_bytes: usize,
}

impl Default for KvLimits {
    fn default() -> Self {
        KvLimits {
            max_entries: 10_000,
            max_bytes: 1 << 20,
        }
    }
}

/// The store is full; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStoreFullError;

#[derive(Clone, Debug, Default)]
pub struct KvStore {
    limits: KvLimits,
    entries: BTreeMap<Box<str>, OwnedValue>,
    bytes: usize,
    /// Number of changes so far.
    changes: u64,
}

impl KvStore {
    #[must_use]
    pub fn new(limits: KvLimits) -> KvStore {
        KvStore {
            limits,
            ..KvStore::default()
        }
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&OwnedValue> {
        self.entries.get(key)
    }

    /// Stores a value, replacing the previous value of the key.
    ///
    /// # Errors
    /// If the store would exceed its limit of entries or bytes.
    pub fn put(&mut self, key: &str, value: OwnedValue) -> Result<(), KvStoreFullError> {
        let old = self.entries.get(key).map_or(0, |old| entry_bytes(key, old));
        let bytes = self.bytes - old + entry_bytes(key, &value);
        let entries = self.entries.len() + usize::from(old == 0);
        if bytes > self.limits.max_bytes || entries > self.limits.max_entries {
            return Err(KvStoreFullError);
        }
        self.bytes = bytes;
        self.changes += 1;
        self.entries.insert(key.into(), value);
        Ok(())
    }

    /// Removes a key. Returns whether it existed.
    pub fn remove(&mut self, key: &str) -> bool {
        let Some(old) = self.entries.remove(key) else {
            return false;
        };
        self.bytes -= entry_bytes(key, &old);
        self.changes += 1;
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &OwnedValue)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The number of changes so far; it grows with every change.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.changes
    }

    /// Serializes the store for [`KvStore::restore`].
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_u64(self.entries.len() as u64, &mut out);
        for (key, value) in &self.entries {
            put_bytes(key.as_bytes(), &mut out);
            put_owned(value, &mut out);
        }
        out
    }

    /// Restores a snapshot, as far as the current limits allow.
    ///
    /// # Errors
    /// If the bytes are not a valid snapshot.
    pub fn restore(limits: KvLimits, snapshot: &[u8]) -> Result<Self, DecodeError> {
        let mut restored = Self::new(limits);
        let mut from = WindowReader::new(snapshot);
        if from.u8()? != VERSION {
            return Err(DecodeError);
        }
        for _ in 0..from.u64()? {
            let key = std::str::from_utf8(from.bytes()?).map_err(|_| DecodeError)?;
            // The limits may be lower than when the snapshot was written.
            let _ = restored.put(key, from.owned()?);
        }
        restored.changes = 0;
        match from.is_empty() {
            true => Ok(restored),
            false => Err(DecodeError),
        }
    }

    #[must_use]
    pub fn limits(&self) -> KvLimits {
        self.limits
    }

    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.bytes
    }
}

fn entry_bytes(key: &str, value: &OwnedValue) -> usize {
    key.len() + size_of::<Box<str>>() + value.size_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_restored_within_the_limits() {
        let mut kv = KvStore::new(KvLimits::default());
        let values = [
            OwnedValue::Null,
            OwnedValue::Float(0.5),
            OwnedValue::Str("text".into()),
            OwnedValue::Bytes([0xff].into()),
            OwnedValue::Json("{\"a\":[1]}".into()),
        ];
        for (n, value) in values.into_iter().enumerate() {
            kv.put(&format!("key {n}"), value).expect("there is room");
        }
        assert_eq!(kv.change_count(), 5);
        let snapshot = kv.snapshot();
        let restored = KvStore::restore(kv.limits(), &snapshot).expect("the snapshot is valid");
        assert_eq!(
            (restored.used_bytes(), restored.change_count()),
            (kv.used_bytes(), 0)
        );
        let text = |kv: &KvStore| format!("{:?}", kv.iter().collect::<Vec<_>>());
        assert_eq!(text(&restored), text(&kv));
        for end in 0..snapshot.len() {
            assert!(KvStore::restore(kv.limits(), &snapshot[..end]).is_err());
        }
        let few = KvLimits {
            max_entries: 2,
            ..kv.limits()
        };
        let restored = KvStore::restore(few, &snapshot).expect("the snapshot is valid");
        assert_eq!(restored.iter().count(), 2);
    }

    #[test]
    fn limits_hold_and_removal_frees_space() {
        let mut kv = KvStore::new(KvLimits {
            max_entries: 2,
            max_bytes: 200,
        });
        assert_eq!(kv.put("a", OwnedValue::Int(1)), Ok(()));
        assert_eq!(kv.put("b", OwnedValue::Int(2)), Ok(()));
        assert_eq!(kv.put("c", OwnedValue::Int(3)), Err(KvStoreFullError));
        assert_eq!(
            kv.put("a", OwnedValue::Str("x".repeat(200).into())),
            Err(KvStoreFullError)
        );
        assert!(matches!(kv.get("a"), Some(OwnedValue::Int(1))));
        assert!(kv.remove("a") && !kv.remove("a"));
        assert_eq!(kv.put("c", OwnedValue::Int(3)), Ok(()));
        kv.remove("b");
        kv.remove("c");
        assert_eq!(kv.used_bytes(), 0);
    }
}
