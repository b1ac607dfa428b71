//! The commands of a node. They are taken on threads that may wait for the disk; what shards say of them waits in a queue for
//! the one thread that works it off.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use foldhash::fast::RandomState;
use serde_json::Value;
use series::DeviceNo;
use store::Tables;
use tokio::sync::oneshot;

use super::book::{Book, CommandFilter, CommandPage};
use super::check::{NotAccepted, Wanted, check};
use super::life::{Happened, step};
use super::open::Open;
use super::reach::{Address, Handed, Handover, Reach, address};
use super::record::{Command, CommandId, CommandKind, CommandState};
use crate::device::Device;
use crate::dialect::{Replied, Reply, Tell};
use crate::registry::{DeviceChange, Filter, Registry, RegistryError};

/// After what could not be done now.
const RETRY_MS: u64 = 1000;
/// How often old commands are looked for.
const PURGE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 3600 * 1000;
/// Commands whose time is over that are worked off in one go.
const MAX_DUE: usize = 1000;
/// Devices of a gateway that get their commands in one go.
const MAX_CHILDREN: usize = 1000;

/// Bounds of commands.
#[derive(Debug, Clone)]
pub struct CommandConfig {
    /// How long an answer may take if the command does not say.
    pub timeout_ms: u64,
    pub max_timeout_ms: u64,
    /// How long a command waits for its device if it does not say.
    pub expiry_s: u64,
    pub max_expiry_s: u64,
    /// Open commands of one device.
    pub max_open_per_device: usize,
    /// Open commands of all devices.
    pub max_open: usize,
    pub max_params_bytes: usize,
    /// Of an answer, as JSON.
    pub max_result_bytes: usize,
    /// Commands that are kept after their end, and for how long.
    pub max_finished: u64,
    pub finished_retention_d: u32,
    /// Callers that may wait for answers at once.
    pub max_waiting: usize,
    /// How old the newest command may be that an answer without an id is taken for.
    pub unnamed_within_ms: u64,
    /// Answers and the like that may wait to be worked off before devices are made to wait.
    pub max_queued: usize,
}

impl Default for CommandConfig {
    fn default() -> Self {
        Self {
            timeout_ms: 5_000,
            max_timeout_ms: 600_000,
            expiry_s: 3_600,
            max_expiry_s: 30 * 24 * 3600,
            max_open_per_device: 100,
            max_open: 100_000,
            max_params_bytes: 64 << 10,
            max_result_bytes: 64 << 10,
            max_finished: 100_000,
            finished_retention_d: 30,
            max_waiting: 1_000,
            unnamed_within_ms: 5_000,
            max_queued: 10_000,
        }
    }
}

/// What somebody wants of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub wanted: Wanted,
    pub one_way: bool,
    /// `None`: as it is set for the node.
    pub timeout_ms: Option<u64>,
    /// How long it waits for its device; 0: it goes at once or never.
    pub expires_in_s: Option<u64>,
    pub retries: u32,
    /// Who asks.
    pub by: String,
}

/// A command cannot be taken, or not be changed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    NotAccepted(#[from] NotAccepted),
    /// A bound is reached.
    #[error("{0}")]
    Full(String),
    #[error("there is no command {}", .0.0)]
    NotFound(CommandId),
    #[error("it has ended already: {}", .0.as_str())]
    Ended(CommandState),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// A command that was taken.
#[derive(Debug)]
pub struct Taken {
    pub command: Command,
    /// If it was asked for, and not too many wait.
    pub waiting: Option<Waiting>,
}

/// Waits for the end of a command.
#[derive(Debug)]
pub struct Waiting {
    end: oneshot::Receiver<Command>,
    _place: Place,
}

impl Waiting {
    /// The command at its end. `None`: the node stops.
    pub async fn end(&mut self) -> Option<Command> {
        (&mut self.end).await.ok()
    }
}

/// One of the places for those who wait.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What a device answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What kind of command it answers; `None`: it does not say.
    pub kind: Option<CommandKind>,
    pub id: Option<String>,
    pub is_success: bool,
    /// JSON.
    pub body: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
}

