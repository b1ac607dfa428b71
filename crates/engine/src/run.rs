//! One event and the rules it meets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use rules::index::{Index, Looked};
use rules::{Event, EventKind, Output, Ran, RuleState, Sample, Scratch, View};

use crate::action::Made;
use crate::bound::{Bound, Lineage};
use crate::counters::{Count, LaneCounters};
use crate::rows::Rows;
use crate::stage::Stage;
use crate::trace;

/// Rules behind rules behind rules.
const MAX_CHAIN: u8 = 8;

/// Everything the rules of one event need.
pub(crate) struct Run<'a, 's> {
    pub(crate) index: &'a Index<Arc<Bound>>,
    pub(crate) rows: &'a Rows,
    pub(crate) scratch: &'a Scratch,
    pub(crate) stage: &'s mut Stage,
    pub(crate) lineage: Lineage,
    pub(crate) now_ms: u64,
    /// How many rules this one is behind.
    pub(crate) chained: u8,
}

/// What an event looks for rules with.
#[inline]
pub(crate) fn looked<'e>(
    kind: EventKind,
    topic: Option<&'e str>,
    client_id: &'e str,
    qos: Option<u8>,
) -> Looked<'e> {
    Looked {
        kind,
        topic,
        client_id: Some(client_id),
        qos,
    }
}

