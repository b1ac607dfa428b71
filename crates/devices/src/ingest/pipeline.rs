//! The pipeline as a whole: products, lanes, mailboxes and their workers.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use arc_swap::ArcSwap;
use broker::hooks::DurableCallback;
use series::DeviceNo;

use super::lane::{Lane, ProfileTable};
use super::mailbox::{self, Mailbox, PushOutcome};
use super::mailbox_segment::{self, MailboxSegment, QueuedMessage};
use super::marks::{self, MailboxDamage, MarkFile};
use super::metrics::{LaneCounters, PipelineSnapshot, snapshot};
use super::ports::{DeviceResolver, PipelineOutputs, TelemetryStorage};
use super::profile::{DeviceRef, PipelineMode, ProductNo, ProductProfile};
use super::rejections::{DeviceRejections, RejectionLog};
use crate::protocol;

/// Whether a message was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum SubmitOutcome {
    Accepted,
    /// The telemetry store has no room for the rows; the sender has to send the message again.
    StorageFull,
}

/// A message sent by a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMessage<'a> {
    /// The device whose connection it arrived on.
    pub sender: DeviceRef<'a>,
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub received_ms: i64,
}

#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// Directory of the mailboxes; `None` keeps them in memory, where they end with the process.
    pub directory: Option<PathBuf>,
    /// Number of mailboxes of the actor mode, each with a worker.
    pub mailboxes: usize,
    /// Capacity of one mailbox. Messages larger than half of it are processed immediately.
    pub mailbox_bytes: usize,
    /// Maximum number of messages processed together.
    pub max_batch: usize,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self {
            directory: None,
            mailboxes: std::thread::available_parallelism().map_or(1, usize::from),
            mailbox_bytes: 512 << 10,
            max_batch: 256,
        }
    }
}

/// Marks a message without a submission time.
const UNTIMED: u64 = u64::MAX;

#[derive(Debug, thiserror::Error)]
pub enum PipelineStartError {
    #[error("cannot open the device mailboxes in {}: {source}", directory.display())]
    Mailbox {
        directory: PathBuf,
        source: io::Error,
    },
    #[error("cannot start a device worker: {0}")]
    Worker(io::Error),
}

/// Counts the messages waiting in the mailboxes of a directory and lists damage. Changes nothing.
///
/// # Errors
/// If a file cannot be read at all.
pub fn check_mailboxes(directory: &Path) -> io::Result<(u64, Vec<String>)> {
    let (known, problem) = marks::read(directory)?;
    let mut problems = Vec::from_iter(problem);
    let mut messages = 0;
    for number in 0.. {
        let files = Mailbox::files(directory, number);
        if !files.iter().any(|file| file.exists()) && 2 * number >= known.len() {
            break;
        }
        for (path, half) in files.iter().zip(2 * number..) {
            let (count, problem) = mailbox_segment::check(path, known.get(half).copied())?;
            messages += count;
            problems.extend(problem);
        }
    }
    let problem = |(path, detail): MailboxDamage| format!("{}: {detail}", path.display());
    Ok((messages, problems.into_iter().map(problem).collect()))
}

/// State shared by all lanes.
pub(super) struct PipelineShared {
    pub(super) profiles: Arc<ArcSwap<ProfileTable>>,
    pub(super) storage: Arc<dyn TelemetryStorage>,
    pub(super) resolver: Arc<dyn DeviceResolver>,
    pub(super) outputs: Arc<dyn PipelineOutputs>,
    pub(super) rejections: RejectionLog,
    lanes: Mutex<Vec<Arc<LaneCounters>>>,
    random: RandomState,
    /// Nothing waits for room any more.
    pub(super) is_stopping: AtomicBool,
}

