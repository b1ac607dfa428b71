//! Evaluates what is constant once, when the rule is compiled.

use super::NodeId;
use super::build::Builder;
use crate::eval::Evaluator;
use crate::event::Event;
use crate::kv::Kv;
use crate::source::EventKind;
use crate::tools::Tools;
use crate::value::OwnedValue;
use crate::view::Scratch;

const MAX_STEPS: u32 = 10_000;
const MAX_BYTES: usize = 64 << 10;

/// What a constant operation comes to; nothing if it fails, which is then told when it is evaluated.
pub(super) fn evaluate(builder: &Builder, id: NodeId) -> Option<OwnedValue> {
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
    evaluator.limit(MAX_STEPS, MAX_BYTES);
    evaluator.evaluate(id).ok().map(|value| value.into_owned())
}
