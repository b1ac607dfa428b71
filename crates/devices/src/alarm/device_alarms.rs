//! State machine for the alarms of one device: values and time in, transitions out. It has no clock and no store.
//!
//! The clock of a device follows the timestamps of its messages. It never goes back and is never in the future;
//! between messages it advances with the clock of the node. Data that arrives late in bulk is therefore evaluated as
//! if it had arrived in time.

use std::collections::VecDeque;

use series::{KeyId, Point, PointValue};

use super::condition::{
    CompiledCondition, ConditionContext, KeyNames, LatestValue, ONLINE_KEY, Scalar,
};
use super::definition::{AlarmRule, AlarmTrigger, Severity};
use super::definition_error::AlarmDefinitionError;
use super::schedule::AlarmSchedule;

const MAX_RULES: usize = 64;
const MAX_RAISES: usize = 8;
/// Maximum number of keys in all rules of a product.
const MAX_KEYS: usize = 256;
const MAX_TIMES: u32 = 1000;
const MAX_SPAN_S: u32 = 30 * 24 * 3600;

/// The compiled alarm rules of a product.
#[derive(Debug)]
pub struct AlarmSet {
    /// The keys that the conditions use, by slot; `None`: not a telemetry key.
    keys: Box<[Option<KeyId>]>,
    names: Box<[Box<str>]>,
    online_place: Option<usize>,
    rules: Box<[CompiledAlarmRule]>,
}

#[derive(Debug)]
struct CompiledAlarmRule {
    id: Box<str>,
    /// Triggers, the worst severity first.
    raise: Box<[(Severity, CompiledTrigger)]>,
    clear: Option<CompiledTrigger>,
    /// Whether the conditions test only the connection state. Such a rule is evaluated with the clock of the node.
    is_about_presence: bool,
}

#[derive(Debug)]
struct CompiledTrigger {
    condition: CompiledCondition,
    kind: TriggerKind,
    schedule: AlarmSchedule,
}

#[derive(Debug, Clone, Copy)]
enum TriggerKind {
    Simple,
    Duration { for_ms: u64 },
    Repeating { times: u32, within_ms: Option<u64> },
}

/// The alarm state of one device.
#[derive(Debug)]
pub struct DeviceAlarms {
    latest: Box<[Option<LatestValue>]>,
    rules: Box<[AlarmRuleState]>,
    /// The latest time of the device, and the time of the node at that moment.
    clock_ms: u64,
    node_clock_ms: u64,
}

#[derive(Debug, Default)]
struct AlarmRuleState {
    raise: Box<[TriggerState]>,
    clear: TriggerState,
    /// The severity of the alarm, if it is not cleared.
    active: Option<Severity>,
}

#[derive(Debug, Default)]
struct TriggerState {
    /// Start of the period in which the condition has held.
    since_ms: Option<u64>,
    /// Times of the messages for which the condition held.
    match_times_ms: VecDeque<u64>,
}

/// What happened to an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmTransitionKind {
    Raised(Severity),
    SeverityChanged { from: Severity, to: Severity },
    Cleared,
}

/// A transition of the alarm of a rule; `rule` is the index in the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlarmTransition {
    pub rule: usize,
    pub kind: AlarmTransitionKind,
    /// Time of the device.
    pub at_ms: u64,
}

