//! The rules of a node: which there are, which of them run, and how they change while messages are routed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use broker::Handle;
use broker::hooks::HooksFactory;
use rules::index::Index;
use rules::{EventKind, Kv};
use serde_json::Value;
use store::{Change, Objects};
use tokio::sync::broadcast;

use crate::bound::{Bound, Standing, bind};
use crate::bridge::Bridges;
use crate::counters::Totals;
use crate::definition::{Definition, KIND, check_name};
use crate::devices::DeviceLane;
use crate::error::Invalid;
use crate::hooks::Factory;
use crate::keeper::Keeper;
use crate::outlet::{DeviceOutlet, Outlet};
use crate::recent::RuleError;
use crate::rows::{Order, Rows};
use crate::saved::Saved;
use crate::settings::Settings;
use crate::shared::{Shared, Snapshot, interest_of};

/// Objects read from the store at once.
const PAGE: usize = 1000;
/// Windows that are not stored in this time after a stop are lost.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// The rules of a node. Clones are the same rules.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    book: Arc<Mutex<Book>>,
    /// The thread that keeps windows.
    keeper: Arc<Mutex<Option<JoinHandle<()>>>>,
    objects: Arc<OnceLock<Objects>>,
    pub(crate) bridges: Arc<Bridges>,
}

/// What is known of each rule; changed by the control plane only.
#[derive(Default)]
struct Book {
    rules: BTreeMap<Box<str>, Listed>,
    /// Those that run, as the shards have them.
    index: Index<Arc<Bound>>,
}

struct Listed {
    standing: Arc<Standing>,
    state: State,
    /// It stands in the configuration, not in the store.
    is_declared: bool,
}

enum State {
    Running(Arc<Bound>),
    Disabled,
    /// What is stored cannot run: why.
    Broken(Invalid),
}

/// How a rule is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Running,
    Disabled,
    Broken(Invalid),
}

/// A rule with what has happened to it since the node started.
#[derive(Clone)]
pub struct Status {
    pub name: String,
    pub condition: Condition,
    /// It stands in the configuration and cannot be changed otherwise.
    pub is_declared: bool,
    pub totals: Totals,
    /// What went wrong last.
    pub last_error: Option<RuleError>,
    /// What is probably a mistake.
    pub warnings: Vec<String>,
}

impl Engine {
    /// `shards`: as many as the broker will have.
    pub fn new(settings: Settings, shards: usize) -> Self {
        let rows = Rows::new(settings.window_queue_bytes);
        let shared = Shared {
            node_ip: crate::shared::node_ip(),
            node_id_bits: crate::shared::node_id_bits(&settings.node_name),
            environment: settings.environment(),
            settings,
            snapshot: Arc::new(ArcSwap::default()),
            rows,
            outlet: OnceLock::new(),
            handle: OnceLock::new(),
            wants_devices: AtomicBool::new(false),
            device_lanes: (0..shards).map(|_| DeviceLane::default()).collect(),
            devices: OnceLock::new(),
            by_serial: Mutex::default(),
            lanes: shards + 2,
        };
        Self {
            shared: Arc::new(shared),
            book: Arc::default(),
            keeper: Arc::default(),
            objects: Arc::default(),
            bridges: Arc::default(),
        }
    }

    /// Where rows for sinks go; said once, before the first rule.
    pub fn set_outlet(&self, outlet: Arc<dyn Outlet>) {
        if self.shared.outlet.set(outlet).is_err() {
            tracing::error!("the rules were given a second outlet; this is a bug");
        }
    }

    /// What takes telemetry and alarms of rules; said once, before the first rule. Without it, rules with such actions are refused.
    pub fn set_devices(&self, devices: Arc<dyn DeviceOutlet>) {
        if self.shared.devices.set(devices).is_err() {
            tracing::error!("the rules were given the devices twice; this is a bug");
        }
    }

    pub(crate) fn has_devices(&self) -> bool {
        self.shared.devices.get().is_some()
    }

    /// What a rule looks like, as JSON schemas: what is written and what is shown.
    pub fn schemas(&self) -> (Value, Value) {
        crate::schema::schemas(self.has_devices())
    }

