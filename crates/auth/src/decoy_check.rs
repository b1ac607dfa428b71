//! Decoy password checks: a failed login of an unknown user takes as long as that of an existing one, so its duration
//! does not reveal which users exist. The check runs in the pool for password checks, and only for clients refused
//! because of their credentials. A login runs at most one check, whether its user exists or not.

use std::fmt;
use std::sync::Arc;

use crate::password::PasswordCheckPool;

/// Compares a password with a hash that no user has.
type PasswordComparison = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A password check whose result is discarded.
#[derive(Clone)]
pub(crate) struct DecoyPasswordCheck {
    checker: PasswordCheckPool,
    check: Arc<PasswordComparison>,
}

impl DecoyPasswordCheck {
    pub(crate) fn new(
        checker: &PasswordCheckPool,
        check: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            checker: checker.clone(),
            check: Arc::new(check),
        }
    }

    /// Takes as long as the check of a wrong password.
    pub(crate) async fn run(self, password: &[u8]) {
        let password = password.to_vec();
        let check = self.check;
        self.checker.run(move || check(&password)).await;
    }
}

impl fmt::Debug for DecoyPasswordCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decoy")
    }
}

impl PartialEq for DecoyPasswordCheck {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for DecoyPasswordCheck {}

/// A stable pseudo-random number below `count` for a name, keyed per process so that it cannot be predicted from
/// outside.
pub(crate) fn stable_index(name: &str, count: usize) -> usize {
    use std::hash::{BuildHasher as _, RandomState};
    use std::sync::OnceLock;
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    let hash = KEYS.get_or_init(RandomState::new).hash_one(name);
    (hash % count.max(1) as u64) as usize
}
