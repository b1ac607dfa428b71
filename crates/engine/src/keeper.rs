//! The one thread that keeps the windows of all rules: takes the rows that shards send, closes windows when they are due, does
//! what the rules say with what comes out, and stores what is open now and then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use broker::hooks::Outgoing;
use rules::windows::{Added, Windows, read_sample};
use rules::{Closed, Event, EventKind, Ran, Sample, Scratch};
use store::Objects;

use crate::bound::{Bound, Lineage};
use crate::counters::{Count, LaneCounters};
use crate::hooks::{now_ms, scratch};
use crate::rows::{Inbox, Order, Queued};
use crate::run::{Outputs, Run, contain, with_state};
use crate::saved::Saved;
use crate::shared::{PUBLISHED_WITHIN, Shared};
use crate::stage::Stage;

/// At most so long between two looks at the clock.
const MAX_IDLE: Duration = Duration::from_secs(1);

/// The windows of one rule.
struct Kept {
    bound: Arc<Bound>,
    windows: Windows,
    /// The deepest of what was counted since a window closed.
    lineage: Lineage,
    is_changed: bool,
    /// Whose rows are counted here: those of the rule, and of the same statement before it was changed otherwise.
    serials: Vec<u64>,
}

pub(crate) struct Keeper {
    shared: Arc<Shared>,
    kept: HashMap<Box<str>, Kept>,
    by_serial: HashMap<u64, Box<str>>,
    saved: Option<Saved>,
    /// What rules keep, and at which change it was stored.
    memories: HashMap<Box<str>, (Arc<Bound>, u64)>,
    saved_memories: Option<Saved>,
    scratch: Scratch,
    stage: Stage,
    /// Rules whose windows panicked: they begin anew.
    broken: Vec<Arc<Bound>>,
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, objects: Option<Objects>) -> Self {
        let lane = shared.window_lane();
        Self {
            kept: HashMap::new(),
            by_serial: HashMap::new(),
            saved: objects.clone().map(Saved::windows),
            memories: HashMap::new(),
            saved_memories: objects.map(Saved::memories),
            scratch: scratch(lane, &shared),
            stage: Stage::new(lane, shared.clone()),
            broken: Vec::new(),
            shared,
        }
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        let save_every =
            Duration::from_secs(self.shared.settings.window_save_interval_s.max(1).into());
        let mut save_at = Instant::now() + save_every;
        let mut inbox = Inbox::default();
        loop {
            let idle = self
                .idle()
                .min(save_at.saturating_duration_since(Instant::now()));
            inbox = self.shared.rows.take(idle, inbox);
            let orders = std::mem::take(&mut inbox.orders);
            let mut rows = Rows::new(&inbox);
            let mut stops = false;
            for (behind, order) in orders {
                self.count(&mut rows, behind);
                stops |= self.obey(order);
            }
            self.count(&mut rows, usize::MAX);
            self.shared.rows.done(&inbox);
            self.close_due();
            if Instant::now() >= save_at || stops {
                self.save();
                save_at = Instant::now() + save_every;
            }
            if stops {
                return;
            }
        }
    }

    /// True: that was all.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Start(bound) => self.start(bound),
            Order::End(name) => self.end(&name),
            Order::Remember(bound) => {
                // Counted anew: whatever it has is stored once.
                self.memories.insert(bound.name.clone(), (bound, 0));
            }
            Order::Forget(name) => {
                self.memories.remove(&name);
                if let Some(saved) = &mut self.saved_memories {
                    saved.forget(&name);
                }
            }
            Order::Stop => return true,
        }
        false
    }

    /// How long nothing is due.
    fn idle(&self) -> Duration {
        let due_ms = self
            .kept
            .values()
            .filter_map(|kept| kept.windows.due_ms())
            .min();
        match due_ms {
            Some(due_ms) => Duration::from_millis(due_ms.saturating_sub(now_ms())).min(MAX_IDLE),
            None => MAX_IDLE,
        }
    }

    /// A rule runs from now on. One that says the same as the one before, or as the one before a restart, goes on with its
    /// windows.
    fn start(&mut self, bound: Arc<Bound>) {
        let (Some(window), Some(settings)) = (bound.rule.window(), bound.window) else {
            return;
        };
        let mut serials = Vec::new();
        let before = match self.kept.remove(&bound.name) {
            Some(before) if before.bound.sql_hash == bound.sql_hash => {
                // Shards that have not heard of the change yet still send rows of the rule before.
                serials.extend(before.serials.last());
                self.forget_serials(&before.serials);
                Some(before.windows.snapshot())
            }
            Some(before) => {
                self.forget_serials(&before.serials);
                None
            }
            None => {
                let saved = self.saved.as_ref();
                saved.and_then(|saved| saved.read(&bound.name, bound.sql_hash))
            }
        };
        let restored = before.map(|snapshot| Windows::restore(window, settings, &snapshot));
        let windows = match restored {
            Some(Ok(windows)) => windows,
            Some(Err(error)) => {
                tracing::warn!(rule = &*bound.name, %error, "the windows of a rule begin anew");
                Windows::new(window, settings)
            }
            None => Windows::new(window, settings),
        };
        serials.push(bound.serial);
        for &serial in &serials {
            self.by_serial.insert(serial, bound.name.clone());
        }
        let kept = Kept {
            windows,
            lineage: Lineage::default(),
            is_changed: true,
            serials,
            bound: bound.clone(),
        };
        self.kept.insert(bound.name.clone(), kept);
    }

    fn forget_serials(&mut self, serials: &[u64]) {
        for serial in serials {
            self.by_serial.remove(serial);
        }
    }

    fn end(&mut self, name: &str) {
        if let Some(kept) = self.kept.remove(name) {
            self.forget_serials(&kept.serials);
        }
        if let Some(saved) = &mut self.saved {
            saved.forget(name);
        }
    }

    /// Counts rows up to a number of them.
    fn count(&mut self, rows: &mut Rows<'_>, until: usize) {
        let at_ms = now_ms();
        while let Some((row, mut bytes)) = rows.next(until) {
            self.scratch.reset();
            // Rows of a statement that is no more are of no use.
            let name = self.by_serial.get(&row.serial);
            let Some(kept) = name.and_then(|name| self.kept.get_mut(name)) else {
                continue;
            };
            let counters = kept.bound.standing.counters.lane(self.shared.window_lane());
            let Ok(sample) = read_sample(&mut bytes, self.scratch.arena()) else {
                tracing::error!(
                    rule = &*kept.bound.name,
                    "a row for a window cannot be read; this is a bug"
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
            let added = contain(&kept.bound, counters, || {
                windows.add(&sample, at_ms, arena, |row| closed.push(keep(&row, arena)))
            });
            let Some(added) = added else { continue };
            match added {
                Added::Counted => {}
                Added::Late => lost(&kept.bound, counters, Count::WindowLate, &sample, at_ms),
                Added::Ahead => lost(&kept.bound, counters, Count::WindowAhead, &sample, at_ms),
                Added::Full => lost(&kept.bound, counters, Count::WindowFull, &sample, at_ms),
            }
            if !closed.is_empty() {
                let (bound, lineage) = (kept.bound.clone(), kept.lineage);
                give_out(
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
        for kept in self.kept.values_mut() {
            if kept.windows.due_ms().is_none_or(|due_ms| due_ms > at_ms) {
                continue;
            }
            self.scratch.reset();
            let arena = self.scratch.arena();
            let mut closed = Vec::new();
            let counters = kept.bound.standing.counters.lane(self.shared.window_lane());
            let windows = &mut kept.windows;
            let advanced = contain(&kept.bound, counters, || {
                windows.advance(at_ms, arena, |row| closed.push(keep(&row, arena)));
            });
            if advanced.is_none() {
                // They would be due again at once, and again.
                self.broken.push(kept.bound.clone());
            }
            kept.is_changed = true;
            let lineage = std::mem::take(&mut kept.lineage);
            give_out(
                &self.shared,
                &self.scratch,
                &mut self.stage,
                &kept.bound,
                lineage,
                &closed,
            );
        }
        for bound in std::mem::take(&mut self.broken) {
            self.end(&bound.name);
            self.start(bound);
        }
    }

    /// Stores what has changed.
    fn save(&mut self) {
        self.save_windows();
        self.save_memories();
    }

    fn save_memories(&mut self) {
        let Some(saved) = &mut self.saved_memories else {
            return;
        };
        for (bound, stored) in self.memories.values_mut() {
            let Some(memory) = &bound.memory else {
                continue;
            };
            let (changes, snapshot) = {
                let state = memory.lock().unwrap_or_else(PoisonError::into_inner);
                if state.kv.changes() == *stored {
                    continue;
                }
                (state.kv.changes(), state.kv.snapshot())
            };
            match saved.write(&bound.name, bound.sql_hash, &snapshot) {
                Ok(()) => *stored = changes,
                Err(error) => {
                    tracing::warn!(rule = &*bound.name, %error, "what a rule keeps cannot be stored");
                }
            }
        }
    }

    fn save_windows(&mut self) {
        let Some(saved) = &mut self.saved else { return };
        for kept in self.kept.values_mut().filter(|kept| kept.is_changed) {
            let bound = &kept.bound;
            match saved.write(&bound.name, bound.sql_hash, &kept.windows.snapshot()) {
                Ok(()) => kept.is_changed = false,
                Err(error) => {
                    tracing::warn!(rule = &*bound.name, %error, "the windows of a rule cannot be stored");
                }
            }
        }
    }
}

/// The rows of an inbox, one after the other.
struct Rows<'i> {
    rows: &'i [Queued],
    bytes: &'i [u8],
    taken: usize,
}

impl<'i> Rows<'i> {
    fn new(inbox: &'i Inbox) -> Self {
        Self {
            rows: &inbox.rows,
            bytes: &inbox.bytes,
            taken: 0,
        }
    }

    fn next(&mut self, until: usize) -> Option<(&'i Queued, &'i [u8])> {
        let row = self.rows.get(self.taken).filter(|_| self.taken < until)?;
        self.taken += 1;
        let (bytes, rest) = self.bytes.split_at(row.len);
        self.bytes = rest;
        Some((row, bytes))
    }
}

/// An event that no window counts is counted, and shown to those who watch.
fn lost(bound: &Bound, counters: &LaneCounters, why: Count, sample: &Sample<'_>, now_ms: u64) {
    counters.inc(why);
    let watchers = &bound.standing.watchers;
    if watchers.is_watched() {
        watchers.tell(now_ms, || {
            serde_json::json!({
                "rule": &*bound.name,
                "at_ms": sample.timestamp_ms,
                "result": why.name(),
            })
        });
    }
}

/// A closed window that lives in the arena.
pub(crate) fn keep<'a>(closed: &Closed<'_>, arena: &'a rules::Arena) -> Closed<'a> {
    let copy = |values: &[rules::Value<'_>]| -> &'a [rules::Value<'a>] {
        let copies: Vec<_> = values
            .iter()
            .map(|value| value.into_owned().borrow(arena))
            .collect();
        arena.alloc_slice_copy(&copies)
    };
    Closed {
        start_ms: closed.start_ms,
        end_ms: closed.end_ms,
        key: copy(closed.key),
        aggregates: copy(closed.aggregates),
    }
}

/// SELECT, HAVING and the actions of windows whose time has come.
fn give_out(
    shared: &Shared,
    scratch: &Scratch,
    stage: &mut Stage,
    bound: &Bound,
    lineage: Lineage,
    closed: &[Closed<'_>],
) {
    let snapshot = shared.snapshot.load_full();
    let at_ms = now_ms();
    for closed in closed {
        let event = Event {
            node: &shared.settings.node_name,
            ..Event::new(EventKind::Publish, closed.end_ms)
        };
        let view = scratch.view(&event, at_ms);
        let closed = keep(closed, scratch.arena());
        let counters = bound.standing.counters.lane(stage.lane);
        let mut outputs = Outputs::None;
        let ran = contain(bound, counters, || {
            with_state(bound, &mut stage.spare, |state| {
                bound
                    .rule
                    .close(&closed, &view, state, &mut |output| outputs.push(output))
            })
        });
        let Some(ran) = ran else { continue };
        let mut run = Run {
            index: &snapshot.index,
            rows: &shared.rows,
            scratch,
            stage,
            lineage,
            now_ms: at_ms,
            chained: 0,
        };
        match ran {
            Ok(Ran::Passed(_)) => {
                contain(bound, counters, || {
                    run.pass_on(bound, &view, outputs.as_slice())
                });
            }
            Ok(Ran::NoResult) => {}
            Err(fault) => run.failed(bound, &view, counters, &fault),
        }
        if let Some(outgoing) = stage.take_outgoing() {
            publish(shared, bound, outgoing);
        }
    }
}

/// Hands messages to a shard, always the same for one rule, and waits until it has published them: so a shard that has much to do
/// slows this thread, and this thread those who publish.
fn publish(shared: &Shared, bound: &Bound, outgoing: Outgoing) {
    let (done, published) = mpsc::channel();
    // Nobody may be waiting any more.
    let done = move || _ = done.send(());
    if shared.publish_on(bound.serial, outgoing, done)
        && published.recv_timeout(PUBLISHED_WITHIN).is_err()
    {
        tracing::debug!(
            rule = &*bound.name,
            "a shard takes long to publish what came of a window"
        );
    }
}
