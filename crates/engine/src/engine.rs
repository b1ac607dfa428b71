//! The rules of a node: which there are, which of them run, and how they change while messages are routed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use broker::BrokerHandle;
use broker::hooks::HooksFactory;
use rules::index::RuleIndex;
use rules::{EventKind, KvStore};
use serde_json::Value;
use store::{ObjectChange, Objects};
use tokio::sync::broadcast;

use crate::bridge_events::EvaluationContextCell;
use crate::counters::RuleTotals;
use crate::definition::{RULE_KIND, RuleDefinition, check_name};
use crate::definition_error::RuleDefinitionError;
use crate::device_events::ShardDeviceEvents;
use crate::engine_shared::{EngineShared, RuleSnapshot, hooks_interest};
use crate::hooks::RuleHooksFactory;
use crate::ports::{DevicePort, SinkPort};
use crate::recent_error::RuleFailure;
use crate::running_rule::{RuleMonitor, RunningRule, compile_rule};
use crate::saved_state::SavedRuleState;
use crate::settings::RuleEngineSettings;
use crate::window_queue::{WindowCommand, WindowQueue};
use crate::window_worker::WindowWorker;

/// Objects read from the store at once.
const PAGE_OBJECTS: usize = 1000;
/// Windows that are not stored in this time after a stop are lost.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The rules of a node. Clones are the same rules.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<EngineShared>,
    rules: Arc<Mutex<RuleTable>>,
    /// The thread that keeps windows.
    keeper: Arc<Mutex<Option<JoinHandle<()>>>>,
    objects: Arc<OnceLock<Objects>>,
    pub(crate) bridges: Arc<EvaluationContextCell>,
}

/// What is known of each rule; changed by the control plane only.
#[derive(Default)]
struct RuleTable {
    rules: BTreeMap<Box<str>, RuleTableEntry>,
    /// Those that run, as the shards have them.
    index: RuleIndex<Arc<RunningRule>>,
}

struct RuleTableEntry {
    monitor: Arc<RuleMonitor>,
    state: RuleEntryState,
    /// It stands in the configuration, not in the store.
    is_declared: bool,
}

enum RuleEntryState {
    Running(Arc<RunningRule>),
    Disabled,
    /// What is stored cannot run: why.
    Broken(RuleDefinitionError),
}

/// How a rule is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleCondition {
    Running,
    Disabled,
    Broken(RuleDefinitionError),
}

/// A rule with what has happened to it since the node started.
#[derive(Clone)]
pub struct RuleStatus {
    pub name: String,
    pub condition: RuleCondition,
    /// It stands in the configuration and cannot be changed otherwise.
    pub is_declared: bool,
    pub totals: RuleTotals,
    /// What went wrong last.
    pub last_error: Option<RuleFailure>,
    /// What is probably a mistake.
    pub warnings: Vec<String>,
}

impl Engine {
    /// `shards`: as many as the broker will have.
    pub fn new(settings: RuleEngineSettings, shards: usize) -> Self {
        let rows = WindowQueue::new(settings.window_queue_bytes);
        let shared = EngineShared {
            node_ip: crate::engine_shared::node_ip(),
            node_id_bits: crate::engine_shared::node_id_bits(&settings.node_name),
            environment: settings.environment(),
            settings,
            snapshot: Arc::new(ArcSwap::default()),
            rows,
            outlet: OnceLock::new(),
            handle: OnceLock::new(),
            wants_devices: AtomicBool::new(false),
            device_lanes: (0..shards).map(|_| ShardDeviceEvents::default()).collect(),
            devices: OnceLock::new(),
            by_serial: Mutex::default(),
            lanes: shards + 2,
        };
        Self {
            shared: Arc::new(shared),
            rules: Arc::default(),
            keeper: Arc::default(),
            objects: Arc::default(),
            bridges: Arc::default(),
        }
    }

    /// Where rows for sinks go; said once, before the first rule.
    pub fn set_sink_port(&self, outlet: Arc<dyn SinkPort>) {
        if self.shared.outlet.set(outlet).is_err() {
            tracing::error!("the rules were given a second outlet; this is a bug");
        }
    }

