//! The state that the processors and workers of a pipeline share.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hooks::DurableCallback;

use super::metrics::ProcessorCounters;
use super::ports::{DeviceResolver, PipelineOutputs, SettleScope, TelemetryStorage};
use super::product_keys::ProductKeyCounts;
use super::profile::ProductProfile;
use super::rejections::RejectionLog;

/// Interval at which waiting threads check whether they have to wait any longer.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a stopping pipeline waits until results are safe. The messages of results that are not safe by then stay
/// in their mailbox.
const SETTLE_TIMEOUT_ON_STOP: Duration = Duration::from_secs(5);

pub(super) type ProfileTable = Vec<Option<Arc<ProductProfile>>>;

/// State shared by all processors.
pub(super) struct PipelineShared {
    pub(super) profiles: Arc<ArcSwap<ProfileTable>>,
    pub(super) storage: Arc<dyn TelemetryStorage>,
    pub(super) resolver: Arc<dyn DeviceResolver>,
    pub(super) outputs: Arc<dyn PipelineOutputs>,
    pub(super) rejections: RejectionLog,
    pub(super) key_counts: ProductKeyCounts,
    pub(super) processors: Mutex<Vec<Arc<ProcessorCounters>>>,
    pub(super) random: RandomState,
    /// Nothing waits for room any more.
    pub(super) is_stopping: AtomicBool,
}

impl PipelineShared {
    pub(super) fn processors(&self) -> MutexGuard<'_, Vec<Arc<ProcessorCounters>>> {
        self.processors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_processor(&self, counters: Arc<ProcessorCounters>) -> u16 {
        let mut processors = self.processors();
        processors.push(counters);
        processors.len() as u16
    }

    pub(super) fn settle(&self, scope: SettleScope, done: DurableCallback) {
        // Work queued with the outputs may still produce rows.
        let storage = self.storage.clone();
        self.outputs
            .settle(scope, Box::new(move || storage.settle(done)));
    }

    /// Waits until the results of all messages processed so far are safe. Returns `false` if they never will be: the
    /// node stops before the messages of rule chains are stored.
    #[must_use]
    pub(super) fn wait_until_settled(&self, scope: SettleScope) -> bool {
        let (done, is_done) = mpsc::channel();
        self.settle(scope, Box::new(move || _ = done.send(())));
        let mut stopped_at = None;
        loop {
            match is_done.recv_timeout(RECHECK_INTERVAL) {
                Ok(()) => return true,
                Err(mpsc::RecvTimeoutError::Disconnected) => return false,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if self.is_stopping.load(Ordering::Relaxed) {
                let stopped_at: &mut Instant = stopped_at.get_or_insert_with(Instant::now);
                if stopped_at.elapsed() > SETTLE_TIMEOUT_ON_STOP {
                    return false;
                }
            }
        }
    }

    /// Seed for random functions of expressions; not for secrets.
    pub(super) fn seed(&self, processor: u16) -> [u8; 32] {
        let mut seed = [0; 32];
        for (part, bytes) in seed.chunks_mut(8).enumerate() {
            let number = self.random.hash_one((processor, part));
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        seed
    }
}
