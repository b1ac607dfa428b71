//! The command service of a node. Commands are accepted on threads that may read from disk. Input from shards is
//! queued for the `commands` thread.

mod answer;
mod answers;
mod changes;
mod commands_inner;
mod moving;
mod requests;
mod sending;
mod waiters;
mod worker;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hooks::DurableCallback;
use series::DeviceNo;
use store::Tables;

pub use self::answer::CommandAnswer;
pub use self::commands_inner::CommandError;
pub(super) use self::commands_inner::CommandsInner;
use self::commands_inner::{ClockFn, CommandJob, CommandObserver, lock};
pub use self::moving::CommandOffer;
pub use self::requests::{AcceptedCommand, NewCommand};
use self::waiters::CommandPoller;
pub use self::waiters::CommandWaiter;
use super::command_store::{CommandFilter, CommandPage, CommandStore};
use super::config::CommandConfig;
use super::downlink::DownlinkTransport;
use super::lifecycle::CommandTransition;
use super::record::{Command, CommandId, CommandState};
use crate::device::Device;
use crate::job_queue::JobQueue;
use crate::protocol::DeviceReply;
use crate::queue_progress::QueueProgress;
use crate::registry::{DeviceChange, Registry};

/// Counts since the start, and current numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandStats {
    pub taken: u64,
    pub sent: u64,
    /// Number of finished commands by final state.
    pub ended: Vec<(CommandState, u64)>,
    /// Replies without a matching open command.
    pub unmatched: u64,
    pub write_errors: u64,
    pub open: u64,
    pub finished: u64,
    pub waiting: u64,
    pub queued: u64,
}

/// The commands of a node. Clones share one service.
#[derive(Clone)]
pub struct Commands {
    pub(super) inner: Arc<CommandsInner>,
}

impl Commands {
    /// Loads the open commands and starts the thread.
    pub fn open(
        tables: &Tables,
        registry: Registry,
        transport: Arc<dyn DownlinkTransport>,
        config: CommandConfig,
    ) -> Result<Self, store::StoreError> {
        let commands = Self::with_clock(
            tables,
            registry,
            transport,
            config,
            Box::new(wall_clock::now_ms),
        )?;
        let running = Arc::downgrade(&commands.inner);
        let thread = std::thread::Builder::new()
            .name("commands".into())
            .spawn(move || worker::run(&running))
            .expect("starting a thread at startup");
        *lock(&commands.inner.thread) = Some(thread);
        Ok(commands)
    }

