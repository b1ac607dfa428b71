//! What devices prove themselves with, and what is kept of it.
//!
//! Tokens and passwords that the node makes have 128 bits of chance in them: a digest with the node's key keeps them as safe as
//! a slow hash would, at less than a microsecond; so do given ones of 20 bytes and more. Shorter ones are hashed with argon2, once per device and start of the
//! node: what was found right is remembered as a digest with a key of the process. JetLinks' `secureKey` has to be kept as it
//! is, since devices send an MD5 of it and the time.

use std::fmt;

use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _, phc::PasswordHash};
use md5::{Digest as _, Md5};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{self, UnparsedPublicKey};

use crate::device::{decode_array, decode_text, encode_text};
use crate::product::CredentialKind;

/// The user name of devices that want to be registered, as ThingsBoard has it.
pub const PROVISION_USERNAME: &str = "provision";
pub(crate) const MAX_SECRET_BYTES: usize = 512;
/// Passwords from this length on were made by a program: nobody types them by the thousand. They are kept as a digest.
pub(crate) const LONG_SECRET_BYTES: usize = 20;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Of a token: 119 bits, as ThingsBoard makes them.
const TOKEN_LETTERS: usize = 20;

/// Makes digests.
pub(crate) struct SecretDigester(hmac::Key);

impl SecretDigester {
    pub(crate) fn new(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    pub(crate) fn digest(&self, secret: &[u8]) -> [u8; 32] {
        let mut digest = [0; 32];
        digest.copy_from_slice(hmac::sign(&self.0, secret).as_ref());
        digest
    }

    pub(crate) fn matches(&self, secret: &[u8], digest: &[u8; 32]) -> bool {
        hmac::verify(&self.0, secret, digest).is_ok()
    }
}

pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], RandomSourceError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| RandomSourceError)?;
    Ok(bytes)
}

/// The system gives no random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no random numbers")]
pub struct RandomSourceError;

/// A secret that nobody guesses.
pub(crate) fn generate_token() -> Result<String, RandomSourceError> {
    let bytes: [u8; 2 * TOKEN_LETTERS] = random_bytes()?;
    // Two bytes a letter: what is left of chance is off by a thousandth.
    let letters = bytes.chunks_exact(2);
    let letters = letters.map(|pair| {
        let number = usize::from(u16::from_le_bytes([pair[0], pair[1]]));
        char::from(LETTERS[number % LETTERS.len()])
    });
    Ok(letters.collect())
}

/// A credential as it is kept.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    Token {
        digest: [u8; 32],
    },
    Password {
        username: Box<str>,
        secret: PasswordSecret,
    },
    Secure {
        id: Box<str>,
        key: Box<str>,
    },
    Certificate {
        common_name: Box<str>,
    },
    Jwt {
        key: PublicKey,
    },
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum PasswordSecret {
    /// Made by the node.
    Digest([u8; 32]),
    /// Chosen by somebody: an argon2 hash.
    Hash(Box<str>),
}

/// A key that checks signatures of a device's tokens.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PublicKey {
    pub(crate) algorithm: JwtAlgorithm,
    /// RSA: PKCS#1; EC: the point; Ed25519: the key; HMAC: the secret.
    pub(crate) bytes: Box<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum JwtAlgorithm {
    Hs256 = 0,
    Es256 = 1,
    EdDsa = 2,
    Rs256 = 3,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind(), f)
    }
}

/// A credential as somebody writes it.
#[derive(Clone, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum NewCredential {
    /// An access token; the node makes one if none is given.
    Token {
        #[serde(default)]
        #[schemars(length(min = 1, max = 512))]
        token: Option<String>,
    },
    /// User name and password; the node makes a password if none is given.
    Password {
        /// The device's id, if none is given. Unique in the node.
        #[serde(default)]
        #[schemars(length(min = 1, max = 256))]
        username: Option<String>,
        #[serde(default)]
        #[schemars(length(min = 1, max = 512))]
        password: Option<String>,
    },
    /// JetLinks: `secureId|timestamp` and an MD5.
    Secure {
        /// The device's id, if none is given.
        #[serde(default)]
        #[schemars(length(min = 1, max = 128))]
        secure_id: Option<String>,
        #[serde(default)]
        #[schemars(length(min = 1, max = 512))]
        secure_key: Option<String>,
    },
    /// The common name of its certificate.
    Certificate {
        /// The device's id, if none is given. Unique in the node.
        #[serde(default)]
        #[schemars(length(min = 1, max = 256))]
        common_name: Option<String>,
    },
    /// A JWT as the password, signed with the device's key.
    Jwt {
        algorithm: JwtAlgorithmName,
        /// HS256: the secret; else the public key in Base64: the point (ES256), 32 bytes (EdDSA), PKCS#1 DER (RS256).
        #[schemars(length(min = 1, max = 2048))]
        key: String,
    },
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize, schemars::JsonSchema,
)]
pub enum JwtAlgorithmName {
    #[serde(rename = "HS256")]
    Hs256,
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "EdDSA")]
    EdDsa,
    #[serde(rename = "RS256")]
    Rs256,
}

