//! The commands of a node. They are taken on threads that may wait for the disk; what shards say of them waits in a queue for
//! the one thread that works it off.

mod answers;
mod changes;
mod requests;
mod sending;
mod waiters;
mod worker;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use foldhash::fast::RandomState;
use series::DeviceNo;
use store::Tables;
use tokio::sync::oneshot;

pub use self::answers::CommandAnswer;
pub use self::requests::{AcceptedCommand, NewCommand};
use self::waiters::CommandPoller;
pub use self::waiters::CommandWaiter;
use self::worker::CommandJob;
use super::command_store::{CommandFilter, CommandPage, CommandStore};
use super::config::CommandConfig;
use super::downlink::DownlinkTransport;
use super::lifecycle::CommandTransition;
use super::open_commands::OpenCommands;
use super::record::{Command, CommandId, CommandState};
use super::validation::CommandValidationError;
use crate::device::Device;
use crate::job_queue::JobQueue;
use crate::protocol::DeviceReply;
use crate::registry::{DeviceChange, Registry, RegistryError};

/// A command cannot be taken, or not be changed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    NotAccepted(#[from] CommandValidationError),
    /// A bound is reached.
    #[error("{0}")]
    Full(String),
    #[error("there is no command {}", .0.0)]
    NotFound(CommandId),
    #[error("it has ended already: {}", .0.as_str())]
    Ended(CommandState),
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// What has been counted since the start, and what there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandStats {
    pub taken: u64,
    pub sent: u64,
    /// By how they ended.
    pub ended: Vec<(CommandState, u64)>,
    /// Answers that no command was open for.
    pub unmatched: u64,
    pub write_errors: u64,
    pub open: u64,
    pub finished: u64,
    pub waiting: u64,
    pub queued: u64,
}

type CommandObserver = Box<dyn Fn(&Command) + Send + Sync>;
type ClockFn = Box<dyn Fn() -> u64 + Send + Sync>;

/// The commands of a node. Clones are the same.
#[derive(Clone)]
pub struct Commands {
    pub(super) inner: Arc<CommandsInner>,
}

