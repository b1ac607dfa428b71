//! The context in which a producer evaluates events, and what the events leave in it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hooks::{BackpressureCheck, OutgoingMessages};
use rules::{Environment, EvaluationResources, EvaluationScratch};
use wall_clock::now_ms;

use crate::producer_context::ProducerContext;

/// Evaluation memory that a producer keeps between messages.
const MAX_IDLE_SCRATCH_BYTES: usize = 256 << 10;

/// The evaluation context of events outside the shards, created with the first event.
#[derive(Default)]
pub(crate) struct EvaluationContextCell(Mutex<Option<EvaluationContext>>);

/// The memory and the producer in which events are evaluated, one at a time.
pub(crate) struct EvaluationContext {
    pub(crate) scratch: EvaluationScratch,
    pub(crate) stage: ProducerContext,
}

impl EvaluationContextCell {
    fn lock(&self) -> MutexGuard<'_, Option<EvaluationContext>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the evaluation context; one event at a time uses it.
    pub(crate) fn with_context<R>(
        &self,
        create: impl FnOnce() -> EvaluationContext,
        work: impl FnOnce(&mut EvaluationContext) -> R,
    ) -> R {
        let mut context = self.lock();
        work(context.get_or_insert_with(create))
    }
}

/// The result of evaluating the rules on an event outside the shards.
pub(crate) struct EventOutcome {
    pub(crate) outgoing: Option<OutgoingMessages>,
    /// The condition that the event's source waits for.
    pub(crate) backpressure: Option<BackpressureCheck>,
}

impl EvaluationContext {
    pub(crate) fn new(stage: ProducerContext, environment: Environment) -> Self {
        let resources = EvaluationResources::new(random_seed(), stage.producer as u16)
            .with_environment(environment);
        Self {
            scratch: EvaluationScratch::new(resources, MAX_IDLE_SCRATCH_BYTES),
            stage,
        }
    }

    /// Takes the result of the event evaluated last.
    pub(crate) fn take_outcome(&mut self) -> EventOutcome {
        EventOutcome {
            outgoing: self.stage.take_outgoing(),
            backpressure: self.stage.take_backpressure(),
        }
    }
}

/// A seed for the random numbers of rules.
fn random_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    if ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut seed).is_err() {
        // Random numbers in rules are not used for secrets, so the stack address and the time suffice as a
        // fallback.
        let here = std::ptr::from_ref(&seed) as u64 ^ now_ms();
        seed[..8].copy_from_slice(&here.to_le_bytes());
    }
    seed
}
