//! Evaluates constant operations once, at compile time.

use super::builder::{PlanBuilder, PlanError};
use super::{Op, OpId, constant_checks};
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

impl PlanBuilder {
    /// Adds an operation, or its result if all its operands are constant.
    pub(crate) fn push_folded(&mut self, op: Op) -> Result<OpId, PlanError> {
        let mut constant = match op {
            Op::Call(function, _) => function.pure,
            // The values of events, outputs and windows are not known at compile time.
            Op::Field(_)
            | Op::Open(..)
            | Op::Column(..)
            | Op::Output
            | Op::Item
            | Op::Key(_)
            | Op::Aggregate(_)
            | Op::WindowStart
            | Op::WindowEnd => false,
            // These operations are already constants.
            Op::Null | Op::Bool(_) | Op::Int(_) | Op::Float(_) | Op::Text(_) | Op::Owned(_) => {
                return Ok(self.push(op)?);
            }
            _ => true,
        };
        self.for_each_child(op, |child, _| constant &= self.is_constant(child));
        let id = self.push(op)?;
        if !constant {
            return Ok(id);
        }
        let value = match evaluate_constant(self, id) {
            Ok(value) => value,
            Err(fault) if constant_checks::is_deterministic(&fault) => {
                return Err(PlanError::AlwaysFails(fault));
            }
            Err(_) => return Ok(id),
        };
        let folded = match value {
            OwnedValue::Undefined => Op::Null,
            OwnedValue::Bool(value) => Op::Bool(value),
            OwnedValue::Int(value) => Op::Int(value),
            OwnedValue::Float(value) => Op::Float(value),
            OwnedValue::Str(text) if text.len() <= 1024 => Op::Text(self.text(&text)),
            value @ (OwnedValue::Null
            | OwnedValue::Big(_)
            | OwnedValue::Array(_)
            | OwnedValue::Map(_)
            | OwnedValue::Json(_))
                if value.size_bytes() <= 1024 =>
            {
                self.plan.owned.push(value);
                Op::Owned((self.plan.owned.len() - 1) as u16)
            }
            // Large constants are evaluated each time rather than stored in every one of many rules.
            _ => return Ok(id),
        };
        self.plan.ops[id.0 as usize] = folded;
        self.depths[id.0 as usize] = 1;
        Ok(id)
    }
}

/// The result of a constant operation.
fn evaluate_constant(builder: &PlanBuilder, id: OpId) -> Result<OwnedValue, EvaluationError> {
    let scratch = EvaluationScratch::new(EvaluationResources::new([0; 32], 0), 0);
    let event = RuleEvent::new(EventKind::Publish, 0);
    let view = scratch.view(&event, 0);
    let mut resources = scratch.resources();
    let mut kv = KvStore::default();
    let mut evaluator = Evaluator::new(
        &builder.plan,
        &view,
        &mut resources,
        &mut kv,
        &builder.zone,
        builder.dialect,
    );
    evaluator.set_limits(LIMITS);
    evaluator.evaluate(id).map(|value| value.into_owned())
}
