//! The work that a failed login of a user who does not exist costs, so that its time tells nothing about which users there
//! are. It runs in the places where passwords are checked, and only for a client that is refused because of its credentials:
//! a login takes one check at most, whether its user exists or not.

use std::fmt;
use std::sync::Arc;

use crate::password::PasswordCheckPool;

/// Compares a password with one that nobody has.
type PasswordComparison = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A check whose result nobody looks at.
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

    /// Takes as long as the check of a password that is wrong.
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

/// A number below `count` for a name: always the same one for a name in a process, and not to be guessed from outside.
pub(crate) fn stable_index(name: &str, count: usize) -> usize {
    use std::hash::{BuildHasher as _, RandomState};
    use std::sync::OnceLock;
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    let hash = KEYS.get_or_init(RandomState::new).hash_one(name);
    (hash % count.max(1) as u64) as usize
}