impl<'a> Run<'a, '_> {
    /// Shows an event to rules, one after the other. One that panics has failed for this event; the others have their turn.
    #[inline]
    pub(crate) fn meet_all(&mut self, view: &View<'a>, rules: impl Fn(usize) -> Option<&'a Bound>) {
        let mut next = 0;
        loop {
            let all = catch_unwind(AssertUnwindSafe(|| {
                while let Some(bound) = rules(next) {
                    next += 1;
                    self.meet(bound, view);
                }
            }));
            match all {
                Ok(()) => return,
                Err(_) => {
                    self.chained = 0;
                    self.stage.end_failure_event();
                }
            }
            if let Some(bound) = next.checked_sub(1).and_then(&rules) {
                panicked(bound, bound.standing.counters.lane(self.stage.lane));
            }
        }
    }

    /// Shows an event to a rule that may want it, and does what comes of it.
    pub(crate) fn meet(&mut self, bound: &'a Bound, view: &View<'a>) {
        let counters = bound.standing.counters.lane(self.stage.lane);
        if self.lineage.is_of(bound) {
            // A rule does not hear of what it has said itself.
            return;
        }
        let began = counters.matched().then(Instant::now);
        let outputs = match bound.window {
            None => self.evaluate(bound, view, counters),
            Some(_) => {
                self.sample(bound, view, counters);
                Outputs::None
            }
        };
        if let Some(began) = began {
            counters.time(began.elapsed().as_nanos() as u64);
        }
        self.pass_on(bound, view, outputs.as_slice());
    }

    /// Does with outputs what the rule says.
    pub(crate) fn pass_on(&mut self, bound: &'a Bound, view: &View<'a>, outputs: &[Output<'a>]) {
        if outputs.is_empty() {
            return;
        }
        let counters = bound.standing.counters.lane(self.stage.lane);
        let watchers = &bound.standing.watchers;
        if watchers.is_watched() {
            watchers.tell(self.now_ms, || trace::passed(bound, view, outputs));
        }
        for &output in outputs {
            let made = Made {
                output,
                view,
                lineage: self.lineage,
                now_ms: self.now_ms,
            };
            for (n, action) in bound.actions.iter().enumerate() {
                let Err(failure) = action.perform(bound, &made, self.stage, counters) else {
                    continue;
                };
                let errors = &bound.standing.errors;
                errors.note(&bound.name, self.now_ms, "action", Some(n), || {
                    failure.to_string()
                });
                self.tell_failure(bound, view, || failure.to_string());
                if watchers.is_watched() {
                    watchers.tell(self.now_ms, || {
                        let mut record = trace::record(&bound.name, view.event(), "action_failed");
                        record["action"] = n.into();
                        record["error"] = failure.to_string().into();
                        record
                    });
                }
            }
        }
        // Rules FROM "$rule/NAME"
        let followers = self.index.after_rule(&bound.name);
        if !followers.is_empty() {
            self.chain(bound, view, outputs, followers);
        }
    }

    /// Tells rules FROM "$EVENT.RULE_FAILED" of a failure. Failures of such rules are told to nobody, so that it ends.
    fn tell_failure(&mut self, bound: &'a Bound, view: &View<'a>, text: impl FnOnce() -> String) {
        let is_wanted = self.index.wants(EventKind::RuleFailed);
        if !is_wanted || !self.stage.begin_failure_event(self.now_ms) {
            return;
        }
        let arena = self.scratch.arena();
        let error: &'a str = arena.alloc_str(&text());
        let event: &'a Event<'a> = arena.alloc(Event {
            kind: EventKind::RuleFailed,
            rule_name: Some(&bound.name),
            reason: Some(error),
            emqx_reason: None,
            extra: rules::Value::Null,
            ..*view.event()
        });
        let looked = looked(event.kind, event.topic, event.client_id, event.qos);
        let mut met: Vec<&'a Bound> = Vec::new();
        self.index.matches(&looked, |bound| met.push(bound));
        let view = self.scratch.view(event, view.now_ms());
        for bound in met {
            self.meet(bound, &view);
        }
        self.stage.end_failure_event();
    }

    fn chain(
        &mut self,
        bound: &'a Bound,
        view: &View<'a>,
        outputs: &[Output<'a>],
        followers: &'a [Arc<Bound>],
    ) {
        if self.chained >= MAX_CHAIN {
            let counters = bound.standing.counters.lane(self.stage.lane);
            counters.inc(Count::Failed);
            counters.inc(Count::FailedLimit);
            let errors = &bound.standing.errors;
            errors.note(&bound.name, self.now_ms, "limit", None, || {
                format!("more than {MAX_CHAIN} rules behind each other; is there a loop of rules?")
            });
            return;
        }
        self.chained += 1;
        for output in outputs {
            let event: &'a Event<'a> = self.scratch.arena().alloc(Event {
                extra: output.value(),
                ..*view.event()
            });
            let view = self.scratch.view(event, view.now_ms());
            for follower in followers {
                self.meet(follower, &view);
            }
        }
        self.chained -= 1;
    }

    fn evaluate(
        &mut self,
        bound: &'a Bound,
        view: &View<'a>,
        counters: &LaneCounters,
    ) -> Outputs<'a> {
        let mut outputs = Outputs::None;
        let ran = with_state(bound, &mut self.stage.spare, |state| {
            bound
                .rule
                .run_found(view, state, &mut |output| outputs.push(output))
        });
        match ran {
            Ok(Ran::Passed(_)) => counters.inc(Count::Passed),
            Ok(Ran::NoResult) => self.no_result(bound, view, counters),
            Err(fault) => {
                self.failed(bound, view, counters, &fault);
                return Outputs::None;
            }
        }
        outputs
    }

    /// What a window is to count of the event goes to whoever keeps it.
    fn sample(&mut self, bound: &'a Bound, view: &View<'a>, counters: &LaneCounters) {
        let sampled = with_state(bound, &mut self.stage.spare, |state| {
            timed_sample(bound, view, state)
        });
        match sampled {
            Ok(Sampled::Untimed) => {
                counters.inc(Count::WindowUntimed);
                self.tell(bound, view, "no_event_time");
            }
            Ok(Sampled::Counts(sample)) => {
                counters.inc(Count::Passed);
                if !self.rows.push(bound, self.lineage, &sample) {
                    counters.inc(Count::WindowFull);
                }
                if self.rows.is_full() {
                    self.stage.note_windows_full();
                }
            }
            Ok(Sampled::Nothing) => self.no_result(bound, view, counters),
            Err(fault) => self.failed(bound, view, counters, &fault),
        }
    }

    fn no_result(&self, bound: &'a Bound, view: &View<'a>, counters: &LaneCounters) {
        counters.inc(Count::NoResult);
        let watchers = &bound.standing.watchers;
        if watchers.is_watched() {
            watchers.tell(self.now_ms, || trace::no_result(bound, view));
        }
    }

    fn tell(&self, bound: &Bound, view: &View<'_>, what: &str) {
        let watchers = &bound.standing.watchers;
        if watchers.is_watched() {
            watchers.tell(self.now_ms, || {
                trace::record(&bound.name, view.event(), what)
            });
        }
    }

    pub(crate) fn failed(
        &mut self,
        bound: &'a Bound,
        view: &View<'a>,
        counters: &LaneCounters,
        fault: &rules::Fault,
    ) {
        counters.inc(Count::Failed);
        let (count, kind) = match fault.kind() {
            "type" | "range" | "invalid" | "payload" => (Count::FailedType, "value"),
            "budget" | "too_large" => (Count::FailedLimit, "limit"),
            _ => (Count::FailedOther, "other"),
        };
        counters.inc(count);
        let errors = &bound.standing.errors;
        errors.note(&bound.name, self.now_ms, kind, None, || fault.to_string());
        self.tell_failure(bound, view, || fault.to_string());
        let watchers = &bound.standing.watchers;
        if watchers.is_watched() {
            watchers.tell(self.now_ms, || {
                let mut record = trace::record(&bound.name, view.event(), "failed");
                record["error"] = fault.to_string().into();
                trace::add_payload_problem(bound, view, &mut record);
                record
            });
        }
    }
}

