//! Keys of the digests of secrets.
//!
//! Each node has a key of its own. The nodes of a cluster tell each other the keys of the digests that are in use, and a node
//! that knows one of another node computes its digests with that. So there is one key for all, unless nodes have
//! registered devices before they met.

use store::{StoreError, Table};

use crate::credential::SecretDigester;

type Key = [u8; 32];

/// More keys than a cluster has nodes. Further ones are ignored.
const MAX_KEYS: usize = 256;
const OWN_ROW: &[u8] = b"key";
const OTHERS_ROW: &[u8] = b"keys";
const USED_ROW: &[u8] = b"key_used";

#[derive(Default)]
pub(super) struct DigestKeys {
    own: Key,
    /// Whether there may be digests with the own key.
    is_own_used: bool,
    /// In order.
    others: Vec<Key>,
}

impl DigestKeys {
    pub(super) fn new(own: Key) -> Self {
        Self {
            own,
            ..Self::default()
        }
    }

    /// `None`: there is no own key yet.
    pub(super) fn load(meta: &Table) -> Result<Option<Self>, StoreError> {
        let own = meta.get_with(OWN_ROW, |key| key.try_into().ok())?;
        let Some(own) = own.flatten() else {
            return Ok(None);
        };
        let others = meta.get_with(OTHERS_ROW, decode)?;
        Ok(Some(Self {
            own,
            is_own_used: meta.has(USED_ROW)?,
            others: others.unwrap_or_default(),
        }))
    }

    pub(super) fn digester(&self) -> SecretDigester {
        match self.others.split_first() {
            None => SecretDigester::new(&self.own),
            Some((first, others)) => {
                let mut others = others.to_vec();
                others.extend(self.is_own_used.then_some(self.own));
                SecretDigester::with_other_keys(first, &others)
            }
        }
    }

    /// A digest is computed with the current key.
    pub(super) fn mark_used(&mut self) {
        if self.others.is_empty() {
            self.is_own_used = true;
        }
    }

    /// The keys that others need.
    pub(super) fn encode_used(&self) -> Vec<u8> {
        let own = self.is_own_used.then_some(&self.own);
        self.others.iter().chain(own).flatten().copied().collect()
    }

    /// Adds keys of another node. Returns the rows to store if there are new ones.
    pub(super) fn merge(&mut self, encoded: &[u8]) -> Option<Vec<(&'static [u8], Vec<u8>)>> {
        let mut has_new = false;
        for key in decode(encoded) {
            if key == self.own {
                self.is_own_used = true;
            } else if let Err(at) = self.others.binary_search(&key)
                && self.others.len() < MAX_KEYS
            {
                self.others.insert(at, key);
                has_new = true;
            }
        }
        if !has_new {
            return None;
        }
        let mut rows = vec![(OTHERS_ROW, self.others.concat())];
        // From now on it is not known from the number of devices.
        rows.extend(self.is_own_used.then(|| (USED_ROW, vec![1])));
        Some(rows)
    }
}

fn decode(bytes: &[u8]) -> Vec<Key> {
    bytes.as_chunks::<32>().0.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(own: u8) -> DigestKeys {
        DigestKeys::new([own; 32])
    }

    #[test]
    fn a_node_without_devices_uses_the_key_of_another_one() {
        let (mut first, mut second) = (keys(2), keys(1));
        assert!(first.encode_used().is_empty());
        first.mark_used();
        let digest = first.digester().digest(b"secret");
        assert!(second.merge(&first.encode_used()).is_some());
        assert!(second.merge(&first.encode_used()).is_none());
        assert_eq!(second.digester().digest(b"secret"), digest);
        second.mark_used();
        assert_eq!(second.encode_used(), [2; 32]);
        assert!(first.merge(&second.encode_used()).is_none());
    }

    #[test]
    fn nodes_with_devices_know_the_digests_of_both() {
        let (mut first, mut second) = (keys(2), keys(1));
        first.mark_used();
        second.mark_used();
        let digests = [&first, &second].map(|keys| keys.digester().digest(b"secret"));
        first.merge(&second.encode_used());
        second.merge(&first.encode_used());
        for digest in digests {
            assert!(first.digester().matches(b"secret", &digest));
            assert!(second.digester().matches(b"secret", &digest));
            assert!(first.digester().digests(b"secret").any(|own| own == digest));
        }
        assert_eq!(first.encode_used().len(), 64);
    }
}
