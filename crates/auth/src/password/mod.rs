//! Password hashes as others keep them: told apart by how they begin, or described by a setting. Checking takes
//! milliseconds by design, so it is done on threads that may wait, a bounded number at a time.

mod password_hash;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

pub use password_hash::{HashError, hash, verify};
pub(crate) use password_hash::{MAX_PASSWORD_BYTES, constant_time_eq};

/// Threads that check passwords: as many as there are cores, since each check keeps one busy.
#[derive(Clone)]
pub(crate) struct PasswordCheckPool {
    runtime: Handle,
    places: Arc<Semaphore>,
}

impl PasswordCheckPool {
    pub(crate) fn new(runtime: Handle, threads: usize) -> Self {
        let places = Arc::new(Semaphore::new(threads.max(1)));
        Self { runtime, places }
    }

    /// Runs a check on a thread that may wait; false if that thread broke.
    pub(crate) async fn run(&self, check: impl FnOnce() -> bool + Send + 'static) -> bool {
        self.run_for(check).await.unwrap_or(false)
    }

    /// The same for other answers; `None` if that thread broke.
    pub(crate) async fn run_for<T: Send + 'static>(
        &self,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = self.places.clone().acquire_owned().await.ok()?;
        let checked = self.runtime.spawn_blocking(move || {
            let answer = check();
            drop(place);
            answer
        });
        checked.await.ok()
    }
}
