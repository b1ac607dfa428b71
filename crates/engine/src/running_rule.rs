//! A rule as it runs: its compiled statement, its actions, what is counted of it and who watches it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rules::windows;
use rules::{CompileOptions, EventTime, KvLimits, Rule, RuleState, Zone};

use crate::action::Action;
use crate::counters::RuleCounters;
use crate::definition::RuleDefinition;
use crate::definition_error::RuleDefinitionError;
use crate::engine_shared::EngineShared;
use crate::recent_error::RecentError;
use crate::settings::RuleEngineSettings;
use crate::trace::TraceWatchers;

/// What stays when a rule is changed.
pub(crate) struct RuleMonitor {
    pub(crate) counters: RuleCounters,
    pub(crate) watchers: TraceWatchers,
    pub(crate) errors: RecentError,
}

impl RuleMonitor {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            counters: RuleCounters::new(lanes),
            watchers: TraceWatchers::default(),
            errors: RecentError::default(),
        }
    }
}

pub(crate) struct RunningRule {
    pub(crate) name: Box<str>,
    /// Never the same twice, so that messages know the rule they come from.
    pub(crate) serial: u64,
    pub(crate) rule: Rule,
    pub(crate) actions: Box<[Action]>,
    pub(crate) max_republish_depth: u8,
    pub(crate) window: Option<windows::WindowOptions>,
    /// When an event happened, if the rule says how to know.
    pub(crate) event_time: Option<EventTime>,
    /// Of rules that keep something from one message to the next; one for all shards.
    pub(crate) shared_state: Option<Arc<Mutex<RuleState>>>,
    pub(crate) monitor: Arc<RuleMonitor>,
    /// Of the statement and how it knows the time, so that a window is not continued by another rule.
    pub(crate) sql_hash: u64,
    /// What is probably a mistake, for people.
    pub(crate) warnings: Box<[String]>,
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// Bits of a tag that hold the serial; those above hold the depth.
const SERIAL_BITS: u32 = 56;

/// What a message that comes of a rule carries: the rule, and how many rules it has come through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RuleLineage(pub(crate) u64);

impl RuleLineage {
    /// Of what becomes of a message that a rule has made (delivered, dropped and so on): nothing is published because of it, else
    /// it would never end, by ways that no message can carry along.
    pub(crate) const NO_REPUBLISH: Self = Self((u8::MAX as u64) << SERIAL_BITS);

    /// Of a message that no rule hears of.
    pub(crate) const IGNORED: Self = Self(u64::MAX);

    pub(crate) fn new(depth: u8, serial: u64) -> Self {
        Self(u64::from(depth) << SERIAL_BITS | serial & ((1 << SERIAL_BITS) - 1))
    }

    /// As deep, of no rule that runs.
    pub(crate) fn with_depth(depth: u8) -> Self {
        Self(u64::from(depth) << SERIAL_BITS)
    }

    pub(crate) fn depth(self) -> u8 {
        (self.0 >> SERIAL_BITS) as u8
    }

    pub(crate) fn serial(self) -> u64 {
        self.0 & ((1 << SERIAL_BITS) - 1)
    }

    pub(crate) fn belongs_to(self, bound: &RunningRule) -> bool {
        self.0 != 0 && self.serial() == bound.serial
    }
}

/// Compiles what a definition says.
pub(crate) fn compile_rule(
    name: &str,
    definition: &RuleDefinition,
    shared: &EngineShared,
    standing: Arc<RuleMonitor>,
) -> Result<RunningRule, RuleDefinitionError> {
    let settings = &shared.settings;
    let has_devices = shared.devices.get().is_some();
    let mut options = compile_options(definition, settings)?;
    let rule = rules::compile(&definition.sql, &options)
        .map_err(|error| RuleDefinitionError::new("sql", error.report()))?;
    // Templates speak the language of their rule.
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
    // Only rules that say so keep anything; whoever says it in a text costs himself a lock.
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
        monitor: standing,
        warnings,
        sql_hash: match &definition.window.event_time {
            None => fnv1a_hash(&definition.sql),
            Some(event_time) => fnv1a_hash(&format!("{}\0{event_time}", definition.sql)),
        },
        rule,
    })
}

/// What the statement hardly means as it is written, and placeholders that are always null.
fn collect_warnings(rule: &Rule, actions: &[Action]) -> Box<[String]> {
    let doubts = rule.warnings().iter().map(|doubt| format!("sql: {doubt}"));
    let unknown = actions.iter().enumerate().flat_map(|(n, action)| {
        let names = action.unknown_names(rule).into_iter();
        names.map(move |name| {
            format!(
                "actions[{n}]: ${{{name}}} is always null: the rule's output has no column {name:?} and the event no such field"
            )
        })
    });
    doubts.chain(unknown).collect()
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
        let detail = "is about windows; expected a statement with GROUP BY";
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

/// FNV-1a: the same in every version of the program.
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
            let detail = format!("{name:?} is no time zone; expected a name such as Europe/Berlin or an offset such as +08:00");
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
