//! Self-describing password hashes: argon2, bcrypt, PBKDF2, SCRAM verifiers and those of mosquitto_passwd.

use std::num::NonZeroU32;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ring::{digest, pbkdf2};
use scram::{ScramCredential, constant_time_eq};

/// Longer passwords are rejected before hashing.
pub(crate) const MAX_PASSWORD_BYTES: usize = 4096;
/// Upper limits of the cost of one check, independent of the hash's origin: memory and passes of argon2, cost of
/// bcrypt, rounds of PBKDF2.
const MAX_ARGON2_KIB: u32 = 256 * 1024;
const MAX_ARGON2_PASSES: u32 = 16;
const MAX_BCRYPT_COST: u32 = 16;
const MAX_PBKDF2_ROUNDS: u32 = 10_000_000;
const MAX_KEY_BYTES: usize = 64;

/// Why a stored hash is unusable. Never contains the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    #[error(
        "not a hash of a known form: expected $argon2id$..., $2b$... (bcrypt), $pbkdf2-sha256$..., \
         $pbkdf2-sha512$..., $6$... or $7$... (mosquitto_passwd), scram-sha-256$..."
    )]
    Unknown,
    #[error("damaged: its fields do not match its format")]
    Damaged,
    #[error("its cost parameters exceed the limit")]
    TooCostly,
}

/// Hashes a password with argon2id, 19 MiB and two passes: about 25 ms of one core.
pub fn hash(password: &[u8]) -> Result<String, HashError> {
    let hashed = Argon2::default().hash_password(password);
    Ok(hashed.map_err(|_| HashError::Damaged)?.to_string())
}

/// Verifies a password against a stored hash. A hash above the cost limits is rejected without computing it.
pub fn verify(stored: &str, password: &[u8]) -> Result<bool, HashError> {
    let form = HashFormat::parse(stored)?;
    if password.len() > MAX_PASSWORD_BYTES {
        return Ok(false);
    }
    Ok(match form {
        HashFormat::Argon2(parsed) => Argon2::default().verify_password(password, &parsed).is_ok(),
        HashFormat::Bcrypt => bcrypt::verify(password, stored).map_err(|_| HashError::Damaged)?,
        HashFormat::Pbkdf2 {
            algorithm,
            rounds,
            salt,
            key,
        } => pbkdf2::verify(algorithm, rounds, &salt, password, &key).is_ok(),
        HashFormat::Sha512 { salt, key } => {
            let mut context = digest::Context::new(&digest::SHA512);
            context.update(password);
            context.update(&salt);
            constant_time_eq(context.finish().as_ref(), &key)
        }
        HashFormat::Scram(credential) => credential.verify_password(password),
    })
}

enum HashFormat {
    Argon2(PasswordHash),
    Bcrypt,
    Pbkdf2 {
        algorithm: pbkdf2::Algorithm,
        rounds: NonZeroU32,
        salt: Vec<u8>,
        key: Vec<u8>,
    },
    /// One round of SHA-512 with the salt after the password: mosquitto before version 2.
    Sha512 {
        salt: Vec<u8>,
        key: Vec<u8>,
    },
    Scram(Box<ScramCredential>),
}

impl HashFormat {
    fn parse(stored: &str) -> Result<Self, HashError> {
        if stored.starts_with("scram-sha-256$") {
            let credential = stored.parse().map_err(|_| HashError::Damaged)?;
            return Ok(Self::Scram(Box::new(credential)));
        }
        let mut fields = stored
            .strip_prefix('$')
            .ok_or(HashError::Unknown)?
            .split('$');
        let form = fields.next().unwrap_or_default();
        match form {
            "argon2id" | "argon2i" | "argon2d" => argon2_form(stored),
            "2a" | "2b" | "2x" | "2y" => {
                let cost: u32 = parse_number(fields.next())?;
                if cost > MAX_BCRYPT_COST {
                    return Err(HashError::TooCostly);
                }
                Ok(Self::Bcrypt)
            }
            "pbkdf2-sha256" | "pbkdf2-sha512" => {
                let algorithm = match form {
                    "pbkdf2-sha256" => pbkdf2::PBKDF2_HMAC_SHA256,
                    _ => pbkdf2::PBKDF2_HMAC_SHA512,
                };
                let parameters = fields.next().ok_or(HashError::Damaged)?;
                // `i=10000,l=32` as in PHC strings, or only the number of rounds as written by passlib.
                let mut parameters = parameters.split(',');
                let written = parameters.find_map(|parameter| match parameter.split_once('=') {
                    Some(("i", rounds)) => Some(rounds),
                    Some(_) => None,
                    None => Some(parameter),
                });
                pbkdf2_form(algorithm, written, fields.next(), fields.next())
            }
            "7" => pbkdf2_form(
                pbkdf2::PBKDF2_HMAC_SHA512,
                fields.next(),
                fields.next(),
                fields.next(),
            ),
            "6" => Ok(Self::Sha512 {
                salt: decode_base64(fields.next())?,
                key: decode_base64(fields.next())?,
            }),
            _ => Err(HashError::Unknown),
        }
    }
}

