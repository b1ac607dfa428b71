//! What a rule remembers from one message to the next: `kv_store_put`, `kv_store_get`, `kv_store_del`. Bounded.

use std::collections::BTreeMap;

use crate::value::OwnedValue;

/// How much one rule may remember.
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
pub struct Full;

#[derive(Clone, Debug, Default)]
pub struct Kv {
    limits: KvLimits,
    entries: BTreeMap<Box<str>, OwnedValue>,
    bytes: usize,
}

impl Kv {
    #[must_use]
    pub fn new(limits: KvLimits) -> Kv {
        Kv {
            limits,
            ..Kv::default()
        }
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&OwnedValue> {
        self.entries.get(key)
    }

    /// Keeps a value, in place of the one the key had.
    ///
    /// # Errors
    /// If it would be one entry or one byte too much.
    pub fn put(&mut self, key: &str, value: OwnedValue) -> Result<(), Full> {
        let old = self.entries.get(key).map_or(0, |old| cost(key, old));
        let bytes = self.bytes - old + cost(key, &value);
        let entries = self.entries.len() + usize::from(old == 0);
        if bytes > self.limits.max_bytes || entries > self.limits.max_entries {
            return Err(Full);
        }
        self.bytes = bytes;
        self.entries.insert(key.into(), value);
        Ok(())
    }

    /// Whether there was such a key.
    pub fn remove(&mut self, key: &str) -> bool {
        let Some(old) = self.entries.remove(key) else {
            return false;
        };
        self.bytes -= cost(key, &old);
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &OwnedValue)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    #[must_use]
    pub fn limits(&self) -> KvLimits {
        self.limits
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn cost(key: &str, value: &OwnedValue) -> usize {
    key.len() + size_of::<Box<str>>() + value.size_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_hold_and_what_is_removed_is_given_back() {
        let mut kv = Kv::new(KvLimits {
            max_entries: 2,
            max_bytes: 200,
        });
        assert_eq!(kv.put("a", OwnedValue::Int(1)), Ok(()));
        assert_eq!(kv.put("b", OwnedValue::Int(2)), Ok(()));
        assert_eq!(kv.put("c", OwnedValue::Int(3)), Err(Full));
        assert_eq!(
            kv.put("a", OwnedValue::Str("x".repeat(200).into())),
            Err(Full)
        );
        assert!(matches!(kv.get("a"), Some(OwnedValue::Int(1))));
        assert!(kv.remove("a") && !kv.remove("a"));
        assert_eq!(kv.put("c", OwnedValue::Int(3)), Ok(()));
        kv.remove("b");
        kv.remove("c");
        assert_eq!(kv.bytes(), 0);
    }
}
