//! Worker threads that carry out the steps of transfers over MQTT, and acknowledge them.
//!
//! A client's steps go to one worker, in order. A worker takes several at once, so that their segments are made durable
//! together. The digest of a finished file is computed in slices between the batches, so that others do not wait.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use disk::Fsync;
use hooks::{BrokerPort, MessageDraft, OutgoingMessages, PublishTicket};
use mqtt::{PropertiesBuf, Property, QoS, ReasonCode};
use wall_clock::now_ms;

use crate::digest::FileDigest;
use crate::error::TransferError;
use crate::finish::FinishStep;
use crate::mqtt_response::{StepResult, encode_response, reason_of};
use crate::mqtt_topic::{FileCommand, FileTopic};
use crate::record::{FileOwner, OwnerKind};
use crate::request::TransferRequest;
use crate::segments::WrittenSegment;
use crate::service::{FileService, FileTarget};

/// Steps whose segments are made durable together.
const MAX_BATCH: usize = 128;
/// Bytes of a finished file that are digested between two batches.
const DIGEST_SLICE_BYTES: u64 = 8 << 20;
/// Memory of a step besides its payload and its topic.
const STEP_OVERHEAD_BYTES: usize = 256;
/// Prefix of the default response topic; the rest is the client id.
const RESPONSE_PREFIX: &str = "$file-response/";
/// Interval at which expired files are removed.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of syncs if the policy names none.
const DEFAULT_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// What the engine asks about products.
pub trait OwnerDirectory: Send + Sync {
    /// The namespace of a product; `None`: there is no such product. It may block.
    fn namespace_of_product(&self, product: &str) -> Option<String>;
}

/// The client that sent a step.
#[derive(Debug, Clone)]
pub(crate) struct StepSender {
    pub(crate) client_id: Box<str>,
    /// Id and product of the device that the client is.
    pub(crate) device: Option<(Box<str>, Box<str>)>,
}

/// One step of a transfer.
pub(crate) struct TransferStep {
    pub(crate) sender: StepSender,
    pub(crate) topic: Box<str>,
    pub(crate) payload: Bytes,
    pub(crate) ticket: Option<PublishTicket>,
    pub(crate) response_topic: Option<Box<str>>,
    pub(crate) correlation_data: Option<Box<[u8]>>,
}

impl TransferStep {
    fn cost(&self) -> u64 {
        (self.payload.len() + self.topic.len() + STEP_OVERHEAD_BYTES) as u64
    }
}

/// A finished transfer whose digest is being computed.
struct FinishingStep {
    step: TransferStep,
    owner: FileOwner,
    file_id: String,
    size: u64,
    checksum: Option<FileDigest>,
    is_acknowledged: bool,
}

/// What became of a step.
enum StepOutcome {
    Done(StepResult),
    /// Done when the segment is committed.
    Written(WrittenSegment),
    Finishing(FinishingStep),
}

#[derive(Default)]
struct StepQueue {
    steps: Mutex<VecDeque<TransferStep>>,
    has_work: Condvar,
}

impl StepQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<TransferStep>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads for transfers over MQTT. Clones share them.
#[derive(Clone)]
pub struct FileWorkers {
    shared: Arc<WorkersShared>,
}

