//! The rule engine of a node: the table of rules, their life cycle, and their replacement while messages are
//! routed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use hooks::{BrokerPort, HooksFactory};
use rules::index::RuleIndex;
use rules::{EventKind, KvStore};
use serde_json::Value;
use store::{ObjectChange, Objects};
use tokio::sync::broadcast;

use crate::counters::RuleTotals;
use crate::definition::{RULE_KIND, RuleDefinition, check_name};
use crate::definition_error::RuleDefinitionError;
use crate::engine_shared::{EngineShared, RuleSnapshot, hooks_interest};
use crate::evaluation_context::{EvaluationContext, EvaluationContextCell};
use crate::ports::{DevicePort, EnginePorts, SinkPort};
use crate::recent_error::RuleFailure;
use crate::rule_hooks::RuleHooksFactory;
use crate::running_rule::{RuleMonitor, RunningRule};
use crate::saved_state::SavedRuleState;
use crate::settings::RuleEngineSettings;
use crate::trace_record::TraceRecord;
use crate::window_queue::{WindowCommand, WindowQueue};
use crate::window_worker::WindowWorker;

/// Windows that are not stored within this time after a stop are lost.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The rules of a node. Clones share the same rules.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<EngineShared>,
    rules: Arc<Mutex<RuleTable>>,
    /// The thread that owns the windows.
    window_thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    objects: Arc<OnceLock<Objects>>,
    bridges: Arc<EvaluationContextCell>,
}

/// The state of each rule. Only the control plane changes it.
#[derive(Default)]
struct RuleTable {
    rules: BTreeMap<Box<str>, RuleTableEntry>,
    /// The running rules, as the shards see them.
    index: RuleIndex<Arc<RunningRule>>,
}

struct RuleTableEntry {
    monitor: Arc<RuleMonitor>,
    state: RuleEntryState,
    /// Declared in the configuration file rather than stored.
    is_declared: bool,
}

enum RuleEntryState {
    Running(Arc<RunningRule>),
    Disabled,
    /// The stored rule cannot run, for this reason.
    Broken(RuleDefinitionError),
}

/// The condition of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleCondition {
    Running,
    Disabled,
    Broken(RuleDefinitionError),
}

/// A rule with its counters since the start of the node.
#[derive(Clone)]
pub struct RuleStatus {
    pub name: String,
    pub state: RuleCondition,
    /// Declared in the configuration file; it cannot be changed otherwise.
    pub is_declared: bool,
    pub totals: RuleTotals,
    /// The most recent failure.
    pub last_error: Option<RuleFailure>,
    /// Probable mistakes.
    pub warnings: Vec<String>,
}

impl Engine {
    /// Creates an engine without rules. `shards` is the number of shards the broker will have.
    pub fn new(settings: RuleEngineSettings, shards: usize) -> Self {
        let rows = WindowQueue::new(settings.window_queue_bytes);
        let shared = EngineShared {
            node_ip: crate::engine_shared::node_ip(),
            node_id_bits: crate::engine_shared::node_id_bits(&settings.node_name),
            environment: settings.environment(),
            settings,
            snapshot: Arc::new(ArcSwap::default()),
            rows,
            ports: Arc::new(EnginePorts::default()),
            wants_devices: AtomicBool::new(false),
            wants_relay: AtomicBool::new(false),
            by_serial: Mutex::default(),
            producers: shards + 2,
        };
        Self {
            shared: Arc::new(shared),
            rules: Arc::default(),
            window_thread: Arc::default(),
            objects: Arc::default(),
            bridges: Arc::default(),
        }
    }

    /// Calls `work` with the evaluation context of events outside the shards; one event at a time uses it.
    pub(crate) fn with_evaluation_context<R>(
        &self,
        work: impl FnOnce(&mut EvaluationContext) -> R,
    ) -> R {
        let create = || {
            self.shared
                .evaluation_context(self.shared.bridge_producer())
        };
        self.bridges.with_context(create, work)
    }

    /// Sets the port that receives rows for sinks. Called once, before the first rule is added.
    pub fn set_sink_port(&self, sink_port: Arc<dyn SinkPort>) {
        if self.shared.ports.sinks.set(sink_port).is_err() {
            tracing::error!(
                "sink port of the rule engine is set twice; ignoring the second one; this is a bug"
            );
        }
    }

    /// Sets the port that receives telemetry and alarms of rules. Called once, before the first rule is
    /// added. Without a device port, rules with such actions are rejected.
    pub fn set_device_port(&self, devices: Arc<dyn DevicePort>) {
        if self.shared.ports.devices.set(devices).is_err() {
            tracing::error!(
                "device port of the rule engine is set twice; ignoring the second one; this is a bug"
            );
        }
    }

    pub(crate) fn has_devices(&self) -> bool {
        self.shared.ports.devices.get().is_some()
    }

