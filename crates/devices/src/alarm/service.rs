//! The alarms of a node: rows of telemetry go in on shards, alarms come out on a thread of their own.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use series::{DeviceNo, Point, Series};
use store::Tables;

use super::Invalid;
use super::book::{AlarmFilter, AlarmPage, Book, Open};
use super::compiled::Compiled;
use super::condition::Scalar;
use super::definition::Severity;
use super::details::Writer;
use super::machine::Happened;
use super::record::{Alarm, AlarmId, AlarmState, Numbers};
use super::watch::{NODE, News, Subject, Surroundings, Turned, Watches};
use crate::device::Device;
use crate::registry::{Registry, RegistryError, Scope};

/// How exact times are that pass without a message.
const TICK: Duration = Duration::from_millis(200);
const PURGE_EVERY: Duration = Duration::from_secs(60);
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Gateways of gateways: how far up an alarm is told.
const MAX_PARENTS: usize = 8;
const MAX_DETAILS_BYTES: usize = 4096;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// Bounds of alarms.
#[derive(Debug, Clone)]
pub struct AlarmConfig {
    /// Alarms that are kept; over it, the oldest that are cleared go.
    pub max_alarms: u64,
    /// How long alarms are kept after they were cleared.
    pub cleared_retention_d: u32,
    /// What may wait to be written before devices are made to wait.
    pub max_queued: usize,
    /// Devices whose conditions are watched at a time.
    pub max_devices: usize,
}

impl Default for AlarmConfig {
    fn default() -> Self {
        Self {
            max_alarms: 1_000_000,
            cleared_retention_d: 90,
            max_queued: 10_000,
            max_devices: 2_000_000,
        }
    }
}

/// What became of an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlarmChange {
    Raised,
    SeverityChanged,
    Acknowledged,
    Cleared,
    Removed,
}

impl AlarmChange {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raised => "raised",
            Self::SeverityChanged => "severity_changed",
            Self::Acknowledged => "acknowledged",
            Self::Cleared => "cleared",
            Self::Removed => "removed",
        }
    }
}

/// Something became of an alarm; told when it is in the store.
#[derive(Debug, Clone)]
pub struct AlarmEvent {
    pub change: AlarmChange,
    pub alarm: Arc<Alarm>,
    /// Of [`NamedAlarm::tag`], if it came of one; else 0.
    pub tag: u64,
}

/// An alarm that an SQL rule raises or clears.
#[derive(Debug, Clone)]
pub struct NamedAlarm {
    pub kind: String,
    pub severity: Severity,
    pub is_cleared: bool,
    pub at_ms: u64,
    pub details: String,
    pub rule: String,
    /// To be told with what comes of it, so that loops of rules end.
    pub tag: u64,
}

/// What has been counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AlarmStats {
    pub raised: u64,
    pub cleared: u64,
    pub queued: u64,
    pub watched_devices: u64,
    /// Messages of devices that were not watched because of `max_devices`.
    pub unwatched: u64,
    pub write_errors: u64,
}

