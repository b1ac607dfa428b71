//! Tokens of operators, and of API keys on ThingsBoard's paths. Tokens are random; only their
//! hashes are stored, and only in memory, so a restart revokes all of them. Sessions of browsers get new ones
//! (`console_sessions`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::secret::SecretHash;

/// Maximum number of tokens of the node.
const MAX_TOKENS: usize = 10_000;
/// Maximum number of tokens of one operator or key; one more revokes the oldest.
const MAX_PER_OWNER: usize = 100;

#[derive(Default)]
pub(crate) struct TokenStore {
    logins: Mutex<HashMap<SecretHash, StoredToken>>,
}

/// The owner of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenOwner {
    Operator(String),
    ApiKey(String),
}

/// Identifies the tokens of one login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenFamily(u64);

impl TokenFamily {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }

    /// The family of a stored session, the same after a restart. It differs from all others as far as 64 bits of a hash do.
    pub(crate) fn of_session(refresh_token: &SecretHash) -> Self {
        Self(refresh_token.leading_bits())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct LoginRecord {
    pub(crate) owner: TokenOwner,
    /// Hash of the operator's password hash, or of the key's secret: a new one revokes the tokens
    /// issued for the old one.
    pub(crate) password: SecretHash,
    pub(crate) family: TokenFamily,
}

struct StoredToken {
    login: LoginRecord,
    expires: Instant,
}

impl TokenStore {
    pub(crate) fn add(&self, token: &str, login: LoginRecord, lifetime: Duration) {
        let now = Instant::now();
        let mut logins = self.lock();
        logins.retain(|_, kept| kept.expires > now);
        let oldest_of = |logins: &HashMap<SecretHash, StoredToken>, owner: Option<&TokenOwner>| {
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
        let expires = now + lifetime;
        logins.insert(
            SecretHash::from_secret(token),
            StoredToken { login, expires },
        );
    }

    /// The login of a token that has not expired.
    pub(crate) fn find(&self, token: &SecretHash) -> Option<LoginRecord> {
        let mut logins = self.lock();
        let kept = logins.get(token)?;
        if kept.expires <= Instant::now() {
            logins.remove(token);
            return None;
        }
        Some(kept.login.clone())
    }

    pub(crate) fn revoke(&self, token: &SecretHash) -> Option<LoginRecord> {
        self.lock().remove(token).map(|kept| kept.login)
    }

    /// Revokes all tokens of an operator or key.
    pub(crate) fn revoke_owner(&self, owner: &TokenOwner) {
        self.lock().retain(|_, kept| kept.login.owner != *owner);
    }

    pub(crate) fn revoke_family(&self, family: TokenFamily) {
        self.lock().retain(|_, kept| kept.login.family != family);
    }

    /// Revokes all tokens of a family except the youngest `count` and the given one.
    pub(crate) fn retain_youngest(
        &self,
        family: TokenFamily,
        count: usize,
        this: Option<&SecretHash>,
    ) {
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

    fn lock(&self) -> MutexGuard<'_, HashMap<SecretHash, StoredToken>> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn login(operator: &str, family: TokenFamily) -> LoginRecord {
        LoginRecord {
            owner: TokenOwner::Operator(operator.to_owned()),
            password: SecretHash::from_secret("hash"),
            family,
        }
    }

    #[test]
    fn tokens_end_by_time_by_revocation_and_by_number() {
        let tokens = TokenStore::default();
        tokens.add("late", login("ann", TokenFamily::new()), Duration::ZERO);
        assert!(tokens.find(&SecretHash::from_secret("late")).is_none());

        let (first, other) = (
            SecretHash::from_secret("first"),
            SecretHash::from_secret("other"),
        );
        tokens.add("first", login("ann", TokenFamily::new()), HOUR);
        let found = tokens.find(&first).unwrap();
        assert_eq!(found.owner, TokenOwner::Operator("ann".to_owned()));
        assert!(tokens.find(&SecretHash::from_secret("guess")).is_none());
        tokens.add("other", login("bob", TokenFamily::new()), HOUR);
        for number in 0..MAX_PER_OWNER {
            tokens.add(&number.to_string(), login("ann", TokenFamily::new()), HOUR);
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
        let tokens = TokenStore::default();
        let (ours, theirs) = (TokenFamily::new(), TokenFamily::new());
        tokens.add("theirs", login("ann", theirs), HOUR);
        for number in 0..5_u32 {
            let lifetime = HOUR + Duration::from_secs(number.into());
            tokens.add(&number.to_string(), login("ann", ours), lifetime);
        }
        tokens.retain_youngest(ours, 2, Some(&SecretHash::from_secret("1")));
        let left = |token: &str| tokens.find(&SecretHash::from_secret(token)).is_some();
        assert_eq!(
            ["0", "1", "2", "3", "4", "theirs"].map(left),
            [false, true, false, true, true, true]
        );
        let of_bob = TokenOwner::Operator("bob".to_owned());
        tokens.add("bob", login("bob", TokenFamily::new()), HOUR);
        tokens.revoke_owner(&of_bob);
        assert!(!left("bob") && left("theirs"));
        tokens.revoke_family(ours);
        assert_eq!(
            ["1", "3", "4", "theirs"].map(left),
            [false, false, false, true]
        );
    }
}