    /// The JSON schemas of a rule: as written and as returned.
    pub fn schemas(&self) -> (Value, Value) {
        crate::schema::schemas(self.has_devices())
    }

    /// The factory of the engine's hooks, to be registered with the broker.
    pub fn hooks_factory(&self) -> Arc<dyn HooksFactory> {
        Arc::new(RuleHooksFactory(self.shared.clone()))
    }

    fn lock_rules(&self) -> MutexGuard<'_, RuleTable> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a rule written in the API or the configuration and returns the form to be stored.
    pub fn prepare_rule(&self, name: &str, input: &Value) -> Result<Value, RuleDefinitionError> {
        check_name(name)?;
        let table = self.lock_rules();
        let listed = table.rules.get(name);
        if listed.is_some_and(|listed| listed.is_declared) {
            let detail = "this rule is declared in the configuration file; change it there";
            return Err(RuleDefinitionError::new("name", detail));
        }
        if listed.is_none() && table.rules.len() >= self.shared.settings.max_rules {
            let detail = format!(
                "the limit of {} rules is reached (rules.max_rules)",
                table.rules.len()
            );
            return Err(RuleDefinitionError::new("", detail));
        }
        drop(table);
        let definition = RuleDefinition::from_json(input)?;
        // A disabled rule is compiled, too, to find its errors.
        let monitor = Arc::new(RuleMonitor::new(0));
        self.shared.compile_rule(name, &definition, monitor)?;
        Ok(definition.to_json())
    }

    /// Probable mistakes of an accepted rule.
    pub fn warnings(&self, accepted: &Value) -> Vec<String> {
        let monitor = Arc::new(RuleMonitor::new(0));
        let bound = RuleDefinition::from_json(accepted)
            .and_then(|definition| self.shared.compile_rule("", &definition, monitor));
        bound.map_or_else(|_| Vec::new(), |bound| bound.warnings.into_vec())
    }

