//! Sources of verification keys and their reloading at run time. Files are reloaded when they change. A set at a URL
//! is fetched periodically, and when a token names an unknown key.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use hyper::Method;
use hyper::header::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::token::ParsedToken;
use super::verification_key::{self, VerificationKey};
use crate::authenticator::AuthBackendError;
use crate::http::HttpClient;

/// Minimum interval between fetches triggered by unknown keys.
const MIN_REFETCH_INTERVAL_MS: u64 = 10_000;
const FILE_CHECK_INTERVAL_MS: u64 = 1_000;
/// Keys that could not be refreshed for this long are no longer used.
const MAX_AGE_MS: u64 = 24 * 3600 * 1000;
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) enum KeySource {
    Fixed(Option<VerificationKey>),
    Pem(PathBuf),
    File(PathBuf),
    Url { url: String, client: HttpClient },
}

pub(super) struct KeySet {
    origin: KeySource,
    keys: ArcSwap<Vec<VerificationKey>>,
    /// When the keys were last read or fetched; 0: never.
    read_ms: AtomicU64,
    /// When that was last attempted.
    tried_ms: AtomicU64,
    modified: std::sync::Mutex<Option<SystemTime>>,
    /// Serialises fetches.
    fetching: Mutex<()>,
}

impl KeySet {
    pub(super) fn start(
        mut origin: KeySource,
        refresh: Duration,
        runtime: &Handle,
    ) -> Result<Arc<Self>, String> {
        let (keys, modified) = match &mut origin {
            KeySource::Fixed(key) => (key.take().into_iter().collect(), None),
            KeySource::Pem(path) | KeySource::File(path) => (Vec::new(), modification_time(path)),
            KeySource::Url { .. } => (Vec::new(), None),
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
            KeySource::Fixed(_) => Ok(Arc::new(set)),
            KeySource::Pem(_) | KeySource::File(_) => {
                set.read_file()?;
                Ok(Arc::new(set))
            }
            KeySource::Url { .. } => {
                let set = Arc::new(set);
                runtime.spawn(refresh_periodically(Arc::downgrade(&set), refresh));
                Ok(set)
            }
        }
    }

    /// Whether the token is signed by one of the keys.
    pub(super) async fn verify_token(
        &self,
        token: &ParsedToken<'_>,
    ) -> Result<bool, AuthBackendError> {
        self.reload_if_changed();
        if matches!(self.origin, KeySource::Url { .. }) && !self.is_fresh() {
            self.fetch(MIN_REFETCH_INTERVAL_MS).await?;
        }
        if let Some(answer) = self.verify_with_current_keys(token) {
            return Ok(answer);
        }
        // The token may be signed by a new key.
        if matches!(self.origin, KeySource::Url { .. }) && token.key_id.is_some() {
            self.fetch(MIN_REFETCH_INTERVAL_MS).await?;
            return Ok(self.verify_with_current_keys(token).unwrap_or(false));
        }
        Ok(false)
    }

    /// `None`: no key could have signed the token.
    fn verify_with_current_keys(&self, token: &ParsedToken<'_>) -> Option<bool> {
        let keys = self.keys.load();
        let is_named = |key: &&VerificationKey| match (&token.key_id, &key.id) {
            (Some(wanted), Some(own)) => wanted == own,
            _ => true,
        };
        let answers = keys.iter().filter(is_named).filter_map(|key| {
            key.verify_signature(&token.algorithm, token.message, &token.signature)
        });
        answers.reduce(|any, this| any || this)
    }

    fn is_fresh(&self) -> bool {
        let read_ms = self.read_ms.load(Relaxed);
        read_ms != 0 && wall_clock::now_ms().saturating_sub(read_ms) < MAX_AGE_MS
    }

    /// Fetches the set, unless the last attempt is more recent than `not_within_ms`.
    async fn fetch(&self, not_within_ms: u64) -> Result<(), AuthBackendError> {
        let KeySource::Url { url, client } = &self.origin else {
            return Ok(());
        };
        let _one = self.fetching.lock().await;
        let now_ms = wall_clock::now_ms();
        let is_recent = now_ms.saturating_sub(self.tried_ms.load(Relaxed)) < not_within_ms;
        if is_recent {
            return match self.is_fresh() {
                true => Ok(()),
                false => Err(AuthBackendError::new("the key set could not be fetched")),
            };
        }
        self.tried_ms.store(now_ms, Relaxed);
        let headers = HeaderMap::new();
        let request = client.send(Method::GET, url, &headers, None);
        let answer = tokio::time::timeout(FETCH_TIMEOUT, request).await;
        let answer =
            answer.map_err(|_| AuthBackendError::new("the key set: no answer in time"))??;
        if !answer.status.is_success() {
            let status = answer.status.as_u16();
            return Err(AuthBackendError(format!("the key set: status {status}")));
        }
        let keys = verification_key::keys_from_jwks(&answer.body).map_err(AuthBackendError)?;
        tracing::debug!(keys = keys.len(), "key set fetched");
        self.keys.store(Arc::new(keys));
        self.read_ms.store(wall_clock::now_ms(), Relaxed);
        Ok(())
    }

    fn read_file(&self) -> Result<(), String> {
        let (path, is_pem) = match &self.origin {
            KeySource::Pem(path) => (path, true),
            KeySource::File(path) => (path, false),
            KeySource::Fixed(_) | KeySource::Url { .. } => return Ok(()),
        };
        let with_path = |error: String| format!("{}: {error}", path.display());
        if std::fs::metadata(path).is_ok_and(|found| found.len() > MAX_FILE_BYTES) {
            return Err(with_path(
                "larger than the maximum size of a key file".into(),
            ));
        }
        let bytes = std::fs::read(path).map_err(|e| with_path(format!("cannot be read: {e}")))?;
        let keys = match is_pem {
            true => VerificationKey::from_pem(&bytes).map(|key| vec![key]),
            false => verification_key::keys_from_jwks(&bytes),
        };
        self.keys.store(Arc::new(keys.map_err(with_path)?));
        Ok(())
    }

    /// Reloads at the next use, whatever the file's modification time.
    #[cfg(test)]
    pub(super) fn force_reload(&self) {
        self.tried_ms.store(0, Relaxed);
        *self.modified.lock().unwrap() = None;
    }

    /// Reloads a changed file. If it cannot be read, the previous keys remain.
    fn reload_if_changed(&self) {
        let (KeySource::Pem(path) | KeySource::File(path)) = &self.origin else {
            return;
        };
        let now_ms = wall_clock::now_ms();
        if now_ms.saturating_sub(self.tried_ms.load(Relaxed)) < FILE_CHECK_INTERVAL_MS {
            return;
        }
        self.tried_ms.store(now_ms, Relaxed);
        let mut known = (self.modified.lock()).unwrap_or_else(std::sync::PoisonError::into_inner);
        let current = modification_time(path);
        if current == *known {
            return;
        }
        *known = current;
        match self.read_file() {
            Ok(()) => tracing::info!(file = %path.display(), "token keys reloaded"),
            Err(error) => {
                tracing::error!(%error, "token keys could not be reloaded; the previous keys stay in effect");
            }
        }
    }
}

fn modification_time(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// Fetches the set periodically for as long as it is in use.
async fn refresh_periodically(set: Weak<KeySet>, refresh: Duration) {
    let mut was_told = false;
    loop {
        let Some(current) = set.upgrade() else { return };
        match current.fetch(0).await {
            Ok(()) => was_told = false,
            Err(failure) if !was_told => {
                tracing::warn!(%failure, "token keys could not be fetched; the previous keys stay in effect");
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