impl AlarmSet {
    /// Compiles the enabled rules of a product. `key` resolves the number of a key.
    pub fn compile(
        rules: &[AlarmRule],
        key: &mut dyn FnMut(&str) -> Result<KeyId, AlarmDefinitionError>,
    ) -> Result<Self, AlarmDefinitionError> {
        if rules.len() > MAX_RULES {
            let expected = format!("expected at most {MAX_RULES} rules in a product");
            return Err(AlarmDefinitionError::new("alarms", expected));
        }
        let mut names = KeyNames::default();
        let mut compiled = Vec::with_capacity(rules.len());
        for (at, rule) in rules.iter().enumerate() {
            let path = format!("alarms[{at}]");
            if rules[..at].iter().any(|other| other.id == rule.id) {
                let detail = format!("{:?} occurs twice; expected unique ids", rule.id);
                return Err(AlarmDefinitionError::new(&format!("{path}.id"), detail));
            }
            let rule_compiled = CompiledAlarmRule::compile(rule, &mut names, &path)?;
            if rule.enabled {
                compiled.push(rule_compiled);
            }
        }
        if names.0.len() > MAX_KEYS {
            let expected = format!("expected at most {MAX_KEYS} keys in all rules of a product");
            return Err(AlarmDefinitionError::new("alarms", expected));
        }
        let online_place = names.0.iter().position(|name| **name == *ONLINE_KEY);
        for rule in &mut compiled {
            let is_about = |place: usize| rule.conditions().any(|one| one.refers_to(place));
            rule.is_about_presence = online_place.is_some_and(is_about)
                && (0..names.0.len()).all(|place| Some(place) == online_place || !is_about(place));
        }
        let keys = names.0.iter().map(|name| match &**name {
            ONLINE_KEY => Ok(None),
            name => key(name).map(Some),
        });
        Ok(Self {
            keys: keys.collect::<Result<_, _>>()?,
            online_place,
            names: names.0.into(),
            rules: compiled.into(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub fn rule_id(&self, rule: usize) -> &str {
        &self.rules[rule].id
    }

    pub fn rule(&self, id: &str) -> Option<usize> {
        self.rules.iter().position(|rule| *rule.id == *id)
    }

    fn slot_of(&self, key: KeyId) -> Option<usize> {
        // Few keys: a linear search is faster than a map.
        self.keys.iter().position(|known| *known == Some(key))
    }
}

impl CompiledAlarmRule {
    fn compile(
        rule: &AlarmRule,
        names: &mut KeyNames,
        path: &str,
    ) -> Result<Self, AlarmDefinitionError> {
        let is_good = |c: char| c.is_alphanumeric() || "_-.: ".contains(c);
        if rule.id.is_empty() || rule.id.len() > 128 || !rule.id.chars().all(is_good) {
            let expected = "expected 1 to 128 bytes of letters, digits, blanks and _ - . :";
            return Err(AlarmDefinitionError::new(&format!("{path}.id"), expected));
        }
        if rule.raise.is_empty() || rule.raise.len() > MAX_RAISES {
            let expected = format!("expected 1 to {MAX_RAISES} severities");
            return Err(AlarmDefinitionError::new(
                &format!("{path}.raise"),
                expected,
            ));
        }
        let mut raise = Vec::with_capacity(rule.raise.len());
        for (at, one) in rule.raise.iter().enumerate() {
            let path = format!("{path}.raise[{at}]");
            raise.push((
                one.severity,
                CompiledTrigger::compile(&one.when, names, &path)?,
            ));
        }
        raise.sort_by_key(|(severity, _)| *severity);
        let clear = rule.clear.as_ref();
        let clear =
            clear.map(|when| CompiledTrigger::compile(when, names, &format!("{path}.clear")));
        Ok(Self {
            id: rule.id.as_str().into(),
            raise: raise.into(),
            clear: clear.transpose()?,
            is_about_presence: false,
        })
    }

    /// The time at which the rule is evaluated.
    fn at_ms(&self, device_ms: u64, now_ms: u64) -> u64 {
        match self.is_about_presence {
            true => now_ms,
            false => device_ms,
        }
    }

    fn conditions(&self) -> impl Iterator<Item = &CompiledCondition> {
        let raise = self.raise.iter().map(|(_, watched)| watched);
        let watched = raise.chain(&self.clear);
        watched.map(|watched| &watched.condition)
    }
}

impl CompiledTrigger {
    fn compile(
        when: &AlarmTrigger,
        names: &mut KeyNames,
        path: &str,
    ) -> Result<Self, AlarmDefinitionError> {
        let at = |field: &str| format!("{path}.{field}");
        let span_ms = |field: &str, seconds: u32| {
            if (1..=MAX_SPAN_S).contains(&seconds) {
                Ok(u64::from(seconds) * 1000)
            } else {
                let expected = format!("expected 1 to {MAX_SPAN_S} seconds");
                Err(AlarmDefinitionError::new(&at(field), expected))
            }
        };
        let kind = match (when.for_s, when.times, when.within_s) {
            (None, None, None) => TriggerKind::Simple,
            (Some(seconds), None, None) => TriggerKind::Duration {
                for_ms: span_ms("for_s", seconds)?,
            },
            (None, Some(times), within_s) => {
                if !(1..=MAX_TIMES).contains(&times) {
                    let expected = format!("expected 1 to {MAX_TIMES}");
                    return Err(AlarmDefinitionError::new(&at("times"), expected));
                }
                let within_ms = within_s.map(|seconds| span_ms("within_s", seconds));
                TriggerKind::Repeating {
                    times,
                    within_ms: within_ms.transpose()?,
                }
            }
            (None, None, Some(_)) => {
                return Err(AlarmDefinitionError::new(
                    &at("within_s"),
                    "expected times as well",
                ));
            }
            (Some(_), _, _) => {
                let expected = "expected either for_s, or times and within_s";
                return Err(AlarmDefinitionError::new(&at("for_s"), expected));
            }
        };
        Ok(Self {
            condition: CompiledCondition::compile(&when.when, names, &at("when"))?,
            kind,
            schedule: AlarmSchedule::compile(&when.schedule, &at("schedule"))?,
        })
    }
}

/// The new input of an evaluation.
enum AlarmInput<'a> {
    /// New values in these slots.
    Values(&'a [bool]),
    /// Only time has passed.
    Time,
}

impl DeviceAlarms {
    pub fn new(set: &AlarmSet) -> Self {
        let rules = set.rules.iter().map(|rule| AlarmRuleState {
            raise: rule.raise.iter().map(|_| TriggerState::default()).collect(),
            ..AlarmRuleState::default()
        });
        Self {
            latest: set.keys.iter().map(|_| None).collect(),
            rules: rules.collect(),
            clock_ms: 0,
            node_clock_ms: 0,
        }
    }

    /// Restores an alarm that was raised before this state was created.
    pub fn restore(&mut self, rule: usize, severity: Severity) {
        self.rules[rule].active = Some(severity);
    }

    /// Resets the rule of an alarm that an operator has cleared; the next message may raise it again.
    pub fn mark_cleared(&mut self, rule: usize) {
        self.rules[rule].reset();
    }

    /// Takes over which alarms are open, and their severities by the ids of the rules, after these were changed elsewhere.
    pub fn synchronize(&mut self, set: &AlarmSet, open: &dyn Fn(&str) -> Option<Severity>) {
        for (rule, state) in set.rules.iter().zip(&mut self.rules) {
            match open(&rule.id) {
                None if state.active.is_some() => state.reset(),
                severity => state.active = severity,
            }
        }
    }

    /// The latest values of the keys that conditions use.
    pub fn values<'a>(&'a self, set: &'a AlarmSet) -> impl Iterator<Item = (&'a str, &'a Scalar)> {
        let names = set.names.iter().map(|name| &**name);
        let values = names.zip(&self.latest);
        values.filter_map(|(name, latest)| Some((name, &latest.as_ref()?.value)))
    }

    /// Applies a row of telemetry. Returns `false` if no condition uses its keys. Values older than the latest one of
    /// their key are ignored.
    pub fn observe(
        &mut self,
        set: &AlarmSet,
        now_ms: u64,
        ts_ms: i64,
        points: &[Point<'_>],
        attribute: &dyn Fn(&str) -> Option<Scalar>,
        out: &mut Vec<AlarmTransition>,
    ) -> bool {
        // Most messages of most products contain no key that conditions use.
        let mut reported = [false; MAX_KEYS];
        let mut is_said = false;
        for point in points {
            let Some(place) = set.slot_of(point.key) else {
                continue;
            };
            let latest = &mut self.latest[place];
            if latest.as_ref().is_some_and(|latest| latest.ts_ms > ts_ms) {
                continue;
            }
            let Some(value) = scalar(point.value) else {
                continue;
            };
            *latest = Some(LatestValue {
                value,
                ts_ms,
                received_ms: now_ms,
            });
            reported[place] = true;
            is_said = true;
        }
        if is_said {
            let ts_ms = u64::try_from(ts_ms).unwrap_or(0);
            self.clock_ms = self.clock_ms.max(ts_ms.min(now_ms));
            self.node_clock_ms = now_ms;
            self.evaluate(set, now_ms, &AlarmInput::Values(&reported), attribute, out);
        }
        is_said
    }

    /// Whether any alarm is not cleared.
    pub fn has_active(&self) -> bool {
        self.rules.iter().any(|rule| rule.active.is_some())
    }

    /// Applies a change of the connection state.
    pub fn observe_online(
        &mut self,
        set: &AlarmSet,
        now_ms: u64,
        is_online: bool,
        attribute: &dyn Fn(&str) -> Option<Scalar>,
        out: &mut Vec<AlarmTransition>,
    ) {
        let Some(place) = set.online_place else {
            return;
        };
        self.latest[place] = Some(LatestValue {
            value: Scalar::Bool(is_online),
            ts_ms: i64::try_from(now_ms).unwrap_or(i64::MAX),
            received_ms: now_ms,
        });
        // The clock of the device does not advance: values measured before it came back are still to be reported.
        let mut reported = [false; MAX_KEYS];
        reported[place] = true;
        self.evaluate(set, now_ms, &AlarmInput::Values(&reported), attribute, out);
    }

    /// Applies elapsed time; see [`due_ms`](Self::due_ms).
    pub fn tick(
        &mut self,
        set: &AlarmSet,
        now_ms: u64,
        attribute: &dyn Fn(&str) -> Option<Scalar>,
        out: &mut Vec<AlarmTransition>,
    ) {
        self.evaluate(set, now_ms, &AlarmInput::Time, attribute, out);
    }

    /// Returns the time of the node at which a transition may happen without a message.
    pub fn due_ms(&self, set: &AlarmSet, now_ms: u64) -> Option<u64> {
        let device_ms = self.at_ms(now_ms);
        let facts = ConditionContext {
            latest: &self.latest,
            attribute: &|_| None,
            now_ms,
        };
        let of_watch = |watched: &CompiledTrigger, watch: &TriggerState, at_ms: u64| {
            let lasting = match (watched.kind, watch.since_ms) {
                (TriggerKind::Duration { for_ms }, Some(since_ms)) => {
                    let left_ms = (since_ms + for_ms).checked_sub(at_ms);
                    left_ms.filter(|left| *left > 0).map(|left| now_ms + left)
                }
                _ => None,
            };
            lasting
                .into_iter()
                .chain(watched.condition.due_ms(&facts))
                .min()
        };
        let of_rule = |(rule, state): (&CompiledAlarmRule, &AlarmRuleState)| {
            let at_ms = rule.at_ms(device_ms, now_ms);
            let raise = rule.raise.iter().zip(&state.raise);
            let raise = raise
                .filter_map(|((_, watched), watch)| of_watch(watched, watch, at_ms))
                .min();
            let clear = rule.clear.as_ref().filter(|_| state.active.is_some());
            let clear = clear.and_then(|watched| of_watch(watched, &state.clear, at_ms));
            raise.into_iter().chain(clear).min()
        };
        set.rules.iter().zip(&self.rules).filter_map(of_rule).min()
    }

    /// The time of the device: that of its latest values plus the time since their arrival.
    fn at_ms(&self, now_ms: u64) -> u64 {
        self.clock_ms + now_ms.saturating_sub(self.node_clock_ms)
    }

    fn evaluate(
        &mut self,
        set: &AlarmSet,
        now_ms: u64,
        input: &AlarmInput<'_>,
        attribute: &dyn Fn(&str) -> Option<Scalar>,
        out: &mut Vec<AlarmTransition>,
    ) {
        let device_ms = self.at_ms(now_ms);
        let facts = ConditionContext {
            latest: &self.latest,
            attribute,
            now_ms,
        };
        for (at, (rule, state)) in set.rules.iter().zip(&mut self.rules).enumerate() {
            let at_ms = rule.at_ms(device_ms, now_ms);
            if let Some(transition_kind) = state.evaluate(rule, &facts, at_ms, input) {
                out.push(AlarmTransition {
                    rule: at,
                    kind: transition_kind,
                    at_ms,
                });
            }
        }
    }
}

impl AlarmRuleState {
    fn evaluate(
        &mut self,
        rule: &CompiledAlarmRule,
        facts: &ConditionContext<'_>,
        at_ms: u64,
        input: &AlarmInput<'_>,
    ) -> Option<AlarmTransitionKind> {
        let mut worst = None;
        // Evaluates all triggers, because each one tracks how long its condition has held.
        for ((severity, watched), watch) in rule.raise.iter().zip(&mut self.raise) {
            if watch.fires(watched, facts, at_ms, input) && worst.is_none() {
                worst = Some(*severity);
            }
        }
        match (self.active, worst) {
            (None, Some(severity)) => {
                self.active = Some(severity);
                self.clear = TriggerState::default();
                return Some(AlarmTransitionKind::Raised(severity));
            }
            (Some(from), Some(to)) if from != to => {
                self.active = Some(to);
                return Some(AlarmTransitionKind::SeverityChanged { from, to });
            }
            (Some(_), None) => {}
            (None, None) | (Some(_), Some(_)) => return None,
        }
        let clear = rule.clear.as_ref()?;
        if !self.clear.fires(clear, facts, at_ms, input) {
            return None;
        }
        self.reset();
        Some(AlarmTransitionKind::Cleared)
    }

    fn reset(&mut self) {
        self.active = None;
        self.clear = TriggerState::default();
        self.raise
            .iter_mut()
            .for_each(|watch| *watch = TriggerState::default());
    }
}

impl TriggerState {
    fn fires(
        &mut self,
        watched: &CompiledTrigger,
        facts: &ConditionContext<'_>,
        at_ms: u64,
        input: &AlarmInput<'_>,
    ) -> bool {
        let holds = watched.condition.holds(facts) && watched.schedule.contains(at_ms);
        match watched.kind {
            TriggerKind::Simple => holds,
            TriggerKind::Duration { for_ms } => {
                if !holds {
                    self.since_ms = None;
                    return false;
                }
                let since_ms = *self.since_ms.get_or_insert(at_ms);
                at_ms.saturating_sub(since_ms) >= for_ms
            }
            TriggerKind::Repeating { times, within_ms } => {
                let is_counted = match input {
                    AlarmInput::Values(reported) => (reported.iter().enumerate())
                        .any(|(place, reported)| *reported && watched.condition.refers_to(place)),
                    AlarmInput::Time => false,
                };
                if is_counted && holds {
                    // Never more than the rule requires.
                    if self.match_times_ms.len() == times as usize {
                        self.match_times_ms.pop_front();
                    }
                    self.match_times_ms.push_back(at_ms);
                } else if is_counted && within_ms.is_none() {
                    self.match_times_ms.clear();
                }
                if let Some(within_ms) = within_ms {
                    let is_over = |hit: &u64| hit + within_ms < at_ms;
                    while self.match_times_ms.front().is_some_and(is_over) {
                        self.match_times_ms.pop_front();
                    }
                }
                holds && self.match_times_ms.len() == times as usize
            }
        }
    }
}

fn scalar(value: PointValue<'_>) -> Option<Scalar> {
    Some(match value {
        PointValue::Bool(value) => Scalar::Bool(value),
        PointValue::Int(value) => Scalar::Int(value),
        PointValue::Float(value) => Scalar::Float(value),
        PointValue::Text(text) => Scalar::Text(text.into()),
        PointValue::Json(_) => return None,
    })
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