pub(super) struct CommandsInner {
    config: CommandConfig,
    registry: Registry,
    reach: Arc<dyn DownlinkTransport>,
    clock: ClockFn,
    store: CommandStore,
    open: Mutex<OpenCommands>,
    /// How many of them there are, to be looked at by shards without the lock.
    open_count: AtomicUsize,
    /// Held while a command is changed and told, so that changes are told in their order.
    notify_lock: Mutex<()>,
    waiters: Mutex<HashMap<CommandId, Vec<oneshot::Sender<Command>>, RandomState>>,
    free_waiter_slots: Arc<AtomicUsize>,
    /// Devices that ask for commands themselves, and wait.
    pollers: Mutex<HashMap<DeviceNo, Vec<oneshot::Sender<()>>, RandomState>>,
    queue: JobQueue<CommandJob>,
    /// Devices to be looked at again, and when.
    rechecks: Mutex<BTreeSet<(u64, DeviceNo)>>,
    purged_ms: AtomicU64,
    observers: RwLock<Vec<CommandObserver>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    taken: AtomicU64,
    sent: AtomicU64,
    ended: [AtomicU64; CommandState::ALL.len()],
    unmatched: AtomicU64,
    write_errors: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commands {
    /// Reads what is open, and starts the thread.
    pub fn open(
        tables: &Tables,
        registry: Registry,
        reach: Arc<dyn DownlinkTransport>,
        config: CommandConfig,
    ) -> Result<Self, store::StoreError> {
        let commands = Self::with_clock(tables, registry, reach, config, Box::new(crate::now_ms))?;
        let running = Arc::downgrade(&commands.inner);
        let thread = std::thread::Builder::new()
            .name("commands".into())
            .spawn(move || worker::run(&running))
            .expect("a thread at start");
        *lock(&commands.inner.thread) = Some(thread);
        Ok(commands)
    }

    /// Without a thread: `work_off` is to be called.
    pub(super) fn with_clock(
        tables: &Tables,
        registry: Registry,
        reach: Arc<dyn DownlinkTransport>,
        config: CommandConfig,
        clock: ClockFn,
    ) -> Result<Self, store::StoreError> {
        let inner = Arc::new(CommandsInner {
            queue: JobQueue::new(config.max_queued),
            config,
            registry,
            reach,
            clock,
            store: CommandStore::open(tables)?,
            open: Mutex::default(),
            open_count: AtomicUsize::new(0),
            notify_lock: Mutex::default(),
            waiters: Mutex::default(),
            free_waiter_slots: Arc::default(),
            pollers: Mutex::default(),
            rechecks: Mutex::default(),
            purged_ms: AtomicU64::new(0),
            observers: RwLock::default(),
            thread: Mutex::default(),
            taken: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: Default::default(),
            unmatched: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        });
        inner.load()?;
        let weak = Arc::downgrade(&inner);
        tables.observe_restores(Box::new(move || {
            if let Some(inner) = weak.upgrade()
                && let Err(error) = inner.load()
            {
                tracing::error!(%error, "the restored commands cannot be read");
            }
        }));
        let weak = Arc::downgrade(&inner);
        inner.registry.add_device_observer(Box::new(move |change| {
            if let (DeviceChange::Removed(device), Some(inner)) = (change, weak.upgrade()) {
                inner.queue.push(CommandJob::RemoveDevice(device.no));
            }
        }));
        Ok(Self { inner })
    }

    /// Takes a command: it is in the store when this returns. `waits`: the caller wants to wait for its end. Reads and writes the disk.
    ///
    /// # Errors
    /// If the device cannot be asked for that, or a bound is reached.
    pub fn request(
        &self,
        device: &Device,
        request: NewCommand,
        waits: bool,
    ) -> Result<AcceptedCommand, CommandError> {
        self.inner.request(device, request, waits)
    }

    /// Ends a command that has not ended. What was sent already may be done nevertheless.
    ///
    /// # Errors
    /// If it has ended, or there is none.
    pub fn cancel(&self, id: CommandId, who: &str) -> Result<Command, CommandError> {
        let happened = CommandTransition::Cancelled(format!("cancelled by {who}"));
        match self.inner.change(id, happened)? {
            Some(command) => Ok(command),
            None => {
                let command = self.get(id)?.ok_or(CommandError::NotFound(id))?;
                Err(CommandError::Ended(command.state))
            }
        }
    }

    pub fn get(&self, id: CommandId) -> Result<Option<Command>, store::StoreError> {
        self.inner.get(id)
    }

    /// The newest first, of those older than `before`.
    pub fn list(
        &self,
        filter: &CommandFilter,
        before: Option<CommandId>,
        limit: usize,
    ) -> Result<CommandPage, store::StoreError> {
        self.inner.store.list(filter, before, limit)
    }

    /// The device may hear now what waits for it: it has connected, or subscribed. Does not wait.
    #[inline]
    pub fn resume_device(&self, device: DeviceNo) {
        if self.inner.has_pending(device) {
            self.inner.queue.push(CommandJob::ResumeDevice(device));
        }
    }

    /// The same for the devices behind a gateway. Does not wait.
    #[inline]
    pub fn resume_children(&self, gateway: DeviceNo) {
        if self.inner.has_any() {
            self.inner.queue.push(CommandJob::ResumeChildren(gateway));
        }
    }

    /// A device has answered. Does not wait.
    pub fn submit_reply(&self, device: DeviceNo, replied: &DeviceReply<'_>, now_ms: u64) {
        if let Some(answer) = CommandAnswer::from_reply(replied) {
            self.inner
                .queue
                .push(CommandJob::Answered(device, answer, now_ms));
        }
    }

    /// The same for an answer that came by another way than a dialect's message.
    pub fn submit_answer(&self, device: DeviceNo, answer: CommandAnswer) {
        let now_ms = (self.inner.clock)();
        self.inner
            .queue
            .push(CommandJob::Answered(device, answer, now_ms));
    }

    /// Gives the next command to a device that asks for it, which counts as sending. Reads and writes the disk.
    ///
    /// # Errors
    /// If the store fails.
    pub fn take_next(&self, device: DeviceNo) -> Result<Option<Command>, CommandError> {
        self.inner.take_next(device)
    }

    /// Wakes what [`Commands::poller`] gave for a device, or for all of them.
    pub fn wake_pollers(&self, device: Option<DeviceNo>) {
        match device {
            Some(device) => self.inner.wake_pollers(device),
            None => self.inner.wake_all_pollers(),
        }
    }

    /// Waits for a command of a device that asks; to be made before `Commands::give` is asked, so that none is missed. `None`: too
    /// many wait.
    pub fn poller(&self, device: DeviceNo) -> Option<CommandPoller> {
        self.inner.poller(device)
    }

    /// Whether devices are to wait: too much waits to be worked off.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.inner.queue.is_full()
    }

    /// Calls `listener` with each command that has changed, as it is then, in the order of the changes. It shall not wait long.
    pub fn add_observer(&self, listener: CommandObserver) {
        let listeners = self.inner.observers.write();
        listeners
            .unwrap_or_else(PoisonError::into_inner)
            .push(listener);
    }

    #[must_use]
    pub fn stats(&self) -> CommandStats {
        let inner = &self.inner;
        let ended = CommandState::ALL
            .into_iter()
            .filter(|state| state.is_final());
        let open = lock(&inner.open);
        CommandStats {
            taken: inner.taken.load(Relaxed),
            sent: inner.sent.load(Relaxed),
            ended: ended
                .map(|state| (state, inner.ended[state as usize].load(Relaxed)))
                .collect(),
            unmatched: inner.unmatched.load(Relaxed),
            write_errors: inner.write_errors.load(Relaxed),
            open: open.count() as u64,
            finished: open.finished,
            waiting: inner.free_waiter_slots.load(Relaxed) as u64,
            queued: inner.queue.len() as u64,
        }
    }

    #[must_use]
    pub fn config(&self) -> &CommandConfig {
        &self.inner.config
    }

    /// Ends the thread when everything that was taken is worked off.
    pub fn close(&self) {
        self.inner.queue.stop();
        let thread = lock(&self.inner.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the commands ended by a panic; this is a bug");
        }
        lock(&self.inner.waiters).clear();
    }
}

impl CommandsInner {
    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    #[inline]
    fn has_pending(&self, device: DeviceNo) -> bool {
        self.has_any() && lock(&self.open).has_pending(device)
    }

    #[inline]
    fn has_any(&self) -> bool {
        self.open_count.load(Relaxed) > 0
    }
}
