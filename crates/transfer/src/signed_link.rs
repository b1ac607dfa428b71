//! Links to files that need no login until they expire.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

const KEY_FILE: &str = "link-key";
/// The keys of other nodes: JSON of their hexadecimal digits by the name of the node.
const OTHER_KEYS_FILE: &str = "link-keys-of-nodes";
const KEY_BYTES: usize = 32;
/// Nodes whose keys are remembered.
const MAX_OTHER_KEYS: usize = 256;

/// Signs links with a key of this node, and accepts those of other nodes of a cluster.
pub(crate) struct LinkKey {
    own: hmac::Key,
    own_text: String,
    others: RwLock<BTreeMap<String, OtherKey>>,
    directory: PathBuf,
}

struct OtherKey {
    text: String,
    key: hmac::Key,
}

impl OtherKey {
    fn read(text: String) -> Option<Self> {
        let key = HEXLOWER.decode(text.as_bytes()).ok()?;
        (key.len() == KEY_BYTES).then(|| Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            text,
        })
    }
}

fn message(id: &str, expires_at_ms: u64) -> String {
    format!("tidegate-file-link/1\n{id}\n{expires_at_ms}")
}

impl LinkKey {
    /// Reads the key, and creates it if it is missing or damaged; then earlier links are invalid.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let stored = fs::read(directory.join(KEY_FILE)).ok();
        let stored = stored.and_then(|text| HEXLOWER.decode(text.trim_ascii()).ok());
        let key = match stored {
            Some(key) if key.len() == KEY_BYTES => key,
            _ => {
                let mut key = vec![0; KEY_BYTES];
                let filled = SystemRandom::new().fill(&mut key);
                filled.map_err(|_| io::Error::other("the system provides no randomness"))?;
                disk::replace_file(directory, KEY_FILE, HEXLOWER.encode(&key).as_bytes())?;
                key
            }
        };
        let others = fs::read(directory.join(OTHER_KEYS_FILE)).ok();
        let others = others.and_then(|json| serde_json::from_slice(&json).ok());
        let others: BTreeMap<String, String> = others.unwrap_or_default();
        let others = others.into_iter();
        let others = others.filter_map(|(node, text)| Some((node, OtherKey::read(text)?)));
        Ok(Self {
            own: hmac::Key::new(hmac::HMAC_SHA256, &key),
            own_text: HEXLOWER.encode(&key),
            others: RwLock::new(others.collect()),
            directory: directory.to_owned(),
        })
    }

    /// The key of this node, for other nodes of the cluster only.
    pub(crate) fn text(&self) -> &str {
        &self.own_text
    }

    /// Accepts links of another node from now on, durably.
    pub(crate) fn set_key_of_node(&self, node: &str, text: &str) -> io::Result<()> {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if others.get(node).is_some_and(|known| known.text == text) {
            return Ok(());
        }
        let key = OtherKey::read(text.to_owned());
        let key = key.ok_or_else(|| io::Error::other("the key of another node is invalid"))?;
        if others.len() >= MAX_OTHER_KEYS && !others.contains_key(node) {
            others.pop_first();
        }
        others.insert(node.to_owned(), key);
        let texts: BTreeMap<&str, &str> = others
            .iter()
            .map(|(node, key)| (node.as_str(), key.text.as_str()))
            .collect();
        let json = serde_json::to_vec(&texts)?;
        disk::replace_file(&self.directory, OTHER_KEYS_FILE, &json)
    }

    pub(crate) fn sign(&self, id: &str, expires_at_ms: u64) -> String {
        let tag = hmac::sign(&self.own, message(id, expires_at_ms).as_bytes());
        BASE64URL_NOPAD.encode(tag.as_ref())
    }

    pub(crate) fn verify(
        &self,
        id: &str,
        expires_at_ms: u64,
        signature: &str,
        now_ms: u64,
    ) -> bool {
        let tag = BASE64URL_NOPAD.decode(signature.as_bytes());
        let message = message(id, expires_at_ms);
        let Ok(tag) = tag else { return false };
        let is_signed_by = |key| hmac::verify(key, message.as_bytes(), &tag).is_ok();
        let is_signed = is_signed_by(&self.own) || {
            let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
            others.values().any(|other| is_signed_by(&other.key))
        };
        is_signed && now_ms < expires_at_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_valid_for_its_file_until_it_expires() {
        let directory = tempfile::tempdir().unwrap();
        let key = LinkKey::open(directory.path()).unwrap();
        let signature = key.sign("a", 1000);
        assert!(key.verify("a", 1000, &signature, 999));
        assert!(!key.verify("a", 1000, &signature, 1000), "expired");
        assert!(!key.verify("a", 1001, &signature, 999), "another time");
        assert!(!key.verify("b", 1000, &signature, 999), "another file");
        assert!(!key.verify("a", 1000, &signature[1..], 999));
        let again = LinkKey::open(directory.path()).unwrap();
        assert!(again.verify("a", 1000, &signature, 999), "after a restart");
        let other = LinkKey::open(tempfile::tempdir().unwrap().path()).unwrap();
        assert!(!other.verify("a", 1000, &signature, 999), "another node");
    }

    #[test]
    fn links_of_known_nodes_are_valid() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, other] = &directories;
        let key = LinkKey::open(one.path()).unwrap();
        let signature = key.sign("a", 1000);
        let at_other = LinkKey::open(other.path()).unwrap();
        at_other.set_key_of_node("one", key.text()).unwrap();
        assert!(at_other.verify("a", 1000, &signature, 999));
        assert!(!at_other.verify("b", 1000, &signature, 999), "another file");
        assert!(at_other.set_key_of_node("one", "no key").is_err());
        let again = LinkKey::open(other.path()).unwrap();
        assert!(again.verify("a", 1000, &signature, 999), "after a restart");
        // The other node has got another key.
        let text = HEXLOWER.encode(&[7; KEY_BYTES]);
        again.set_key_of_node("one", &text).unwrap();
        assert!(!again.verify("a", 1000, &signature, 999));
    }
}
