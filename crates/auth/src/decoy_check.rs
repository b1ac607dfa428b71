//! Decoy password checks: a failed login of an unknown user takes as long as that of an existing one. Its duration does
//! not reveal which users exist. The check runs in the pool for password checks, and only for clients rejected because
//! of their credentials. A login runs at most one check, whether its user exists or not.

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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::Ordering;

    use scram::ScramCredential;

    use super::*;
    use crate::authenticator::{Authenticator, LoginRequest, Password};
    use crate::authenticator_chain::{AuthenticatorChain, LoginError};
    use crate::password;
    use crate::password_file::PasswordFile;
    use crate::settings::AuthenticatorEntry;
    use crate::users::{BuiltInAuthenticator, UserRecord, UserRegistry};

    fn entry(order: i64, authenticator: impl Authenticator + 'static) -> Arc<AuthenticatorEntry> {
        Arc::new(AuthenticatorEntry {
            name: format!("test-{order}"),
            order,
            is_builtin: false,
            logged_ms: Default::default(),
            kind: "test".into(),
            tally: Default::default(),
            authenticator: Box::new(authenticator),
        })
    }

    /// The user `ann` of the node and the user `bob` of a file, both with the password `pencil`.
    fn chain(checker: &PasswordCheckPool, file: &std::path::Path) -> AuthenticatorChain {
        let credential = ScramCredential::generate(b"pencil", 4096).unwrap();
        let users = HashMap::from([("ann".into(), UserRecord::from_configuration(credential))]);
        let built_in = BuiltInAuthenticator {
            users: Arc::new(UserRegistry::new(users)),
            checker: checker.clone(),
        };
        let hash = password::hash(b"pencil").unwrap();
        std::fs::write(file, format!("bob:{hash}\n")).unwrap();
        let of_file = PasswordFile::open(file.to_owned(), checker.clone()).unwrap();
        AuthenticatorChain::new(vec![entry(0, built_in), entry(1, of_file)])
    }

    #[tokio::test]
    async fn a_failed_login_takes_one_check_whether_its_user_exists_or_not() {
        let checker = PasswordCheckPool::new(tokio::runtime::Handle::current(), 2);
        let file = tempfile::NamedTempFile::new().unwrap();
        let chain = chain(&checker, file.path());
        for (username, password, is_right) in [
            ("ann", "pencils", false),
            ("bob", "pencils", false),
            ("carl", "pencils", false),
            ("dora", "pencil", false),
            ("ann", "pencil", true),
            ("bob", "pencil", true),
        ] {
            let request = LoginRequest {
                username: Some(username.into()),
                password: Some(Password(password.as_bytes().to_vec())),
                ..LoginRequest::default()
            };
            checker.check_count.store(0, Ordering::SeqCst);
            let judged = chain.check(0, &request, true).await;
            assert_eq!(judged.is_ok(), is_right, "{username}");
            if let Err(error) = judged {
                assert_eq!(error, LoginError::WrongCredentials, "{username}");
            }
            let count = checker.check_count.load(Ordering::SeqCst);
            assert_eq!(count, 1, "{username} {password}");
        }
    }
}
