//! The thread that owns the windows of all rules. It takes rows from the shards, closes windows when they are
//! due, runs the actions on their outputs, and stores open windows periodically.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hooks::OutgoingMessages;
use rules::windows::{AddOutcome, OpenWindows, read_sample};
use rules::{ClosedWindow, EvaluationScratch, EventKind, RuleEvent, RunOutcome, WindowSample};
use store::Objects;
use wall_clock::now_ms;

use crate::counters::{ProducerCounters, RuleCounter};
use crate::engine_shared::{EngineShared, PUBLISH_TIMEOUT};
use crate::evaluation::{EventEvaluation, RuleOutputs, catch_panic};
use crate::evaluation_context::EvaluationContext;
use crate::producer_context::ProducerContext;
use crate::rule_lineage::RuleLineage;
use crate::running_rule::{RunningRule, with_state};
use crate::saved_state::SavedRuleState;
use crate::trace_record::TraceRecord;
use crate::window_queue::{QueuedSample, WindowCommand, WindowInbox};

/// Maximum interval between two checks of the clock.
const MAX_IDLE: Duration = Duration::from_secs(1);

/// The windows of one rule.
struct RuleWindows {
    rule: Arc<RunningRule>,
    windows: OpenWindows,
    /// The deepest lineage counted since a window closed.
    lineage: RuleLineage,
    is_changed: bool,
    /// Serials whose rows are counted here: the rule, and its predecessors with the same statement.
    serials: Vec<u64>,
}

pub(crate) struct WindowWorker {
    shared: Arc<EngineShared>,
    windows_by_name: HashMap<Box<str>, RuleWindows>,
    by_serial: HashMap<u64, Box<str>>,
    saved_windows: Option<SavedRuleState>,
    /// Keyed states of rules, each with the change number at which it was stored last.
    rule_states: HashMap<Box<str>, (Arc<RunningRule>, u64)>,
    saved_rule_states: Option<SavedRuleState>,
    scratch: EvaluationScratch,
    stage: ProducerContext,
    /// Rules whose windows panicked. Their windows start empty again.
    panicked_rules: Vec<Arc<RunningRule>>,
}

impl WindowWorker {
    pub(crate) fn new(shared: Arc<EngineShared>, objects: Option<Objects>) -> Self {
        let EvaluationContext { scratch, stage } =
            shared.evaluation_context(shared.window_producer());
        Self {
            windows_by_name: HashMap::new(),
            by_serial: HashMap::new(),
            saved_windows: objects.clone().map(SavedRuleState::for_windows),
            rule_states: HashMap::new(),
            saved_rule_states: objects.map(SavedRuleState::for_rule_states),
            scratch,
            stage,
            panicked_rules: Vec::new(),
            shared,
        }
    }

    /// Runs until the stop command.
    pub(crate) fn run(mut self) {
        let save_every =
            Duration::from_secs(self.shared.settings.window_save_interval_s.max(1).into());
        let mut save_at = Instant::now() + save_every;
        let mut inbox = WindowInbox::default();
        loop {
            let idle = self
                .time_until_due()
                .min(save_at.saturating_duration_since(Instant::now()));
            inbox = self.shared.rows.wait_and_take(idle, inbox);
            let orders = std::mem::take(&mut inbox.commands);
            let mut rows = InboxSamples::new(&inbox);
            let mut stops = false;
            for (behind, order) in orders {
                self.add_samples(&mut rows, behind);
                stops |= self.apply_command(order);
            }
            self.add_samples(&mut rows, usize::MAX);
            self.shared.rows.release_bytes(&inbox);
            self.close_due();
            if Instant::now() >= save_at || stops {
                self.save_all();
                save_at = Instant::now() + save_every;
            }
            if stops {
                return;
            }
        }
    }

