//! The state of the command service, and the jobs of its thread.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use foldhash::fast::RandomState;
use series::DeviceNo;
use tokio::sync::oneshot;

use super::super::command_store::CommandStore;
use super::super::config::CommandConfig;
use super::super::downlink::{DownlinkOutcome, DownlinkPlan, DownlinkTransport};
use super::super::open_commands::OpenCommands;
use super::super::record::{Command, CommandId, CommandState};
use super::super::validation::CommandValidationError;
use super::answer::CommandAnswer;
use crate::job_queue::JobQueue;
use crate::queue_progress::QueueProgress;
use crate::registry::{Registry, RegistryError};

/// Why a command cannot be accepted or changed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    NotAccepted(#[from] CommandValidationError),
    /// A limit is reached.
    #[error("{0}")]
    Full(String),
    #[error("there is no command {}", .0.0)]
    NotFound(CommandId),
    #[error("the command has already ended: {}", .0.as_str())]
    Ended(CommandState),
    #[error("the command is being handed over to the node where its device is connected")]
    HandedOver,
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

pub(super) type CommandObserver = Box<dyn Fn(&Command) + Send + Sync>;
pub(in super::super) type ClockFn = Box<dyn Fn() -> u64 + Send + Sync>;

pub(super) enum CommandJob {
    /// The device may be reachable for its pending commands.
    ResumeDevice(DeviceNo),
    /// The same for all child devices of a gateway.
    ResumeChildren(DeviceNo),
    SendOutcome(DeviceNo, CommandId, DownlinkOutcome, DownlinkPlan),
    Acknowledged(DeviceNo, CommandId),
    Answered(DeviceNo, CommandAnswer, u64),
    RemoveDevice(DeviceNo),
}

/// What the threads of the service share.
pub(in super::super) struct CommandsInner {
    pub(super) config: CommandConfig,
    pub(super) registry: Registry,
    pub(super) transport: Arc<dyn DownlinkTransport>,
    pub(super) clock: ClockFn,
    pub(super) store: CommandStore,
    pub(super) open: Mutex<OpenCommands>,
    /// Number of open commands, which shards read without the lock.
    pub(super) open_count: AtomicUsize,
    /// Held while a command is changed and emitted, so that events keep the order of the changes.
    pub(super) notify_lock: Mutex<()>,
    pub(super) waiters: Mutex<HashMap<CommandId, Vec<oneshot::Sender<Command>>, RandomState>>,
    pub(super) free_waiter_slots: Arc<AtomicUsize>,
    /// Devices that poll for commands and wait.
    pub(super) pollers: Mutex<HashMap<DeviceNo, Vec<oneshot::Sender<()>>, RandomState>>,
    pub(super) queue: JobQueue<CommandJob>,
    /// Progress of the replies in the queue.
    pub(super) replies: QueueProgress,
    /// Devices to check again, with the time.
    pub(super) rechecks: Mutex<BTreeSet<(u64, DeviceNo)>>,
    /// Devices with commands that are offered to another node, with the time at which that ends.
    pub(super) holds: Mutex<BTreeSet<(u64, DeviceNo)>>,
    pub(super) purged_ms: AtomicU64,
    pub(super) observers: RwLock<Vec<CommandObserver>>,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
    pub(super) taken: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) ended: [AtomicU64; CommandState::ALL.len()],
    pub(super) unmatched: AtomicU64,
    pub(super) write_errors: AtomicU64,
}

impl CommandsInner {
    pub(super) fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    pub(super) fn enqueue_answer(&self, device: DeviceNo, answer: CommandAnswer, at_ms: u64) {
        self.replies.add();
        self.queue.push(CommandJob::Answered(device, answer, at_ms));
    }

    #[inline]
    pub(super) fn has_pending(&self, device: DeviceNo) -> bool {
        self.has_any() && lock(&self.open).has_pending(device)
    }

    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.open_count.load(Relaxed) > 0
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
