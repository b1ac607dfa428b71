//! Passwords of operators: argon2id, off the threads that answer requests, two at a time.

use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;

use crate::problem::Problem;

/// Memory in KiB, passes, lanes: what OWASP recommends as the least for argon2id.
const COST: (u32, u32, u32) = (19 * 1024, 2, 1);
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
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| Problem::unavailable("Passwords cannot be checked now."))
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

fn argon2() -> Argon2<'static> {
    let (memory_kib, passes, lanes) = COST;
    let params = Params::new(memory_kib, passes, lanes, None).expect("the numbers are in range");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

pub(super) fn hash(password: &str) -> Result<String, argon2::password_hash::Error> {
    let hash = argon2().hash_password(password.as_bytes())?;
    Ok(hash.to_string())
}

/// Of a password nobody has, so that asking for an unknown operator takes as long as for a known one.
const DECOY: &str = "$argon2id$v=19$m=19456,t=2,p=1$dGlkZWdhdGUgZGVjb3k$Zr1f0Z7yqOQ2m0g1Ew3o2bWcY0dH9q5QvJ1kT6m8nXs";

fn verify(password: &str, hash: Option<&str>) -> bool {
    let is_known = hash.is_some();
    let fits = argon2::PasswordHash::new(hash.unwrap_or(DECOY))
        .is_ok_and(|hash| argon2().verify_password(password.as_bytes(), &hash).is_ok());
    is_known && fits
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
        assert!(argon2::PasswordHash::new(DECOY).is_ok());
        assert!(!verify("correct horse", Some("plain text")));
    }

    #[test]
    fn weak_and_endless_passwords_are_refused() {
        assert!(check("1234567").is_err());
        assert!(check("pässwörd").is_ok());
        assert!(check(&"x".repeat(257)).is_err());
    }
}
