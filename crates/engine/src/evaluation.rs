//! Evaluation of one event by the rules it matches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use rules::index::{IndexQuery, RuleIndex};
use rules::{
    EvaluationScratch, EventKind, EventView, RuleEvent, RuleOutput, RuleState, RunOutcome,
    WindowSample,
};

use crate::action_input::ActionInput;
use crate::counters::{ProducerCounters, RuleCounter};
use crate::producer_context::ProducerContext;
use crate::rule_lineage::RuleLineage;
use crate::running_rule::{RunningRule, with_state};
use crate::trace;
use crate::trace_record::TraceRecord;
use crate::window_queue::WindowQueue;

/// Maximum length of a chain of rules (`FROM "$rule/NAME"`).
const MAX_CHAINED_RULES: u8 = 8;

/// Everything needed to evaluate the rules of one event.
pub(crate) struct EventEvaluation<'a, 's> {
    pub(crate) index: &'a RuleIndex<Arc<RunningRule>>,
    pub(crate) rows: &'a WindowQueue,
    pub(crate) scratch: &'a EvaluationScratch,
    pub(crate) stage: &'s mut ProducerContext,
    pub(crate) lineage: RuleLineage,
    pub(crate) now_ms: u64,
    /// The position of this rule in a chain of rules.
    pub(crate) chained: u8,
}

/// The index query for an event.
#[inline]
pub(crate) fn index_query<'e>(
    kind: EventKind,
    topic: Option<&'e str>,
    client_id: &'e str,
    qos: Option<u8>,
) -> IndexQuery<'e> {
    IndexQuery {
        kind,
        topic,
        client_id: Some(client_id),
        qos,
    }
}