    /// Returns true for the stop command.
    fn apply_command(&mut self, order: WindowCommand) -> bool {
        match order {
            WindowCommand::StartRule(bound) => {
                let counters = bound
                    .monitor
                    .counters
                    .producer(self.shared.window_producer());
                catch_panic(&bound, counters, || self.start_rule(bound.clone()));
            }
            WindowCommand::StopRule(name) => self.stop_rule(&name),
            WindowCommand::TrackState(bound) => {
                // Change number 0, so that existing state is stored once.
                self.rule_states.insert(bound.name.clone(), (bound, 0));
            }
            WindowCommand::UntrackState(name) => {
                self.rule_states.remove(&name);
                if let Some(saved) = &mut self.saved_rule_states {
                    saved.remove(&name);
                }
            }
            WindowCommand::Stop => return true,
        }
        false
    }

    /// Time until the next window is due.
    fn time_until_due(&self) -> Duration {
        let due_ms = self
            .windows_by_name
            .values()
            .filter_map(|kept| kept.windows.due_ms())
            .min();
        match due_ms {
            Some(due_ms) => Duration::from_millis(due_ms.saturating_sub(now_ms())).min(MAX_IDLE),
            None => MAX_IDLE,
        }
    }

    /// Starts a rule. A rule with the statement of its predecessor, or of the rule stored before a restart,
    /// continues with those windows.
    fn start_rule(&mut self, bound: Arc<RunningRule>) {
        let (Some(window), Some(settings)) = (bound.rule.window(), bound.window) else {
            return;
        };
        let mut serials = Vec::new();
        let before = match self.windows_by_name.remove(&bound.name) {
            Some(before) if before.rule.sql_hash == bound.sql_hash => {
                // Shards that have not seen the change yet still send rows of the previous rule.
                serials.extend(before.serials.last());
                self.forget_serials(&before.serials);
                Some(before.windows.snapshot())
            }
            Some(before) => {
                self.forget_serials(&before.serials);
                None
            }
            None => {
                let saved = self.saved_windows.as_ref();
                saved.and_then(|saved| saved.read(&bound.name, bound.sql_hash))
            }
        };
        let restored = before.map(|snapshot| OpenWindows::restore(window, settings, &snapshot));
        let windows = match restored {
            Some(Ok(windows)) => windows,
            Some(Err(error)) => {
                tracing::warn!(rule = &*bound.name, %error, "stored windows of a rule cannot be restored; they start empty");
                OpenWindows::new(window, settings)
            }
            None => OpenWindows::new(window, settings),
        };
        serials.push(bound.serial);
        for &serial in &serials {
            self.by_serial.insert(serial, bound.name.clone());
        }
        let kept = RuleWindows {
            windows,
            lineage: RuleLineage::default(),
            is_changed: true,
            serials,
            rule: bound.clone(),
        };
        self.windows_by_name.insert(bound.name.clone(), kept);
    }

    fn forget_serials(&mut self, serials: &[u64]) {
        for serial in serials {
            self.by_serial.remove(serial);
        }
    }

    fn stop_rule(&mut self, name: &str) {
        if let Some(kept) = self.windows_by_name.remove(name) {
            self.forget_serials(&kept.serials);
        }
        if let Some(saved) = &mut self.saved_windows {
            saved.remove(name);
        }
    }

    /// Counts rows up to index `until`.
    fn add_samples(&mut self, rows: &mut InboxSamples<'_>, until: usize) {
        let at_ms = now_ms();
        while let Some((row, mut bytes)) = rows.next(until) {
            self.scratch.reset();
            // Rows of a replaced statement are dropped.
            let name = self.by_serial.get(&row.serial);
            let Some(kept) = name.and_then(|name| self.windows_by_name.get_mut(name)) else {
                continue;
            };
            let counters = kept
                .rule
                .monitor
                .counters
                .producer(self.shared.window_producer());
            let Ok(sample) = read_sample(&mut bytes, self.scratch.arena()) else {
                tracing::error!(
                    rule = &*kept.rule.name,
                    "window row cannot be decoded; it is dropped; this is a bug"
                );
                continue;
            };
            if row.lineage.depth() > kept.lineage.depth() {
                kept.lineage = row.lineage;
            }
            kept.is_changed = true;
            let mut closed = Vec::new();
            let arena = self.scratch.arena();
            let windows = &mut kept.windows;
            let added = catch_panic(&kept.rule, counters, || {
                windows.add(&sample, at_ms, arena, |row| {
                    closed.push(copy_into_arena(&row, arena))
                })
            });
            let Some(added) = added else { continue };
            match added {
                AddOutcome::Counted => {}
                AddOutcome::Late => record_lost_sample(
                    &kept.rule,
                    counters,
                    RuleCounter::WindowLate,
                    &sample,
                    at_ms,
                ),
                AddOutcome::Ahead => record_lost_sample(
                    &kept.rule,
                    counters,
                    RuleCounter::WindowAhead,
                    &sample,
                    at_ms,
                ),
                AddOutcome::Full => record_lost_sample(
                    &kept.rule,
                    counters,
                    RuleCounter::WindowFull,
                    &sample,
                    at_ms,
                ),
            }
            if !closed.is_empty() {
                let (bound, lineage) = (kept.rule.clone(), kept.lineage);
                emit_closed_windows(
                    &self.shared,
                    &self.scratch,
                    &mut self.stage,
                    &bound,
                    lineage,
                    &closed,
                );
            }
        }
    }

