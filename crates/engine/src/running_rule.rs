//! A running rule: its compiled statement, its actions, its counters and its trace watchers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use rules::windows;
use rules::{CompileOptions, EventTime, KvLimits, Rule, RuleState, Zone};

use crate::action::Action;
use crate::action_input::ActingRule;
use crate::counters::RuleCounters;
use crate::definition::RuleDefinition;
use crate::definition_error::RuleDefinitionError;
use crate::recent_error::RecentError;
use crate::settings::RuleEngineSettings;
use crate::trace_watchers::TraceWatchers;

/// State that survives a change of the rule.
pub(crate) struct RuleMonitor {
    pub(crate) counters: RuleCounters,
    pub(crate) watchers: TraceWatchers,
    pub(crate) errors: RecentError,
}

impl RuleMonitor {
    pub(crate) fn new(producers: usize) -> Self {
        Self {
            counters: RuleCounters::new(producers),
            watchers: TraceWatchers::default(),
            errors: RecentError::default(),
        }
    }
}

pub(crate) struct RunningRule {
    pub(crate) name: Box<str>,
    /// Unique for the life of the process, so that messages identify the rule that published them.
    pub(crate) serial: u64,
    pub(crate) rule: Rule,
    pub(crate) actions: Box<[Action]>,
    pub(crate) max_republish_depth: u8,
    pub(crate) window: Option<windows::WindowOptions>,
    /// Computes the event's timestamp, if the rule defines one.
    pub(crate) event_time: Option<EventTime>,
    /// State of a rule that keeps values between messages; shared by all shards.
    pub(crate) shared_state: Option<Arc<Mutex<RuleState>>>,
    pub(crate) monitor: Arc<RuleMonitor>,
    /// Hash of the statement and its clock, so that a different rule does not continue a stored window.
    pub(crate) sql_hash: u64,
    /// Probable mistakes, for people.
    pub(crate) warnings: Box<[String]>,
}

impl RunningRule {
    /// The rule as its actions see it.
    #[inline]
    pub(crate) fn as_acting(&self) -> ActingRule<'_> {
        ActingRule {
            name: &self.name,
            serial: self.serial,
            max_republish_depth: self.max_republish_depth,
        }
    }
}