impl fmt::Debug for NewCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token { .. } => "token",
            Self::Password { .. } => "password",
            Self::Secure { .. } => "secure",
            Self::Certificate { .. } => "certificate",
            Self::Jwt { .. } => "jwt",
        })
    }
}

/// What was made for a device, told once.
#[derive(Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum IssuedCredential {
    Token {
        token: String,
    },
    Password {
        username: String,
        password: String,
    },
    Secure {
        secure_id: String,
        secure_key: String,
    },
}

impl fmt::Debug for IssuedCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token { .. } => "a token",
            Self::Password { .. } => "a password",
            Self::Secure { .. } => "a secure key",
        })
    }
}

/// What people are shown of a credential.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct CredentialSummary {
    #[serde(rename = "type")]
    pub kind: CredentialKind,
    /// The user name, `secureId` or common name; `null` for tokens.
    pub name: Option<String>,
}

/// Why a credential cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct CredentialError {
    pub field: &'static str,
    pub message: String,
}

fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), CredentialError> {
    if text.is_empty() || text.len() > max || text.contains('\0') {
        return Err(CredentialError {
            field,
            message: format!("expected 1 to {max} bytes without NUL"),
        });
    }
    Ok(())
}

/// With this user name devices ask to be registered; nobody may log in with it.
fn check_not_reserved(field: &'static str, name: &str) -> Result<(), CredentialError> {
    match name == PROVISION_USERNAME {
        false => Ok(()),
        true => Err(CredentialError {
            field,
            message: format!(
                "{PROVISION_USERNAME:?} is reserved for devices that register themselves; choose another"
            ),
        }),
    }
}

impl NewCredential {
    #[must_use]
    pub fn kind(&self) -> CredentialKind {
        match self {
            Self::Token { .. } => CredentialKind::Token,
            Self::Password { .. } => CredentialKind::Password,
            Self::Secure { .. } => CredentialKind::Secure,
            Self::Certificate { .. } => CredentialKind::Certificate,
            Self::Jwt { .. } => CredentialKind::Jwt,
        }
    }

    /// What is kept of it, and what is to be told once. Takes some 30 ms for a chosen password.
    pub(crate) fn into_stored(
        self,
        device_id: &str,
        digester: &SecretDigester,
    ) -> Result<(Credential, Option<IssuedCredential>), CredentialError> {
        let chance = |error: RandomSourceError| CredentialError {
            field: "credentials",
            message: error.to_string(),
        };
        let own = || device_id.to_owned();
        Ok(match self {
            Self::Token { token: Some(token) } => {
                check_text("token", &token, MAX_SECRET_BYTES)?;
                check_not_reserved("token", &token)?;
                let digest = digester.digest(token.as_bytes());
                (Credential::Token { digest }, None)
            }
            Self::Token { token: None } => {
                let token = generate_token().map_err(chance)?;
                let digest = digester.digest(token.as_bytes());
                (
                    Credential::Token { digest },
                    Some(IssuedCredential::Token { token }),
                )
            }
            Self::Password { username, password } => {
                let username = username.unwrap_or_else(own);
                check_text("username", &username, 256)?;
                check_not_reserved("username", &username)?;
                let (secret, issued) = match password {
                    Some(password) => {
                        check_text("password", &password, MAX_SECRET_BYTES)?;
                        let secret = match password.len() >= LONG_SECRET_BYTES {
                            true => PasswordSecret::Digest(digester.digest(password.as_bytes())),
                            false => {
                                PasswordSecret::Hash(hash_password(password.as_bytes())?.into())
                            }
                        };
                        (secret, None)
                    }
                    None => {
                        let password = generate_token().map_err(chance)?;
                        let digest = digester.digest(password.as_bytes());
                        let issued = IssuedCredential::Password {
                            username: username.clone(),
                            password,
                        };
                        (PasswordSecret::Digest(digest), Some(issued))
                    }
                };
                let username = username.into();
                (Credential::Password { username, secret }, issued)
            }
            Self::Secure {
                secure_id,
                secure_key,
            } => {
                let id = secure_id.unwrap_or_else(own);
                check_text("secure_id", &id, 128)?;
                if id.contains('|') {
                    return Err(CredentialError {
                        field: "secure_id",
                        message: "'|' cannot be in it, since it ends it in a user name".to_owned(),
                    });
                }
                let (key, issued) = match secure_key {
                    Some(key) => (key, None),
                    None => {
                        let key = generate_token().map_err(chance)?;
                        let issued = IssuedCredential::Secure {
                            secure_id: id.clone(),
                            secure_key: key.clone(),
                        };
                        (key, Some(issued))
                    }
                };
                check_text("secure_key", &key, MAX_SECRET_BYTES)?;
                let (id, key) = (id.into(), key.into());
                (Credential::Secure { id, key }, issued)
            }
            Self::Certificate { common_name } => {
                let common_name = common_name.unwrap_or_else(own);
                check_text("common_name", &common_name, 256)?;
                let common_name = common_name.into();
                (Credential::Certificate { common_name }, None)
            }
            Self::Jwt { algorithm, key } => {
                let key = PublicKey::parse(algorithm, &key)?;
                (Credential::Jwt { key }, None)
            }
        })
    }
}