    fn close_due(&mut self) {
        let at_ms = now_ms();
        for kept in self.windows_by_name.values_mut() {
            if kept.windows.due_ms().is_none_or(|due_ms| due_ms > at_ms) {
                continue;
            }
            self.scratch.reset();
            let arena = self.scratch.arena();
            let mut closed = Vec::new();
            let counters = kept
                .rule
                .monitor
                .counters
                .producer(self.shared.window_producer());
            let windows = &mut kept.windows;
            let advanced = catch_panic(&kept.rule, counters, || {
                windows.advance(at_ms, arena, |row| {
                    closed.push(copy_into_arena(&row, arena))
                });
            });
            if advanced.is_none() {
                // Otherwise the same windows would be due again immediately, in a loop.
                self.panicked_rules.push(kept.rule.clone());
            }
            kept.is_changed = true;
            let lineage = std::mem::take(&mut kept.lineage);
            emit_closed_windows(
                &self.shared,
                &self.scratch,
                &mut self.stage,
                &kept.rule,
                lineage,
                &closed,
            );
        }
        for bound in std::mem::take(&mut self.panicked_rules) {
            self.stop_rule(&bound.name);
            self.start_rule(bound);
        }
    }

    /// Stores everything that has changed.
    fn save_all(&mut self) {
        self.save_windows();
        self.save_rule_states();
    }

    fn save_rule_states(&mut self) {
        let Some(saved) = &mut self.saved_rule_states else {
            return;
        };
        for (bound, stored) in self.rule_states.values_mut() {
            let Some(memory) = &bound.shared_state else {
                continue;
            };
            let (changes, snapshot) = {
                let state = memory.lock().unwrap_or_else(PoisonError::into_inner);
                if state.kv.change_count() == *stored {
                    continue;
                }
                (state.kv.change_count(), state.kv.snapshot())
            };
            match saved.write(&bound.name, bound.sql_hash, &snapshot) {
                Ok(()) => *stored = changes,
                Err(error) => {
                    tracing::warn!(rule = &*bound.name, %error, "state of a rule cannot be stored; retrying at the next save");
                }
            }
        }
    }

    fn save_windows(&mut self) {
        let Some(saved) = &mut self.saved_windows else {
            return;
        };
        for kept in self
            .windows_by_name
            .values_mut()
            .filter(|kept| kept.is_changed)
        {
            let bound = &kept.rule;
            let counters = bound
                .monitor
                .counters
                .producer(self.shared.window_producer());
            let writing = || saved.write(&bound.name, bound.sql_hash, &kept.windows.snapshot());
            match catch_panic(bound, counters, writing) {
                // After a panic, they are stored with their next change.
                Some(Ok(())) | None => kept.is_changed = false,
                Some(Err(error)) => {
                    tracing::warn!(rule = &*bound.name, %error, "windows of a rule cannot be stored; retrying at the next save");
                }
            }
        }
    }
}

/// Iterates over the rows of an inbox.
struct InboxSamples<'i> {
    rows: &'i [QueuedSample],
    bytes: &'i [u8],
    read_samples: usize,
}

impl<'i> InboxSamples<'i> {
    fn new(inbox: &'i WindowInbox) -> Self {
        Self {
            rows: &inbox.samples,
            bytes: &inbox.bytes,
            read_samples: 0,
        }
    }

