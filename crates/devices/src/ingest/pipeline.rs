//! The pipeline as a whole: products, processors, mailboxes and their workers.

use std::hash::RandomState;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hooks::DurableCallback;
use series::DeviceNo;

use super::mailbox::{self, Mailbox, MailboxWork, PushOutcome};
use super::mailbox_segment::{self, MailboxSegment, QueuedMessage};
use super::marks::{self, MailboxDamage, MarkFile};
use super::message::DeviceMessage;
use super::metrics::{PipelineSnapshot, snapshot};
use super::pipeline_shared::{PipelineShared, ProfileTable, RECHECK_INTERVAL};
use super::ports::{DeviceResolver, PipelineOutputs, SettleScope, TelemetryStorage};
use super::processor::TelemetryProcessor;
use super::product_keys::ProductKeyCounts;
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
    /// The namespace of the sender has stored as much telemetry as it may.
    QuotaReached,
}

const NO_ROOM: &str = "the telemetry store has no room";
const QUOTA_REACHED: &str = "the quota telemetry_megabytes of the namespace is reached";

#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// Directory of the mailboxes; `None` keeps them in memory, where they end with the process.
    pub directory: Option<PathBuf>,
    /// Number of mailboxes of the actor mode, each with a worker.
    pub mailboxes: usize,
    /// Capacity of one mailbox. Messages larger than half of it are processed immediately.
    pub mailbox_bytes: usize,
    /// Maximum number of messages processed together.
    pub max_mailbox_batch_messages: usize,
    /// Maximum number of keys of a product.
    pub max_keys_per_product: usize,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self {
            directory: None,
            mailboxes: thread::available_parallelism().map_or(1, usize::from),
            mailbox_bytes: 512 << 10,
            max_mailbox_batch_messages: 256,
            max_keys_per_product: 4096,
        }
    }
}

/// Marks a message without a submission time.
const UNTIMED: u64 = u64::MAX;
/// Interval at which [`Pipeline::wait_for_room`] checks the store and the outputs.
const ROOM_POLL_INTERVAL: Duration = Duration::from_millis(1);

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

/// The messages of a previous process in the halves of a mailbox.
struct MailboxBacklog {
    halves: Vec<MailboxSegment>,
    count: usize,
    /// Number of messages processed by a replay.
    processed: usize,
}

impl MailboxBacklog {
    fn new(halves: Vec<MailboxSegment>) -> Self {
        let messages = halves.iter();
        let messages = messages.flat_map(MailboxSegment::recovered_messages);
        Self {
            count: messages.count(),
            halves,
            processed: 0,
        }
    }
}

/// A mailbox of a previous process that had more of them. Its messages are processed.
struct SurplusMailbox {
    halves: Vec<MailboxSegment>,
    files: [PathBuf; 2],
}

impl SurplusMailbox {
    fn remove(self) {
        for mut half in self.halves {
            half.clear(0);
        }
        for path in self.files {
            if let Err(error) = std::fs::remove_file(&path) {
                let path = path.display();
                tracing::warn!(%path, %error, "removing an empty device mailbox failed; it stays on disk");
            }
        }
    }
}