impl PipelineShared {
    fn lanes(&self) -> MutexGuard<'_, Vec<Arc<LaneCounters>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_lane(&self, counters: Arc<LaneCounters>) -> u16 {
        let mut lanes = self.lanes();
        lanes.push(counters);
        lanes.len() as u16
    }

    fn settle(&self, done: DurableCallback) {
        // Work queued with the outputs may still produce rows.
        let storage = self.storage.clone();
        self.outputs.settle(Box::new(move || storage.settle(done)));
    }

    pub(super) fn wait_until_settled(&self) {
        let (done, is_done) = mpsc::channel();
        self.settle(Box::new(move || {
            let _ = done.send(());
        }));
        // If the settlement can never be reported, its sender has been dropped.
        let _ = is_done.recv();
    }

    /// Processes the messages that a previous process accepted and did not complete. Returns `false` if the
    /// store has no room for all of them.
    fn replay(self: &Arc<Self>, halves: &[MailboxSegment]) -> bool {
        let mut lane: Option<Lane> = None;
        for waiting in halves.iter().flat_map(MailboxSegment::recovered_messages) {
            let lane = lane
                .get_or_insert_with(|| Lane::new(Arc::clone(self)).for_retries().wait_when_busy());
            let mut message = waiting.message;
            // Product numbers differ from those of the previous process.
            let device = self.resolver.resolve_device(message.sender.no);
            if let Some(device) = device.filter(|device| device.id.as_str() == message.sender.id) {
                message.sender = device.as_device_ref();
                self.resolver.load_children(&message);
                lane.process_catching_panics(&[message]);
            }
        }
        lane.is_none_or(|mut lane| !lane.take_storage_full())
    }

    /// Seed for random functions of expressions; not for secrets.
    pub(super) fn seed(&self, lane: u16) -> [u8; 32] {
        let mut seed = [0; 32];
        for (part, bytes) in seed.chunks_mut(8).enumerate() {
            let number = self.random.hash_one((lane, part));
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        seed
    }
}

/// Takes messages of devices and stores their rows.
pub struct Pipeline {
    shared: Arc<PipelineShared>,
    mailboxes: Arc<[Mailbox]>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    started: Instant,
}

