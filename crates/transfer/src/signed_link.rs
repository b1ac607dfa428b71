//! Links to files that need no login until they expire.

use std::fs;
use std::io;
use std::path::Path;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

const KEY_FILE: &str = "link-key";
const KEY_BYTES: usize = 32;

/// Signs links with a key of this node.
pub(crate) struct LinkKey(hmac::Key);

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
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    pub(crate) fn sign(&self, id: &str, expires_at_ms: u64) -> String {
        let tag = hmac::sign(&self.0, message(id, expires_at_ms).as_bytes());
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
        let is_signed =
            tag.is_ok_and(|tag| hmac::verify(&self.0, message.as_bytes(), &tag).is_ok());
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
}