/// Runs `work` with the state of a rule. Stateless rules share one state.
pub(crate) fn with_state<R>(
    bound: &RunningRule,
    spare: &mut RuleState,
    work: impl FnOnce(&mut RuleState) -> R,
) -> R {
    match &bound.shared_state {
        None => work(spare),
        Some(memory) => work(&mut memory.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// Compiles a rule definition.
pub(crate) fn compile_rule(
    name: &str,
    definition: &RuleDefinition,
    settings: &RuleEngineSettings,
    has_devices: bool,
    monitor: Arc<RuleMonitor>,
) -> Result<RunningRule, RuleDefinitionError> {
    let mut options = compile_options(definition, settings)?;
    let rule = rules::compile(&definition.sql, &options)
        .map_err(|error| RuleDefinitionError::new("sql", error.report()))?;
    // Templates use the dialect of their rule.
    options.dialect = Some(rule.dialect());
    let action = |(n, action)| Action::compile(action, &options, has_devices, n);
    let actions = definition.actions.iter().enumerate().map(action);
    let actions: Box<[Action]> = actions.collect::<Result<_, _>>()?;
    let warnings = collect_warnings(&rule, &actions);
    let event_time = compile_event_time(definition, &rule, &options)?;
    let event_clock = event_time.as_ref().map(|_| windows::EventClockLimits {
        max_ahead_ms: (definition.window.max_ahead_ms).unwrap_or(settings.window_max_ahead_ms),
        idle_ms: (definition.window.idle_ms).unwrap_or(settings.window_idle_ms),
    });
    let window = rule.window().map(|_| windows::WindowOptions {
        event_time: event_clock,
        lateness_ms: definition
            .window
            .lateness_ms
            .unwrap_or(settings.window_lateness_ms),
        max_groups: stricter_limit(definition.window.max_groups, settings.window_max_groups),
        max_bytes: stricter_limit(definition.window.max_bytes, settings.window_max_bytes),
    });
    // Only rules that call these functions keep state. A rule that mentions them in a text literal merely
    // costs a lock.
    let plain: String = definition.sql.chars().filter(|&c| c != '_').collect();
    let plain = plain.to_ascii_lowercase();
    let remembers = ["kvstore", "procdict"]
        .iter()
        .any(|name| plain.contains(name));
    let limits = KvLimits {
        max_entries: settings.kv_max_entries,
        max_bytes: settings.kv_max_bytes,
    };
    Ok(RunningRule {
        name: name.into(),
        serial: NEXT_SERIAL.fetch_add(1, Relaxed),
        actions,
        max_republish_depth: stricter_limit(
            definition.limits.max_republish_depth,
            settings.max_republish_depth,
        ),
        window,
        event_time,
        shared_state: remembers.then(|| Arc::new(Mutex::new(RuleState::new(limits)))),
        monitor,
        warnings,
        sql_hash: match &definition.window.event_time {
            None => fnv1a_hash(&definition.sql),
            Some(event_time) => fnv1a_hash(&format!("{}\0{event_time}", definition.sql)),
        },
        rule,
    })
}

/// Parts of the statement that are probably mistakes, and placeholders that are always null.
fn collect_warnings(rule: &Rule, actions: &[Action]) -> Box<[String]> {
    let warnings = rule
        .warnings()
        .iter()
        .map(|warning| format!("sql: {warning}"));
    let unknown = actions.iter().enumerate().flat_map(|(n, action)| {
        let names = action.unknown_names(rule).into_iter();
        names.map(move |name| {
            format!(
                "actions[{n}]: ${{{name}}} is always null: the rule's output has no column {name:?} and the event no such field"
            )
        })
    });
    warnings.chain(unknown).collect()
}

fn compile_event_time(
    definition: &RuleDefinition,
    rule: &Rule,
    options: &CompileOptions,
) -> Result<Option<EventTime>, RuleDefinitionError> {
    const FIELD: &str = "window.event_time";
    let Some(text) = &definition.window.event_time else {
        return Ok(None);
    };
    if rule.window().is_none() {
        let detail = "applies to windows only; expected a statement with GROUP BY";
        return Err(RuleDefinitionError::new(FIELD, detail));
    }
    let compiled = EventTime::compile(text, rule, options);
    Ok(Some(compiled.map_err(|error| {
        RuleDefinitionError::new(FIELD, error.report())
    })?))
}

fn stricter_limit<T: Ord + Copy>(own: Option<T>, most: T) -> T {
    own.map_or(most, |own| own.min(most))
}

/// FNV-1a: stable across versions of the program.
fn fnv1a_hash(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

pub(crate) fn compile_options(
    definition: &RuleDefinition,
    settings: &RuleEngineSettings,
) -> Result<CompileOptions, RuleDefinitionError> {
    let timezone = match &definition.timezone {
        None => Zone::default(),
        Some(name) => Zone::parse(name).ok_or_else(|| {
            let detail = format!("{name:?} is not a time zone; expected a name such as Europe/Berlin or an offset such as +08:00");
            RuleDefinitionError::new("timezone", detail)
        })?,
    };
    let mut options = CompileOptions {
        dialect: definition.dialect,
        timezone,
        ..CompileOptions::default()
    };
    let bounds = &mut options.limits;
    bounds.max_steps = stricter_limit(definition.limits.max_steps, settings.max_steps);
    bounds.max_output_bytes = stricter_limit(
        definition.limits.max_output_bytes,
        settings.max_output_bytes,
    );
    bounds.max_outputs = settings.max_outputs;
    bounds.max_jq_steps = settings.max_jq_steps;
    Ok(options)
}
