//! Authenticates against a file of users and password hashes, one `user:hash` per line, as written by
//! mosquitto_passwd and htpasswd. The file is reloaded when it changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::authenticator::{
    AnswerFuture, AuthBackendError, Authenticator, AuthenticatorAnswer, LoginRequest,
};
use crate::decoy_check::{DecoyPasswordCheck, stable_index};
use crate::password::{self, PasswordCheckPool};

/// How often the file is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of hashes used as decoys for unknown users.
const MAX_DECOYS: usize = 64;
const MAX_FILE_BYTES: u64 = 256 << 20;

type PasswordHashes = HashMap<Box<str>, Box<str>>;

pub(crate) struct PasswordFile {
    path: PathBuf,
    checker: PasswordCheckPool,
    loaded: Arc<Mutex<LoadedPasswordFile>>,
}

struct LoadedPasswordFile {
    hashes: Arc<PasswordHashes>,
    modified: Option<(SystemTime, u64)>,
    checked_at: Option<Instant>,
}

impl PasswordFile {
    /// Opens a file; the error describes what is invalid.
    pub(crate) fn open(path: PathBuf, checker: PasswordCheckPool) -> Result<Self, String> {
        let (hashes, modified) = load_file(&path)?;
        let read = LoadedPasswordFile {
            hashes: Arc::new(hashes),
            modified,
            checked_at: Some(Instant::now()),
        };
        Ok(Self {
            path,
            checker,
            loaded: Arc::new(Mutex::new(read)),
        })
    }

    /// The current hashes. If the changed file is unreadable, the previous hashes stay in use.
    fn current_hashes(&self) -> Arc<PasswordHashes> {
        let mut state = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = state
            .checked_at
            .is_none_or(|at| at.elapsed() >= CHECK_INTERVAL);
        if is_due {
            state.checked_at = Some(Instant::now());
            if file_stamp(&self.path) != state.modified {
                match load_file(&self.path) {
                    Ok((hashes, modified)) => {
                        tracing::info!(file = %self.path.display(), users = hashes.len(), "password file reloaded");
                        state.hashes = Arc::new(hashes);
                        state.modified = modified;
                    }
                    Err(error) => {
                        tracing::error!(%error, "password file could not be reloaded; the previous users stay in effect");
                    }
                }
            }
        }
        state.hashes.clone()
    }
}

fn file_stamp(path: &PathBuf) -> Option<(SystemTime, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

fn load_file(path: &PathBuf) -> Result<(PasswordHashes, Option<(SystemTime, u64)>), String> {
    let shown = path.display();
    let modified = file_stamp(path);
    if modified.is_some_and(|(_, len)| len > MAX_FILE_BYTES) {
        return Err(format!("{shown} is larger than a password file may be"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("{shown} cannot be read: {e}"))?;
    let hashes = parse_lines(&text).map_err(|error| format!("{shown}: {error}"))?;
    Ok((hashes, modified))
}

/// Parses `user:hash` lines. The error names the line but contains nothing of its content.
fn parse_lines(text: &str) -> Result<PasswordHashes, String> {
    let mut hashes = PasswordHashes::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("line {}: {what}", at + 1);
        let (username, hash) = line
            .split_once(':')
            .ok_or_else(|| wrong("expected USER:HASH"))?;
        if username.is_empty() {
            return Err(wrong("the user name is empty"));
        }
        if hash.split('$').count() < 3 {
            return Err(wrong(
                "expected a password hash after the user name; create one with `tidegate password` or mosquitto_passwd",
            ));
        }
        hashes.insert(username.into(), hash.into());
    }
    Ok(hashes)
}

impl Authenticator for PasswordFile {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        request.username_and_password().is_some()
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(async move {
            let Some((username, password)) = request.username_and_password() else {
                return Ok(AuthenticatorAnswer::Ignore);
            };
            let hashes = self.current_hashes();
            let Some(hash) = hashes.get(username).cloned() else {
                // An unknown user takes as long as one of the users in the file.
                let place = stable_index(username, hashes.len().min(MAX_DECOYS));
                let other = hashes.values().nth(place).cloned();
                return Ok(other.map_or(AuthenticatorAnswer::Ignore, |hash| {
                    AuthenticatorAnswer::Unknown(DecoyPasswordCheck::new(
                        &self.checker,
                        move |password| password::verify(&hash, password) == Ok(true),
                    ))
                }));
            };
            let password = password.to_vec();
            let checked = move || password::verify(&hash, &password).is_ok_and(|is_right| is_right);
            Ok(match self.checker.run(checked).await {
                true => AuthenticatorAnswer::allow(),
                false => AuthenticatorAnswer::Deny,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::Password;

    #[test]
    fn lines_are_read_and_errors_do_not_contain_the_hash() {
        let hashes = parse_lines("# users\nann:$7$1$AAAA$AAAA\n\nbob:$2b$05$x\r\n").unwrap();
        assert_eq!(hashes.len(), 2);
        assert_eq!(&*hashes["bob"], "$2b$05$x");
        assert_eq!(
            parse_lines("ann").unwrap_err(),
            "line 1: expected USER:HASH"
        );
        let error = parse_lines("ann:$7$1$A$A\nbob:secret").unwrap_err();
        assert!(
            error.starts_with("line 2: ") && !error.contains("secret"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn users_of_the_file_get_in_and_a_changed_file_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |name: &str, word: &[u8]| format!("{name}:{}\n", password::hash(word).unwrap());
        std::fs::write(file.path(), line("ann", b"pencil")).unwrap();
        let checker = PasswordCheckPool::new(tokio::runtime::Handle::current(), 1);
        let users = PasswordFile::open(file.path().to_owned(), checker).unwrap();
        let ask = async |name: &str, word: &[u8]| {
            let request = LoginRequest {
                username: Some(name.into()),
                password: Some(Password(word.to_vec())),
                ..LoginRequest::default()
            };
            users.check(&request).await.unwrap()
        };
        assert_eq!(ask("ann", b"pencil").await, AuthenticatorAnswer::allow());
        assert_eq!(ask("ann", b"pen").await, AuthenticatorAnswer::Deny);
        assert!(matches!(
            ask("bob", b"pen").await,
            AuthenticatorAnswer::Unknown(_)
        ));
        std::fs::write(file.path(), line("bob", b"pen") + "#\n").unwrap();
        users.loaded.lock().unwrap().checked_at = None;
        assert_eq!(ask("bob", b"pen").await, AuthenticatorAnswer::allow());
        assert!(matches!(
            ask("ann", b"pencil").await,
            AuthenticatorAnswer::Unknown(_)
        ));
        std::fs::write(file.path(), "nonsense").unwrap();
        users.loaded.lock().unwrap().checked_at = None;
        assert_eq!(ask("bob", b"pen").await, AuthenticatorAnswer::allow());
    }
}
