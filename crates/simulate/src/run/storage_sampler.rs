//! Messages that are chosen to measure the time until a node has stored them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A message of which the time to storage is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StorageSample {
    pub(super) device: String,
    /// Time of its values.
    pub(super) ts_ms: u64,
    /// When it was due, on the monotonic clock.
    pub(super) due_ns: u64,
}

/// Passes one message at a time from the workers to the probe. Contract: the probe calls [`request`](Self::request), and then
/// [`take`](Self::take) until a worker has offered a message.
#[derive(Debug, Default)]
pub(super) struct StorageSampler {
    is_requested: AtomicBool,
    sample: Mutex<Option<StorageSample>>,
}

impl StorageSampler {
    pub(super) fn request(&self) {
        self.is_requested.store(true, Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> Option<StorageSample> {
        self.sample
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Offers the message that a worker has just sent.
    #[inline]
    pub(super) fn offer(&self, sample: impl FnOnce() -> StorageSample) {
        if self.is_requested.load(Ordering::Relaxed)
            && self.is_requested.swap(false, Ordering::Relaxed)
        {
            *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_is_taken_for_each_request() {
        let sampler = StorageSampler::default();
        let sample = |ts_ms| StorageSample {
            device: "a".to_owned(),
            ts_ms,
            due_ns: 0,
        };
        sampler.offer(|| sample(1));
        assert_eq!(sampler.take(), None);
        sampler.request();
        sampler.offer(|| sample(2));
        sampler.offer(|| sample(3));
        assert_eq!(sampler.take(), Some(sample(2)));
        assert_eq!(sampler.take(), None);
    }
}