impl Pipeline {
    /// Starts the pipeline. Messages left in mailboxes are processed before this returns. Products must be
    /// passed in `profiles`, and [`DeviceResolver::resolve_device`] must find devices.
    ///
    /// # Errors
    /// If the mailboxes cannot be opened, or a thread cannot be started.
    pub fn open(
        config: &PipelineConfig,
        profiles: Vec<(ProductNo, ProductProfile)>,
        storage: Arc<dyn TelemetryStorage>,
        family: Arc<dyn DeviceResolver>,
        outside: Arc<dyn PipelineOutputs>,
    ) -> Result<Arc<Self>, PipelineStartError> {
        let shared = Arc::new(PipelineShared {
            profiles: Arc::default(),
            storage,
            resolver: family,
            outputs: outside,
            rejections: RejectionLog::default(),
            lanes: Mutex::default(),
            random: RandomState::new(),
            is_stopping: AtomicBool::new(false),
        });
        let mut mailboxes = Vec::new();
        let mut left = Vec::new();
        let of_directory = |source| PipelineStartError::Mailbox {
            directory: config.directory.clone().unwrap_or_default(),
            source,
        };
        if let Some(directory) = &config.directory {
            std::fs::create_dir_all(directory).map_err(of_directory)?;
        }
        let guard = config.directory.as_deref().map(|directory| {
            let (guard, problem) = MarkFile::open(directory, config.mailboxes.max(1))?;
            problem.iter().for_each(mailbox::log_damage);
            Ok((directory, guard))
        });
        let guard = guard.transpose().map_err(of_directory)?;
        let files = guard.as_ref().map(|(directory, guard)| (*directory, guard));
        for number in 0..config.mailboxes.max(1) {
            let (mailbox, halves) =
                Mailbox::open(files, number, config.mailbox_bytes).map_err(of_directory)?;
            mailboxes.push(mailbox);
            left.push(halves);
        }
        let pipeline = Arc::new(Self {
            shared,
            mailboxes: mailboxes.into(),
            workers: Mutex::default(),
            started: Instant::now(),
        });
        for (product, profile) in profiles {
            pipeline.set_profile(product, Some(profile));
        }
        let mut for_workers = Vec::new();
        for (mailbox, halves) in pipeline.mailboxes.iter().zip(left) {
            match pipeline.shared.replay(&halves) {
                true => {
                    pipeline.wait_until_settled();
                    mailbox.begin(halves);
                    for_workers.push(None);
                }
                // Until then the mailbox accepts nothing.
                false => for_workers.push(Some(halves)),
            }
        }
        let worked_off = pipeline.replay_surplus(config, files);
        worked_off.map_err(of_directory)?;
        for (number, left) in for_workers.into_iter().enumerate() {
            let worker = MailboxWorker {
                lane: pipeline.lane().wait_when_busy().wait_when_full(),
                shared: pipeline.shared.clone(),
                backlog: left,
                mailboxes: pipeline.mailboxes.clone(),
                number,
                max_batch: config.max_batch.max(1),
                started: pipeline.started,
            };
            let builder = std::thread::Builder::new().name(format!("devices-{number}"));
            let handle = builder
                .spawn(move || worker.run())
                .map_err(PipelineStartError::Worker)?;
            pipeline.workers().push(handle);
        }
        Ok(pipeline)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes mailboxes of a previous process that had more of them.
    fn replay_surplus(
        &self,
        config: &PipelineConfig,
        guarded: Option<(&Path, &MarkFile)>,
    ) -> io::Result<()> {
        let Some((directory, guard)) = guarded else {
            return Ok(());
        };
        for number in self.mailboxes.len().. {
            let files = Mailbox::files(directory, number);
            if !files.iter().any(|file| file.exists()) {
                match 2 * number >= guard.halves() {
                    true => break,
                    // Its content was processed earlier, unless a mark says otherwise.
                    false if guard.is_empty(number) => continue,
                    false => {}
                }
            }
            let (_, halves) = Mailbox::open(guarded, number, config.mailbox_bytes)?;
            if !self.shared.replay(&halves) {
                tracing::warn!(
                    mailbox = number,
                    "telemetry store has no room for queued device messages; retrying at the next start"
                );
                continue;
            }
            self.wait_until_settled();
            for mut half in halves {
                half.clear(0);
            }
            files.iter().try_for_each(std::fs::remove_file)?;
        }
        Ok(())
    }

    /// Creates the lane of a thread.
    pub fn lane(&self) -> Lane {
        Lane::new(self.shared.clone())
    }

    /// Creates a lane for messages of [`PipelineOutputs::defer_message`].
    pub fn retry_lane(&self) -> Lane {
        self.lane().for_retries()
    }

    /// Creates a lane for rows reported on behalf of devices: on Tidegate's own topics, whatever the
    /// product's protocols.
    pub fn report_lane(&self) -> Lane {
        self.lane().for_retries().wait_when_busy().for_reports()
    }

    /// Processes a message on this thread, whatever the mode of the product.
    pub fn process(&self, lane: &mut Lane, message: &DeviceMessage<'_>) {
        lane.process_catching_panics(std::slice::from_ref(message));
    }

    /// Sets the profile of a new or changed product; `None` removes it.
    pub fn set_profile(&self, product: ProductNo, profile: Option<ProductProfile>) {
        let profile = profile.map(Arc::new);
        self.shared.profiles.rcu(|profiles| {
            let mut profiles = ProfileTable::clone(profiles);
            let at = product.0 as usize;
            if at >= profiles.len() {
                profiles.resize(at + 1, None);
            }
            profiles[at] = profile.clone();
            profiles
        });
    }

    /// Accepts a message. The [module](super) documents the guarantees on return.
    #[inline]
    pub fn submit(&self, lane: &mut Lane, message: &DeviceMessage<'_>) -> SubmitOutcome {
        match lane.mode_for(message.sender) {
            Some(PipelineMode::Actor) => return self.enqueue(lane, message),
            Some(PipelineMode::Sync) => lane.process_one(message),
            None => lane.counters().unknown.add(1),
        }
        match lane.take_storage_full() {
            true => SubmitOutcome::StorageFull,
            false => SubmitOutcome::Accepted,
        }
    }

    /// Whether a message would be refused because its rows are to be stored and the store has no room. May
    /// return `false` for a message that [`Pipeline::submit`] refuses a moment later.
    #[inline]
    pub fn would_refuse(&self, lane: &mut Lane, by: DeviceRef<'_>, topic: &str) -> bool {
        self.shared.storage.is_full()
            && lane.stores_telemetry(by)
            && protocol::carries_telemetry(topic)
    }

    #[inline]
    fn enqueue(&self, lane: &mut Lane, message: &DeviceMessage<'_>) -> SubmitOutcome {
        let is_full = || self.shared.storage.is_full();
        if self.would_refuse(lane, message.sender, message.topic) {
            lane.discard(message);
            return SubmitOutcome::StorageFull;
        }
        let mailbox = self.mailbox_of(message.sender.no);
        let handed_ns = match lane.is_timed() {
            true => self.started.elapsed().as_nanos() as u64,
            false => UNTIMED,
        };
        match mailbox.push(message, handed_ns, is_full) {
            PushOutcome::Accepted => return SubmitOutcome::Accepted,
            // Behind earlier messages of the device.
            PushOutcome::TooLarge if mailbox.flush(is_full) => lane.process_one(message),
            PushOutcome::TooLarge | PushOutcome::Full => {
                lane.discard(message);
                return SubmitOutcome::StorageFull;
            }
        }
        match lane.take_storage_full() {
            true => SubmitOutcome::StorageFull,
            false => SubmitOutcome::Accepted,
        }
    }

    fn mailbox_of(&self, device: DeviceNo) -> &Mailbox {
        // If there are no more mailboxes than partitions, each partition is written from one mailbox only.
        let at = series::partition_of(device) + series::PARTITION_COUNT * device.spread() as usize;
        &self.mailboxes[at % self.mailboxes.len()]
    }

    /// Whether publishers have to wait.
    #[inline]
    pub fn is_saturated(&self) -> bool {
        // While the store has no room, messages are refused instead of waiting.
        (self.mailboxes.iter().any(Mailbox::is_half_full) || self.shared.storage.is_behind())
            && !self.shared.storage.is_full()
            || self.shared.outputs.is_full()
    }

    /// Calls `done`, from any thread, when the results of all messages processed so far are safe. Rows are
    /// then as durable as the store's fsync policy demands; everything else is in the registry.
    pub fn settle(&self, done: DurableCallback) {
        self.shared.settle(done);
    }

    fn wait_until_settled(&self) {
        self.shared.wait_until_settled();
    }

    /// Waits until all mailboxes are empty and their messages are processed.
    pub fn flush(&self) {
        for mailbox in &*self.mailboxes {
            mailbox.flush(|| false);
        }
    }

    /// Processes the content of the mailboxes and ends the workers. The submitting thread processes later
    /// messages itself.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.mailboxes.iter().for_each(Mailbox::stop);
        for worker in std::mem::take(&mut *self.workers()) {
            if worker.join().is_err() {
                tracing::error!("device worker panicked; this is a bug");
            }
        }
    }

