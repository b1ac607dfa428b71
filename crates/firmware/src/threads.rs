//! The threads of the service.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use devices::DeviceNo;
use wall_clock::now_ms;

use crate::campaign::CampaignTarget;
use crate::chunk_worker::{ChunkSender, ChunkWorker};
use crate::device_state::InstallState;
use crate::service::{DeviceMessenger, FirmwareService};
use crate::sharing::Sharing;
use crate::target_worker;

/// Interval at which campaigns proceed.
const CAMPAIGN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which removed records are forgotten that all nodes of a cluster have.
const FORGET_INTERVAL: Duration = Duration::from_secs(3600);

impl FirmwareService {
    /// Starts the threads. Chunks are sent by `sender`, other messages by `messenger`.
    ///
    /// # Errors
    /// If the system creates no thread.
    pub fn start(
        &self,
        sender: Arc<dyn ChunkSender>,
        messenger: Arc<dyn DeviceMessenger>,
    ) -> io::Result<()> {
        // Only the first call has an effect.
        let _ = self.inner.messenger.set(messenger);
        let worker = ChunkWorker::new(self.clone(), sender);
        let chunks = Builder::new().name("firmware-chunks".to_owned());
        let chunks = chunks.spawn(move || worker.run())?;
        let service = self.clone();
        let targets = Builder::new().name("firmware".to_owned());
        let targets = targets.spawn(move || target_worker::run(&service))?;
        let mut threads = self
            .inner
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let service = self.clone();
        let campaigns = Builder::new().name("firmware-campaigns".to_owned());
        let campaigns = campaigns.spawn(move || service.run_campaigns())?;
        threads.extend([chunks, targets, campaigns]);
        Ok(())
    }

    /// Ends the threads. What devices have reported is recorded before.
    pub fn stop(&self) {
        self.inner.chunk_queue.stop();
        self.inner.target_queue.stop();
        {
            let stop = self.inner.stop.0.lock();
            *stop.unwrap_or_else(PoisonError::into_inner) = true;
            self.inner.stop.1.notify_all();
        }
        let threads = self.inner.threads.lock();
        let threads: Vec<_> = threads
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .collect();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread for firmware panicked; this is a bug");
            }
        }
    }

    /// Lets campaigns proceed until the node stops.
    fn run_campaigns(&self) {
        // A kill may have come between the record of a device and that of its campaign.
        for (device, kind) in self.inner.campaigns.started() {
            if self.is_deleted(device) {
                continue;
            }
            match self.install(device, kind) {
                Ok(Some(record)) => self.record_changed(device, kind, &record),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, "reading the firmware of a device failed; its campaign waits for its time-out");
                }
            }
        }
        let mut is_stopping = self
            .inner
            .stop
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut forgotten_at = Instant::now();
        while !*is_stopping {
            let waited = self
                .inner
                .stop
                .1
                .wait_timeout(is_stopping, CAMPAIGN_INTERVAL);
            is_stopping = waited.unwrap_or_else(PoisonError::into_inner).0;
            let mut starts = self.inner.campaigns.advance(now_ms());
            // They may have been deleted while the campaign was created, or just before a kill.
            starts.retain(|start| !self.is_deleted(start.device));
            self.begin_installs(&starts);
            self.share_campaigns();
            if forgotten_at.elapsed() >= FORGET_INTERVAL {
                forgotten_at = Instant::now();
                self.inner.share_change(Sharing::forget_removed);
            }
        }
    }

    /// Whether a device of a campaign no longer exists; its campaigns are informed.
    fn is_deleted(&self, device: DeviceNo) -> bool {
        match self.registry().by_no(device) {
            Ok(Some(_)) => false,
            Ok(None) => {
                self.inner.campaigns.device_deleted(device, None, now_ms());
                true
            }
            Err(error) => {
                tracing::error!(%error, "reading a device of a campaign failed; it is notified nevertheless");
                false
            }
        }
    }

    /// Notifies devices of a campaign of their target, also if they were notified before.
    fn begin_installs(&self, starts: &[CampaignTarget]) {
        if self.inner.sharing().is_some() {
            // The nodes where the devices are notice the new attempt.
            self.inner
                .share_change(|sharing| sharing.set_targets(starts));
            // Campaigns may have been cancelled meanwhile.
            for obsolete in self.inner.campaigns.obsolete_targets(starts) {
                let (id, kind) = (obsolete.campaign, obsolete.kind);
                let devices = [obsolete.device];
                (self.inner).share_change(|sharing| sharing.remove_targets(id, kind, &devices));
            }
        } else {
            starts.iter().for_each(|start| self.queue_again(start));
        }
        for start in starts {
            self.inner.target_queue.push_device(start.device);
        }
    }

    fn queue_again(&self, start: &CampaignTarget) {
        let queued = self
            .inner
            .installs
            .update(start.device, start.kind, |record| {
                let mut record = record?;
                record.state = InstallState::Queued;
                record.error = None;
                Some(record)
            });
        if let Err(error) = queued {
            tracing::error!(%error, "recording the firmware of a device failed; the campaign repeats it after its time-out");
        }
    }
}
