//! Password hashing for operators, on threads that may block and limited to two hashes at a time.

use auth::password::HashError;
use tokio::sync::Semaphore;

use crate::blocking::run_blocking;
use crate::problem_details::ProblemDetails;

/// Maximum number of concurrent hashes: each uses a core and 19 MiB for about 20 ms.
const MAX_CONCURRENT_HASHES: usize = 2;
pub(crate) const MIN_CHARS: usize = 8;
/// Argon2 accepts longer passwords; longer input is probably a mistake.
pub(crate) const MAX_CHARS: usize = 256;

pub(crate) struct PasswordHasher {
    permits: Semaphore,
}

impl Default for PasswordHasher {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(MAX_CONCURRENT_HASHES),
        }
    }
}

impl PasswordHasher {
    /// Hashes a password as the PHC string `$argon2id$...`.
    pub(crate) async fn hash(&self, password: String) -> Result<String, ProblemDetails> {
        self.run_limited(move || hash_password(&password))
            .await?
            .map_err(|error| {
                ProblemDetails::unavailable(format!("Cannot hash a password: {error}."))
            })
    }

    /// Whether the password matches `hash`. Without a hash (unknown operator) the check takes as
    /// long and returns false.
    pub(crate) async fn verify(
        &self,
        password: String,
        hash: Option<String>,
    ) -> Result<bool, ProblemDetails> {
        self.run_limited(move || verify_password(&password, hash.as_deref()))
            .await
    }

    async fn run_limited<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        let _permit = self
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed");
        run_blocking(work, "Passwords cannot be checked now.").await
    }
}

/// Rejects weak passwords.
pub(crate) fn check_strength(password: &str) -> Result<(), ProblemDetails> {
    if password.chars().count() < MIN_CHARS {
        let detail = format!("password is too short; expected at least {MIN_CHARS} characters.");
        return Err(ProblemDetails::invalid_field("password", detail));
    }
    if password.chars().count() > MAX_CHARS {
        let detail = format!("password is too long; expected at most {MAX_CHARS} characters.");
        return Err(ProblemDetails::invalid_field("password", detail));
    }
    Ok(())
}

/// Rejects passwords that are weak for people who registered themselves.
pub(crate) fn check_registered(password: &str) -> Result<(), ProblemDetails> {
    check_strength(password)?;
    let has = |is: fn(char) -> bool| password.chars().any(is);
    match has(char::is_uppercase)
        && has(char::is_lowercase)
        && has(|letter| letter.is_ascii_digit())
    {
        true => Ok(()),
        false => Err(ProblemDetails::invalid_field(
            "password",
            "password: expected an upper-case letter, a lower-case letter and a digit.",
        )),
    }
}

pub(super) fn hash_password(password: &str) -> Result<String, HashError> {
    auth::password::hash(password.as_bytes())
}

/// Hash of a password that nobody has, so that a login for an unknown operator takes as long as for
/// a known one.
const DECOY_HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$dGlkZWdhdGUgZGVjb3k$Zr1f0Z7yqOQ2m0g1Ew3o2bWcY0dH9q5QvJ1kT6m8nXs";

fn verify_password(password: &str, hash: Option<&str>) -> bool {
    let is_known = hash.is_some();
    let fits = auth::password::verify(hash.unwrap_or(DECOY_HASH), password.as_bytes());
    is_known && fits == Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_fits_and_hashes_differ() {
        let one = hash_password("correct horse").unwrap();
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{one}");
        assert_ne!(one, hash_password("correct horse").unwrap());
        assert!(verify_password("correct horse", Some(&one)));
        assert!(!verify_password("correct hors", Some(&one)));
        assert!(!verify_password("correct horse", None));
        // What is computed for an unknown operator costs the same.
        let parameters = one.rsplitn(3, '$').last().unwrap();
        assert!(DECOY_HASH.starts_with(&format!("{parameters}$")), "{one}");
        assert_eq!(
            auth::password::verify(DECOY_HASH, b"correct horse"),
            Ok(false)
        );
        assert!(!verify_password("correct horse", Some("plain text")));
    }

    /// A backup from an untrusted origin may contain any hash.
    #[test]
    fn a_hash_that_would_take_gigabytes_lets_nobody_in() {
        let costly = "$argon2id$v=19$m=4000000,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        assert!(!verify_password("password", Some(costly)));
    }

    #[test]
    fn weak_and_endless_passwords_are_rejected() {
        assert!(check_strength("1234567").is_err());
        assert!(check_strength("pässwörd").is_ok());
        assert!(check_strength(&"x".repeat(257)).is_err());
        for weak in ["Short1", "lower-case-1", "UPPER-CASE-1", "No-digit-here"] {
            assert!(check_registered(weak).is_err(), "{weak}");
        }
        assert!(check_registered("Correct-horse-1").is_ok());
    }
}
