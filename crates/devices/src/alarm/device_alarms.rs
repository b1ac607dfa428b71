//! The alarms of one device: values and time go in, what happened comes out. No clock, no store.
//!
//! Time is the device's: that of its messages, never in the future and never going back; between messages it goes on with
//! the node's. So data sent later all at once is judged as if it had come in time.

use std::collections::VecDeque;

use series::{KeyId, Point, PointValue};

use super::AlarmDefinitionError;
use super::condition::{
    CompiledCondition, ConditionContext, KeyNames, LatestValue, ONLINE_KEY, Scalar,
};
use super::definition::{AlarmRule, AlarmTrigger, Severity};
use super::schedule::AlarmSchedule;

const MAX_RULES: usize = 64;
const MAX_RAISES: usize = 8;
/// Keys that the rules of a product speak of.
const MAX_KEYS: usize = 256;
const MAX_TIMES: u32 = 1000;
const MAX_SPAN_S: u32 = 30 * 24 * 3600;

/// The compiled alarm rules of a product.
#[derive(Debug)]
pub struct AlarmSet {
    /// Of what the conditions speak, by their places; `None`: not a key of telemetry.
    keys: Box<[Option<KeyId>]>,
    names: Box<[Box<str>]>,
    online_place: Option<usize>,
    rules: Box<[CompiledAlarmRule]>,
}

#[derive(Debug)]
struct CompiledAlarmRule {
    id: Box<str>,
    /// From the worst on.
    raise: Box<[(Severity, CompiledTrigger)]>,
    clear: Option<CompiledTrigger>,
    /// It is about nothing but whether the device is connected, and judged by the node's time.
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

/// What the alarms of a device know of it.
#[derive(Debug)]
pub struct DeviceAlarms {
    latest: Box<[Option<LatestValue>]>,
    rules: Box<[AlarmRuleState]>,
    /// The device's time, and the node's when it was that.
    clock_ms: u64,
    node_clock_ms: u64,
}

#[derive(Debug, Default)]
struct AlarmRuleState {
    raise: Box<[TriggerState]>,
    clear: TriggerState,
    /// The severity of the alarm that is not cleared.
    active: Option<Severity>,
}

#[derive(Debug, Default)]
struct TriggerState {
    /// Since when the condition holds.
    since_ms: Option<u64>,
    /// Times of messages it held for.
    match_times_ms: VecDeque<u64>,
}

/// What became of one alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmTransitionKind {
    Raised(Severity),
    SeverityChanged { from: Severity, to: Severity },
    Cleared,
}

/// Something happened to the alarm of a rule, by the rule's place in its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlarmTransition {
    pub rule: usize,
    pub kind: AlarmTransitionKind,
    /// The device's time.
    pub at_ms: u64,
}

impl AlarmSet {
    /// Compiles the rules of a product that are enabled. `key` gives the numbers of keys.
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
                let detail = format!("{:?} is there twice; expected each id once", rule.id);
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
        // A handful: faster than a map.
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

    /// The time by which it is judged.
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
                    "expected times beside it",
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

/// What is new when alarms are looked at.
enum AlarmInput<'a> {
    /// Values at these places.
    Values(&'a [bool]),
    /// Only time has gone by.
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

    /// An alarm that was there before this was made.
    pub fn restore(&mut self, rule: usize, severity: Severity) {
        self.rules[rule].active = Some(severity);
    }

    /// Somebody has cleared the alarm of a rule: it may be raised anew by the next message.
    pub fn mark_cleared(&mut self, rule: usize) {
        self.rules[rule].reset();
    }

    /// The values that conditions speak of, as last said.
    pub fn values<'a>(&'a self, set: &'a AlarmSet) -> impl Iterator<Item = (&'a str, &'a Scalar)> {
        let names = set.names.iter().map(|name| &**name);
        let values = names.zip(&self.latest);
        values.filter_map(|(name, latest)| Some((name, &latest.as_ref()?.value)))
    }

    /// Takes a row of telemetry; `false`: nothing in it is asked for. Values older than what is known of their key count for
    /// nothing.
    pub fn observe(
        &mut self,
        set: &AlarmSet,
        now_ms: u64,
        ts_ms: i64,
        points: &[Point<'_>],
        attribute: &dyn Fn(&str) -> Option<Scalar>,
        out: &mut Vec<AlarmTransition>,
    ) -> bool {
        // Most messages of most products have nothing that is asked for.
        let mut said = [false; MAX_KEYS];
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
            said[place] = true;
            is_said = true;
        }
        if is_said {
            let ts_ms = u64::try_from(ts_ms).unwrap_or(0);
            self.clock_ms = self.clock_ms.max(ts_ms.min(now_ms));
            self.node_clock_ms = now_ms;
            self.evaluate(set, now_ms, &AlarmInput::Values(&said), attribute, out);
        }
        is_said
    }

    /// Whether there is an alarm that is not cleared.
    pub fn has_active(&self) -> bool {
        self.rules.iter().any(|rule| rule.active.is_some())
    }

    /// The device came or went.
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
        // The device's own clock stays where it is: what it has measured before it came back is still to be reported.
        let mut said = [false; MAX_KEYS];
        said[place] = true;
        self.evaluate(set, now_ms, &AlarmInput::Values(&said), attribute, out);
    }

    /// Time has gone by: see [`due_ms`](Self::due_ms).
    pub fn tick(
        &mut self,
        set: &AlarmSet,
        now_ms: u64,
        attribute: &dyn Fn(&str) -> Option<Scalar>,
        out: &mut Vec<AlarmTransition>,
    ) {
        self.evaluate(set, now_ms, &AlarmInput::Time, attribute, out);
    }

    /// When, by the node's time, something may happen without a message.
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

    /// The device's time: that of its latest values, and what has passed since they came.
    fn at_ms(&self, now_ms: u64) -> u64 {
        self.clock_ms + now_ms.saturating_sub(self.node_clock_ms)
    }

    fn evaluate(
        &mut self,
        set: &AlarmSet,
        now_ms: u64,
        news: &AlarmInput<'_>,
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
            if let Some(happened) = state.evaluate(rule, &facts, at_ms, news) {
                out.push(AlarmTransition {
                    rule: at,
                    kind: happened,
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
        news: &AlarmInput<'_>,
    ) -> Option<AlarmTransitionKind> {
        let mut worst = None;
        // All of them, since each counts for itself how long it has held.
        for ((severity, watched), watch) in rule.raise.iter().zip(&mut self.raise) {
            if watch.fires(watched, facts, at_ms, news) && worst.is_none() {
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
        if !self.clear.fires(clear, facts, at_ms, news) {
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
        news: &AlarmInput<'_>,
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
                let is_counted = match news {
                    AlarmInput::Values(said) => (said.iter().enumerate())
                        .any(|(place, said)| *said && watched.condition.refers_to(place)),
                    AlarmInput::Time => false,
                };
                if is_counted && holds {
                    // Never more than are asked for.
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
