//! Where keys come from, and how they are replaced while clients come in: files are read again when they change, a set
//! at a URL is fetched from time to time and when a token names a key that is not in it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use hyper::Method;
use hyper::header::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::Token;
use super::key::{self, Key};
use crate::authenticator::Failure;
use crate::http::HttpClient;

/// An unknown key makes the set be fetched again, but not more often than this.
const ASKED_AGAIN_AFTER_MS: u64 = 10_000;
const FILE_LOOKED_AT_AFTER_MS: u64 = 1_000;
/// Keys nobody could confirm for so long are not gone by any more.
const MAX_AGE_MS: u64 = 24 * 3600 * 1000;
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) enum Origin {
    Fixed(Option<Key>),
    Pem(PathBuf),
    File(PathBuf),
    Url { url: String, client: HttpClient },
}

pub(super) struct KeySet {
    origin: Origin,
    keys: ArcSwap<Vec<Key>>,
    /// When the keys were read or fetched; 0: never.
    read_ms: AtomicU64,
    /// When that was tried last.
    tried_ms: AtomicU64,
    modified: std::sync::Mutex<Option<SystemTime>>,
    /// One at a time fetches.
    fetching: Mutex<()>,
}

impl KeySet {
    pub(super) fn start(
        mut origin: Origin,
        refresh: Duration,
        runtime: &Handle,
    ) -> Result<Arc<Self>, String> {
        let (keys, modified) = match &mut origin {
            Origin::Fixed(key) => (key.take().into_iter().collect(), None),
            Origin::Pem(path) | Origin::File(path) => (Vec::new(), modified(path)),
            Origin::Url { .. } => (Vec::new(), None),
        };
        let set = Self {
            origin,
            keys: ArcSwap::from_pointee(keys),
            read_ms: AtomicU64::new(0),
            tried_ms: AtomicU64::new(0),
            modified: std::sync::Mutex::new(modified),
            fetching: Mutex::new(()),
        };
        match &set.origin {
            Origin::Fixed(_) => Ok(Arc::new(set)),
            Origin::Pem(_) | Origin::File(_) => {
                set.read_file()?;
                Ok(Arc::new(set))
            }
            Origin::Url { .. } => {
                let set = Arc::new(set);
                runtime.spawn(keep_fresh(Arc::downgrade(&set), refresh));
                Ok(set)
            }
        }
    }

    /// Whether one of the keys has signed the token.
    pub(super) async fn have_signed(&self, token: &Token<'_>) -> Result<bool, Failure> {
        self.look_at_file();
        if matches!(self.origin, Origin::Url { .. }) && !self.is_fresh() {
            self.fetch(ASKED_AGAIN_AFTER_MS).await?;
        }
        if let Some(answer) = self.ask_keys(token) {
            return Ok(answer);
        }
        // The key may be a new one.
        if matches!(self.origin, Origin::Url { .. }) && token.key_id.is_some() {
            self.fetch(ASKED_AGAIN_AFTER_MS).await?;
            return Ok(self.ask_keys(token).unwrap_or(false));
        }
        Ok(false)
    }

    /// `None`: no key could have signed it.
    fn ask_keys(&self, token: &Token<'_>) -> Option<bool> {
        let keys = self.keys.load();
        let is_named = |key: &&Key| match (&token.key_id, &key.id) {
            (Some(wanted), Some(own)) => wanted == own,
            _ => true,
        };
        let answers = keys
            .iter()
            .filter(is_named)
            .filter_map(|key| key.has_signed(&token.algorithm, token.message, &token.signature));
        answers.reduce(|any, this| any || this)
    }

    fn is_fresh(&self) -> bool {
        let read_ms = self.read_ms.load(Relaxed);
        read_ms != 0 && crate::now_ms().saturating_sub(read_ms) < MAX_AGE_MS
    }

