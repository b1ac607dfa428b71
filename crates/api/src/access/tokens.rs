//! Tokens that operators, and API keys on ThingsBoard's paths, get for their password: random, only their hashes are kept, and only
//! in memory, so that a restart ends them all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::secret::Hashed;

/// Of the whole node.
const MAX_TOKENS: usize = 10_000;
/// Of one operator or key; one more ends the oldest.
const MAX_PER_OWNER: usize = 100;

#[derive(Default)]
pub(crate) struct Tokens {
    logins: Mutex<HashMap<Hashed, Kept>>,
}

/// Who got a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    Operator(String),
    ApiKey(String),
}

/// Tokens that came of one login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Family(u64);

impl Family {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) owner: Owner,
    /// Of the operator's password hash, or of the key's secret: a new one ends the tokens got for the old one.
    pub(crate) password: Hashed,
    pub(crate) family: Family,
}

struct Kept {
    login: Login,
    expires: Instant,
}

impl Tokens {
    pub(crate) fn add(&self, token: &str, login: Login, lives: Duration) {
        let now = Instant::now();
        let mut logins = self.lock();
        logins.retain(|_, kept| kept.expires > now);
        let oldest_of = |logins: &HashMap<Hashed, Kept>, owner: Option<&Owner>| {
            let those = logins
                .iter()
                .filter(|(_, kept)| owner.is_none_or(|owner| kept.login.owner == *owner));
            those
                .min_by_key(|(_, kept)| kept.expires)
                .map(|(token, _)| token.clone())
        };
        let own = logins
            .values()
            .filter(|kept| kept.login.owner == login.owner);
        let leaves = if own.count() >= MAX_PER_OWNER {
            oldest_of(&logins, Some(&login.owner))
        } else if logins.len() >= MAX_TOKENS {
            oldest_of(&logins, None)
        } else {
            None
        };
        if let Some(leaves) = leaves {
            logins.remove(&leaves);
        }
        let expires = now + lives;
        logins.insert(Hashed::of(token), Kept { login, expires });
    }

    /// The login behind a token that has not expired.
    pub(crate) fn find(&self, token: &Hashed) -> Option<Login> {
        let mut logins = self.lock();
        let kept = logins.get(token)?;
        if kept.expires <= Instant::now() {
            logins.remove(token);
            return None;
        }
        Some(kept.login.clone())
    }

    pub(crate) fn revoke(&self, token: &Hashed) -> Option<Login> {
        self.lock().remove(token).map(|kept| kept.login)
    }

    pub(crate) fn end(&self, family: Family) {
        self.lock().retain(|_, kept| kept.login.family != family);
    }

    /// Ends tokens of a family but the youngest so many, and this one.
    pub(crate) fn keep_youngest(&self, family: Family, count: usize, this: Option<&Hashed>) {
        let mut logins = self.lock();
        let those = logins
            .iter()
            .filter(|(token, kept)| kept.login.family == family && Some(*token) != this);
        let mut those: Vec<_> = those
            .map(|(token, kept)| (kept.expires, token.clone()))
            .collect();
        those.sort_unstable_by(|one, other| other.cmp(one));
        for (_, token) in those.into_iter().skip(count) {
            logins.remove(&token);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Hashed, Kept>> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn login(operator: &str, family: Family) -> Login {
        Login {
            owner: Owner::Operator(operator.to_owned()),
            password: Hashed::of("hash"),
            family,
        }
    }

    #[test]
    fn tokens_end_by_time_by_revocation_and_by_number() {
        let tokens = Tokens::default();
        tokens.add("late", login("ann", Family::new()), Duration::ZERO);
        assert!(tokens.find(&Hashed::of("late")).is_none());

        let (first, other) = (Hashed::of("first"), Hashed::of("other"));
        tokens.add("first", login("ann", Family::new()), HOUR);
        let found = tokens.find(&first).unwrap();
        assert_eq!(found.owner, Owner::Operator("ann".to_owned()));
        assert!(tokens.find(&Hashed::of("guess")).is_none());
        tokens.add("other", login("bob", Family::new()), HOUR);
        for number in 0..MAX_PER_OWNER {
            tokens.add(&number.to_string(), login("ann", Family::new()), HOUR);
        }
        assert!(
            tokens.find(&first).is_none(),
            "the oldest of ann's made room"
        );
        assert!(tokens.find(&other).is_some());
        assert!(tokens.revoke(&other).is_some() && tokens.revoke(&other).is_none());
    }

    #[test]
    fn a_family_ends_together_and_keeps_its_youngest() {
        let tokens = Tokens::default();
        let (ours, theirs) = (Family::new(), Family::new());
        tokens.add("theirs", login("ann", theirs), HOUR);
        for number in 0..5_u32 {
            let lives = HOUR + Duration::from_secs(number.into());
            tokens.add(&number.to_string(), login("ann", ours), lives);
        }
        tokens.keep_youngest(ours, 2, Some(&Hashed::of("1")));
        let left = |token: &str| tokens.find(&Hashed::of(token)).is_some();
        assert_eq!(
            ["0", "1", "2", "3", "4", "theirs"].map(left),
            [false, true, false, true, true, true]
        );
        tokens.end(ours);
        assert_eq!(
            ["1", "3", "4", "theirs"].map(left),
            [false, false, false, true]
        );
    }
}