impl PipelineShared {
    /// Processes the messages that a previous process accepted and did not complete, without waiting until their
    /// results are safe. Before the broker runs, rule chains cannot publish, and their messages wait in the outputs.
    /// Returns `false` if the store has no room for all rows, or the outputs for all messages.
    fn replay(self: &Arc<Self>, backlog: &mut MailboxBacklog) -> bool {
        let mut processor: Option<TelemetryProcessor> = None;
        let messages = backlog.halves.iter();
        let messages = messages.flat_map(MailboxSegment::recovered_messages);
        for waiting in messages.skip(backlog.processed) {
            if self.outputs.is_full() {
                break;
            }
            backlog.processed += 1;
            let processor = processor.get_or_insert_with(|| {
                TelemetryProcessor::new(Arc::clone(self))
                    .for_retries()
                    .wait_when_busy()
            });
            let mut message = waiting.message;
            // Product numbers differ from those of the previous process.
            let device = self.resolver.resolve_device(message.sender.no);
            if let Some(device) = device.filter(|device| device.id.as_str() == message.sender.id) {
                message.sender = device.as_device_ref();
                self.resolver.load_children(&message);
                processor.process_catching_panics(&[message]);
            }
        }
        if processor.is_some_and(|mut processor| processor.take_storage_full()) {
            // All are processed again: which rows are missing is not known.
            backlog.processed = 0;
            return false;
        }
        backlog.processed == backlog.count
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
            key_counts: ProductKeyCounts::new(config.max_keys_per_product),
            processors: Mutex::default(),
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
        let mut backlogs = Vec::new();
        for (mailbox, halves) in pipeline.mailboxes.iter().zip(left) {
            let mut backlog = MailboxBacklog::new(halves);
            match backlog.count {
                0 => {
                    mailbox.begin(backlog.halves);
                    backlogs.push(None);
                }
                // The worker clears the halves when the results are safe, and does the rest if there is no room.
                // Until then, the mailbox holds messages in memory.
                _ => {
                    pipeline.shared.replay(&mut backlog);
                    backlogs.push(Some(backlog));
                }
            }
        }
        let surplus = pipeline.replay_surplus(config, files);
        let mut surplus = surplus.map_err(of_directory)?;
        for (number, backlog) in backlogs.into_iter().enumerate() {
            let worker = MailboxWorker {
                processor: pipeline.processor().wait_when_busy().wait_when_full(),
                shared: pipeline.shared.clone(),
                backlog,
                surplus: std::mem::take(&mut surplus),
                mailboxes: pipeline.mailboxes.clone(),
                number,
                max_mailbox_batch_messages: config.max_mailbox_batch_messages.max(1),
                started: pipeline.started,
            };
            let builder = thread::Builder::new().name(format!("devices-{number}"));
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

    /// Processes mailboxes of a previous process that had more of them, and returns those that can be removed when the
    /// results are safe.
    fn replay_surplus(
        &self,
        config: &PipelineConfig,
        guarded: Option<(&Path, &MarkFile)>,
    ) -> io::Result<Vec<SurplusMailbox>> {
        let mut processed = Vec::new();
        let Some((directory, guard)) = guarded else {
            return Ok(processed);
        };
        for number in self.mailboxes.len().. {
            let files = Mailbox::files(directory, number);
            if !files.iter().any(|file| file.exists()) {
                match 2 * number >= guard.half_count() {
                    true => break,
                    // Its content was processed earlier, unless a mark shows otherwise.
                    false if guard.is_empty(number) => continue,
                    false => {}
                }
            }
            let (_, halves) = Mailbox::open(guarded, number, config.mailbox_bytes)?;
            let mut backlog = MailboxBacklog::new(halves);
            if !self.shared.replay(&mut backlog) {
                tracing::warn!(
                    mailbox = number,
                    "there is no room for the results of queued device messages; retrying at the next start"
                );
                continue;
            }
            let halves = backlog.halves;
            processed.push(SurplusMailbox { halves, files });
        }
        Ok(processed)
    }

    /// Creates the processor of a thread.
    pub fn processor(&self) -> TelemetryProcessor {
        TelemetryProcessor::new(self.shared.clone())
    }

    /// Creates a processor for messages of [`PipelineOutputs::defer_message`].
    pub fn retry_processor(&self) -> TelemetryProcessor {
        self.processor().for_retries()
    }

    /// Creates a processor for rows reported on behalf of devices: on Tidegate's own topics, whatever the
    /// product's protocols.
    pub fn report_processor(&self) -> TelemetryProcessor {
        self.processor()
            .for_retries()
            .wait_when_busy()
            .for_reports()
    }

    /// Processes a message on this thread, whatever the mode of the product. Beyond the quota of the namespace it is
    /// rejected.
    pub fn process(&self, processor: &mut TelemetryProcessor, message: &DeviceMessage<'_>) {
        if self.exceeds_quota(processor, message.sender, message.topic) {
            processor.discard(message, QUOTA_REACHED);
            return;
        }
        processor.process_catching_panics(std::slice::from_ref(message));
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
    pub fn submit(
        &self,
        processor: &mut TelemetryProcessor,
        message: &DeviceMessage<'_>,
    ) -> SubmitOutcome {
        let profile = processor.profile_of(message.sender);
        let mode = profile.map(|profile| profile.mode);
        if profile.is_some_and(ProductProfile::is_over_quota)
            && self.exceeds_quota(processor, message.sender, message.topic)
        {
            processor.discard(message, QUOTA_REACHED);
            return SubmitOutcome::QuotaReached;
        }
        match mode {
            Some(PipelineMode::Actor) => return self.enqueue(processor, message),
            Some(PipelineMode::Sync) => processor.process_one(message),
            None => processor.counters().unknown.add(1),
        }
        match processor.take_storage_full() {
            true => SubmitOutcome::StorageFull,
            false => SubmitOutcome::Accepted,
        }
    }

    /// Whether a message would be rejected because its rows are to be stored, and the store has no room or the quota of
    /// the namespace is reached. May return `false` for a message that [`Pipeline::submit`] rejects a moment later.
    #[inline]
    pub fn would_reject(
        &self,
        processor: &mut TelemetryProcessor,
        by: DeviceRef<'_>,
        topic: &str,
    ) -> bool {
        self.lacks_room(processor, by, topic) || self.exceeds_quota(processor, by, topic)
    }

    #[inline]
    fn lacks_room(
        &self,
        processor: &mut TelemetryProcessor,
        by: DeviceRef<'_>,
        topic: &str,
    ) -> bool {
        self.is_storage_full()
            && processor
                .profile_of(by)
                .is_some_and(|profile| profile.is_stored)
            && protocol::carries_telemetry(topic)
    }

    /// Whether the namespace may not store the rows of a message. Child devices have the namespace of their gateway.
    #[inline]
    fn exceeds_quota(
        &self,
        processor: &mut TelemetryProcessor,
        by: DeviceRef<'_>,
        topic: &str,
    ) -> bool {
        processor.profile_of(by).is_some_and(|profile| {
            profile.is_over_quota()
                && protocol::carries_telemetry(topic)
                && (profile.is_stored || protocol::is_about_children(topic))
        })
    }

    /// Whether the telemetry store has no room.
    #[inline]
    fn is_storage_full(&self) -> bool {
        self.shared.storage.is_full()
    }

    #[inline]
    fn enqueue(
        &self,
        processor: &mut TelemetryProcessor,
        message: &DeviceMessage<'_>,
    ) -> SubmitOutcome {
        let is_full = || self.is_storage_full();
        if self.lacks_room(processor, message.sender, message.topic) {
            processor.discard(message, NO_ROOM);
            return SubmitOutcome::StorageFull;
        }
        let mailbox = self.mailbox_of(message.sender.no);
        let handed_ns = match processor.is_timed() {
            true => self.started.elapsed().as_nanos() as u64,
            false => UNTIMED,
        };
        match mailbox.push(message, handed_ns, is_full) {
            PushOutcome::Accepted => return SubmitOutcome::Accepted,
            PushOutcome::Overflowed => {
                // What its rows will pass is not known yet.
                processor.mark_unsettled(SettleScope::Published);
                return SubmitOutcome::Accepted;
            }
            PushOutcome::Full => {
                processor.discard(message, NO_ROOM);
                return SubmitOutcome::StorageFull;
            }
            PushOutcome::Closed => {
                // Behind earlier messages of the device.
                mailbox.flush();
                processor.process_one(message);
            }
        }
        match processor.take_storage_full() {
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
        // While the store has no room, messages are rejected instead of waiting.
        (self.mailboxes.iter().any(Mailbox::is_half_full) || self.shared.storage.is_behind())
            && !self.is_storage_full()
            || self.shared.outputs.is_full()
    }

    /// Waits while publishers have to wait, at most for `limit`. For threads of their own: a mailbox worker may wait for
    /// a shard, so shards call [`Pipeline::is_saturated`] instead.
    pub fn wait_for_room(&self, limit: Duration) {
        let since = Instant::now();
        while self.is_saturated() {
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            match self.mailboxes.iter().find(|mailbox| mailbox.is_half_full()) {
                Some(mailbox) => mailbox.wait_for_room(left),
                None => thread::sleep(left.min(ROOM_POLL_INTERVAL)),
            }
        }
    }

    /// Calls `done`, from any thread, when all messages accepted so far are in a mailbox file or their results of this
    /// scope are safe. Rows are then as durable as the store's fsync policy demands, messages of rule chains are in the
    /// broker's log, and everything else is in the registry. Drops `done` if that never happens, because the node
    /// stops.
    pub fn settle(&self, scope: SettleScope, done: DurableCallback) {
        match scope {
            SettleScope::Stored => self.shared.settle(scope, done),
            SettleScope::Published => {
                settle_overflow(self.mailboxes.clone(), 0, self.shared.clone(), done);
            }
        }
    }

    /// Waits until the messages in all mailboxes are processed.
    pub fn flush(&self) {
        self.mailboxes.iter().for_each(Mailbox::flush);
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
        let processors = self.shared.processors().clone();
        let sum = |pick: fn(&Mailbox) -> u64| self.mailboxes.iter().map(pick).sum();
        PipelineSnapshot {
            rejected_keys: self.shared.key_counts.rejected(),
            queued: sum(|mailbox| mailbox.queued.load(Ordering::Relaxed)),
            queued_bytes: sum(|mailbox| mailbox.queued_bytes.load(Ordering::Relaxed)),
            mailboxes: self.mailboxes.len() as u64,
            ..snapshot(processors.iter().map(|counters| &**counters))
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

/// Calls `done` when the messages that the mailboxes from number `from` on hold in memory are in a file or processed,
/// and the results of all processed messages are safe.
fn settle_overflow(
    mailboxes: Arc<[Mailbox]>,
    from: usize,
    shared: Arc<PipelineShared>,
    done: DurableCallback,
) {
    let overflowing = mailboxes[from..].iter().position(Mailbox::has_overflow);
    let Some(at) = overflowing.map(|at| from + at) else {
        return shared.settle(SettleScope::Published, done);
    };
    let others = mailboxes.clone();
    let then = move || settle_overflow(others, at + 1, shared, done);
    mailboxes[at].settle_overflow(Box::new(then));
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Empties one mailbox.
struct MailboxWorker {
    processor: TelemetryProcessor,
    shared: Arc<PipelineShared>,
    /// Messages of a previous process that were replayed, as far as there was room.
    backlog: Option<MailboxBacklog>,
    surplus: Vec<SurplusMailbox>,
    mailboxes: Arc<[Mailbox]>,
    number: usize,
    max_mailbox_batch_messages: usize,
    started: Instant,
}

impl MailboxWorker {
    fn run(mut self) {
        let mailboxes = self.mailboxes.clone();
        let mailbox = &mailboxes[self.number];
        if let Some(mut backlog) = self.backlog.take() {
            if !self.complete_replay(&mut backlog) {
                return mailbox.end();
            }
            mailbox.begin(backlog.halves);
        }
        let surplus = std::mem::take(&mut self.surplus);
        if !surplus.is_empty() && !self.shared.wait_until_settled(SettleScope::Published) {
            return mailbox.end();
        }
        surplus.into_iter().for_each(SurplusMailbox::remove);
        let mut done = None;
        while let Some(work) = mailbox.exchange(done.take()) {
            match &work {
                MailboxWork::Half(half) => self.drain(half.messages()),
                MailboxWork::Message(message, enqueued_ns) => {
                    let (message, enqueued_ns) = (message.as_message(), *enqueued_ns);
                    let waiting = QueuedMessage {
                        message,
                        enqueued_ns,
                    };
                    self.drain(std::iter::once(waiting));
                }
            }
            if self.processor.take_storage_full() {
                // The content stays in its file for the next start.
                return mailbox.end();
            }
            // The results must be durable elsewhere before the messages leave the mailbox.
            if let Some(scope) = self.processor.take_unsettled()
                && !self.shared.wait_until_settled(scope)
            {
                return mailbox.end();
            }
            done = Some(work);
        }
    }

    /// Replays the rest of a backlog when there is room, and waits until all results are safe. Returns `false` if the
    /// pipeline stops before that; the messages stay in their files then.
    fn complete_replay(&self, backlog: &mut MailboxBacklog) -> bool {
        while backlog.processed < backlog.count {
            if !self.processor.wait_for_space() {
                return false;
            }
            if !self.shared.replay(backlog) {
                thread::sleep(RECHECK_INTERVAL);
            }
        }
        self.shared.wait_until_settled(SettleScope::Published)
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn drain<'m>(&mut self, mut waiting: impl Iterator<Item = QueuedMessage<'m>>) {
        let (mut messages, mut handed) = (Vec::new(), Vec::new());
        loop {
            messages.clear();
            handed.clear();
            let batch = waiting.by_ref().take(self.max_mailbox_batch_messages);
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
            self.processor.process_catching_panics(&messages);
            let ended_ns = self.now_ns();
            let counters = self.processor.counters();
            counters.batches.add(1);
            for handed_ns in &handed {
                counters.waiting.record(begun_ns.saturating_sub(*handed_ns));
                counters.latency.record(ended_ns.saturating_sub(*handed_ns));
            }
        }
    }
}