    /// What hangs on the broker.
    pub fn hooks(&self) -> Arc<dyn HooksFactory> {
        Arc::new(Factory(self.shared.clone()))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a rule as a client of the API or the configuration has written it: as it is to be stored.
    pub fn accept(&self, name: &str, input: &Value) -> Result<Value, Invalid> {
        check_name(name)?;
        let book = self.book();
        let listed = book.rules.get(name);
        if listed.is_some_and(|listed| listed.is_declared) {
            let detail = "this rule stands in the configuration; change it there";
            return Err(Invalid::new("name", detail));
        }
        if listed.is_none() && book.rules.len() >= self.shared.settings.max_rules {
            let detail = format!(
                "there are {} rules already (rules.max_rules)",
                book.rules.len()
            );
            return Err(Invalid::new("", detail));
        }
        drop(book);
        let definition = Definition::from_json(input)?;
        // Compiled to see whether it can be, also if it is not to run now.
        let standing = Arc::new(Standing::new(0));
        bind(name, &definition, &self.shared, standing)?;
        Ok(definition.to_json())
    }

    /// Probable mistakes of an accepted rule.
    pub fn warnings(&self, accepted: &Value) -> Vec<String> {
        let standing = Arc::new(Standing::new(0));
        let bound = Definition::from_json(accepted)
            .and_then(|definition| bind("", &definition, &self.shared, standing));
        bound.map_or_else(|_| Vec::new(), |bound| bound.warnings.into_vec())
    }

    /// Rules of the configuration, which cannot be changed while the node runs. Their names and what is wrong with them.
    pub fn declare(&self, rules: &[(String, Value)]) -> Result<(), Vec<(usize, Invalid)>> {
        let mut problems = Vec::new();
        for (n, (name, value)) in rules.iter().enumerate() {
            if let Err(problem) = self.accept(name, value) {
                problems.push((n, problem));
                continue;
            }
            let mut book = self.book();
            self.set(&mut book, name, Some(value), true);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let book = self.book();
        self.publish(&book);
        Ok(())
    }

    /// Runs the rules of the store, and from now on every change of them.
    pub fn follow(&self, objects: &Objects) -> Result<(), store::Error> {
        let (engine, stored) = (self.clone(), objects.clone());
        objects.on_change(Box::new(move |change: &Change| {
            if change.kind == KIND {
                engine.apply(&stored, &change.id);
            }
        }));
        // Set once: a second store would be a bug of the program.
        let _ = self.objects.set(objects.clone());
        self.start_keeper(Some(objects.clone()));
        self.recall_declared();
        let mut after: Option<String> = None;
        loop {
            let page = objects.list(KIND, after.as_deref(), PAGE)?;
            let mut book = self.book();
            for object in &page {
                self.set(&mut book, &object.id, Some(&object.value), false);
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.id.clone()),
                _ => {
                    self.publish(&book);
                    return Ok(());
                }
            }
        }
    }

    fn apply(&self, objects: &Objects, name: &str) {
        let object = match objects.get(KIND, name) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(rule = name, %error, "a changed rule cannot be read; the one before goes on");
                return;
            }
        };
        self.put(name, object.map(|object| object.value).as_ref());
    }

    /// A rule is this from now on (`None`: there is none). One that cannot run is listed with what is wrong.
    pub fn put(&self, name: &str, value: Option<&Value>) {
        let mut book = self.book();
        self.set(&mut book, name, value, false);
        self.publish(&book);
    }

    /// Many rules at once, told to the shards when all are there.
    pub fn put_all(&self, rules: impl Iterator<Item = (String, Value)>) {
        let mut book = self.book();
        for (name, value) in rules {
            self.set(&mut book, &name, Some(&value), false);
        }
        self.publish(&book);
    }

    /// Changes the book; the shards learn of it by [`Engine::publish`].
    fn set(&self, book: &mut Book, name: &str, value: Option<&Value>, is_declared: bool) {
        let before = book.rules.get(name);
        if let Some(before) = before
            && before.is_declared
            && !is_declared
        {
            // The program warns of it, since it knows the place in the file.
            return;
        }
        let standing = before.map(|before| before.standing.clone());
        let standing = standing.unwrap_or_else(|| Arc::new(Standing::new(self.shared.lanes)));
        let had_window = before.is_some_and(
            |before| matches!(&before.state, State::Running(bound) if bound.window.is_some()),
        );
        let had_memory = before.is_some_and(
            |before| matches!(&before.state, State::Running(bound) if bound.memory.is_some()),
        );
        let state = value.map(|value| {
            let definition = Definition::from_json(value);
            match definition {
                Ok(definition) if !definition.enabled => State::Disabled,
                Ok(definition) => match bind(name, &definition, &self.shared, standing.clone()) {
                    Ok(mut bound) => {
                        for warning in &bound.warnings {
                            tracing::warn!(rule = name, warning, "rule has a probable mistake");
                        }
                        self.remember(&mut bound, before);
                        let bound = Arc::new(bound);
                        self.shared.note_serial(&bound);
                        State::Running(bound)
                    }
                    Err(problem) => State::Broken(problem),
                },
                Err(problem) => State::Broken(problem),
            }
        });
        if let Some(State::Broken(problem)) = &state {
            tracing::error!(rule = name, %problem, "a stored rule cannot run");
        }
        if let Some(State::Running(before)) = before.map(|before| &before.state) {
            let (serial, rule) = (before.serial, &before.rule);
            book.index
                .remove(rule.sources(), rule.conjuncts(), |bound| {
                    bound.serial == serial
                });
        }
        let mut has_window = false;
        if let Some(State::Running(bound)) = &state {
            book.index
                .add(bound.rule.sources(), bound.rule.conjuncts(), bound);
            has_window = bound.window.is_some();
            if has_window {
                // Before the shards can send its first row.
                self.shared.rows.order(Order::Start(bound.clone()));
            }
        }
        match &state {
            Some(State::Running(bound)) if bound.memory.is_some() => {
                self.shared.rows.order(Order::Remember(bound.clone()));
            }
            _ if had_memory => self.shared.rows.order(Order::Forget(name.into())),
            _ => {}
        }
        if had_window && !has_window {
            self.shared.rows.order(Order::End(name.into()));
        }
        match state {
            Some(state) => {
                let listed = Listed {
                    standing,
                    state,
                    is_declared,
                };
                book.rules.insert(name.into(), listed);
            }
            None => {
                book.rules.remove(name);
            }
        }
    }

    /// A rule that is changed without changing its statement shares what it keeps with the one before, which some shards still run;
    /// one that begins goes on with what is stored.
    fn remember(&self, bound: &mut Bound, before: Option<&Listed>) {
        if bound.memory.is_none() {
            return;
        }
        match before.map(|before| &before.state) {
            Some(State::Running(before))
                if before.memory.is_some() && before.sql_hash == bound.sql_hash =>
            {
                bound.memory.clone_from(&before.memory);
            }
            _ => self.recall(bound),
        }
    }

    /// Gives the shards what is in the book.
    fn publish(&self, book: &Book) {
        let interest = interest_of(&book.index);
        let snapshot = Arc::new(Snapshot {
            index: book.index.clone(),
            interest,
        });
        let wants_devices = book.index.wants(EventKind::Device);
        let before = self.shared.snapshot.swap(snapshot);
        self.shared.wants_devices.store(wants_devices, Relaxed);
        if before.interest != interest
            && let Some(handle) = self.shared.handle.get()
        {
            handle.renew_interest();
        }
    }

    /// The broker runs.
    pub fn start(&self, handle: Handle) {
        handle.renew_interest();
        if self.shared.handle.set(handle).is_err() {
            tracing::error!("the rules were given a second broker; this is a bug");
        }
        self.start_keeper(None);
    }

    /// Rules of the configuration, which were there before the store, go on with what they had kept.
    fn recall_declared(&self) {
        let book = self.book();
        for listed in book.rules.values() {
            if let State::Running(bound) = &listed.state
                && bound.memory.is_some()
            {
                self.recall(bound);
            }
        }
    }

    /// Before it runs: what the rule of this name and statement had kept.
    fn recall(&self, bound: &Bound) {
        let (Some(memory), Some(objects)) = (&bound.memory, self.objects.get()) else {
            return;
        };
        let saved = Saved::memories(objects.clone());
        let Some(snapshot) = saved.read(&bound.name, bound.sql_hash) else {
            return;
        };
        let mut state = memory.lock().unwrap_or_else(PoisonError::into_inner);
        match Kv::restore(state.kv.limits(), &snapshot) {
            Ok(kv) => state.kv = kv,
            Err(error) => {
                tracing::warn!(rule = &*bound.name, %error, "what a rule had kept is lost");
            }
        }
    }

    fn start_keeper(&self, objects: Option<Objects>) {
        let mut thread = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return;
        }
        let keeper = Keeper::new(self.shared.clone(), objects);
        let spawned = std::thread::Builder::new()
            .name("rule-windows".into())
            .spawn(move || keeper.run());
        match spawned {
            Ok(spawned) => *thread = Some(spawned),
            Err(error) => {
                tracing::error!(%error, "rules with windows do not run: no thread can be started")
            }
        }
    }

    /// Stores what windows have counted. After the broker has stopped, before the store is closed.
    pub fn stop(&self) {
        let thread = self
            .keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else { return };
        self.shared.rows.order(Order::Stop);
        let (done, stopped) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = done.send(thread.join().is_err());
        });
        match stopped.recv_timeout(STOPPED_WITHIN) {
            Ok(false) => {}
            Ok(true) => tracing::error!("the windows of rules ended by a panic; this is a bug"),
            Err(_) => tracing::warn!("the windows of rules were not stored in time"),
        }
    }

    fn status_of(name: &str, listed: &Listed) -> Status {
        Status {
            name: name.to_owned(),
            condition: match &listed.state {
                State::Running(_) => Condition::Running,
                State::Disabled => Condition::Disabled,
                State::Broken(problem) => Condition::Broken(problem.clone()),
            },
            is_declared: listed.is_declared,
            totals: listed.standing.counters.total(),
            last_error: listed.standing.errors.last(),
            warnings: match &listed.state {
                State::Running(bound) => bound.warnings.to_vec(),
                State::Disabled | State::Broken(_) => Vec::new(),
            },
        }
    }

    pub fn status(&self, name: &str) -> Option<Status> {
        let book = self.book();
        book.rules
            .get(name)
            .map(|listed| Self::status_of(name, listed))
    }

    /// Rules by name, those behind `after`, at most `limit`.
    pub fn statuses(&self, after: Option<&str>, limit: usize) -> Vec<Status> {
        use std::ops::Bound::{Excluded, Unbounded};
        let book = self.book();
        let from = after.map_or(Unbounded, Excluded);
        let rules = book.rules.range::<str, _>((from, Unbounded));
        rules
            .take(limit)
            .map(|(name, listed)| Self::status_of(name, listed))
            .collect()
    }

    /// The rule of this name, if it runs.
    pub(crate) fn running(&self, name: &str) -> Option<Arc<Bound>> {
        match &self.book().rules.get(name)?.state {
            State::Running(bound) => Some(bound.clone()),
            State::Disabled | State::Broken(_) => None,
        }
    }

    /// What meets a rule from now on, and what comes of it, as JSON. `None`: there is no such rule.
    pub fn watch(&self, name: &str) -> Option<broadcast::Receiver<Arc<Value>>> {
        let book = self.book();
        book.rules
            .get(name)
            .map(|listed| listed.standing.watchers.watch())
    }

    /// Calls `each` with every rule that something has met, its condition left out; for metrics.
    pub(crate) fn for_each_touched(&self, mut each: impl FnMut(&str, &Totals)) -> (usize, usize) {
        let book = self.book();
        let mut running = 0;
        for (name, listed) in &book.rules {
            running += usize::from(matches!(listed.state, State::Running(_)));
            if listed.standing.counters.is_touched() {
                each(name, &listed.standing.counters.total());
            }
        }
        (book.rules.len(), running)
    }
}