struct WorkersShared {
    service: FileService,
    owners: Arc<dyn OwnerDirectory>,
    broker: OnceLock<Arc<dyn BrokerPort>>,
    queues: Box<[StepQueue]>,
    hasher: RandomState,
    queued_bytes: AtomicU64,
    is_stopping: AtomicBool,
    /// Wakes the thread for syncs and expiry when the node stops.
    stop: (Mutex<()>, Condvar),
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl FileWorkers {
    /// Creates the workers; steps wait until [`start`](Self::start).
    #[must_use]
    pub fn new(service: FileService, owners: Arc<dyn OwnerDirectory>) -> Self {
        let threads = service.settings().threads.max(1);
        Self {
            shared: Arc::new(WorkersShared {
                service,
                owners,
                broker: OnceLock::new(),
                queues: (0..threads).map(|_| StepQueue::default()).collect(),
                hasher: RandomState::new(),
                queued_bytes: AtomicU64::new(0),
                is_stopping: AtomicBool::new(false),
                stop: Default::default(),
                threads: Mutex::default(),
            }),
        }
    }

    /// Starts the threads, which answer through `broker`.
    ///
    /// # Errors
    /// If the system creates no thread.
    pub fn start(&self, broker: Arc<dyn BrokerPort>) -> io::Result<()> {
        let _ = self.shared.broker.set(broker);
        let mut threads = self.threads();
        for at in 0..self.shared.queues.len() {
            let shared = self.shared.clone();
            let worker = Builder::new().name(format!("files-{at}"));
            threads.push(worker.spawn(move || shared.run(at))?);
        }
        let shared = self.shared.clone();
        let maintenance = Builder::new().name("files-maintenance".to_owned());
        threads.push(maintenance.spawn(move || shared.maintain())?);
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        let threads = self.shared.threads.lock();
        threads.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the threads and syncs the files. Steps that wait are not acknowledged, so their clients send them again.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Relaxed);
        for queue in &self.shared.queues {
            let _steps = queue.lock();
            queue.has_work.notify_all();
        }
        {
            let _stop = (self.shared.stop.0.lock()).unwrap_or_else(PoisonError::into_inner);
            self.shared.stop.1.notify_all();
        }
        for thread in self.threads().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread for files panicked; this is a bug");
            }
        }
        self.shared.service.close();
    }

    #[must_use]
    pub fn service(&self) -> &FileService {
        &self.shared.service
    }

    /// The owner of the files of a client; of a device its id and product are given.
    #[must_use]
    pub fn owner_of_client(&self, client_id: &str, device: Option<(&str, &str)>) -> FileOwner {
        self.shared.owner_of_client(client_id, device)
    }

    /// Bytes of steps that wait.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.shared.queued_bytes.load(Relaxed)
    }

    /// Whether senders have to pause.
    pub(crate) fn is_saturated(&self) -> bool {
        self.queued_bytes() >= self.service().settings().max_queued_bytes / 2
    }

    /// Whether steps are rejected.
    pub(crate) fn is_full(&self) -> bool {
        self.queued_bytes() >= self.service().settings().max_queued_bytes
    }

    /// Queues a step. Never blocks.
    pub(crate) fn push(&self, step: TransferStep) {
        self.shared.queued_bytes.fetch_add(step.cost(), Relaxed);
        let hash = self.shared.hasher.hash_one(&step.sender.client_id);
        let queue = &self.shared.queues[hash as usize % self.shared.queues.len()];
        queue.lock().push_back(step);
        queue.has_work.notify_one();
    }
}

