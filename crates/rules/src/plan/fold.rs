//! Evaluates what is constant once, when the rule is compiled.

use super::NodeId;
use super::build::Builder;
use crate::eval::Evaluator;
use crate::event::Event;
use crate::fault::Fault;
use crate::kv::Kv;
use crate::options::EvaluationLimits;
use crate::source::EventKind;
use crate::tools::Tools;
use crate::value::OwnedValue;
use crate::view::Scratch;

const LIMITS: EvaluationLimits = EvaluationLimits {
    max_steps: 10_000,
    max_output_bytes: 64 << 10,
    max_jq_steps: 50_000,
};

/// What a constant operation comes to.
pub(super) fn evaluate(builder: &Builder, id: NodeId) -> Result<OwnedValue, Fault> {
    let scratch = Scratch::new(Tools::new([0; 32], 0), 0);
    let event = Event::new(EventKind::Publish, 0);
    let view = scratch.view(&event, 0);
    let mut tools = scratch.tools();
    let mut kv = Kv::default();
    let mut evaluator = Evaluator::new(
        &builder.plan,
        &view,
        &mut tools,
        &mut kv,
        &builder.zone,
        builder.dialect,
    );
    evaluator.limit(LIMITS);
    evaluator.evaluate(id).map(|value| value.into_owned())
}
