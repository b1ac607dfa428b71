//! Results of device events on one shard, until its hooks take them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hooks::{BackpressureCheck, OutgoingMessages};

use crate::evaluation_context::EvaluationContext;

/// Results of device events on one shard, until its hooks take them. Only the shard's thread locks it, so the
/// lock is never contended.
#[derive(Default)]
pub(crate) struct ShardDeviceEvents {
    state: Mutex<ShardDeviceEventsState>,
    /// Whether there are results to take; read without the lock.
    has_results: AtomicBool,
}

#[derive(Default)]
struct ShardDeviceEventsState {
    /// One context, or one per level of nested events: an alarm raised by a rule is an event inside an event.
    contexts: Vec<EvaluationContext>,
    outgoing: Vec<OutgoingMessages>,
    depth: u8,
}

/// Maximum depth of nested events.
const MAX_DEPTH: u8 = 4;

impl ShardDeviceEvents {
    fn lock(&self) -> MutexGuard<'_, ShardDeviceEventsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a context to evaluate one more event in; `None` if events are nested too deep. The caller returns
    /// it with [`ShardDeviceEvents::end_event`].
    pub(crate) fn begin_event(
        &self,
        create: impl FnOnce() -> EvaluationContext,
    ) -> Option<EvaluationContext> {
        let mut work = self.lock();
        if work.depth == MAX_DEPTH {
            return None;
        }
        work.depth += 1;
        Some(work.contexts.pop().unwrap_or_else(create))
    }

    /// Keeps the results of an event until they are taken. Returns whether there are any.
    pub(crate) fn end_event(&self, mut tools: EvaluationContext) -> bool {
        let outgoing = tools.stage.take_outgoing();
        let has_followers = outgoing.is_some() || tools.stage.has_pending_effects();
        let mut work = self.lock();
        work.depth -= 1;
        work.outgoing.extend(outgoing);
        work.contexts.push(tools);
        if has_followers {
            self.has_results.store(true, Relaxed);
        }
        has_followers
    }

    /// Takes the messages that rules publish.
    #[inline]
    pub(crate) fn take_outgoing(&self) -> Option<OutgoingMessages> {
        if !self.has_results.load(Relaxed) {
            return None;
        }
        let mut work = self.lock();
        match work.outgoing.is_empty() {
            true => None,
            false => Some(work.outgoing.remove(0)),
        }
    }

    /// Whether acknowledgements must wait for rows.
    #[inline]
    pub(crate) fn take_unsettled(&self) -> bool {
        if !self.has_results.load(Relaxed) {
            return false;
        }
        let mut work = self.lock();
        let mut is_unsettled = false;
        for tools in &mut work.contexts {
            is_unsettled |= tools.stage.take_unsettled();
        }
        is_unsettled
    }

    /// Whether rules have written telemetry or alarms of devices.
    pub(crate) fn take_unsettled_devices(&self) -> bool {
        let mut work = self.lock();
        let tools = work.contexts.iter_mut();
        let all = tools.map(|tools| tools.stage.take_unsettled_devices());
        all.fold(false, |any, one| any | one)
    }

    /// The condition that the publisher must wait for. Called last.
    #[inline]
    pub(crate) fn take_backpressure(&self) -> Option<BackpressureCheck> {
        if !self.has_results.load(Relaxed) {
            return None;
        }
        let mut work = self.lock();
        let tools = work.contexts.iter_mut();
        let all: Vec<_> = tools
            .filter_map(|tools| tools.stage.take_backpressure())
            .collect();
        if work.outgoing.is_empty() {
            self.has_results.store(false, Relaxed);
        }
        (!all.is_empty())
            .then(|| Box::new(move || all.iter().any(|waits| waits())) as BackpressureCheck)
    }
}