/// What a window gets of an event.
pub(crate) enum Sampled<'a> {
    Counts(Sample<'a>),
    /// WHERE does not hold.
    Nothing,
    /// It does not say when it happened.
    Untimed,
}

/// What a window is to count of an event, at the time that counts for the rule.
pub(crate) fn timed_sample<'a>(
    bound: &'a Bound,
    view: &View<'a>,
    state: &mut RuleState,
) -> Result<Sampled<'a>, rules::Fault> {
    let Some(mut sample) = bound.rule.sample(view, state)? else {
        return Ok(Sampled::Nothing);
    };
    if let Some(event_time) = &bound.event_time {
        match event_time.read(view, state)? {
            Some(at_ms) => sample.timestamp_ms = at_ms,
            None => return Ok(Sampled::Untimed),
        }
    }
    Ok(Sampled::Counts(sample))
}

/// Runs with the state of a rule; rules that keep nothing share one.
pub(crate) fn with_state<R>(
    bound: &Bound,
    spare: &mut RuleState,
    work: impl FnOnce(&mut RuleState) -> R,
) -> R {
    match &bound.memory {
        None => work(spare),
        Some(memory) => work(&mut memory.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// The outputs of one evaluation; nearly always one.
#[derive(Default)]
pub(crate) enum Outputs<'a> {
    #[default]
    None,
    One([Output<'a>; 1]),
    Many(Vec<Output<'a>>),
}

impl<'a> Outputs<'a> {
    pub(crate) fn push(&mut self, output: Output<'a>) {
        *self = match std::mem::take(self) {
            Self::None => Self::One([output]),
            Self::One([first]) => Self::Many(vec![first, output]),
            Self::Many(mut outputs) => {
                outputs.push(output);
                Self::Many(outputs)
            }
        };
    }

    pub(crate) fn as_slice(&self) -> &[Output<'a>] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Many(outputs) => outputs,
        }
    }
}

/// Does what a rule asks for. If it panics, the rule has failed.
pub(crate) fn contain<R>(
    bound: &Bound,
    counters: &LaneCounters,
    work: impl FnOnce() -> R,
) -> Option<R> {
    let result = catch_unwind(AssertUnwindSafe(work));
    if result.is_err() {
        panicked(bound, counters);
    }
    result.ok()
}

#[cold]
fn panicked(bound: &Bound, counters: &LaneCounters) {
    counters.inc(Count::Failed);
    counters.inc(Count::FailedOther);
    tracing::error!(
        rule = &*bound.name,
        "a rule panicked; this is a bug. The message is not evaluated further by this rule"
    );
}
