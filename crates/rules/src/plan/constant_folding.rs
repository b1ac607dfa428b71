//! Evaluates constant operations once, at compile time.

use super::OpId;
use super::builder::PlanBuilder;
use crate::compile_options::EvaluationLimits;
use crate::eval::Evaluator;
use crate::evaluation_error::EvaluationError;
use crate::evaluation_resources::EvaluationResources;
use crate::event::RuleEvent;
use crate::event_view::EvaluationScratch;
use crate::kv_store::KvStore;
use crate::rule_source::EventKind;
use crate::value::OwnedValue;

const LIMITS: EvaluationLimits = EvaluationLimits {
    max_steps: 10_000,
    max_output_bytes: 64 << 10,
    max_jq_steps: 50_000,
};

/// The result of a constant operation.
pub(super) fn evaluate_constant(
    builder: &PlanBuilder,
    id: OpId,
) -> Result<OwnedValue, EvaluationError> {
    let scratch = EvaluationScratch::new(EvaluationResources::new([0; 32], 0), 0);
    let event = RuleEvent::new(EventKind::Publish, 0);
    let view = scratch.view(&event, 0);
    let mut tools = scratch.tools();
    let mut kv = KvStore::default();
    let mut evaluator = Evaluator::new(
        &builder.plan,
        &view,
        &mut tools,
        &mut kv,
        &builder.zone,
        builder.dialect,
    );
    evaluator.set_limits(LIMITS);
    evaluator.evaluate(id).map(|value| value.into_owned())
}