impl Answer {
    /// `None`: it is not to a command.
    fn of(replied: &Replied<'_>) -> Option<Self> {
        let kind = match replied.to {
            Reply::Rpc | Reply::Command => None,
            Reply::Read => Some(CommandKind::Read),
            Reply::Write => Some(CommandKind::Write),
            Reply::Invoke => Some(CommandKind::Call),
            Reply::Disconnect | Reply::StateCheck => return None,
        };
        Some(Self {
            kind,
            id: replied.id.map(Into::into),
            is_success: replied.is_success,
            body: replied.body_json.map(Into::into),
            code: replied.code.map(Into::into),
            message: replied.message.map(Into::into),
        })
    }
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

type Listener = Box<dyn Fn(&Command) + Send + Sync>;
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The commands of a node. Clones are the same.
#[derive(Clone)]
pub struct Commands {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    config: CommandConfig,
    registry: Registry,
    reach: Arc<dyn Reach>,
    clock: Clock,
    book: Book,
    open: Mutex<Open>,
    /// How many of them there are, to be looked at by shards without the lock.
    open_count: AtomicUsize,
    /// Held while a command is changed and told, so that changes are told in their order.
    telling: Mutex<()>,
    waiting: Mutex<HashMap<CommandId, Vec<oneshot::Sender<Command>>, RandomState>>,
    places: Arc<AtomicUsize>,
    /// Devices that ask for commands themselves, and wait.
    askers: Mutex<HashMap<DeviceNo, Vec<oneshot::Sender<()>>, RandomState>>,
    queue: Mutex<VecDeque<Work>>,
    has_work: Condvar,
    is_full: AtomicBool,
    is_stopping: AtomicBool,
    /// Devices to be looked at again, and when.
    again: Mutex<BTreeSet<(u64, DeviceNo)>>,
    purged_ms: AtomicU64,
    listeners: RwLock<Vec<Listener>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    taken: AtomicU64,
    sent: AtomicU64,
    ended: [AtomicU64; CommandState::ALL.len()],
    unmatched: AtomicU64,
    write_errors: AtomicU64,
}

enum Work {
    /// The device may hear now what waits for it.
    Arrived(DeviceNo),
    /// The same for all behind a gateway.
    ArrivedBehind(DeviceNo),
    Handed(DeviceNo, CommandId, Handed, Address),
    Acknowledged(CommandId),
    Answered(DeviceNo, Answer, u64),
    Forget(DeviceNo),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commands {
    /// Reads what is open, and starts the thread.
    pub fn open(
        tables: &Tables,
        registry: Registry,
        reach: Arc<dyn Reach>,
        config: CommandConfig,
    ) -> Result<Self, store::Error> {
        let commands = Self::with_clock(tables, registry, reach, config, Box::new(crate::now_ms))?;
        let running = Arc::downgrade(&commands.inner);
        let thread = std::thread::Builder::new()
            .name("commands".into())
            .spawn(move || run(&running))
            .expect("a thread at start");
        *lock(&commands.inner.thread) = Some(thread);
        Ok(commands)
    }

    /// Without a thread: `work_off` is to be called.
    pub(super) fn with_clock(
        tables: &Tables,
        registry: Registry,
        reach: Arc<dyn Reach>,
        config: CommandConfig,
        clock: Clock,
    ) -> Result<Self, store::Error> {
        let inner = Arc::new(Inner {
            config,
            registry,
            reach,
            clock,
            book: Book::open(tables)?,
            open: Mutex::default(),
            open_count: AtomicUsize::new(0),
            telling: Mutex::default(),
            waiting: Mutex::default(),
            places: Arc::default(),
            askers: Mutex::default(),
            queue: Mutex::default(),
            has_work: Condvar::new(),
            is_full: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            again: Mutex::default(),
            purged_ms: AtomicU64::new(0),
            listeners: RwLock::default(),
            thread: Mutex::default(),
            taken: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: Default::default(),
            unmatched: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        });
        inner.read()?;
        let weak = Arc::downgrade(&inner);
        tables.on_restore(Box::new(move || {
            if let Some(inner) = weak.upgrade()
                && let Err(error) = inner.read()
            {
                tracing::error!(%error, "the restored commands cannot be read");
            }
        }));
        let weak = Arc::downgrade(&inner);
        inner.registry.on_change(Box::new(move |change| {
            if let (DeviceChange::Removed(device), Some(inner)) = (change, weak.upgrade()) {
                inner.push(Work::Forget(device.no));
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
        request: Request,
        waits: bool,
    ) -> Result<Taken, CommandError> {
        self.inner.request(device, request, waits)
    }

    /// Ends a command that has not ended. What was sent already may be done nevertheless.
    ///
    /// # Errors
    /// If it has ended, or there is none.
    pub fn cancel(&self, id: CommandId, who: &str) -> Result<Command, CommandError> {
        let happened = Happened::Cancelled(format!("cancelled by {who}"));
        match self.inner.change(id, happened)? {
            Some(command) => Ok(command),
            None => {
                let command = self.get(id)?.ok_or(CommandError::NotFound(id))?;
                Err(CommandError::Ended(command.state))
            }
        }
    }

    pub fn get(&self, id: CommandId) -> Result<Option<Command>, store::Error> {
        self.inner.get(id)
    }

    /// The newest first, of those older than `before`.
    pub fn list(
        &self,
        filter: &CommandFilter,
        before: Option<CommandId>,
        limit: usize,
    ) -> Result<CommandPage, store::Error> {
        self.inner.book.list(filter, before, limit)
    }

    /// The device may hear now what waits for it: it has connected, or subscribed. Does not wait.
    #[inline]
    pub fn arrived(&self, device: DeviceNo) {
        if self.inner.has_pending(device) {
            self.inner.push(Work::Arrived(device));
        }
    }

    /// The same for the devices behind a gateway. Does not wait.
    #[inline]
    pub fn arrived_behind(&self, gateway: DeviceNo) {
        if self.inner.has_any() {
            self.inner.push(Work::ArrivedBehind(gateway));
        }
    }

    /// A device has answered. Does not wait.
    pub fn answered(&self, device: DeviceNo, replied: &Replied<'_>, now_ms: u64) {
        if let Some(answer) = Answer::of(replied) {
            self.inner.push(Work::Answered(device, answer, now_ms));
        }
    }

    /// The same for an answer that came by another way than a dialect's message.
    pub fn take_answer(&self, device: DeviceNo, answer: Answer) {
        let now_ms = (self.inner.clock)();
        self.inner.push(Work::Answered(device, answer, now_ms));
    }

    /// Gives the next command to a device that asks for it, which counts as sending. Reads and writes the disk.
    ///
    /// # Errors
    /// If the store fails.
    pub fn give(&self, device: DeviceNo) -> Result<Option<Command>, CommandError> {
        self.inner.give(device)
    }

    /// Waits for a command of a device that asks; to be made before [`Commands::give`] is asked, so that none is missed. `None`: too
    /// many wait.
    pub fn asker(&self, device: DeviceNo) -> Option<Asker> {
        let place = self.inner.place()?;
        let (wake, woken) = oneshot::channel();
        let mut askers = lock(&self.inner.askers);
        let of_device = askers.entry(device).or_default();
        of_device.retain(|asker| !asker.is_closed());
        of_device.push(wake);
        Some(Asker {
            woken,
            _place: place,
        })
    }

    /// Whether devices are to wait: too much waits to be worked off.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.inner.is_full.load(Relaxed)
    }

    /// Calls `listener` with each command that has changed, as it is then, in the order of the changes. It shall not wait long.
    pub fn on_change(&self, listener: Listener) {
        let listeners = self.inner.listeners.write();
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
            waiting: inner.places.load(Relaxed) as u64,
            queued: lock(&inner.queue).len() as u64,
        }
    }

    #[must_use]
    pub fn config(&self) -> &CommandConfig {
        &self.inner.config
    }

    /// Ends the thread when everything that was taken is worked off.
    pub fn close(&self) {
        {
            // Not between the thread's last look and its wait.
            let _queue = lock(&self.inner.queue);
            self.inner.is_stopping.store(true, Relaxed);
        }
        self.inner.has_work.notify_all();
        let thread = lock(&self.inner.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the commands ended by a panic; this is a bug");
        }
        lock(&self.inner.waiting).clear();
    }
}

/// A device that waits for a command.
#[derive(Debug)]
pub struct Asker {
    woken: oneshot::Receiver<()>,
    _place: Place,
}

impl Asker {
    pub async fn woken(&mut self) {
        // To be woken by the end of the node is to be woken.
        let _ = (&mut self.woken).await;
    }
}

impl Inner {
    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    fn read(&self) -> Result<(), store::Error> {
        let found = self.book.read()?;
        let mut open = Open::default();
        (open.next, open.finished) = (found.next, found.finished);
        found.open.iter().for_each(|command| open.take(command));
        self.open_count.store(open.count(), Relaxed);
        *lock(&self.open) = open;
        Ok(())
    }

    fn place(&self) -> Option<Place> {
        let most = self.config.max_waiting;
        let taken = self
            .places
            .fetch_update(Relaxed, Relaxed, |count| (count < most).then(|| count + 1));
        taken.ok().map(|_| Place(Arc::clone(&self.places)))
    }

    fn request(
        &self,
        device: &Device,
        request: Request,
        waits: bool,
    ) -> Result<Taken, CommandError> {
        let config = &self.config;
        let bounded = |field: &str, value: u64, most: u64| match value <= most {
            true => Ok(value),
            false => Err(NotAccepted {
                field: field.to_owned(),
                detail: format!("expected at most {most}"),
                is_unknown_function: false,
            }),
        };
        let timeout_ms = request.timeout_ms.unwrap_or(config.timeout_ms);
        let timeout_ms = bounded("timeout_ms", timeout_ms.max(1), config.max_timeout_ms)?;
        let expires_in_s = request.expires_in_s.unwrap_or(config.expiry_s);
        let expires_in_s = bounded("expires_in_s", expires_in_s, config.max_expiry_s)?;
        let checked = {
            let product = device.product.get();
            check(request.wanted, &product.model, config.max_params_bytes)?
        };
        let place = match waits {
            true => Some(self.place().ok_or_else(|| {
                let most = config.max_waiting;
                CommandError::Full(format!(
                    "{most} callers wait for answers already; do not wait, and look at the command later"
                ))
            })?),
            false => None,
        };
        let now_ms = self.now_ms();
        // Long enough to be sent where the device is here.
        let expires_ms = match expires_in_s {
            0 => timeout_ms.min(config.timeout_ms),
            s => s.saturating_mul(1000),
        };
        let telling = lock(&self.telling);
        // Shards ask what is open: the lock is not held while something is written.
        let next = {
            let open = lock(&self.open);
            if open.count() >= config.max_open {
                let most = config.max_open;
                return Err(CommandError::Full(format!(
                    "{most} commands are open, which is the most"
                )));
            }
            if open.count_of(device.no) >= config.max_open_per_device {
                let most = config.max_open_per_device;
                return Err(CommandError::Full(format!(
                    "{most} commands wait for this device, which is the most"
                )));
            }
            open.next
        };
        let command = Command {
            id: CommandId(next),
            device: device.id.to_string(),
            product: device.product.id().to_string(),
            kind: checked.kind,
            method: checked.method,
            params: checked.params,
            one_way: request.one_way,
            state: CommandState::Pending,
            timeout_ms,
            retries: request.retries,
            attempts: 0,
            created_at_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(expires_ms),
            sent_at_ms: None,
            acknowledged_at_ms: None,
            finished_at_ms: None,
            result: None,
            code: None,
            message: None,
            by: request.by,
            device_no: device.no,
        };
        self.book.put(&command, Some(next + 1))?;
        {
            let mut open = lock(&self.open);
            open.next = next + 1;
            open.take(&command);
            self.open_count.store(open.count(), Relaxed);
        }
        let waiting = place.map(|place| {
            let (ended, end) = oneshot::channel();
            let mut waiting = lock(&self.waiting);
            waiting.entry(command.id).or_default().push(ended);
            Waiting { end, _place: place }
        });
        self.taken.fetch_add(1, Relaxed);
        self.tell(&command);
        drop(telling);
        self.wake_askers(device.no);
        self.push(Work::Arrived(device.no));
        Ok(Taken { command, waiting })
    }

    fn get(&self, id: CommandId) -> Result<Option<Command>, store::Error> {
        if let Some(command) = lock(&self.open).unwritten(id) {
            return Ok(Some(command.clone()));
        }
        self.book.get(id)
    }

    /// Lets something happen to a command. `None`: there is none, or it stays as it is.
    fn change(&self, id: CommandId, happened: Happened) -> Result<Option<Command>, store::Error> {
        let _telling = lock(&self.telling);
        let Some(mut command) = self.get(id)? else {
            lock(&self.open).forget(id);
            return Ok(None);
        };
        let was_sent = matches!(happened, Happened::Sent { .. });
        if !step(&mut command, happened, self.now_ms()) {
            return Ok(None);
        }
        let written = self.book.put(&command, None);
        {
            let mut open = lock(&self.open);
            open.take(&command);
            self.open_count.store(open.count(), Relaxed);
            open.finished += u64::from(command.state.is_final());
            match &written {
                Ok(()) => open.written(id),
                Err(_) => open.keep_unwritten(command.clone()),
            }
        }
        if let Err(error) = written {
            self.write_errors.fetch_add(1, Relaxed);
            let id = id.0;
            tracing::error!(id, %error, "what became of a command cannot be written; it is tried again");
        }
        self.sent.fetch_add(u64::from(was_sent), Relaxed);
        if command.state.is_final() {
            self.ended[command.state as usize].fetch_add(1, Relaxed);
        }
        self.tell(&command);
        Ok(Some(command))
    }

    fn tell(&self, command: &Command) {
        if command.state.is_final()
            && let Some(waiting) = lock(&self.waiting).remove(&command.id)
        {
            for ended in waiting {
                // Whoever waited may have gone.
                let _ = ended.send(command.clone());
            }
        }
        let listeners = self.listeners.read();
        for listener in &*listeners.unwrap_or_else(PoisonError::into_inner) {
            listener(command);
        }
    }

    fn wake_askers(&self, device: DeviceNo) {
        for asker in lock(&self.askers).remove(&device).into_iter().flatten() {
            // It may have gone.
            let _ = asker.send(());
        }
    }

    #[inline]
    fn has_pending(&self, device: DeviceNo) -> bool {
        self.has_any() && lock(&self.open).has_pending(device)
    }

    #[inline]
    fn has_any(&self) -> bool {
        self.open_count.load(Relaxed) > 0
    }

    fn give(&self, device: DeviceNo) -> Result<Option<Command>, CommandError> {
        loop {
            let Some(id) = lock(&self.open).first_pending(device) else {
                return Ok(None);
            };
            let sent = Happened::Sent { is_watched: false };
            if let Some(command) = self.change(id, sent)? {
                return Ok(Some(command));
            }
            // It has ended in between, unless the store has lost it.
            if lock(&self.open).first_pending(device) == Some(id) {
                return Ok(None);
            }
        }
    }

    fn push(&self, work: Work) {
        let mut queue = lock(&self.queue);
        queue.push_back(work);
        self.is_full
            .store(queue.len() >= self.config.max_queued, Relaxed);
        drop(queue);
        self.has_work.notify_one();
    }

    fn work(self: &Arc<Self>, work: Work) -> Result<(), CommandError> {
        match work {
            Work::Arrived(device) => self.hand_next(device),
            Work::ArrivedBehind(gateway) => {
                let filter = Filter {
                    parent: Some(gateway),
                    ..Filter::default()
                };
                let mut next = Some(DeviceNo(0));
                while let Some(from) = next {
                    let waits = &mut |child: &Device| self.has_pending(child.no);
                    let page = self.registry.list(&filter, from, MAX_CHILDREN, waits)?;
                    for child in page.devices {
                        self.hand_next(child.no)?;
                    }
                    next = page.next;
                }
                Ok(())
            }
            Work::Handed(device, id, handed, rest) => self.handed(device, id, handed, rest),
            Work::Acknowledged(id) => {
                self.change(id, Happened::Acknowledged)?;
                Ok(())
            }
            Work::Answered(device, answer, at_ms) => self.answered(device, answer, at_ms),
            Work::Forget(device) => {
                let ids = lock(&self.open).ids_of(device);
                for id in ids {
                    let why = "the device was removed".to_owned();
                    self.change(id, Happened::Cancelled(why))?;
                }
                Ok(())
            }
        }
    }

    /// Sends the oldest command that waits for a device, if it is where it hears it.
    fn hand_next(self: &Arc<Self>, device: DeviceNo) -> Result<(), CommandError> {
        loop {
            let Some(id) = lock(&self.open).begin(device) else {
                return Ok(());
            };
            let found = self.address_of(device, id);
            let why = match found {
                Ok(Some(address)) if !address.letters.is_empty() => {
                    self.hand(device, id, address);
                    return Ok(());
                }
                Ok(Some(_)) => {
                    Some("none of the dialects of its product has a message for this".to_owned())
                }
                Ok(None) => None,
                Err(error) => {
                    lock(&self.open).end(device);
                    self.look_again(device);
                    return Err(error);
                }
            };
            if let Some(why) = why {
                self.change(id, Happened::Untold(why))?;
                lock(&self.open).end(device);
                continue;
            }
            if !lock(&self.open).end(device) {
                return Ok(());
            }
        }
    }

    fn address_of(&self, no: DeviceNo, id: CommandId) -> Result<Option<Address>, CommandError> {
        let (Some(device), Some(command)) = (self.registry.by_no(no)?, self.get(id)?) else {
            return Ok(None);
        };
        if !device.is_let_in() {
            return Ok(None);
        }
        let id = id.0.to_string();
        let params = command.params.to_string();
        let keys: Vec<&str>;
        let tell = match command.kind {
            CommandKind::Call => Tell::Command {
                id: &id,
                method: &command.method,
                params_json: &params,
            },
            CommandKind::Read => {
                let given = command.params.as_array().into_iter().flatten();
                keys = given.filter_map(Value::as_str).collect();
                Tell::ReadProperties {
                    id: &id,
                    keys: &keys,
                }
            }
            CommandKind::Write => Tell::WriteProperties {
                id: &id,
                json: &params,
            },
        };
        let address = address(&self.registry, &*self.reach, &device, &tell, self.now_ms())?;
        Ok(address)
    }

    /// Hands a command to the device's connection by the first of the letters.
    fn hand(self: &Arc<Self>, device: DeviceNo, id: CommandId, mut rest: Address) {
        let Some(letter) = rest.letters.pop_front() else {
            self.push(Work::Handed(device, id, Handed::NotHeard, rest));
            return;
        };
        let client_id = rest.client_id.clone();
        let inner = Arc::downgrade(self);
        let acked_of = Weak::clone(&inner);
        let done = Handover::new(move |handed| {
            if let Some(inner) = inner.upgrade() {
                inner.push(Work::Handed(device, id, handed, rest));
            }
        });
        let acked = Box::new(move || {
            if let Some(inner) = acked_of.upgrade() {
                inner.push(Work::Acknowledged(id));
            }
        });
        self.reach.tell(&client_id, letter, done, acked);
    }

    fn handed(
        self: &Arc<Self>,
        device: DeviceNo,
        id: CommandId,
        handed: Handed,
        rest: Address,
    ) -> Result<(), CommandError> {
        let has_gone_on = match handed {
            Handed::NotHeard if !rest.letters.is_empty() => {
                self.hand(device, id, rest);
                return Ok(());
            }
            Handed::NotHeard => false,
            Handed::Sent { is_watched } => {
                self.change(id, Happened::Sent { is_watched })?;
                true
            }
            Handed::Later(why) => {
                tracing::debug!(device = device.0, why, "a command waits");
                self.look_again(device);
                false
            }
            Handed::Never(why) => {
                self.change(id, Happened::Untold(why))?;
                true
            }
        };
        let has_moved = lock(&self.open).end(device);
        match has_gone_on || has_moved {
            true => self.hand_next(device),
            false => Ok(()),
        }
    }

    fn look_again(&self, device: DeviceNo) {
        lock(&self.again).insert((self.now_ms() + RETRY_MS, device));
    }

    fn answered(&self, device: DeviceNo, answer: Answer, at_ms: u64) -> Result<(), CommandError> {
        let found = match &answer.id {
            Some(id) => match id.parse() {
                Ok(id) => self.get(CommandId(id))?,
                Err(_) => None,
            }
            .filter(|command| command.device_no == device)
            .map(|command| command.id),
            None => {
                let sent_from_ms = at_ms.saturating_sub(self.config.unnamed_within_ms);
                lock(&self.open).newest_sent(device, answer.kind, sent_from_ms)
            }
        };
        let changed = match found {
            Some(id) => self.change(id, self.happened(answer))?,
            None => None,
        };
        if changed.is_none() {
            self.unmatched.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn happened(&self, answer: Answer) -> Happened {
        let short = |text: String| text.chars().take(1000).collect::<String>();
        let most = self.config.max_result_bytes;
        let size = answer.body.as_ref().map_or(0, String::len);
        let (result, message) = match answer.body {
            Some(_) if size > most => {
                let why = format!("its answer has {size} bytes, where {most} are the most");
                (None, Some(why))
            }
            // It was checked when it was read, unless it is text.
            Some(body) => {
                let value = serde_json::from_str(&body);
                (Some(value.unwrap_or(Value::String(body))), None)
            }
            None => (None, None),
        };
        Happened::Answered {
            is_success: answer.is_success,
            result,
            code: answer.code.map(short),
            message: message.or(answer.message.map(short)),
        }
    }

    /// Does what is to be done now. How long nothing is.
    pub(super) fn work_off(self: &Arc<Self>) -> Duration {
        loop {
            let work = {
                let mut queue = lock(&self.queue);
                let work = queue.pop_front();
                if queue.len() < self.config.max_queued {
                    self.is_full.store(false, Relaxed);
                }
                work
            };
            let Some(work) = work else { break };
            if let Err(error) = self.work(work) {
                self.write_errors.fetch_add(1, Relaxed);
                tracing::error!(%error, "something about a command cannot be read or written");
            }
        }
        let now_ms = self.now_ms();
        self.end_due(now_ms);
        let again: Vec<_> = {
            let mut again = lock(&self.again);
            let later = again.split_off(&(now_ms + 1, DeviceNo(0)));
            std::mem::replace(&mut *again, later).into_iter().collect()
        };
        for (_, device) in again {
            self.push(Work::Arrived(device));
        }
        self.write_rest();
        self.purge(now_ms);
        let (next_ms, has_unwritten) = {
            let open = lock(&self.open);
            (open.next_due_ms(), open.has_unwritten())
        };
        let again_ms = lock(&self.again).first().map(|(at_ms, _)| *at_ms);
        let retry_ms = has_unwritten.then_some(now_ms + RETRY_MS);
        let times = [next_ms, again_ms, retry_ms, Some(now_ms + PURGE_MS)];
        let next_ms = times.into_iter().flatten().min().unwrap_or(now_ms);
        Duration::from_millis(next_ms.saturating_sub(now_ms))
    }

    fn end_due(self: &Arc<Self>, now_ms: u64) {
        let due = lock(&self.open).due(now_ms, MAX_DUE);
        for id in due {
            match self.change(id, Happened::Due) {
                Ok(Some(command)) if command.state == CommandState::Pending => {
                    self.wake_askers(command.device_no);
                    self.push(Work::Arrived(command.device_no));
                }
                Ok(_) => {}
                Err(error) => {
                    self.write_errors.fetch_add(1, Relaxed);
                    tracing::error!(id = id.0, %error, "a command whose time is over cannot be read");
                    return;
                }
            }
        }
    }

    fn write_rest(&self) {
        let _telling = lock(&self.telling);
        let rest = lock(&self.open).all_unwritten();
        for command in rest {
            if self.book.put(&command, None).is_err() {
                return;
            }
            lock(&self.open).written(command.id);
        }
    }

    fn purge(&self, now_ms: u64) {
        let above = {
            let open = lock(&self.open);
            open.finished.saturating_sub(self.config.max_finished)
        };
        if above == 0 && now_ms.saturating_sub(self.purged_ms.load(Relaxed)) < PURGE_MS {
            return;
        }
        self.purged_ms.store(now_ms, Relaxed);
        let kept_ms = u64::from(self.config.finished_retention_d) * DAY_MS;
        match self.book.purge(now_ms.saturating_sub(kept_ms), above) {
            Ok(count) => {
                let mut open = lock(&self.open);
                open.finished = match count {
                    // It was not as many as that.
                    0 => open.finished.min(self.config.max_finished),
                    count => open.finished.saturating_sub(count),
                };
            }
            Err(error) => tracing::error!(%error, "old commands cannot be removed"),
        }
    }
}

fn run(inner: &Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        let wait = inner.work_off();
        let queue = lock(&inner.queue);
        if inner.is_stopping.load(Relaxed) && queue.is_empty() {
            return;
        }
        if queue.is_empty() {
            // Woken or not, it looks.
            drop(inner.has_work.wait_timeout(queue, wait));
        }
    }
}