    /// What takes telemetry and alarms of rules; said once, before the first rule. Without it, rules with such actions are refused.
    pub fn set_device_port(&self, devices: Arc<dyn DevicePort>) {
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
    pub fn hooks_factory(&self) -> Arc<dyn HooksFactory> {
        Arc::new(RuleHooksFactory(self.shared.clone()))
    }

    fn lock_rules(&self) -> MutexGuard<'_, RuleTable> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a rule as a client of the API or the configuration has written it: as it is to be stored.
    pub fn prepare_rule(&self, name: &str, input: &Value) -> Result<Value, RuleDefinitionError> {
        check_name(name)?;
        let book = self.lock_rules();
        let listed = book.rules.get(name);
        if listed.is_some_and(|listed| listed.is_declared) {
            let detail = "this rule stands in the configuration; change it there";
            return Err(RuleDefinitionError::new("name", detail));
        }
        if listed.is_none() && book.rules.len() >= self.shared.settings.max_rules {
            let detail = format!(
                "there are {} rules already (rules.max_rules)",
                book.rules.len()
            );
            return Err(RuleDefinitionError::new("", detail));
        }
        drop(book);
        let definition = RuleDefinition::from_json(input)?;
        // Compiled to see whether it can be, also if it is not to run now.
        let standing = Arc::new(RuleMonitor::new(0));
        compile_rule(name, &definition, &self.shared, standing)?;
        Ok(definition.to_json())
    }

    /// Probable mistakes of an accepted rule.
    pub fn warnings(&self, accepted: &Value) -> Vec<String> {
        let standing = Arc::new(RuleMonitor::new(0));
        let bound = RuleDefinition::from_json(accepted)
            .and_then(|definition| compile_rule("", &definition, &self.shared, standing));
        bound.map_or_else(|_| Vec::new(), |bound| bound.warnings.into_vec())
    }

    /// Rules of the configuration, which cannot be changed while the node runs. Their names and what is wrong with them.
    pub fn declare(
        &self,
        rules: &[(String, Value)],
    ) -> Result<(), Vec<(usize, RuleDefinitionError)>> {
        let mut problems = Vec::new();
        for (n, (name, value)) in rules.iter().enumerate() {
            if let Err(problem) = self.prepare_rule(name, value) {
                problems.push((n, problem));
                continue;
            }
            let mut book = self.lock_rules();
            self.update_entry(&mut book, name, Some(value), true);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let book = self.lock_rules();
        self.publish_snapshot(&book);
        Ok(())
    }

    /// Runs the rules of the store, and from now on every change of them.
    pub fn watch_objects(&self, objects: &Objects) -> Result<(), store::StoreError> {
        let (engine, stored) = (self.clone(), objects.clone());
        objects.observe_changes(Box::new(move |change: &ObjectChange| {
            if change.kind == RULE_KIND {
                engine.reload(&stored, &change.id);
            }
        }));
        // Set once: a second store would be a bug of the program.
        let _ = self.objects.set(objects.clone());
        self.start_window_worker(Some(objects.clone()));
        self.restore_declared_states();
        let mut after: Option<String> = None;
        loop {
            let page = objects.list(RULE_KIND, after.as_deref(), PAGE_OBJECTS)?;
            let mut book = self.lock_rules();
            for object in &page {
                self.update_entry(&mut book, &object.id, Some(&object.value), false);
            }
            match page.last() {
                Some(last) if page.len() == PAGE_OBJECTS => after = Some(last.id.clone()),
                _ => {
                    self.publish_snapshot(&book);
                    return Ok(());
                }
            }
        }
    }

    fn reload(&self, objects: &Objects, name: &str) {
        let object = match objects.get(RULE_KIND, name) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(rule = name, %error, "a changed rule cannot be read; the one before goes on");
                return;
            }
        };
        self.put_rule(name, object.map(|object| object.value).as_ref());
    }

    /// A rule is this from now on (`None`: there is none). One that cannot run is listed with what is wrong.
    pub fn put_rule(&self, name: &str, value: Option<&Value>) {
        let mut book = self.lock_rules();
        self.update_entry(&mut book, name, value, false);
        self.publish_snapshot(&book);
    }

    /// Many rules at once, told to the shards when all are there.
    pub fn put_rules(&self, rules: impl Iterator<Item = (String, Value)>) {
        let mut book = self.lock_rules();
        for (name, value) in rules {
            self.update_entry(&mut book, &name, Some(&value), false);
        }
        self.publish_snapshot(&book);
    }

