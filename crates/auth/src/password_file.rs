//! A file of users and password hashes, one `user:hash` a line, as mosquitto_passwd and htpasswd write it. Read again
//! when it changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::authenticator::{Answer, Answering, Authenticator, Failure, Request};
use crate::decoy::{Decoy, place_of};
use crate::password::{self, Checker};

/// A changed file is noticed after this time.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// Hashes looked at for one in place of that of a user who does not exist.
const MAX_DECOYS: usize = 64;
const MAX_FILE_BYTES: u64 = 256 << 20;

type Hashes = HashMap<Box<str>, Box<str>>;

pub(crate) struct PasswordFile {
    path: PathBuf,
    checker: Checker,
    read: Arc<Mutex<Read>>,
}

struct Read {
    hashes: Arc<Hashes>,
    modified: Option<(SystemTime, u64)>,
    looked_at: Option<Instant>,
}

impl PasswordFile {
    /// Opens a file; the error says what is wrong with it.
    pub(crate) fn open(path: PathBuf, checker: Checker) -> Result<Self, String> {
        let (hashes, modified) = read(&path)?;
        let read = Read {
            hashes: Arc::new(hashes),
            modified,
            looked_at: Some(Instant::now()),
        };
        Ok(Self {
            path,
            checker,
            read: Arc::new(Mutex::new(read)),
        })
    }

    /// The hashes of now; a file that has become unreadable leaves those of before.
    fn current(&self) -> Arc<Hashes> {
        let mut state = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = state
            .looked_at
            .is_none_or(|at| at.elapsed() >= LOOKED_AT_EVERY);
        if is_due {
            state.looked_at = Some(Instant::now());
            if stamp(&self.path) != state.modified {
                match read(&self.path) {
                    Ok((hashes, modified)) => {
                        tracing::info!(file = %self.path.display(), users = hashes.len(), "the password file was read again");
                        state.hashes = Arc::new(hashes);
                        state.modified = modified;
                    }
                    Err(error) => {
                        tracing::error!(%error, "the password file could not be read again; the users of before stay");
                    }
                }
            }
        }
        state.hashes.clone()
    }
}

fn stamp(path: &PathBuf) -> Option<(SystemTime, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

fn read(path: &PathBuf) -> Result<(Hashes, Option<(SystemTime, u64)>), String> {
    let shown = path.display();
    let modified = stamp(path);
    if modified.is_some_and(|(_, len)| len > MAX_FILE_BYTES) {
        return Err(format!("{shown} is larger than a password file may be"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("{shown} cannot be read: {e}"))?;
    let hashes = parse(&text).map_err(|error| format!("{shown}: {error}"))?;
    Ok((hashes, modified))
}

/// Reads `user:hash` lines; the error says which line is wrong, and nothing of what stands in it.
fn parse(text: &str) -> Result<Hashes, String> {
    let mut hashes = Hashes::new();
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
                "what stands behind the user name is no password hash; `tidegate password` or mosquitto_passwd make one",
            ));
        }
        hashes.insert(username.into(), hash.into());
    }
    Ok(hashes)
}

impl Authenticator for PasswordFile {
    fn concerns(&self, request: &Request) -> bool {
        request.login().is_some()
    }

    fn check<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
        Box::pin(async move {
            let Some((username, password)) = request.login() else {
                return Ok(Answer::Ignore);
            };
            let hashes = self.current();
            let Some(hash) = hashes.get(username).cloned() else {
                // As long as it takes for one of those in the file.
                let place = place_of(username, hashes.len().min(MAX_DECOYS));
                let other = hashes.values().nth(place).cloned();
                return Ok(other.map_or(Answer::Ignore, |hash| {
                    Answer::Unknown(Decoy::new(&self.checker, move |password| {
                        password::verify(&hash, password) == Ok(true)
                    }))
                }));
            };
            let password = password.to_vec();
            let checked = move || password::verify(&hash, &password).is_ok_and(|is_right| is_right);
            Ok(match self.checker.run(checked).await {
                true => Answer::allow(),
                false => Answer::Deny,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::Password;

    #[test]
    fn lines_are_read_and_mistakes_told_without_the_hash() {
        let hashes = parse("# users\nann:$7$1$AAAA$AAAA\n\nbob:$2b$05$x\r\n").unwrap();
        assert_eq!(hashes.len(), 2);
        assert_eq!(&*hashes["bob"], "$2b$05$x");
        assert_eq!(parse("ann").unwrap_err(), "line 1: expected USER:HASH");
        let error = parse("ann:$7$1$A$A\nbob:secret").unwrap_err();
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
        let checker = Checker::new(tokio::runtime::Handle::current(), 1);
        let users = PasswordFile::open(file.path().to_owned(), checker).unwrap();
        let ask = async |name: &str, word: &[u8]| {
            let request = Request {
                username: Some(name.into()),
                password: Some(Password(word.to_vec())),
                ..Request::default()
            };
            users.check(&request).await.unwrap()
        };
        assert_eq!(ask("ann", b"pencil").await, Answer::allow());
        assert_eq!(ask("ann", b"pen").await, Answer::Deny);
        assert!(matches!(ask("bob", b"pen").await, Answer::Unknown(_)));
        std::fs::write(file.path(), line("bob", b"pen") + "#\n").unwrap();
        users.read.lock().unwrap().looked_at = None;
        assert_eq!(ask("bob", b"pen").await, Answer::allow());
        assert!(matches!(ask("ann", b"pencil").await, Answer::Unknown(_)));
        std::fs::write(file.path(), "nonsense").unwrap();
        users.read.lock().unwrap().looked_at = None;
        assert_eq!(ask("bob", b"pen").await, Answer::allow());
    }
}