    /// Adds the rules of the configuration, which cannot be changed while the node runs. Returns the names of
    /// invalid rules with their errors.
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
            let mut table = self.lock_rules();
            self.update_entry(&mut table, name, Some(value), true);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let table = self.lock_rules();
        self.publish_snapshot(&table);
        Ok(())
    }

    /// Starts the stored rules and follows all their changes from now on.
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
        objects.for_each(RULE_KIND, |object| {
            let mut table = self.lock_rules();
            self.update_entry(&mut table, &object.id, Some(&object.value), false);
        })?;
        self.publish_snapshot(&self.lock_rules());
        Ok(())
    }

    fn reload(&self, objects: &Objects, name: &str) {
        let object = match objects.get(RULE_KIND, name) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(rule = name, %error, "changed rule cannot be read; its previous version keeps running");
                return;
            }
        };
        self.put_rule(name, object.map(|object| object.value).as_ref());
    }

    /// Adds or replaces a rule, or deletes it (`None`). A rule that cannot run is listed with its error.
    pub fn put_rule(&self, name: &str, value: Option<&Value>) {
        let mut table = self.lock_rules();
        self.update_entry(&mut table, name, value, false);
        self.publish_snapshot(&table);
    }

    /// Adds many rules and publishes them to the shards once.
    pub fn put_rules(&self, rules: impl Iterator<Item = (String, Value)>) {
        let mut table = self.lock_rules();
        for (name, value) in rules {
            self.update_entry(&mut table, &name, Some(&value), false);
        }
        self.publish_snapshot(&table);
    }

    /// Changes the table of rules. The shards see the change after `Engine::publish_snapshot`.
    fn update_entry(
        &self,
        table: &mut RuleTable,
        name: &str,
        value: Option<&Value>,
        is_declared: bool,
    ) {
        let before = table.rules.get(name);
        if let Some(before) = before
            && before.is_declared
            && !is_declared
        {
            // The program logs the warnings of declared rules, because it knows their position in the file.
            return;
        }
        let monitor = before.map(|before| before.monitor.clone());
        let monitor = monitor.unwrap_or_else(|| Arc::new(RuleMonitor::new(self.shared.producers)));
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
                    match self.shared.compile_rule(name, &definition, monitor.clone()) {
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
            tracing::error!(rule = name, %problem, "stored rule is invalid; it does not run");
        }
        if let Some(RuleEntryState::Running(before)) = before.map(|before| &before.state) {
            let (serial, rule) = (before.serial, &before.rule);
            table
                .index
                .remove(rule.sources(), rule.index_keys(), |bound| {
                    bound.serial == serial
                });
        }
        let mut has_window = false;
        if let Some(RuleEntryState::Running(bound)) = &state {
            table
                .index
                .add(bound.rule.sources(), bound.rule.index_keys(), bound);
            has_window = bound.window.is_some();
            if has_window {
                // The window thread must know the rule before a shard sends its first row.
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
                    monitor,
                    state,
                    is_declared,
                };
                table.rules.insert(name.into(), listed);
            }
            None => {
                table.rules.remove(name);
            }
        }
    }

    /// A rule changed without a change of its statement shares its keyed state with its predecessor, which
    /// some shards still run. A new rule loads the stored state.
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

    /// Publishes the table of rules to the shards.
    fn publish_snapshot(&self, table: &RuleTable) {
        let interest = hooks_interest(&table.index);
        let snapshot = Arc::new(RuleSnapshot {
            index: table.index.clone(),
            interest,
        });
        let wants_devices = table.index.has_rules_for(EventKind::Device);
        let wants_relay = crate::engine_shared::RELAY_EVENTS
            .into_iter()
            .any(|kind| table.index.has_rules_for(kind));
        let before = self.shared.snapshot.swap(snapshot);
        self.shared.wants_devices.store(wants_devices, Relaxed);
        self.shared.wants_relay.store(wants_relay, Relaxed);
        if before.interest != interest
            && let Some(broker) = self.shared.ports.broker.get()
        {
            broker.refresh_hook_interest();
        }
    }

    /// Starts the engine; called when the broker runs.
    pub fn start(&self, broker: Arc<dyn BrokerPort>) {
        broker.refresh_hook_interest();
        if self.shared.ports.broker.set(broker).is_err() {
            tracing::error!(
                "broker port of the rule engine is set twice; ignoring the second one; this is a bug"
            );
        }
        self.start_window_worker(None);
    }

    /// Restores the stored state of the declared rules, which were added before the store was open.
    fn restore_declared_states(&self) {
        let table = self.lock_rules();
        for listed in table.rules.values() {
            if let RuleEntryState::Running(bound) = &listed.state
                && bound.shared_state.is_some()
            {
                self.restore_state(bound);
            }
        }
    }

    /// Restores the state stored for a rule of this name and statement. Called before the rule runs.
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
                tracing::warn!(rule = &*bound.name, %error, "stored state of a rule cannot be restored; it starts empty");
            }
        }
    }

    fn start_window_worker(&self, objects: Option<Objects>) {
        let mut thread = self
            .window_thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return;
        }
        let worker = WindowWorker::new(self.shared.clone(), objects);
        let spawned = std::thread::Builder::new()
            .name("rule-windows".into())
            .spawn(move || worker.run());
        match spawned {
            Ok(spawned) => *thread = Some(spawned),
            Err(error) => {
                tracing::error!(%error, "window thread cannot be started; rules with windows do not run")
            }
        }
    }

    /// Stops the window thread and stores the windows. Called after the broker has stopped and before the
    /// store is closed.
    pub fn stop(&self) {
        let thread = self
            .window_thread
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
            Ok(true) => tracing::error!(
                "window thread panicked; windows of rules are not stored; this is a bug"
            ),
            Err(_) => tracing::warn!("windows of rules were not stored in time; they are lost"),
        }
    }

    fn build_status(name: &str, listed: &RuleTableEntry) -> RuleStatus {
        RuleStatus {
            name: name.to_owned(),
            state: match &listed.state {
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
        let table = self.lock_rules();
        table
            .rules
            .get(name)
            .map(|listed| Self::build_status(name, listed))
    }

    /// Rules in order of name, after the name `after`, at most `limit`.
    pub fn statuses(&self, after: Option<&str>, limit: usize) -> Vec<RuleStatus> {
        use std::ops::Bound::{Excluded, Unbounded};
        let table = self.lock_rules();
        let from = after.map_or(Unbounded, Excluded);
        let rules = table.rules.range::<str, _>((from, Unbounded));
        rules
            .take(limit)
            .map(|(name, listed)| Self::build_status(name, listed))
            .collect()
    }

    /// The running rule of this name.
    pub(crate) fn find_running(&self, name: &str) -> Option<Arc<RunningRule>> {
        match &self.lock_rules().rules.get(name)?.state {
            RuleEntryState::Running(bound) => Some(bound.clone()),
            RuleEntryState::Disabled | RuleEntryState::Broken(_) => None,
        }
    }

    /// Subscribes to a trace of a rule: the events it evaluates and their results, as JSON. `None`: there is
    /// no such rule.
    pub fn watch(&self, name: &str) -> Option<broadcast::Receiver<Arc<TraceRecord>>> {
        let table = self.lock_rules();
        table
            .rules
            .get(name)
            .map(|listed| listed.monitor.watchers.watch())
    }

    /// Calls `each` with every rule that has counters, for metrics. The condition of the rule is not filled
    /// in.
    pub(crate) fn for_each_active(
        &self,
        mut each: impl FnMut(&str, &RuleTotals),
    ) -> (usize, usize) {
        let table = self.lock_rules();
        let mut running = 0;
        for (name, listed) in &table.rules {
            running += usize::from(matches!(listed.state, RuleEntryState::Running(_)));
            if listed.monitor.counters.has_counts() {
                each(name, &listed.monitor.counters.total());
            }
        }
        (table.rules.len(), running)
    }
}