impl<'a> EventEvaluation<'a, '_> {
    /// Evaluates the rules one after the other. A rule that panics has failed for this event; the other rules
    /// are still evaluated.
    #[inline]
    pub(crate) fn evaluate_all(
        &mut self,
        view: &EventView<'a>,
        rules: impl Fn(usize) -> Option<&'a RunningRule>,
    ) {
        let mut next = 0;
        loop {
            let all = catch_unwind(AssertUnwindSafe(|| {
                while let Some(bound) = rules(next) {
                    next += 1;
                    self.evaluate_rule(bound, view);
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
                record_panic(bound, bound.monitor.counters.producer(self.stage.producer));
            }
        }
    }

    /// Evaluates one candidate rule and runs its actions.
    pub(crate) fn evaluate_rule(&mut self, bound: &'a RunningRule, view: &EventView<'a>) {
        let counters = bound.monitor.counters.producer(self.stage.producer);
        if self.lineage.belongs_to(bound.serial) {
            // A rule does not see the messages that it publishes itself.
            return;
        }
        let began = counters.record_match().then(Instant::now);
        let outputs = match bound.window {
            None => self.evaluate_outputs(bound, view, counters),
            Some(_) => {
                self.queue_sample(bound, view, counters);
                RuleOutputs::None
            }
        };
        self.stage.has_matched |= !outputs.as_slice().is_empty();
        if let Some(began) = began {
            counters.record_duration(began.elapsed().as_nanos() as u64);
        }
        self.run_actions(bound, view, outputs.as_slice());
    }

    /// Runs the actions of the rule on its outputs.
    pub(crate) fn run_actions(
        &mut self,
        bound: &'a RunningRule,
        view: &EventView<'a>,
        outputs: &[RuleOutput<'a>],
    ) {
        if outputs.is_empty() {
            return;
        }
        let counters = bound.monitor.counters.producer(self.stage.producer);
        let watchers = &bound.monitor.watchers;
        if watchers.is_watched() {
            watchers.send(self.now_ms, || trace::passed_record(bound, view, outputs));
        }
        for &output in outputs {
            let made = ActionInput {
                rule: bound.as_acting(),
                output,
                view,
                lineage: self.lineage,
                now_ms: self.now_ms,
            };
            for (n, action) in bound.actions.iter().enumerate() {
                let Err(failure) = action.run(&made, self.stage, counters) else {
                    continue;
                };
                let errors = &bound.monitor.errors;
                errors.record(&bound.name, self.now_ms, "action", Some(n), || {
                    failure.to_string()
                });
                self.emit_failure_event(bound, view, || failure.to_string());
                if watchers.is_watched() {
                    watchers.send(self.now_ms, || TraceRecord {
                        action: Some(n),
                        error: Some(failure.to_string()),
                        ..trace::event_record(bound, view.event(), "action_failed")
                    });
                }
            }
        }
        // Rules FROM "$rule/NAME".
        let followers = self.index.rules_chained_to(&bound.name);
        if !followers.is_empty() {
            self.run_chained_rules(bound, view, outputs, followers);
        }
    }

    /// Emits a failure event to the rules FROM "$EVENT.RULE_FAILED". Failures of these rules emit no event,
    /// so that the chain ends.
    fn emit_failure_event(
        &mut self,
        bound: &'a RunningRule,
        view: &EventView<'a>,
        text: impl FnOnce() -> String,
    ) {
        let is_wanted = self.index.has_rules_for(EventKind::RuleFailed);
        if !is_wanted || !self.stage.begin_failure_event(self.now_ms) {
            return;
        }
        let arena = self.scratch.arena();
        let error: &'a str = arena.alloc_str(&text());
        let event: &'a RuleEvent<'a> = arena.alloc(RuleEvent {
            kind: EventKind::RuleFailed,
            rule_name: Some(&bound.name),
            reason: Some(error),
            emqx_reason: None,
            extra: rules::Value::Null,
            ..*view.event()
        });
        let query = index_query(event.kind, event.topic, event.client_id, event.qos);
        let mut matched_rules: Vec<&'a RunningRule> = Vec::new();
        self.index
            .matches(&query, |bound| matched_rules.push(bound));
        let view = self.scratch.view(event, view.now_ms());
        for bound in matched_rules {
            self.evaluate_rule(bound, &view);
        }
        self.stage.end_failure_event();
    }

    fn run_chained_rules(
        &mut self,
        bound: &'a RunningRule,
        view: &EventView<'a>,
        outputs: &[RuleOutput<'a>],
        followers: &'a [Arc<RunningRule>],
    ) {
        if self.chained >= MAX_CHAINED_RULES {
            let counters = bound.monitor.counters.producer(self.stage.producer);
            counters.increment(RuleCounter::Failed);
            counters.increment(RuleCounter::FailedLimit);
            let errors = &bound.monitor.errors;
            errors.record(&bound.name, self.now_ms, "limit", None, || {
                format!("the chain of rules is longer than {MAX_CHAINED_RULES}; is there a loop of rules?")
            });
            return;
        }
        self.chained += 1;
        for output in outputs {
            let event: &'a RuleEvent<'a> = self.scratch.arena().alloc(RuleEvent {
                extra: output.value(),
                ..*view.event()
            });
            let view = self.scratch.view(event, view.now_ms());
            for follower in followers {
                self.evaluate_rule(follower, &view);
            }
        }
        self.chained -= 1;
    }

    fn evaluate_outputs(
        &mut self,
        bound: &'a RunningRule,
        view: &EventView<'a>,
        counters: &ProducerCounters,
    ) -> RuleOutputs<'a> {
        let mut outputs = RuleOutputs::None;
        let ran = with_state(bound, &mut self.stage.stateless_state, |state| {
            bound
                .rule
                .run_indexed(view, state, &mut |output| outputs.push(output))
        });
        match ran {
            Ok(RunOutcome::Passed(_)) => counters.increment(RuleCounter::Passed),
            Ok(RunOutcome::NoResult) => self.record_no_result(bound, view, counters),
            Err(fault) => {
                self.record_failure(bound, view, counters, &fault);
                return RuleOutputs::None;
            }
        }
        outputs
    }

    /// Sends a sample of the event to the thread that owns the windows.
    fn queue_sample(
        &mut self,
        bound: &'a RunningRule,
        view: &EventView<'a>,
        counters: &ProducerCounters,
    ) {
        let sampled = with_state(bound, &mut self.stage.stateless_state, |state| {
            timed_sample(bound, view, state)
        });
        match sampled {
            Ok(SampleOutcome::NoEventTime) => {
                counters.increment(RuleCounter::WindowUntimed);
                self.send_trace(bound, view, "no_event_time");
            }
            Ok(SampleOutcome::Counted(sample)) => {
                counters.increment(RuleCounter::Passed);
                self.stage.has_matched = true;
                if !self.rows.push(bound, self.lineage, &sample) {
                    counters.increment(RuleCounter::WindowFull);
                }
                if self.rows.level().is_full() {
                    self.stage.set_windows_full();
                }
            }
            Ok(SampleOutcome::Filtered) => self.record_no_result(bound, view, counters),
            Err(fault) => self.record_failure(bound, view, counters, &fault),
        }
    }

    fn record_no_result(
        &self,
        bound: &'a RunningRule,
        view: &EventView<'a>,
        counters: &ProducerCounters,
    ) {
        counters.increment(RuleCounter::NoResult);
        let watchers = &bound.monitor.watchers;
        if watchers.is_watched() {
            watchers.send(self.now_ms, || trace::no_result_record(bound, view));
        }
    }

    fn send_trace(&self, bound: &RunningRule, view: &EventView<'_>, what: &'static str) {
        let watchers = &bound.monitor.watchers;
        if watchers.is_watched() {
            watchers.send(self.now_ms, || {
                trace::event_record(bound, view.event(), what)
            });
        }
    }

    pub(crate) fn record_failure(
        &mut self,
        bound: &'a RunningRule,
        view: &EventView<'a>,
        counters: &ProducerCounters,
        fault: &rules::EvaluationError,
    ) {
        counters.increment(RuleCounter::Failed);
        let (count, kind) = match fault.kind() {
            "type" | "range" | "invalid" | "payload" => (RuleCounter::FailedType, "value"),
            "budget" | "too_large" => (RuleCounter::FailedLimit, "limit"),
            _ => (RuleCounter::FailedOther, "other"),
        };
        counters.increment(count);
        let errors = &bound.monitor.errors;
        errors.record(&bound.name, self.now_ms, kind, None, || fault.to_string());
        self.emit_failure_event(bound, view, || fault.to_string());
        let watchers = &bound.monitor.watchers;
        if watchers.is_watched() {
            watchers.send(self.now_ms, || TraceRecord {
                error: Some(fault.to_string()),
                payload_problem: bound.rule.payload_error(view),
                ..trace::event_record(bound, view.event(), "failed")
            });
        }
    }
}

/// The sample that a window receives of an event.
pub(crate) enum SampleOutcome<'a> {
    Counted(WindowSample<'a>),
    /// WHERE is false.
    Filtered,
    /// The event has no timestamp.
    NoEventTime,
}

/// The sample of an event, at the time that the rule uses.
pub(crate) fn timed_sample<'a>(
    bound: &'a RunningRule,
    view: &EventView<'a>,
    state: &mut RuleState,
) -> Result<SampleOutcome<'a>, rules::EvaluationError> {
    let Some(mut sample) = bound.rule.sample_event(view, state)? else {
        return Ok(SampleOutcome::Filtered);
    };
    if let Some(event_time) = &bound.event_time {
        match event_time.read(view, state)? {
            Some(at_ms) => sample.timestamp_ms = at_ms,
            None => return Ok(SampleOutcome::NoEventTime),
        }
    }
    Ok(SampleOutcome::Counted(sample))
}

/// The outputs of one evaluation; nearly always one.
#[derive(Default)]
pub(crate) enum RuleOutputs<'a> {
    #[default]
    None,
    One([RuleOutput<'a>; 1]),
    Many(Vec<RuleOutput<'a>>),
}

impl<'a> RuleOutputs<'a> {
    pub(crate) fn push(&mut self, output: RuleOutput<'a>) {
        *self = match std::mem::take(self) {
            Self::None => Self::One([output]),
            Self::One([first]) => Self::Many(vec![first, output]),
            Self::Many(mut outputs) => {
                outputs.push(output);
                Self::Many(outputs)
            }
        };
    }

    pub(crate) fn as_slice(&self) -> &[RuleOutput<'a>] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Many(outputs) => outputs,
        }
    }
}

/// Runs the closure. A panic inside it is a failure of the rule.
pub(crate) fn catch_panic<R>(
    bound: &RunningRule,
    counters: &ProducerCounters,
    work: impl FnOnce() -> R,
) -> Option<R> {
    let result = catch_unwind(AssertUnwindSafe(work));
    if result.is_err() {
        record_panic(bound, counters);
    }
    result.ok()
}

#[cold]
fn record_panic(bound: &RunningRule, counters: &ProducerCounters) {
    counters.increment(RuleCounter::Failed);
    counters.increment(RuleCounter::FailedOther);
    tracing::error!(
        rule = &*bound.name,
        "rule panicked; it does not evaluate this event any further; this is a bug"
    );
}
