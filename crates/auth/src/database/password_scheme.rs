//! Password storage schemes that the hash itself does not describe: a digest with a salt before or after the
//! password, PBKDF2 with parameters from the settings, or plain text.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use data_encoding::HEXLOWER_PERMISSIVE;
use ring::{digest, pbkdf2};
use scram::constant_time_eq;
use serde::Deserialize;

use crate::password::{HashError, MAX_PASSWORD_BYTES, verify};

/// A password as stored in a database.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoredPassword {
    pub(crate) hash: String,
    pub(crate) salt: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PasswordHashAlgorithm {
    /// Recognised by the hash's own format.
    #[default]
    Auto,
    Bcrypt,
    Argon2,
    Sha256,
    Sha512,
    Pbkdf2,
    /// Plain text; only if configured explicitly.
    Plain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SaltPosition {
    #[default]
    Prefix,
    Suffix,
    Disable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MacFunction {
    Sha1,
    #[default]
    Sha256,
    Sha512,
}

/// How a database stores passwords.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PasswordScheme {
    #[serde(rename = "name")]
    pub(crate) algorithm: PasswordHashAlgorithm,
    pub(crate) salt_position: SaltPosition,
    pub(crate) mac_function: MacFunction,
    pub(crate) iterations: NonZeroU32,
}

impl Default for PasswordScheme {
    fn default() -> Self {
        Self {
            algorithm: PasswordHashAlgorithm::default(),
            salt_position: SaltPosition::default(),
            mac_function: MacFunction::default(),
            iterations: NonZeroU32::new(100_000).expect("100000 is not zero"),
        }
    }
}

impl PasswordScheme {
    /// The decoy to use until a real stored password is known.
    pub(crate) fn decoy(&self) -> StoredPassword {
        let hash = match self.algorithm {
            PasswordHashAlgorithm::Auto | PasswordHashAlgorithm::Argon2 => {
                "$argon2id$v=19$m=19456,t=2,p=1$dGlkZWdhdGUgZGVjb3k$Zr1f0Z7yqOQ2m0g1Ew3o2bWcY0dH9q5QvJ1kT6m8nXs"
            }
            PasswordHashAlgorithm::Bcrypt => {
                "$2b$10$abcdefghijklmnopqrstuuGsIl4rlJiKAZp.TbU1kNqaRK7Sm2w1a"
            }
            PasswordHashAlgorithm::Sha256
            | PasswordHashAlgorithm::Sha512
            | PasswordHashAlgorithm::Pbkdf2
            | PasswordHashAlgorithm::Plain => {
                "0000000000000000000000000000000000000000000000000000000000000000"
            }
        };
        StoredPassword {
            hash: hash.to_owned(),
            salt: "tidegate".to_owned(),
        }
    }

    /// Whether the password matches the stored one. Takes as long as the scheme requires.
    pub(crate) fn verify(
        &self,
        stored: &StoredPassword,
        password: &[u8],
    ) -> Result<bool, HashError> {
        if password.len() > MAX_PASSWORD_BYTES {
            return Ok(false);
        }
        match self.algorithm {
            PasswordHashAlgorithm::Auto => verify(&stored.hash, password),
            PasswordHashAlgorithm::Bcrypt => verify_with_prefix(&["$2"], stored, password),
            PasswordHashAlgorithm::Argon2 => verify_with_prefix(&["$argon2"], stored, password),
            PasswordHashAlgorithm::Sha256 => self.verify_digest(&digest::SHA256, stored, password),
            PasswordHashAlgorithm::Sha512 => self.verify_digest(&digest::SHA512, stored, password),
            PasswordHashAlgorithm::Pbkdf2 if stored.hash.starts_with('$') => {
                verify(&stored.hash, password)
            }
            PasswordHashAlgorithm::Pbkdf2 => {
                let algorithm = match self.mac_function {
                    MacFunction::Sha1 => pbkdf2::PBKDF2_HMAC_SHA1,
                    MacFunction::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
                    MacFunction::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
                };
                let salt = stored.salt.as_bytes();
                let is_it = |key: &[u8]| {
                    pbkdf2::verify(algorithm, self.iterations, salt, password, key).is_ok()
                };
                match decode_digest(&stored.hash) {
                    Some(key) => Ok(is_it(&key)),
                    None => Err(HashError::Damaged),
                }
            }
            PasswordHashAlgorithm::Plain => Ok(constant_time_eq(stored.hash.as_bytes(), password)),
        }
    }

    fn verify_digest(
        &self,
        algorithm: &'static digest::Algorithm,
        stored: &StoredPassword,
        password: &[u8],
    ) -> Result<bool, HashError> {
        let mut context = digest::Context::new(algorithm);
        if self.salt_position == SaltPosition::Prefix {
            context.update(stored.salt.as_bytes());
        }
        context.update(password);
        if self.salt_position == SaltPosition::Suffix {
            context.update(stored.salt.as_bytes());
        }
        let key = decode_digest(&stored.hash).ok_or(HashError::Damaged)?;
        Ok(constant_time_eq(context.finish().as_ref(), &key))
    }
}

fn verify_with_prefix(
    starts: &[&str],
    stored: &StoredPassword,
    password: &[u8],
) -> Result<bool, HashError> {
    match starts.iter().any(|start| stored.hash.starts_with(start)) {
        true => verify(&stored.hash, password),
        false => Err(HashError::Unknown),
    }
}

/// A digest in hexadecimal or base64.
fn decode_digest(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let key = if is_hex {
        HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
    } else if text.ends_with('=') {
        STANDARD.decode(text).ok()
    } else {
        STANDARD_NO_PAD.decode(text).ok()
    };
    key.filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(algorithm: PasswordHashAlgorithm, salt_position: SaltPosition) -> PasswordScheme {
        PasswordScheme {
            algorithm,
            salt_position,
            ..PasswordScheme::default()
        }
    }

    fn stored(hash: &str, salt: &str) -> StoredPassword {
        StoredPassword {
            hash: hash.into(),
            salt: salt.into(),
        }
    }

    #[test]
    fn a_digest_with_a_salt_before_or_behind() {
        // sha256("saltpencil") and sha256("pencilsalt")
        let digest = |text: &[u8]| {
            HEXLOWER_PERMISSIVE.encode(digest::digest(&digest::SHA256, text).as_ref())
        };
        let before = stored(&digest(b"saltpencil"), "salt");
        let behind = stored(&digest(b"pencilsalt"), "salt");
        let prefix = scheme(PasswordHashAlgorithm::Sha256, SaltPosition::Prefix);
        let suffix = scheme(PasswordHashAlgorithm::Sha256, SaltPosition::Suffix);
        let none = scheme(PasswordHashAlgorithm::Sha256, SaltPosition::Disable);
        assert_eq!(prefix.verify(&before, b"pencil"), Ok(true));
        assert_eq!(prefix.verify(&behind, b"pencil"), Ok(false));
        assert_eq!(suffix.verify(&behind, b"pencil"), Ok(true));
        assert_eq!(
            none.verify(&stored(&digest(b"pencil"), ""), b"pencil"),
            Ok(true)
        );
        assert_eq!(prefix.verify(&stored("zzzz", ""), b"pencil"), Ok(false));
        assert_eq!(prefix.verify(&stored("", ""), b""), Err(HashError::Damaged));
    }

    #[test]
    fn pbkdf2_with_its_parameters_in_the_setting() {
        let scheme = PasswordScheme {
            iterations: NonZeroU32::new(2).unwrap(),
            mac_function: MacFunction::Sha1,
            ..scheme(PasswordHashAlgorithm::Pbkdf2, SaltPosition::Disable)
        };
        // RFC 6070, second vector.
        let known = stored("ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957", "salt");
        assert_eq!(scheme.verify(&known, b"password"), Ok(true));
        assert_eq!(scheme.verify(&known, b"Password"), Ok(false));
        let other = stored(&known.hash, "Salt");
        assert_eq!(scheme.verify(&other, b"password"), Ok(false));
    }

    #[test]
    fn clear_text_is_taken_only_if_it_is_asked_for() {
        let clear = stored("pencil", "");
        let plain = scheme(PasswordHashAlgorithm::Plain, SaltPosition::Disable);
        assert_eq!(plain.verify(&clear, b"pencil"), Ok(true));
        assert_eq!(plain.verify(&clear, b"pen"), Ok(false));
        let auto = PasswordScheme::default();
        assert_eq!(auto.verify(&clear, b"pencil"), Err(HashError::Unknown));
        let bcrypt = scheme(PasswordHashAlgorithm::Bcrypt, SaltPosition::Disable);
        assert_eq!(bcrypt.verify(&clear, b"pencil"), Err(HashError::Unknown));
    }
}