    /// Fetches the set, unless that was tried a moment ago.
    async fn fetch(&self, not_within_ms: u64) -> Result<(), Failure> {
        let Origin::Url { url, client } = &self.origin else {
            return Ok(());
        };
        let _one = self.fetching.lock().await;
        let now_ms = crate::now_ms();
        let is_recent = now_ms.saturating_sub(self.tried_ms.load(Relaxed)) < not_within_ms;
        if is_recent {
            return match self.is_fresh() {
                true => Ok(()),
                false => Err(Failure::new("the key set could not be fetched")),
            };
        }
        self.tried_ms.store(now_ms, Relaxed);
        let headers = HeaderMap::new();
        let asked = client.ask(Method::GET, url, &headers, None);
        let answer = tokio::time::timeout(FETCH_TIMEOUT, asked).await;
        let answer = answer.map_err(|_| Failure::new("the key set: no answer in time"))??;
        if !answer.status.is_success() {
            let status = answer.status.as_u16();
            return Err(Failure(format!("the key set: status {status}")));
        }
        let keys = key::from_jwks(&answer.body).map_err(Failure)?;
        tracing::debug!(keys = keys.len(), "a key set was fetched");
        self.keys.store(Arc::new(keys));
        self.read_ms.store(crate::now_ms(), Relaxed);
        Ok(())
    }

    fn read_file(&self) -> Result<(), String> {
        let (path, is_pem) = match &self.origin {
            Origin::Pem(path) => (path, true),
            Origin::File(path) => (path, false),
            Origin::Fixed(_) | Origin::Url { .. } => return Ok(()),
        };
        let told = |error: String| format!("{}: {error}", path.display());
        if std::fs::metadata(path).is_ok_and(|found| found.len() > MAX_FILE_BYTES) {
            return Err(told("larger than a file of keys may be".into()));
        }
        let bytes = std::fs::read(path).map_err(|e| told(format!("cannot be read: {e}")))?;
        let keys = match is_pem {
            true => Key::from_pem(&bytes).map(|key| vec![key]),
            false => key::from_jwks(&bytes),
        };
        self.keys.store(Arc::new(keys.map_err(told)?));
        Ok(())
    }

    /// As if the file had changed, whatever its time says.
    #[cfg(test)]
    pub(super) fn look_again(&self) {
        self.tried_ms.store(0, Relaxed);
        *self.modified.lock().unwrap() = None;
    }

    /// Reads a file again that has changed; one that cannot be read leaves the keys of before.
    fn look_at_file(&self) {
        let (Origin::Pem(path) | Origin::File(path)) = &self.origin else {
            return;
        };
        let now_ms = crate::now_ms();
        if now_ms.saturating_sub(self.tried_ms.load(Relaxed)) < FILE_LOOKED_AT_AFTER_MS {
            return;
        }
        self.tried_ms.store(now_ms, Relaxed);
        let mut known = (self.modified.lock()).unwrap_or_else(std::sync::PoisonError::into_inner);
        let current = modified(path);
        if current == *known {
            return;
        }
        *known = current;
        match self.read_file() {
            Ok(()) => tracing::info!(file = %path.display(), "keys for tokens were read again"),
            Err(error) => {
                tracing::error!(%error, "keys for tokens could not be read again; those of before stay");
            }
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// Fetches a set again and again, for as long as somebody uses it.
async fn keep_fresh(set: Weak<KeySet>, refresh: Duration) {
    let mut was_told = false;
    loop {
        let Some(current) = set.upgrade() else { return };
        match current.fetch(0).await {
            Ok(()) => was_told = false,
            Err(failure) if !was_told => {
                tracing::warn!(%failure, "the keys for tokens could not be fetched; those of before stay");
                was_told = true;
            }
            Err(_) => {}
        }
        let wait = match current.is_fresh() {
            true => refresh,
            false => refresh.min(Duration::from_secs(5)),
        };
        drop(current);
        tokio::time::sleep(wait).await;
    }
}