    /// Changes the book; the shards learn of it by `Engine::publish`.
    fn update_entry(
        &self,
        book: &mut RuleTable,
        name: &str,
        value: Option<&Value>,
        is_declared: bool,
    ) {
        let before = book.rules.get(name);
        if let Some(before) = before
            && before.is_declared
            && !is_declared
        {
            // The program warns of it, since it knows the place in the file.
            return;
        }
        let standing = before.map(|before| before.monitor.clone());
        let standing = standing.unwrap_or_else(|| Arc::new(RuleMonitor::new(self.shared.lanes)));
        let had_window = before.is_some_and(
            |before| matches!(&before.state, RuleEntryState::Running(bound) if bound.window.is_some()),
        );
        let had_memory = before.is_some_and(
            |before| matches!(&before.state, RuleEntryState::Running(bound) if bound.shared_state.is_some()),
        );
        let state = value.map(|value| {
            let definition = RuleDefinition::from_json(value);
            match definition {
                Ok(definition) if !definition.enabled => RuleEntryState::Disabled,
                Ok(definition) => {
                    match compile_rule(name, &definition, &self.shared, standing.clone()) {
                        Ok(mut bound) => {
                            for warning in &bound.warnings {
                                tracing::warn!(rule = name, warning, "rule has a probable mistake");
                            }
                            self.inherit_state(&mut bound, before);
                            let bound = Arc::new(bound);
                            self.shared.register_serial(&bound);
                            RuleEntryState::Running(bound)
                        }
                        Err(problem) => RuleEntryState::Broken(problem),
                    }
                }
                Err(problem) => RuleEntryState::Broken(problem),
            }
        });
        if let Some(RuleEntryState::Broken(problem)) = &state {
            tracing::error!(rule = name, %problem, "a stored rule cannot run");
        }
        if let Some(RuleEntryState::Running(before)) = before.map(|before| &before.state) {
            let (serial, rule) = (before.serial, &before.rule);
            book.index
                .remove(rule.sources(), rule.index_keys(), |bound| {
                    bound.serial == serial
                });
        }
        let mut has_window = false;
        if let Some(RuleEntryState::Running(bound)) = &state {
            book.index
                .add(bound.rule.sources(), bound.rule.index_keys(), bound);
            has_window = bound.window.is_some();
            if has_window {
                // Before the shards can send its first row.
                self.shared
                    .rows
                    .send_command(WindowCommand::StartRule(bound.clone()));
            }
        }
        match &state {
            Some(RuleEntryState::Running(bound)) if bound.shared_state.is_some() => {
                self.shared
                    .rows
                    .send_command(WindowCommand::TrackState(bound.clone()));
            }
            _ if had_memory => self
                .shared
                .rows
                .send_command(WindowCommand::UntrackState(name.into())),
            _ => {}
        }
        if had_window && !has_window {
            self.shared
                .rows
                .send_command(WindowCommand::StopRule(name.into()));
        }
        match state {
            Some(state) => {
                let listed = RuleTableEntry {
                    monitor: standing,
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
    fn inherit_state(&self, bound: &mut RunningRule, before: Option<&RuleTableEntry>) {
        if bound.shared_state.is_none() {
            return;
        }
        match before.map(|before| &before.state) {
            Some(RuleEntryState::Running(before))
                if before.shared_state.is_some() && before.sql_hash == bound.sql_hash =>
            {
                bound.shared_state.clone_from(&before.shared_state);
            }
            _ => self.restore_state(bound),
        }
    }

    /// Gives the shards what is in the book.
    fn publish_snapshot(&self, book: &RuleTable) {
        let interest = hooks_interest(&book.index);
        let snapshot = Arc::new(RuleSnapshot {
            index: book.index.clone(),
            interest,
        });
        let wants_devices = book.index.has_rules_for(EventKind::Device);
        let before = self.shared.snapshot.swap(snapshot);
        self.shared.wants_devices.store(wants_devices, Relaxed);
        if before.interest != interest
            && let Some(handle) = self.shared.handle.get()
        {
            handle.refresh_hook_interest();
        }
    }

    /// The broker runs.
    pub fn start(&self, handle: BrokerHandle) {
        handle.refresh_hook_interest();
        if self.shared.handle.set(handle).is_err() {
            tracing::error!("the rules were given a second broker; this is a bug");
        }
        self.start_window_worker(None);
    }

    /// Rules of the configuration, which were there before the store, go on with what they had kept.
    fn restore_declared_states(&self) {
        let book = self.lock_rules();
        for listed in book.rules.values() {
            if let RuleEntryState::Running(bound) = &listed.state
                && bound.shared_state.is_some()
            {
                self.restore_state(bound);
            }
        }
    }

    /// Before it runs: what the rule of this name and statement had kept.
    fn restore_state(&self, bound: &RunningRule) {
        let (Some(memory), Some(objects)) = (&bound.shared_state, self.objects.get()) else {
            return;
        };
        let saved = SavedRuleState::for_rule_states(objects.clone());
        let Some(snapshot) = saved.read(&bound.name, bound.sql_hash) else {
            return;
        };
        let mut state = memory.lock().unwrap_or_else(PoisonError::into_inner);
        match KvStore::restore(state.kv.limits(), &snapshot) {
            Ok(kv) => state.kv = kv,
            Err(error) => {
                tracing::warn!(rule = &*bound.name, %error, "what a rule had kept is lost");
            }
        }
    }

    fn start_window_worker(&self, objects: Option<Objects>) {
        let mut thread = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return;
        }
        let keeper = WindowWorker::new(self.shared.clone(), objects);
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
        self.shared.rows.send_command(WindowCommand::Stop);
        let (done, stopped) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = done.send(thread.join().is_err());
        });
        match stopped.recv_timeout(STOP_TIMEOUT) {
            Ok(false) => {}
            Ok(true) => tracing::error!("the windows of rules ended by a panic; this is a bug"),
            Err(_) => tracing::warn!("the windows of rules were not stored in time"),
        }
    }

    fn build_status(name: &str, listed: &RuleTableEntry) -> RuleStatus {
        RuleStatus {
            name: name.to_owned(),
            condition: match &listed.state {
                RuleEntryState::Running(_) => RuleCondition::Running,
                RuleEntryState::Disabled => RuleCondition::Disabled,
                RuleEntryState::Broken(problem) => RuleCondition::Broken(problem.clone()),
            },
            is_declared: listed.is_declared,
            totals: listed.monitor.counters.total(),
            last_error: listed.monitor.errors.last(),
            warnings: match &listed.state {
                RuleEntryState::Running(bound) => bound.warnings.to_vec(),
                RuleEntryState::Disabled | RuleEntryState::Broken(_) => Vec::new(),
            },
        }
    }

    pub fn status(&self, name: &str) -> Option<RuleStatus> {
        let book = self.lock_rules();
        book.rules
            .get(name)
            .map(|listed| Self::build_status(name, listed))
    }

    /// Rules by name, those behind `after`, at most `limit`.
    pub fn statuses(&self, after: Option<&str>, limit: usize) -> Vec<RuleStatus> {
        use std::ops::Bound::{Excluded, Unbounded};
        let book = self.lock_rules();
        let from = after.map_or(Unbounded, Excluded);
        let rules = book.rules.range::<str, _>((from, Unbounded));
        rules
            .take(limit)
            .map(|(name, listed)| Self::build_status(name, listed))
            .collect()
    }

    /// The rule of this name, if it runs.
    pub(crate) fn find_running(&self, name: &str) -> Option<Arc<RunningRule>> {
        match &self.lock_rules().rules.get(name)?.state {
            RuleEntryState::Running(bound) => Some(bound.clone()),
            RuleEntryState::Disabled | RuleEntryState::Broken(_) => None,
        }
    }

    /// What meets a rule from now on, and what comes of it, as JSON. `None`: there is no such rule.
    pub fn watch(&self, name: &str) -> Option<broadcast::Receiver<Arc<Value>>> {
        let book = self.lock_rules();
        book.rules
            .get(name)
            .map(|listed| listed.monitor.watchers.watch())
    }

    /// Calls `each` with every rule that something has met, its condition left out; for metrics.
    pub(crate) fn for_each_active(
        &self,
        mut each: impl FnMut(&str, &RuleTotals),
    ) -> (usize, usize) {
        let book = self.lock_rules();
        let mut running = 0;
        for (name, listed) in &book.rules {
            running += usize::from(matches!(listed.state, RuleEntryState::Running(_)));
            if listed.monitor.counters.has_counts() {
                each(name, &listed.monitor.counters.total());
            }
        }
        (book.rules.len(), running)
    }
}
