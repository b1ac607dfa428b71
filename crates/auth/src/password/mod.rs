//! Password hashes in common formats, recognised by their prefix or described by a setting. A check takes
//! milliseconds by design, so checks run on blocking threads with bounded concurrency.

mod password_hash;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

pub(crate) use password_hash::MAX_PASSWORD_BYTES;
pub use password_hash::{HashError, hash, verify};

/// Runs password checks, by default as many at a time as there are cores, since each check keeps one core busy.
#[derive(Clone)]
pub(crate) struct PasswordCheckPool {
    runtime: Handle,
    places: Arc<Semaphore>,
    /// Checks that have begun.
    #[cfg(test)]
    pub(crate) check_count: Arc<std::sync::atomic::AtomicUsize>,
}

impl PasswordCheckPool {
    pub(crate) fn new(runtime: Handle, threads: usize) -> Self {
        let places = Arc::new(Semaphore::new(threads.max(1)));
        Self {
            runtime,
            places,
            #[cfg(test)]
            check_count: Arc::default(),
        }
    }

    /// Runs a check on a blocking thread; returns false if it panics.
    pub(crate) async fn run(&self, check: impl FnOnce() -> bool + Send + 'static) -> bool {
        self.run_for(check).await.unwrap_or(false)
    }

    /// Runs any computation on a blocking thread; returns `None` if it panics.
    pub(crate) async fn run_for<T: Send + 'static>(
        &self,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = self.places.clone().acquire_owned().await.ok()?;
        #[cfg(test)]
        (self.check_count).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let checked = self.runtime.spawn_blocking(move || {
            let answer = check();
            drop(place);
            answer
        });
        checked.await.ok()
    }
}
