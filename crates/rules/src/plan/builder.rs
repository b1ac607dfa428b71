//! Builds a plan operation by operation.

use super::{ListRange, Op, OpId, Plan, PutStep, StepOp, TextRange};
use crate::evaluation_error::EvaluationError;
use crate::event_field::EventField;
use crate::function_context::Dialect;
use crate::value::Value;
use crate::zone::Zone;

/// The plan exceeds a size limit.
#[derive(Debug)]
pub(crate) struct PlanSizeError(pub(crate) &'static str);

/// The reason why an operation cannot be added.
pub(crate) enum PlanError {
    TooLarge(PlanSizeError),
    /// A constant operation whose evaluation fails.
    AlwaysFails(EvaluationError),
}

impl From<PlanSizeError> for PlanError {
    fn from(too_much: PlanSizeError) -> Self {
        Self::TooLarge(too_much)
    }
}

pub(crate) struct PlanBuilder {
    pub(super) plan: Plan,
    /// Evaluation depth of each operation.
    pub(super) depths: Vec<u16>,
    max_depth: u16,
    pub(crate) dialect: Dialect,
    pub(crate) zone: Zone,
}

impl PlanBuilder {
    pub(crate) fn new(dialect: Dialect, zone: Zone, max_depth: usize) -> Self {
        Self {
            plan: Plan::default(),
            depths: Vec::new(),
            // Aliases may add depth to what the statement itself nests.
            max_depth: (max_depth.saturating_mul(2).min(500) + 32) as u16,
            dialect,
            zone,
        }
    }

    pub(crate) fn finish(self) -> Plan {
        let mut plan = self.plan;
        plan.ops.shrink_to_fit();
        plan.lists.shrink_to_fit();
        plan.steps.shrink_to_fit();
        plan.puts.shrink_to_fit();
        plan.owned.shrink_to_fit();
        plan.text.shrink_to_fit();
        plan
    }

    pub(crate) fn op(&self, id: OpId) -> Op {
        self.plan.ops[id.0 as usize]
    }

    pub(crate) fn text_of(&self, text: TextRange) -> &str {
        &self.plan.text[text.start as usize..(text.start + text.length) as usize]
    }

    /// Stores a text. Equal texts are stored once.
    pub(crate) fn text(&mut self, text: &str) -> TextRange {
        let start = self.plan.text.find(text).unwrap_or_else(|| {
            let start = self.plan.text.len();
            self.plan.text.push_str(text);
            start
        });
        TextRange {
            start: start as u32,
            length: text.len() as u32,
        }
    }

    pub(crate) fn push(&mut self, op: Op) -> Result<OpId, PlanSizeError> {
        let id = OpId(
            u16::try_from(self.plan.ops.len())
                .map_err(|_| PlanSizeError("the statement has too many parts"))?,
        );
        let mut deepest = 0;
        self.for_each_child(op, |child, depths| {
            deepest = deepest.max(depths[child.0 as usize])
        });
        if deepest >= self.max_depth {
            return Err(PlanSizeError("expressions are nested too deep"));
        }
        if let Op::Path(base, _) = op {
            self.mark_payload_read(base);
        }
        self.plan.ops.push(op);
        self.depths.push(deepest + 1);
        Ok(id)
    }

    /// Records that a part of this value is read, which may be the payload.
    pub(crate) fn mark_payload_read(&mut self, base: OpId) {
        self.plan.reads_payload |= matches!(self.op(base), Op::Field(EventField::Payload));
    }

    pub(crate) fn is_constant(&self, id: OpId) -> bool {
        matches!(
            self.op(id),
            Op::Null | Op::Bool(_) | Op::Int(_) | Op::Float(_) | Op::Text(_) | Op::Owned(_)
        )
    }

    /// The value of a constant that is neither array nor map.
    pub(crate) fn scalar(&self, id: OpId) -> Option<Value<'_>> {
        match self.op(id) {
            Op::Null => Some(Value::Undefined),
            Op::Bool(value) => Some(Value::Bool(value)),
            Op::Int(value) => Some(Value::Int(value)),
            Op::Float(value) => Some(Value::Float(value)),
            Op::Text(text) => Some(Value::Str(self.text_of(text))),
            _ => None,
        }
    }

    pub(crate) fn list(&mut self, ids: &[OpId]) -> Result<ListRange, PlanSizeError> {
        let list = span(self.plan.lists.len(), ids.len())?;
        self.plan.lists.extend_from_slice(ids);
        Ok(list)
    }

    pub(crate) fn steps(&mut self, steps: &[StepOp]) -> Result<ListRange, PlanSizeError> {
        let list = span(self.plan.steps.len(), steps.len())?;
        self.plan.steps.extend_from_slice(steps);
        Ok(list)
    }

    pub(crate) fn puts(&mut self, puts: &[PutStep]) -> Result<ListRange, PlanSizeError> {
        let list = span(self.plan.puts.len(), puts.len())?;
        self.plan.puts.extend_from_slice(puts);
        Ok(list)
    }

    pub(crate) fn list_of(&self, list: ListRange) -> &[OpId] {
        &self.plan.lists[list.start as usize..][..list.length as usize]
    }

    pub(crate) fn steps_of(&self, list: ListRange) -> &[StepOp] {
        &self.plan.steps[list.start as usize..][..list.length as usize]
    }

    /// Makes an operation evaluated once however often it is used. Constants and fields need no memo.
    pub(crate) fn memo(&mut self, id: OpId) -> Result<OpId, PlanSizeError> {
        match self.op(id) {
            Op::Memo(..) | Op::Field(_) | Op::Item => return Ok(id),
            _ if self.is_constant(id) => return Ok(id),
            _ => {}
        }
        let memo = self.push(Op::Memo(id, self.plan.memos))?;
        self.plan.memos += 1;
        Ok(memo)
    }

    pub(super) fn for_each_child(&self, op: Op, mut each: impl FnMut(OpId, &[u16])) {
        let mut see = |id: OpId| each(id, &self.depths);
        match op {
            Op::Memo(id, _)
            | Op::Not(id)
            | Op::Negate(id)
            | Op::IsNull(id, _)
            | Op::MatchFilter(id, _) => see(id),
            Op::Binary(_, left, right) | Op::Like(left, right, _) | Op::Range(left, right) => {
                see(left);
                see(right);
            }
            Op::In(id, list, _) | Op::Between(id, list, _) => {
                see(id);
                self.list_of(list).iter().copied().for_each(see);
            }
            Op::Call(_, list)
            | Op::Case(list)
            | Op::Switch(list)
            | Op::Array(list)
            | Op::Map(list) => {
                self.list_of(list).iter().copied().for_each(see);
            }
            Op::Path(id, list) => {
                see(id);
                for step in &self.plan.steps[list.start as usize..][..list.length as usize] {
                    match *step {
                        StepOp::Computed(id) | StepOp::Get(id) => see(id),
                        StepOp::Slice(from, to) => {
                            see(from);
                            see(to);
                        }
                        StepOp::Key(_) | StepOp::Index(_) => {}
                    }
                }
            }
            Op::Field(_)
            | Op::Open(..)
            | Op::Column(..)
            | Op::Output
            | Op::Item
            | Op::Key(_)
            | Op::Aggregate(_)
            | Op::WindowStart
            | Op::WindowEnd
            | Op::Null
            | Op::Bool(_)
            | Op::Int(_)
            | Op::Float(_)
            | Op::Text(_)
            | Op::Owned(_) => {}
        }
    }
}

fn span(start: usize, length: usize) -> Result<ListRange, PlanSizeError> {
    let too_much = |_| PlanSizeError("the statement has too many parts");
    u16::try_from(start + length).map_err(too_much)?;
    Ok(ListRange {
        start: start as u16,
        length: length as u16,
    })
}
