//! Tokens that operators get for their password: random, short-lived, only their hashes are kept, and only in memory,
//! so that a restart ends them all.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::secret::{Hashed, NoRandomness, random_secret};

/// Of the whole node.
const MAX_TOKENS: usize = 10_000;
/// Of one operator; one more ends the oldest.
const MAX_PER_OPERATOR: usize = 100;

#[derive(Default)]
pub(crate) struct Tokens {
    logins: Mutex<HashMap<Hashed, Login>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) operator: String,
    /// Of the operator's password hash: a new password ends the tokens got for the old one.
    pub(crate) password: Hashed,
    expires: Instant,
}

/// A new token; the only time it is seen.
pub(crate) struct Issued {
    pub(crate) token: String,
}

impl Tokens {
    pub(crate) fn issue(
        &self,
        operator: &str,
        password_hash: &str,
        lives: Duration,
    ) -> Result<Issued, NoRandomness> {
        let token = random_secret()?;
        let now = Instant::now();
        let mut logins = self.lock();
        logins.retain(|_, login| login.expires > now);
        let oldest_of = |logins: &HashMap<Hashed, Login>, operator: Option<&str>| {
            let those = logins
                .iter()
                .filter(|(_, login)| operator.is_none_or(|name| login.operator == name));
            those
                .min_by_key(|(_, login)| login.expires)
                .map(|(token, _)| token.clone())
        };
        let own = logins.values().filter(|login| login.operator == operator);
        let leaves = if own.count() >= MAX_PER_OPERATOR {
            oldest_of(&logins, Some(operator))
        } else if logins.len() >= MAX_TOKENS {
            oldest_of(&logins, None)
        } else {
            None
        };
        if let Some(leaves) = leaves {
            logins.remove(&leaves);
        }
        let login = Login {
            operator: operator.to_owned(),
            password: Hashed::of(password_hash),
            expires: now + lives,
        };
        logins.insert(Hashed::of(&token), login);
        Ok(Issued { token })
    }

    /// The login behind a token that has not expired.
    pub(crate) fn find(&self, token: &Hashed) -> Option<Login> {
        let mut logins = self.lock();
        let login = logins.get(token)?;
        if login.expires <= Instant::now() {
            logins.remove(token);
            return None;
        }
        Some(login.clone())
    }

    pub(crate) fn revoke(&self, token: &Hashed) -> bool {
        self.lock().remove(token).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Hashed, Login>> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn tokens_end_by_time_by_revocation_and_by_number() {
        let tokens = Tokens::default();
        let late = tokens.issue("ann", "hash", Duration::ZERO).unwrap();
        assert!(tokens.find(&Hashed::of(&late.token)).is_none());

        let first = Hashed::of(&tokens.issue("ann", "hash", HOUR).unwrap().token);
        assert_eq!(tokens.find(&first).unwrap().operator, "ann");
        assert!(tokens.find(&Hashed::of("guess")).is_none());
        let other = Hashed::of(&tokens.issue("bob", "hash", HOUR).unwrap().token);
        for _ in 0..MAX_PER_OPERATOR {
            tokens.issue("ann", "hash", HOUR).unwrap();
        }
        assert!(
            tokens.find(&first).is_none(),
            "the oldest of ann's made room"
        );
        assert!(tokens.find(&other).is_some());
        assert!(tokens.revoke(&other) && !tokens.revoke(&other));
    }
}
