//! Random secrets and the form in which they are stored. A secret of 256 random bits cannot be
//! guessed, so a plain hash protects it. Passwords are chosen by people and need a slow hash (see
//! `password`).

use std::fmt;

use ::secret::{RandomSourceError, random_bytes};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Generates the token for the data directory, valid until the node stops.
pub fn new_local_token() -> Result<String, RandomSourceError> {
    random_secret()
}

/// 256 random bits as text.
pub(crate) fn random_secret() -> Result<String, RandomSourceError> {
    random_text::<32>()
}

/// A secret that can be parsed as a JSON Web Token with these claims. The whole text is the secret;
/// its last part is random and not a signature.
pub(crate) fn readable_token(claims: &Value) -> Result<String, RandomSourceError> {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(&json!({"alg": "HS256", "typ": "JWT"}));
    Ok(format!("{head}.{}.{}", part(claims), random_secret()?))
}

/// A short random id with a prefix; not a secret.
pub(crate) fn random_id(prefix: &str) -> Result<String, RandomSourceError> {
    Ok(format!("{prefix}{}", random_text::<9>()?))
}

/// A password of 120 random bits, in groups that can be read aloud.
pub(crate) fn random_password() -> Result<String, RandomSourceError> {
    // Letters and digits that do not look alike. There are 32, so the low bits of a byte choose
    // one uniformly.
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let bytes: [u8; 24] = random_bytes()?;
    let groups: Vec<String> = bytes
        .chunks(6)
        .map(|chunk| {
            let letters = chunk
                .iter()
                .map(|byte| char::from(LETTERS[usize::from(byte % 32)]));
            letters.collect()
        })
        .collect();
    Ok(groups.join("-"))
}

fn random_text<const BYTES: usize>() -> Result<String, RandomSourceError> {
    Ok(URL_SAFE_NO_PAD.encode(random_bytes::<BYTES>()?))
}

/// SHA-256 of a secret. Hashes are compared instead of secrets, because the length of a common
/// prefix reveals nothing about the secret.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SecretHash([u8; 32]);

impl SecretHash {
    pub(crate) fn from_secret(secret: &str) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
        Self(hash)
    }

    pub(super) fn leading_bits(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashed(***)")
    }
}

impl From<SecretHash> for String {
    fn from(hashed: SecretHash) -> Self {
        URL_SAFE_NO_PAD.encode(hashed.0)
    }
}

impl TryFrom<String> for SecretHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
        let bytes = bytes.try_into().map_err(|_| "not a hash of 32 bytes")?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_only_their_hash_is_kept() {
        let (one, other) = (random_secret().unwrap(), random_secret().unwrap());
        assert_eq!(one.len(), 43);
        assert_ne!(one, other);
        let kept = serde_json::to_string(&SecretHash::from_secret(&one)).unwrap();
        assert!(!kept.contains(&one));
        let read: SecretHash = serde_json::from_str(&kept).unwrap();
        assert_eq!(read, SecretHash::from_secret(&one));
        assert_ne!(read, SecretHash::from_secret(&other));
        assert_eq!(format!("{read:?}"), "Hashed(***)");
        assert!(serde_json::from_str::<SecretHash>("\"abc\"").is_err());
    }

    #[test]
    fn passwords_can_be_read_aloud() {
        let password = random_password().unwrap();
        let groups: Vec<_> = password.split('-').collect();
        assert!(
            groups.len() == 4 && groups.iter().all(|group| group.len() == 6),
            "{password}"
        );
        assert!(!password.contains(['0', '1', 'l', 'o']), "{password}");
    }
}