fn argon2_form(stored: &str) -> Result<HashFormat, HashError> {
    let parsed = PasswordHash::new(stored).map_err(|_| HashError::Damaged)?;
    let parameters = argon2::Params::try_from(&parsed).map_err(|_| HashError::Damaged)?;
    let is_costly = parameters.m_cost() > MAX_ARGON2_KIB || parameters.t_cost() > MAX_ARGON2_PASSES;
    match is_costly {
        true => Err(HashError::TooCostly),
        false => Ok(HashFormat::Argon2(parsed)),
    }
}

fn pbkdf2_form(
    algorithm: pbkdf2::Algorithm,
    rounds: Option<&str>,
    salt: Option<&str>,
    key: Option<&str>,
) -> Result<HashFormat, HashError> {
    let rounds: NonZeroU32 = parse_number(rounds)?;
    if rounds.get() > MAX_PBKDF2_ROUNDS {
        return Err(HashError::TooCostly);
    }
    let (salt, key) = (decode_base64(salt)?, decode_base64(key)?);
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(HashError::Damaged);
    }
    Ok(HashFormat::Pbkdf2 {
        algorithm,
        rounds,
        salt,
        key,
    })
}

fn parse_number<T: std::str::FromStr>(field: Option<&str>) -> Result<T, HashError> {
    field
        .and_then(|text| text.parse().ok())
        .ok_or(HashError::Damaged)
}

/// Decodes Base64 with or without padding; also accepts `.` for `+`, as written by passlib.
fn decode_base64(field: Option<&str>) -> Result<Vec<u8>, HashError> {
    let text = field
        .ok_or(HashError::Damaged)?
        .trim_end()
        .replace('.', "+");
    let decoded = match text.ends_with('=') {
        true => STANDARD.decode(text),
        false => STANDARD_NO_PAD.decode(text),
    };
    decoded.map_err(|_| HashError::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format of mosquitto_passwd 2.
    fn pbkdf2_sha512(rounds: u32) -> String {
        let mut key = [0; 64];
        let rounds_given = NonZeroU32::new(rounds).unwrap();
        let salt = b"0123456789ab";
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA512,
            rounds_given,
            salt,
            b"pencil",
            &mut key,
        );
        format!(
            "$7${rounds}${}${}",
            STANDARD.encode(salt),
            STANDARD.encode(key)
        )
    }

    #[test]
    fn each_format_verifies_its_password() {
        let mut context = digest::Context::new(&digest::SHA512);
        context.update(b"pencil");
        context.update(b"0123456789ab");
        let sha512 = STANDARD.encode(context.finish().as_ref());
        let salt = STANDARD.encode(b"0123456789ab");
        let forms = [
            hash(b"pencil").unwrap(),
            bcrypt::hash("pencil", 4).unwrap(),
            pbkdf2_sha512(101),
            format!("$6${salt}${sha512}"),
            ScramCredential::generate(b"pencil", 4096)
                .unwrap()
                .to_string(),
        ];
        for stored in forms {
            assert_eq!(verify(&stored, b"pencil"), Ok(true), "{stored}");
            assert_eq!(verify(&stored, b"Pencil"), Ok(false), "{stored}");
            assert_eq!(verify(&stored, b""), Ok(false), "{stored}");
        }
    }

    #[test]
    fn hashes_other_programs_made_are_understood() {
        // RFC 7914, section 11: the first 32 of its 64 bytes, in PHC and in passlib format.
        let key = "VawEblbjCJ/sFpHCJUS2BflBhSFt3gRl5oudV8INrLw";
        let phc = format!("$pbkdf2-sha256$i=1,l=32$c2FsdA${key}");
        assert_eq!(verify(&phc, b"passwd"), Ok(true));
        assert_eq!(
            verify(&format!("$pbkdf2-sha256$1$c2FsdA${key}"), b"passwd"),
            Ok(true)
        );
        let argon2 = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        assert_eq!(verify(argon2, b"password"), Ok(true));
        let bcrypt = "$2y$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
        assert_eq!(verify(bcrypt, b"U*U"), Ok(true));
    }

    #[test]
    fn an_invalid_hash_never_matches() {
        for (stored, error) in [
            ("pencil", HashError::Unknown),
            ("", HashError::Unknown),
            ("$1$salt$x", HashError::Unknown),
            ("$7$x$AAAA$AAAA", HashError::Damaged),
            ("$7$0$AAAA$AAAA", HashError::Damaged),
            ("$7$1$AAAA$", HashError::Damaged),
            ("$argon2id$v=19$x", HashError::Damaged),
            ("$7$4000000000$AAAA$AAAA", HashError::TooCostly),
            (
                "$2b$31$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
                HashError::TooCostly,
            ),
            (
                "$argon2id$v=19$m=4000000,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
                HashError::TooCostly,
            ),
        ] {
            assert_eq!(verify(stored, b"pencil"), Err(error), "{stored}");
        }
    }

    #[test]
    fn a_password_too_long_to_be_one_costs_nothing() {
        let stored = hash(b"pencil").unwrap();
        assert_eq!(
            verify(&stored, &vec![b'x'; MAX_PASSWORD_BYTES + 1]),
            Ok(false)
        );
    }
}