/// An alarm cannot be changed so.
#[derive(Debug, thiserror::Error)]
pub enum AlarmError {
    #[error("there is no alarm {}", .0.0)]
    NotFound(AlarmId),
    #[error("it is {0} already")]
    Already(&'static str),
    #[error(transparent)]
    Store(#[from] store::Error),
}

type Listener = Box<dyn Fn(&AlarmEvent) + Send + Sync>;

/// The alarms of a node. Clones are the same.
#[derive(Clone)]
pub struct Alarms {
    inner: Arc<Inner>,
}

struct Inner {
    config: AlarmConfig,
    registry: Registry,
    series: Series,
    book: Book,
    watches: Watches,
    products: RwLock<HashMap<Box<str>, Arc<Compiled>, RandomState>>,
    queue: Mutex<VecDeque<Work>>,
    has_work: Condvar,
    is_full: AtomicBool,
    is_in_use: AtomicBool,
    is_stopping: AtomicBool,
    /// Held while alarms are changed and told, so that they are told in the order of their changes.
    telling: Mutex<()>,
    listeners: RwLock<Vec<Listener>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    raised: AtomicU64,
    cleared: AtomicU64,
    write_errors: AtomicU64,
}

enum Work {
    Turned(Turned),
    Named(Subject, NamedAlarm),
    Forget(DeviceNo),
}

/// What an alarm is to become.
struct Wanted<'a> {
    subject: &'a Subject,
    kind: &'a str,
    happened: Happened,
    at_ms: u64,
    details: String,
    values: Map<String, Json>,
    rule: &'a str,
    notify: &'a [String],
    propagate: bool,
    tag: u64,
}

impl Alarms {
    /// Reads what is not cleared, and starts the thread.
    pub fn open(
        tables: &Tables,
        registry: Registry,
        series: Series,
        config: AlarmConfig,
    ) -> Result<Self, store::Error> {
        let inner = Arc::new(Inner {
            watches: Watches::new(config.max_devices),
            config,
            registry,
            series,
            book: Book::open(tables)?,
            products: RwLock::default(),
            queue: Mutex::default(),
            has_work: Condvar::new(),
            is_full: AtomicBool::new(false),
            is_in_use: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            telling: Mutex::default(),
            listeners: RwLock::default(),
            thread: Mutex::default(),
            raised: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&inner);
        tables.on_restore(Box::new(move || {
            if let Some(inner) = weak.upgrade() {
                inner.watches.forget_all();
                if let Err(error) = inner.book.read() {
                    tracing::error!(%error, "the restored alarms cannot be read");
                }
            }
        }));
        let running = Arc::downgrade(&inner);
        let thread = std::thread::Builder::new()
            .name("alarms".into())
            .spawn(move || run(&running))
            .expect("a thread at start");
        *lock(&inner.thread) = Some(thread);
        let alarms = Self { inner };
        alarms.products_changed();
        Ok(alarms)
    }

    /// Takes a row of a device's telemetry. Does not wait.
    pub fn observe(&self, device: &Arc<Device>, now_ms: u64, ts_ms: i64, points: &[Point<'_>]) {
        let find = || Some(Arc::clone(device));
        let news = News::Row { ts_ms, points };
        self.inner.observe(device.no, &find, now_ms, news);
    }

    /// The same of a device that only its number is known of. It is read from the disk if it is neither watched nor in memory.
    pub fn observe_row(&self, device: DeviceNo, now_ms: u64, ts_ms: i64, points: &[Point<'_>]) {
        let find = || {
            let found = self.inner.registry.by_no(device);
            found.unwrap_or_else(|error| {
                tracing::error!(%error, "a device cannot be read, and its alarms do not see a message of it");
                None
            })
        };
        let news = News::Row { ts_ms, points };
        self.inner.observe(device, &find, now_ms, news);
    }

    /// Whether any product has alarm rules, as [`Alarms::products_changed`] found it.
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.inner.is_in_use.load(Relaxed)
    }

    /// A product was made, has changed or is gone.
    pub fn products_changed(&self) {
        let products = self.inner.registry.products();
        let has_rules = products
            .iter()
            .any(|product| !product.get().definition.alarms.is_empty());
        self.inner.is_in_use.store(has_rules, Relaxed);
    }

    /// A device has come or gone. Does not wait.
    pub fn observe_state(&self, device: &Arc<Device>, now_ms: u64, is_online: bool) {
        if device.product.get().definition.alarms.is_empty() {
            return;
        }
        let find = || Some(Arc::clone(device));
        let news = News::Online(is_online);
        self.inner.observe(device.no, &find, now_ms, news);
    }

    /// Takes an alarm of an SQL rule. Does not wait.
    pub fn take_named(&self, device: &Arc<Device>, alarm: NamedAlarm) {
        let subject = Subject::Device(Arc::clone(device));
        self.inner.push(Work::Named(subject, alarm));
    }

    /// Takes what became of the node's own alarms.
    pub(super) fn take_turned(&self, turned: Turned) {
        self.inner.push(Work::Turned(turned));
    }

    /// The node's own alarms that are not cleared, by their types.
    pub(super) fn open_of_node(&self) -> Vec<(Box<str>, Severity)> {
        Surroundings::open(&*self.inner, NODE)
    }

    /// Clears an alarm of the node whose rule is gone.
    pub(super) fn clear_of_node(&self, kind: &str) {
        let cleared = NamedAlarm {
            kind: kind.to_owned(),
            severity: Severity::Indeterminate,
            is_cleared: true,
            at_ms: crate::now_ms(),
            details: String::new(),
            rule: String::new(),
            tag: 0,
        };
        self.inner.push(Work::Named(Subject::Node, cleared));
    }

    /// Attributes of the server have changed.
    pub fn attributes_changed(&self, device: DeviceNo) {
        self.inner.watches.attributes_changed(device);
    }

    /// Something of a device has changed, such as its parent.
    pub fn device_changed(&self, device: &Arc<Device>) {
        self.inner.watches.replace(device);
    }

    /// A device is gone, and its alarms with it.
    pub fn device_removed(&self, device: DeviceNo) {
        self.inner.push(Work::Forget(device));
    }

    /// Whether devices are to wait: too much waits to be written.
    pub fn is_full(&self) -> bool {
        self.inner.is_full.load(Relaxed)
    }

    /// Calls `listener` with everything that becomes of alarms, in its order. It shall not wait long.
    pub fn on_change(&self, listener: Listener) {
        let mut listeners = self
            .inner
            .listeners
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
    }

    /// The newest first, of those older than `before`.
    pub fn list(
        &self,
        filter: &AlarmFilter,
        before: Option<AlarmId>,
        limit: usize,
    ) -> Result<AlarmPage, store::Error> {
        self.inner.book.list(filter, before, limit)
    }

    pub fn get(&self, id: AlarmId) -> Result<Option<Alarm>, store::Error> {
        self.inner.book.get(id)
    }

    /// How many alarms there are, by state and severity.
    pub fn counts(&self) -> Vec<(AlarmState, Severity, u64)> {
        self.inner.book.lock().counts().collect()
    }

    /// Says that `who` has seen it.
    pub fn acknowledge(&self, id: AlarmId, who: &str) -> Result<Alarm, AlarmError> {
        self.inner.change(id, AlarmChange::Acknowledged, |alarm| {
            if alarm.is_acknowledged() {
                return Err(AlarmError::Already("acknowledged"));
            }
            alarm.acknowledged_ms = Some(crate::now_ms());
            alarm.acknowledged_by = Some(who.to_owned());
            Ok(())
        })
    }

    /// Clears it, whatever its conditions say; the next message may raise another one.
    pub fn clear(&self, id: AlarmId, who: &str) -> Result<Alarm, AlarmError> {
        let cleared = self.inner.change(id, AlarmChange::Cleared, |alarm| {
            if alarm.is_cleared() {
                return Err(AlarmError::Already("cleared"));
            }
            alarm.cleared_ms = Some(crate::now_ms());
            alarm.cleared_by = Some(who.to_owned());
            Ok(())
        })?;
        self.inner.cleared.fetch_add(1, Relaxed);
        Ok(cleared)
    }

    /// Removes it from the list; one that is not cleared is as if it had been.
    pub fn remove(&self, id: AlarmId) -> Result<(), AlarmError> {
        let _telling = lock(&self.inner.telling);
        let alarm = {
            let mut state = self.inner.book.lock();
            let alarm = self.inner.book.get(id)?.ok_or(AlarmError::NotFound(id))?;
            let removed = std::slice::from_ref(&alarm);
            self.inner.book.remove(&mut state, removed)?;
            alarm
        };
        self.inner.unwatch(&alarm);
        self.inner.tell(AlarmChange::Removed, alarm, 0);
        Ok(())
    }

    pub fn stats(&self) -> AlarmStats {
        let inner = &self.inner;
        AlarmStats {
            raised: inner.raised.load(Relaxed),
            cleared: inner.cleared.load(Relaxed),
            queued: lock(&inner.queue).len() as u64,
            watched_devices: inner.watches.len() as u64,
            unwatched: inner.watches.unwatched.load(Relaxed),
            write_errors: inner.write_errors.load(Relaxed),
        }
    }

    /// Ends the thread when everything that was taken is written.
    pub fn close(&self) {
        self.inner.is_stopping.store(true, Relaxed);
        self.inner.has_work.notify_all();
        let thread = lock(&self.inner.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the alarms ended by a panic; this is a bug");
        }
    }
}

impl Inner {
    fn observe(
        &self,
        device: DeviceNo,
        find: &dyn Fn() -> Option<Arc<Device>>,
        now_ms: u64,
        news: News<'_>,
    ) {
        let compiled = |device: &Device| {
            let product = device.product.get();
            let rules = &product.definition.alarms;
            match rules.is_empty() {
                true => None,
                false => self.compiled(product.id.as_str(), product.version, rules),
            }
        };
        let turned = self
            .watches
            .observe(device, find, &compiled, self, now_ms, news);
        if let Some(turned) = turned {
            self.push(Work::Turned(turned));
        }
    }

    /// The rules of a product in a version.
    fn compiled(&self, product: &str, version: u64, rules: &[Json]) -> Option<Arc<Compiled>> {
        {
            let products = self.products.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(compiled) = products.get(product)
                && compiled.version == version
            {
                return Some(Arc::clone(compiled));
            }
        }
        let mut key = |name: &str| {
            let key = self.series.key(name);
            key.map_err(|error| Invalid::new("alarms", error.to_string()))
        };
        match Compiled::from_json(version, &Json::Array(rules.to_vec()), &mut key) {
            Ok(compiled) => {
                let compiled = Arc::new(compiled);
                let products = self.products.write();
                products
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(product.into(), Arc::clone(&compiled));
                Some(compiled)
            }
            Err(problem) => {
                // Checked when the product was written: only the dictionary of keys can be full.
                tracing::error!(product, %problem, "the alarm rules of a product cannot be used");
                None
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

    /// Does one piece of work; it is to be done again if the store fails.
    fn work(&self, writer: &mut Writer, work: &Work) -> Result<(), store::Error> {
        match work {
            Work::Turned(turned) => turned
                .turns
                .iter()
                .try_for_each(|turn| self.turn(writer, turned, *turn)),
            Work::Named(subject, named) => self.become_(&Wanted {
                subject,
                kind: &named.kind,
                happened: match named.is_cleared {
                    true => Happened::Cleared,
                    false => Happened::Raised(named.severity),
                },
                at_ms: named.at_ms,
                details: shortened(named.details.clone()),
                values: Map::new(),
                rule: &named.rule,
                notify: &[],
                propagate: false,
                tag: named.tag,
            }),
            Work::Forget(device) => self.forget(*device),
        }
    }

    fn turn(
        &self,
        writer: &mut Writer,
        turned: &Turned,
        turn: super::machine::Turn,
    ) -> Result<(), store::Error> {
        let subject = &turned.subject;
        let (kind, meta) = (
            turned.compiled.set.rule_id(turn.rule),
            &turned.compiled.rules[turn.rule],
        );
        let values = turned.values.iter();
        let values: Map<_, _> = values
            .map(|(name, value)| (name.to_string(), value.to_json()))
            .collect();
        let severity = match turn.happened {
            Happened::Raised(severity) | Happened::Changed { to: severity, .. } => {
                severity.as_str()
            }
            Happened::Cleared => "",
        };
        let details = meta.details.as_ref().map_or_else(String::new, |text| {
            let about = [
                ("deviceId", subject.id()),
                ("deviceName", subject.name()),
                ("productId", subject.product()),
                ("type", kind),
                ("severity", severity),
            ]
            .map(|(name, value)| (name, Json::from(value)));
            let values = values.iter().map(|(name, value)| (name.as_str(), value));
            let about = about.iter().map(|(name, value)| (*name, value));
            writer.write(text, turn.at_ms, &values.chain(about).collect::<Vec<_>>())
        });
        self.become_(&Wanted {
            subject,
            kind,
            happened: turn.happened,
            at_ms: turn.at_ms,
            details: shortened(details),
            values,
            rule: "",
            notify: &meta.notify,
            propagate: meta.propagate,
            tag: 0,
        })
    }

    fn become_(&self, wanted: &Wanted<'_>) -> Result<(), store::Error> {
        let _telling = lock(&self.telling);
        let (change, alarm) = {
            let mut state = self.book.lock();
            let open = state.open(wanted.subject.no(), wanted.kind);
            let before = open
                .map(|open: Open| self.book.get(open.id))
                .transpose()?
                .flatten();
            let (change, alarm) = match (&before, wanted.happened) {
                (None, Happened::Cleared) => return Ok(()),
                (None, Happened::Raised(severity) | Happened::Changed { to: severity, .. }) => {
                    let alarm = self.new_alarm(state.next_id(), wanted, severity)?;
                    (AlarmChange::Raised, alarm)
                }
                (Some(alarm), Happened::Cleared) => {
                    let mut alarm = alarm.clone();
                    alarm.cleared_ms = Some(wanted.at_ms);
                    (AlarmChange::Cleared, alarm)
                }
                // Somebody has raised it again, such as a rule with each message.
                (Some(alarm), Happened::Raised(to) | Happened::Changed { to, .. })
                    if alarm.severity == to =>
                {
                    return Ok(());
                }
                (Some(alarm), Happened::Raised(to) | Happened::Changed { to, .. }) => {
                    let mut alarm = alarm.clone();
                    alarm.severity = to;
                    alarm.changed_ms = wanted.at_ms;
                    alarm.details.clone_from(&wanted.details);
                    alarm.values.clone_from(&wanted.values);
                    (AlarmChange::SeverityChanged, alarm)
                }
            };
            let mut alarm = alarm;
            alarm.renew_state();
            self.book.put(&mut state, before.as_ref(), &alarm)?;
            (change, alarm)
        };
        match change {
            AlarmChange::Raised => self.raised.fetch_add(1, Relaxed),
            AlarmChange::Cleared => self.cleared.fetch_add(1, Relaxed),
            _ => 0,
        };
        self.tell(change, alarm, wanted.tag);
        Ok(())
    }

    fn new_alarm(
        &self,
        id: AlarmId,
        wanted: &Wanted<'_>,
        severity: Severity,
    ) -> Result<Alarm, store::Error> {
        let subject = wanted.subject;
        let mut numbers = vec![subject.no()];
        let mut parent = subject.parent().filter(|_| wanted.propagate);
        while let Some(no) = parent {
            if numbers.contains(&no) || numbers.len() > MAX_PARENTS {
                break;
            }
            numbers.push(no);
            parent = self.parent_of(no)?;
        }
        Ok(Alarm {
            id,
            kind: wanted.kind.to_owned(),
            severity,
            state: AlarmState::ActiveUnack,
            device: subject.id().to_owned(),
            product: subject.product().to_owned(),
            details: wanted.details.clone(),
            values: wanted.values.clone(),
            rule: wanted.rule.to_owned(),
            notify: wanted.notify.to_vec(),
            raised_ms: wanted.at_ms,
            changed_ms: wanted.at_ms,
            cleared_ms: None,
            cleared_by: None,
            acknowledged_ms: None,
            acknowledged_by: None,
            device_no: Numbers(numbers),
        })
    }

    fn parent_of(&self, device: DeviceNo) -> Result<Option<DeviceNo>, store::Error> {
        match self.registry.by_no(device) {
            Ok(device) => Ok(device.and_then(|device| device.parent)),
            Err(RegistryError::Store(error)) => Err(error),
            // It is not propagated further.
            Err(_) => Ok(None),
        }
    }

    fn change(
        &self,
        id: AlarmId,
        change: AlarmChange,
        make: impl FnOnce(&mut Alarm) -> Result<(), AlarmError>,
    ) -> Result<Alarm, AlarmError> {
        let _telling = lock(&self.telling);
        let alarm = {
            let mut state = self.book.lock();
            let before = self.book.get(id)?.ok_or(AlarmError::NotFound(id))?;
            let mut alarm = before.clone();
            make(&mut alarm)?;
            alarm.renew_state();
            self.book.put(&mut state, Some(&before), &alarm)?;
            alarm
        };
        if change == AlarmChange::Cleared {
            self.unwatch(&alarm);
        }
        self.tell(change, alarm.clone(), 0);
        Ok(alarm)
    }

    fn unwatch(&self, alarm: &Alarm) {
        if let Some(device) = alarm.device_no.0.first() {
            self.watches.cleared(*device, &alarm.kind);
        }
    }

    fn forget(&self, device: DeviceNo) -> Result<(), store::Error> {
        self.watches.forget(device);
        let filter = AlarmFilter {
            device: Some(device),
            ..AlarmFilter::default()
        };
        let mut before = None;
        loop {
            let page = self.book.list(&filter, before, 500)?;
            let own = |alarm: &Alarm| alarm.device_no.0.first() == Some(&device);
            let alarms: Vec<_> = page.alarms.into_iter().filter(own).collect();
            self.book.remove(&mut self.book.lock(), &alarms)?;
            before = page.next;
            if before.is_none() {
                return Ok(());
            }
        }
    }

    fn tell(&self, change: AlarmChange, alarm: Alarm, tag: u64) {
        let event = AlarmEvent {
            change,
            alarm: Arc::new(alarm),
            tag,
        };
        let listeners = self
            .listeners
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener(&event));
    }

    fn purge(&self) {
        let retention_ms = u64::from(self.config.cleared_retention_d) * DAY_MS;
        let before_ms = crate::now_ms().saturating_sub(retention_ms);
        if let Err(error) = self.book.purge(before_ms, self.config.max_alarms) {
            tracing::warn!(%error, "old alarms cannot be removed; it is tried again");
        }
    }
}

impl Surroundings for Inner {
    fn attributes(&self, device: &Device) -> Vec<(Box<str>, Scalar)> {
        let found = self.registry.attributes(device, Scope::Server);
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(device = device.id.as_str(), %error, "attributes cannot be read; conditions go without them");
            Vec::new()
        });
        let scalar = |value: &Json| Scalar::from_json(value);
        let found = found.into_iter();
        found
            .filter_map(|attribute| Some((attribute.key.into(), scalar(&attribute.value)?)))
            .collect()
    }

    fn open(&self, device: DeviceNo) -> Vec<(Box<str>, Severity)> {
        let state = self.book.lock();
        let open = state.open.get(&device).into_iter().flatten();
        open.map(|(kind, open)| (kind.clone(), open.severity))
            .collect()
    }
}

/// The thread: writes what has come, and looks at what is due.
fn run(inner: &Weak<Inner>) {
    let mut writer = Writer::new();
    let mut ticked_at = Instant::now();
    let mut purged_at = Instant::now();
    let mut has_failed = false;
    loop {
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let work = {
            let mut queue = lock(&inner.queue);
            if queue.is_empty() && !inner.is_stopping.load(Relaxed) {
                let left = TICK.saturating_sub(ticked_at.elapsed());
                let waited = inner.has_work.wait_timeout(queue, left);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let work = queue.pop_front();
            inner
                .is_full
                .store(queue.len() >= inner.config.max_queued, Relaxed);
            work
        };
        let is_idle = work.is_none();
        if let Some(work) = work
            && let Err(error) = inner.work(&mut writer, &work)
        {
            inner.write_errors.fetch_add(1, Relaxed);
            if !std::mem::replace(&mut has_failed, true) {
                tracing::error!(%error, "alarms cannot be written; it is tried again until they can");
            }
            if inner.is_stopping.load(Relaxed) {
                return;
            }
            lock(&inner.queue).push_front(work);
            std::thread::sleep(RETRY_AFTER);
            continue;
        }
        has_failed = false;
        if ticked_at.elapsed() >= TICK {
            ticked_at = Instant::now();
            let now_ms = crate::now_ms();
            inner.watches.tick(&*inner, now_ms, &mut |turned| {
                inner.push(Work::Turned(turned))
            });
        }
        if purged_at.elapsed() >= PURGE_EVERY {
            purged_at = Instant::now();
            inner.purge();
        }
        if is_idle && inner.is_stopping.load(Relaxed) {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_DETAILS_BYTES {
        text.truncate(text.floor_char_boundary(MAX_DETAILS_BYTES));
    }
    text
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
