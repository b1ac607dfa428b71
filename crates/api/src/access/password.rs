//! Passwords of operators: hashed as those of users are, off the threads that answer requests, two at a time.

use auth::password::HashError;
use tokio::sync::Semaphore;

use crate::call;
use crate::problem::Problem;

/// Hashes computed at once: each takes a core and 19 MiB for some 20 ms.
const AT_ONCE: usize = 2;
pub(crate) const MIN_CHARS: usize = 8;
/// Argon2 takes more; who sends more sends something else than meant.
pub(crate) const MAX_CHARS: usize = 256;

pub(crate) struct Passwords {
    permits: Semaphore,
}

impl Default for Passwords {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(AT_ONCE),
        }
    }
}

impl Passwords {
    /// The hash of a password as the PHC string `$argon2id$...`.
    pub(crate) async fn hash(&self, password: String) -> Result<String, Problem> {
        self.run(move || hash(&password))
            .await?
            .map_err(|error| Problem::unavailable(format!("Cannot hash a password: {error}.")))
    }

    /// Whether `hash` is that of the password. None: there is no such operator; it takes as long and is false.
    pub(crate) async fn verify(
        &self,
        password: String,
        hash: Option<String>,
    ) -> Result<bool, Problem> {
        self.run(move || verify(&password, hash.as_deref())).await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let _permit = self.permits.acquire().await.expect("it is never closed");
        call::blocking(work, "Passwords cannot be checked now.").await
    }
}

/// Refuses what is no password to rely on.
pub(crate) fn check(password: &str) -> Result<(), Problem> {
    if password.chars().count() < MIN_CHARS {
        let detail = format!("password is too short; expected at least {MIN_CHARS} characters.");
        return Err(Problem::field("password", detail));
    }
    if password.chars().count() > MAX_CHARS {
        let detail = format!("password is too long; expected at most {MAX_CHARS} characters.");
        return Err(Problem::field("password", detail));
    }
    Ok(())
}

pub(super) fn hash(password: &str) -> Result<String, HashError> {
    auth::password::hash(password.as_bytes())
}

/// Of a password nobody has, so that asking for an unknown operator takes as long as for a known one.
const DECOY: &str = "$argon2id$v=19$m=19456,t=2,p=1$dGlkZWdhdGUgZGVjb3k$Zr1f0Z7yqOQ2m0g1Ew3o2bWcY0dH9q5QvJ1kT6m8nXs";

fn verify(password: &str, hash: Option<&str>) -> bool {
    let is_known = hash.is_some();
    let fits = auth::password::verify(hash.unwrap_or(DECOY), password.as_bytes());
    is_known && fits == Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_fits_and_hashes_differ() {
        let one = hash("correct horse").unwrap();
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{one}");
        assert_ne!(one, hash("correct horse").unwrap());
        assert!(verify("correct horse", Some(&one)));
        assert!(!verify("correct hors", Some(&one)));
        assert!(!verify("correct horse", None));
        assert_eq!(auth::password::verify(DECOY, b"correct horse"), Ok(false));
        assert!(!verify("correct horse", Some("plain text")));
    }

    /// A backup that somebody else made may hold any hash.
    #[test]
    fn a_hash_that_would_take_gigabytes_lets_nobody_in() {
        let costly = "$argon2id$v=19$m=4000000,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        assert!(!verify("password", Some(costly)));
    }

    #[test]
    fn weak_and_endless_passwords_are_refused() {
        assert!(check("1234567").is_err());
        assert!(check("pässwörd").is_ok());
        assert!(check(&"x".repeat(257)).is_err());
    }
}