    /// Creates the service without a thread; the caller runs `process_jobs`.
    pub(super) fn with_clock(
        tables: &Tables,
        registry: Registry,
        transport: Arc<dyn DownlinkTransport>,
        config: CommandConfig,
        clock: ClockFn,
    ) -> Result<Self, store::StoreError> {
        let inner = Arc::new(CommandsInner {
            queue: JobQueue::new(config.max_queued_responses),
            replies: QueueProgress::default(),
            config,
            registry,
            transport,
            clock,
            store: CommandStore::open(tables)?,
            open: Mutex::default(),
            open_count: AtomicUsize::new(0),
            notify_lock: Mutex::default(),
            waiters: Mutex::default(),
            free_waiter_slots: Arc::default(),
            pollers: Mutex::default(),
            rechecks: Mutex::default(),
            holds: Mutex::default(),
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
                tracing::error!(%error, "reading the restored commands failed; restart the node");
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

    /// Gives this number or larger ones to new commands.
    pub fn number_from(&self, first: u64) {
        let mut open = lock(&self.inner.open);
        open.next = open.next.max(first);
    }

    /// Accepts a command, which is in the store when this returns. `waits`: the caller waits for the final
    /// state. Reads and writes the disk.
    ///
    /// # Errors
    /// Fails if the device does not support the command or a limit is reached.
    pub fn request(
        &self,
        device: &Device,
        request: NewCommand,
        waits: bool,
    ) -> Result<AcceptedCommand, CommandError> {
        self.inner.request(device, request, waits)
    }

    /// Cancels a command that has not ended. A device that has already received the command may still execute it.
    ///
    /// # Errors
    /// Fails if the command has ended, does not exist, or is offered to another node.
    pub fn cancel(&self, id: CommandId, who: &str) -> Result<Command, CommandError> {
        let transition = CommandTransition::Cancelled(format!("cancelled by {who}"));
        match self.inner.change_unless_offered(id, transition)? {
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

    /// Returns commands older than `before`, the newest first.
    pub fn list(
        &self,
        filter: &CommandFilter,
        before: Option<CommandId>,
        limit: usize,
    ) -> Result<CommandPage, store::StoreError> {
        self.inner.store.list(filter, before, limit)
    }

    /// Sends the pending commands of a device that has connected or subscribed. Does not block.
    #[inline]
    pub fn resume_device(&self, device: DeviceNo) {
        if self.inner.has_pending(device) {
            self.inner.queue.push(CommandJob::ResumeDevice(device));
        }
    }

    /// The same for the child devices of a gateway. Does not block.
    #[inline]
    pub fn resume_children(&self, gateway: DeviceNo) {
        if self.inner.has_any() {
            self.inner.queue.push(CommandJob::ResumeChildren(gateway));
        }
    }

    /// Submits the reply of a device, see [`Commands::settle`]. Does not block.
    pub fn submit_reply(&self, device: DeviceNo, replied: &DeviceReply<'_>, now_ms: u64) {
        if let Some(answer) = CommandAnswer::from_reply(replied) {
            self.inner.enqueue_answer(device, answer, now_ms);
        }
    }

    /// Submits a reply that did not arrive as a message of a device protocol.
    pub fn submit_answer(&self, device: DeviceNo, answer: CommandAnswer) {
        let now_ms = (self.inner.clock)();
        self.inner.enqueue_answer(device, answer, now_ms);
    }

    /// Calls `done`, from any thread, once all replies submitted so far are in the store. If the store fails, `done` is
    /// called without waiting, and the replies are written when the store has recovered.
    pub fn settle(&self, done: DurableCallback) {
        self.inner.replies.settle(done);
    }

    /// Returns the next command to a device that polls; this counts as sending. Reads and writes the disk.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub fn take_next(&self, device: DeviceNo) -> Result<Option<Command>, CommandError> {
        self.inner.take_next(device)
    }

    /// Wakes the [`Commands::poller`] of a device, or all of them.
    pub fn wake_pollers(&self, device: Option<DeviceNo>) {
        match device {
            Some(device) => self.inner.wake_pollers(device),
            None => self.inner.wake_all_pollers(),
        }
    }

    /// Waits for a command of a polling device. Create it before calling [`Commands::take_next`], so that no command
    /// is missed. `None`: the maximum number of callers is waiting.
    pub fn poller(&self, device: DeviceNo) -> Option<CommandPoller> {
        self.inner.poller(device)
    }

    /// Whether devices should slow down, because too many jobs are queued.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.inner.queue.is_full()
    }

    /// Up to `limit` devices for which commands wait at this node: those with the next numbers after `after`, in their order,
    /// and the position to continue from. Reads the disk.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub fn waiting_devices(
        &self,
        after: Option<DeviceNo>,
        limit: usize,
    ) -> Result<(Vec<Arc<Device>>, Option<DeviceNo>), CommandError> {
        self.inner.waiting_devices(after, limit)
    }

    /// The commands that wait at this node for devices which are at another node now. They are not sent here for some seconds.
    /// Reads the disk.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub fn offer_waiting(&self, devices: &[String]) -> Result<CommandOffer, CommandError> {
        self.inner.offer_waiting(devices)
    }

    /// Takes commands over that another node has offered; returns the numbers of those that are stored. Reads and writes the
    /// disk.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub fn take_over(&self, commands: Vec<Command>) -> Result<Vec<CommandId>, CommandError> {
        self.inner.take_over(commands)
    }

    /// Removes offered commands that another node has taken over. Reads and writes the disk.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub fn remove_moved(&self, commands: &[CommandId]) -> Result<(), CommandError> {
        self.inner.remove_moved(commands)
    }

    /// Registers an observer that receives each changed command, in the order of the changes. The observer must not
    /// block for long.
    pub fn add_observer(&self, observer: CommandObserver) {
        let observers = self.inner.observers.write();
        observers
            .unwrap_or_else(PoisonError::into_inner)
            .push(observer);
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

    /// Ends the thread once all queued jobs are processed.
    pub fn close(&self) {
        self.inner.queue.stop();
        let thread = lock(&self.inner.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the commands thread panicked; this is a bug");
        }
        lock(&self.inner.waiters).clear();
    }
}