    fn next(&mut self, until: usize) -> Option<(&'i QueuedSample, &'i [u8])> {
        let row = self
            .rows
            .get(self.read_samples)
            .filter(|_| self.read_samples < until)?;
        self.read_samples += 1;
        let (bytes, rest) = self.bytes.split_at(row.len);
        self.bytes = rest;
        Some((row, bytes))
    }
}

/// Counts an event that no window counts, and sends it to the trace watchers.
fn record_lost_sample(
    bound: &RunningRule,
    counters: &ProducerCounters,
    why: RuleCounter,
    sample: &WindowSample<'_>,
    now_ms: u64,
) {
    counters.increment(why);
    let watchers = &bound.monitor.watchers;
    if watchers.is_watched() {
        watchers.send(now_ms, || TraceRecord {
            rule: bound.name.clone(),
            at_ms: sample.timestamp_ms,
            result: why.name(),
            ..TraceRecord::default()
        });
    }
}

/// Copies a closed window into the arena.
pub(crate) fn copy_into_arena<'a>(
    closed: &ClosedWindow<'_>,
    arena: &'a rules::Arena,
) -> ClosedWindow<'a> {
    let copy = |values: &[rules::Value<'_>]| -> &'a [rules::Value<'a>] {
        let copies: Vec<_> = values
            .iter()
            .map(|value| value.into_owned().to_value(arena))
            .collect();
        arena.alloc_slice_copy(&copies)
    };
    ClosedWindow {
        start_ms: closed.start_ms,
        end_ms: closed.end_ms,
        key: copy(closed.key),
        aggregates: copy(closed.aggregates),
    }
}

/// Evaluates SELECT and HAVING and runs the actions of closed windows.
fn emit_closed_windows(
    shared: &EngineShared,
    scratch: &EvaluationScratch,
    stage: &mut ProducerContext,
    bound: &RunningRule,
    lineage: RuleLineage,
    closed: &[ClosedWindow<'_>],
) {
    let snapshot = shared.snapshot.load_full();
    let at_ms = now_ms();
    for closed in closed {
        let event = RuleEvent {
            node: &shared.settings.node_name,
            ..RuleEvent::new(EventKind::Publish, closed.end_ms)
        };
        let view = scratch.view(&event, at_ms);
        let closed = copy_into_arena(closed, scratch.arena());
        let counters = bound.monitor.counters.producer(stage.producer);
        let mut outputs = RuleOutputs::None;
        let ran = catch_panic(bound, counters, || {
            with_state(bound, &mut stage.stateless_state, |state| {
                bound
                    .rule
                    .close_window(&closed, &view, state, &mut |output| outputs.push(output))
            })
        });
        let Some(ran) = ran else { continue };
        let mut run = EventEvaluation {
            index: &snapshot.index,
            rows: &shared.rows,
            scratch,
            stage,
            lineage,
            now_ms: at_ms,
            chained: 0,
        };
        match ran {
            Ok(RunOutcome::Passed(_)) => {
                catch_panic(bound, counters, || {
                    run.run_actions(bound, &view, outputs.as_slice())
                });
            }
            Ok(RunOutcome::NoResult) => {}
            Err(fault) => run.record_failure(bound, &view, counters, &fault),
        }
        if let Some(outgoing) = stage.take_outgoing() {
            publish_outputs(shared, bound, outgoing);
        }
    }
}

/// Hands messages to a shard, always the same one for one rule, and waits until it has published them. A busy
/// shard therefore slows down this thread, which in turn makes publishers wait.
fn publish_outputs(shared: &EngineShared, bound: &RunningRule, outgoing: OutgoingMessages) {
    let (done, published) = mpsc::channel();
    // The receiver may be gone already.
    let done = move || _ = done.send(());
    if shared.publish_on_shard(bound.serial, outgoing, done)
        && published.recv_timeout(PUBLISH_TIMEOUT).is_err()
    {
        tracing::debug!(
            rule = &*bound.name,
            "shard is slow to publish the outputs of a window; not waiting any longer"
        );
    }
}