impl WorkersShared {
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }

    /// Syncs and removes expired files until the node stops.
    fn maintain(&self) {
        let interval = match self.service.settings().fsync {
            Fsync::Every(interval) => interval,
            Fsync::Always | Fsync::Never => DEFAULT_SYNC_INTERVAL,
        };
        let mut expired_at = Instant::now();
        let mut stop = self.stop.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_stopping() {
            let waited = self.stop.1.wait_timeout(stop, interval);
            stop = waited.unwrap_or_else(PoisonError::into_inner).0;
            self.service.sync();
            self.service.store_queued_exports();
            if expired_at.elapsed() >= EXPIRY_INTERVAL {
                expired_at = Instant::now();
                self.service.expire(now_ms());
            }
        }
    }

    fn run(&self, worker: usize) {
        let mut finishing: VecDeque<FinishingStep> = VecDeque::new();
        loop {
            let batch = self.next_batch(&self.queues[worker], finishing.is_empty());
            if self.is_stopping() {
                return;
            }
            self.process_batch(batch, &mut finishing);
            if let Some(step) = finishing.pop_front()
                && let Some(pending) = self.advance(step)
            {
                finishing.push_back(pending);
            }
        }
    }

    fn next_batch(&self, queue: &StepQueue, may_wait: bool) -> Vec<TransferStep> {
        let mut steps = queue.lock();
        while may_wait && steps.is_empty() && !self.is_stopping() {
            let woken = queue.has_work.wait(steps);
            steps = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let count = steps.len().min(MAX_BATCH);
        steps.drain(..count).collect()
    }

    fn process_batch(&self, batch: Vec<TransferStep>, finishing: &mut VecDeque<FinishingStep>) {
        let mut answers: Vec<(TransferStep, Result<usize, StepResult>)> = Vec::new();
        let mut written: Vec<WrittenSegment> = Vec::new();
        let mut done_bytes = 0;
        for step in batch {
            done_bytes += step.cost();
            match self.process(step) {
                (Some(step), StepOutcome::Done(result)) => answers.push((step, Err(result))),
                (Some(step), StepOutcome::Written(segment)) => {
                    let known = written
                        .iter()
                        .position(|other| other.is_same_file(&segment));
                    let at = known.unwrap_or_else(|| {
                        written.push(segment);
                        written.len() - 1
                    });
                    answers.push((step, Ok(at)));
                }
                (_, StepOutcome::Finishing(step)) => finishing.push_back(step),
                (None, _) => {}
            }
        }
        let commits = written.iter().map(|segment| self.service.commit(segment));
        let commits: Vec<Result<(), TransferError>> = commits.collect();
        for (step, answer) in answers {
            let result =
                answer.map_or_else(|result| result, |at| commits[at].clone().map(|()| None));
            self.answer(&step, result, true);
        }
        self.queued_bytes.fetch_sub(done_bytes, Relaxed);
    }

    fn owner_of(&self, sender: &StepSender) -> FileOwner {
        let device = sender.device.as_ref();
        let device = device.map(|(id, product)| (id.as_ref(), product.as_ref()));
        self.owner_of_client(&sender.client_id, device)
    }

    fn owner_of_client(&self, client_id: &str, device: Option<(&str, &str)>) -> FileOwner {
        match device {
            None => FileOwner::client(client_id),
            Some((id, product)) => {
                let namespace = self.owners.namespace_of_product(product);
                FileOwner {
                    kind: OwnerKind::Device,
                    id: id.to_owned(),
                    product: Some(product.to_owned()),
                    namespace: namespace.unwrap_or_else(namespaces::default_id),
                }
            }
        }
    }

    /// Carries out a step; returns it if it is to be answered after the batch.
    fn process(&self, step: TransferStep) -> (Option<TransferStep>, StepOutcome) {
        let owner = self.owner_of(&step.sender);
        let topic = match FileTopic::parse(&step.topic) {
            Ok(topic) => topic,
            Err(error) => {
                let result = self.service.count(Err(error));
                return (Some(step), StepOutcome::Done(result));
            }
        };
        let file_id = topic.file_id;
        let target = FileTarget::Transfer(&owner, file_id);
        let done = |result: Result<_, TransferError>| StepOutcome::Done(result);
        let outcome = match topic.command {
            FileCommand::Init => {
                let request = TransferRequest::from_json(owner, file_id, &step.payload);
                let begun = match request {
                    Ok(request) => self.service.begin(request),
                    Err(error) => self.service.count(Err(error)),
                };
                done(begun.map(|_| None))
            }
            FileCommand::Segment { offset, digest } => {
                match self.service.write(target, offset, &step.payload, digest) {
                    Ok(segment) => StepOutcome::Written(segment),
                    Err(error) => done(Err(error)),
                }
            }
            FileCommand::Abort => done(self.service.abort(&owner, file_id).map(|()| None)),
            FileCommand::Status => done(self.service.status(target).map(Some)),
            FileCommand::Finish { size, checksum } => {
                let (file_id, is_async) = (file_id.to_owned(), topic.is_async);
                if is_async {
                    self.acknowledge(&step, ReasonCode::SUCCESS);
                }
                let finishing = FinishingStep {
                    owner,
                    file_id,
                    size,
                    checksum,
                    is_acknowledged: is_async,
                    step,
                };
                return (None, StepOutcome::Finishing(finishing));
            }
        };
        (Some(step), outcome)
    }

    /// Digests a slice of a finished file; returns it if it is not done.
    fn advance(&self, finishing: FinishingStep) -> Option<FinishingStep> {
        let target = FileTarget::Transfer(&finishing.owner, &finishing.file_id);
        let (size, checksum) = (Some(finishing.size), finishing.checksum);
        let result = (self.service).finish_step(target, size, checksum, DIGEST_SLICE_BYTES);
        let result = match result {
            Ok(FinishStep::Pending) => return Some(finishing),
            Ok(FinishStep::Complete(_)) => Ok(None),
            Err(error) => Err(error),
        };
        self.answer(&finishing.step, result, !finishing.is_acknowledged);
        None
    }

    fn acknowledge(&self, step: &TransferStep, reason: ReasonCode) {
        if let (Some(broker), Some(ticket)) = (self.broker.get(), step.ticket) {
            broker.acknowledge(ticket, reason);
        }
    }

    /// Publishes the response to a step, and acknowledges its message.
    fn answer(&self, step: &TransferStep, result: StepResult, acknowledge: bool) {
        let Some(broker) = self.broker.get() else {
            return;
        };
        let reason = reason_of(&result);
        let packet_id = step.ticket.map_or(0, |ticket| ticket.packet_id);
        let payload = encode_response(&step.topic, packet_id, result);
        let mut properties = PropertiesBuf::new();
        if let Some(data) = &step.correlation_data {
            properties.push(Property::CorrelationData(data));
        }
        let default_topic;
        let topic = match &step.response_topic {
            Some(topic) => &**topic,
            None => {
                default_topic = format!("{RESPONSE_PREFIX}{}", step.sender.client_id);
                default_topic.as_str()
            }
        };
        // A client id may contain characters that no topic may contain.
        if mqtt::validate_topic_name(topic, &mqtt::TopicLimits::NONE).is_ok() {
            let mut outgoing = OutgoingMessages::default();
            outgoing.push(&MessageDraft {
                topic,
                payload: &payload,
                properties: &properties,
                qos: QoS::AtLeastOnce,
                retain: false,
                client_id: "",
                username: "",
                tag: 0,
            });
            let shard = step.ticket.map_or(0, |ticket| ticket.shard);
            broker.publish_outgoing(shard.into(), outgoing, Box::new(|| {}));
        }
        if acknowledge {
            self.acknowledge(step, reason);
        }
    }
}