impl Credential {
    pub(crate) fn kind(&self) -> CredentialKind {
        match self {
            Self::Token { .. } => CredentialKind::Token,
            Self::Password { .. } => CredentialKind::Password,
            Self::Secure { .. } => CredentialKind::Secure,
            Self::Certificate { .. } => CredentialKind::Certificate,
            Self::Jwt { .. } => CredentialKind::Jwt,
        }
    }

    pub(crate) fn summary(&self) -> CredentialSummary {
        let name = match self {
            Self::Token { .. } | Self::Jwt { .. } => None,
            Self::Password { username: name, .. }
            | Self::Secure { id: name, .. }
            | Self::Certificate { common_name: name } => Some(name.to_string()),
        };
        CredentialSummary {
            kind: self.kind(),
            name,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Token { digest } => {
                out.push(1);
                out.extend_from_slice(digest);
            }
            Self::Password { username, secret } => {
                out.push(match secret {
                    PasswordSecret::Digest(_) => 2,
                    PasswordSecret::Hash(_) => 3,
                });
                encode_text(out, username);
                match secret {
                    PasswordSecret::Digest(digest) => out.extend_from_slice(digest),
                    PasswordSecret::Hash(hash) => encode_text(out, hash),
                }
            }
            Self::Secure { id, key } => {
                out.push(4);
                encode_text(out, id);
                encode_text(out, key);
            }
            Self::Certificate { common_name } => {
                out.push(5);
                encode_text(out, common_name);
            }
            Self::Jwt { key } => {
                out.extend_from_slice(&[6, key.algorithm as u8]);
                disk::varint::put(out, key.bytes.len() as u64);
                out.extend_from_slice(&key.bytes);
            }
        }
    }

    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let [tag] = decode_array(bytes)?;
        Some(match tag {
            1 => Self::Token {
                digest: decode_array(bytes)?,
            },
            2 => Self::Password {
                username: decode_text(bytes)?.into(),
                secret: PasswordSecret::Digest(decode_array(bytes)?),
            },
            3 => Self::Password {
                username: decode_text(bytes)?.into(),
                secret: PasswordSecret::Hash(decode_text(bytes)?.into()),
            },
            4 => Self::Secure {
                id: decode_text(bytes)?.into(),
                key: decode_text(bytes)?.into(),
            },
            5 => Self::Certificate {
                common_name: decode_text(bytes)?.into(),
            },
            6 => {
                let [algorithm] = decode_array(bytes)?;
                let algorithm = match algorithm {
                    0 => JwtAlgorithm::Hs256,
                    1 => JwtAlgorithm::Es256,
                    2 => JwtAlgorithm::EdDsa,
                    3 => JwtAlgorithm::Rs256,
                    _ => return None,
                };
                let len = usize::try_from(disk::varint::take(bytes)?).ok()?;
                let (key, rest) = bytes.split_at_checked(len)?;
                *bytes = rest;
                let bytes = key.into();
                let key = PublicKey { algorithm, bytes };
                Self::Jwt { key }
            }
            _ => return None,
        })
    }
}

fn hash_password(password: &[u8]) -> Result<String, CredentialError> {
    let hashed = argon2::Argon2::default().hash_password(password);
    let hashed = hashed.map_err(|error| CredentialError {
        field: "password",
        message: error.to_string(),
    })?;
    Ok(hashed.to_string())
}

/// Takes some 30 ms.
pub(crate) fn verify_password(hash: &str, password: &[u8]) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else {
        return false;
    };
    password.len() <= MAX_SECRET_BYTES
        && argon2::Argon2::default()
            .verify_password(password, &hash)
            .is_ok()
}

/// What a client of JetLinks' shows.
pub(crate) struct SecureLogin<'a> {
    pub(crate) id: &'a str,
    pub(crate) timestamp_ms: i64,
    username: &'a str,
    password: &'a [u8],
}