    pub fn snapshot(&self) -> PipelineSnapshot {
        let lanes = self.shared.lanes().clone();
        let sum = |pick: fn(&Mailbox) -> u64| self.mailboxes.iter().map(pick).sum();
        PipelineSnapshot {
            queued: sum(|mailbox| mailbox.queued.load(Ordering::Relaxed)),
            queued_bytes: sum(|mailbox| mailbox.queued_bytes.load(Ordering::Relaxed)),
            mailboxes: self.mailboxes.len() as u64,
            ..snapshot(lanes.iter().map(|counters| &**counters))
        }
    }

    /// Recent rejections of a device.
    pub fn rejections_of(&self, device: DeviceNo) -> DeviceRejections {
        self.shared.rejections.rejections_of(device)
    }

    /// Forgets a removed device.
    pub fn forget_device(&self, device: DeviceNo) {
        self.shared.rejections.forget(device);
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Empties one mailbox.
struct MailboxWorker {
    lane: Lane,
    shared: Arc<PipelineShared>,
    /// Messages of a previous process for which there was no room at the start.
    backlog: Option<Vec<MailboxSegment>>,
    mailboxes: Arc<[Mailbox]>,
    number: usize,
    max_batch: usize,
    started: Instant,
}

impl MailboxWorker {
    fn run(mut self) {
        let mailboxes = self.mailboxes.clone();
        let mailbox = &mailboxes[self.number];
        if let Some(halves) = self.backlog.take() {
            if !self.replay_when_possible(&halves) {
                return mailbox.end();
            }
            mailbox.begin(halves);
        }
        let mut done = None;
        while let Some(full) = mailbox.exchange(done.take()) {
            self.drain(&full);
            if self.lane.take_storage_full() {
                // The content stays in its file for the next start.
                return mailbox.end();
            }
            // The results must be durable elsewhere before the messages leave the mailbox.
            if self.lane.take_unsettled() {
                self.lane.wait_until_settled();
            }
            done = Some(full);
        }
    }

    /// Returns `false` if the pipeline stops before there is room.
    fn replay_when_possible(&self, halves: &[MailboxSegment]) -> bool {
        while self.lane.wait_for_space() {
            if self.shared.replay(halves) {
                self.lane.wait_until_settled();
                return true;
            }
        }
        false
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn drain(&mut self, full: &MailboxSegment) {
        let mut waiting = full.messages();
        let (mut messages, mut handed) = (Vec::new(), Vec::new());
        loop {
            messages.clear();
            handed.clear();
            let batch = waiting.by_ref().take(self.max_batch);
            for QueuedMessage {
                message,
                enqueued_ns: handed_ns,
            } in batch
            {
                messages.push(message);
                if handed_ns != UNTIMED {
                    handed.push(handed_ns);
                }
            }
            if messages.is_empty() {
                return;
            }
            let begun_ns = self.now_ns();
            self.lane.process_catching_panics(&messages);
            let ended_ns = self.now_ns();
            let counters = self.lane.counters();
            counters.batches.add(1);
            for handed_ns in &handed {
                counters.waiting.record(begun_ns.saturating_sub(*handed_ns));
                counters.latency.record(ended_ns.saturating_sub(*handed_ns));
            }
        }
    }
}
