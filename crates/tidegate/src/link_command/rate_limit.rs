//! The limit of bytes per second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Delays bytes so that no more than a number of them pass in a second.
#[derive(Debug)]
pub(super) struct RateLimit {
    bytes_per_second: Option<u64>,
    /// When the next bytes may pass.
    next: Mutex<Instant>,
}

impl RateLimit {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` may pass.
    pub(super) async fn pass(&self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else {
            return;
        };
        let time = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let time = (*next).max(Instant::now());
            *next = time + Duration::from_secs_f64(bytes as f64 / rate as f64);
            time
        };
        tokio::time::sleep_until(time).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_pass_at_the_rate_and_at_once_without_one() {
        let start = Instant::now();
        let limit = RateLimit::new(Some(100_000));
        for _ in 0..6 {
            limit.pass(1000).await;
        }
        assert!(start.elapsed() >= Duration::from_millis(50));
        RateLimit::new(None).pass(usize::MAX).await;
    }
}