impl<'a> SecureLogin<'a> {
    /// `None`: it is none.
    pub(crate) fn parse(username: &'a str, password: &'a [u8]) -> Option<Self> {
        let (id, timestamp) = username.rsplit_once('|')?;
        Some(Self {
            id,
            timestamp_ms: timestamp.parse().ok()?,
            username,
            password,
        })
    }

    pub(crate) fn is_valid_for(&self, id: &str, key: &str, now_ms: u64, window_s: u32) -> bool {
        let age_ms = (now_ms as i64).saturating_sub(self.timestamp_ms);
        if self.id != id || age_ms.unsigned_abs() > u64::from(window_s) * 1000 {
            return false;
        }
        let mut md5 = Md5::new();
        md5.update(self.username.as_bytes());
        md5.update(b"|");
        md5.update(key.as_bytes());
        let expected: [u8; 16] = md5.finalize().into();
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(expected) {
            pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        let found = self.password;
        // In the same time, whatever differs.
        found.len() == 32
            && found.iter().zip(hex).fold(0, |wrong, (byte, hex)| {
                wrong | (byte.to_ascii_lowercase() ^ hex)
            }) == 0
    }
}

impl PublicKey {
    fn parse(algorithm: JwtAlgorithmName, key: &str) -> Result<Self, CredentialError> {
        let wrong = |message: &str| CredentialError {
            field: "key",
            message: message.to_owned(),
        };
        let algorithm = match algorithm {
            JwtAlgorithmName::Hs256 if key.len() < 16 => {
                return Err(wrong("expected a secret of at least 16 bytes"));
            }
            JwtAlgorithmName::Hs256 => {
                let (algorithm, bytes) = (JwtAlgorithm::Hs256, key.as_bytes().into());
                return Ok(Self { algorithm, bytes });
            }
            JwtAlgorithmName::Es256 => JwtAlgorithm::Es256,
            JwtAlgorithmName::EdDsa => JwtAlgorithm::EdDsa,
            JwtAlgorithmName::Rs256 => JwtAlgorithm::Rs256,
        };
        let bytes = decode_base64(key).ok_or_else(|| wrong("expected Base64"))?;
        let is_right = match algorithm {
            JwtAlgorithm::Es256 => bytes.len() == 65 && bytes[0] == 4,
            JwtAlgorithm::EdDsa => bytes.len() == 32,
            _ => bytes.len() > 128 && bytes[0] == 0x30,
        };
        if !is_right {
            return Err(wrong(
                "expected an uncompressed point of 65 bytes (ES256), 32 bytes (EdDSA) or PKCS#1 DER (RS256)",
            ));
        }
        let bytes = bytes.into();
        Ok(Self { algorithm, bytes })
    }

    /// Checks a token; gives back when it ends. It names no other device than this one, and its end.
    pub(crate) fn check(&self, token: &[u8], device_id: &str, now_ms: u64) -> Option<u64> {
        let text = str::from_utf8(token).ok()?;
        let (signed, signature) = text.rsplit_once('.')?;
        let (head, claims) = signed.split_once('.')?;
        let head: serde_json::Value = serde_json::from_slice(&decode_base64(head)?).ok()?;
        let name = match self.algorithm {
            JwtAlgorithm::Hs256 => "HS256",
            JwtAlgorithm::Es256 => "ES256",
            JwtAlgorithm::EdDsa => "EdDSA",
            JwtAlgorithm::Rs256 => "RS256",
        };
        if head["alg"] != name {
            return None;
        }
        let signature = decode_base64(signature)?;
        let signed = signed.as_bytes();
        let verify = |algorithm: &'static dyn signature::VerificationAlgorithm| {
            UnparsedPublicKey::new(algorithm, &self.bytes).verify(signed, &signature)
        };
        let verified = match self.algorithm {
            JwtAlgorithm::Hs256 => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, &self.bytes);
                hmac::verify(&key, signed, &signature)
            }
            JwtAlgorithm::Es256 => verify(&signature::ECDSA_P256_SHA256_FIXED),
            JwtAlgorithm::EdDsa => verify(&signature::ED25519),
            JwtAlgorithm::Rs256 => verify(&signature::RSA_PKCS1_2048_8192_SHA256),
        };
        verified.ok()?;
        let claims: serde_json::Value = serde_json::from_slice(&decode_base64(claims)?).ok()?;
        let seconds = |name: &str| claims[name].as_f64();
        let now_s = now_ms as f64 / 1000.0;
        let ends_s = seconds("exp")?;
        let is_early = seconds("nbf").is_some_and(|from_s| from_s > now_s + 60.0);
        let is_other = claims.get("sub").is_some_and(|sub| sub != device_id);
        if ends_s <= now_s || is_early || is_other {
            return None;
        }
        Some((ends_s * 1000.0) as u64)
    }
}

/// Base64 of either alphabet, with or without padding.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}
