//! Why an event has no output: the values that WHERE compared, and what is wrong with the payload. For people, off the path of
//! messages.

use super::{List, NodeId, Op, Plan, PutStep, Target};
use crate::eval::Evaluator;
use crate::field::Field;
use crate::rule::{Body, Rule, RuleState};
use crate::source::{EventKind, Source};
use crate::syntax::ast::BinaryOp;
use crate::value::Value;
use crate::view::View;

const MAX_COMPARED: usize = 16;
/// Of the text of one value.
const MAX_VALUE_BYTES: usize = 200;

/// An operand of WHERE with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    pub expression: String,
    /// As JSON; why it cannot be evaluated, if it cannot.
    pub value: String,
}

impl Rule {
    /// Whether WHERE holds for an event; `None` if it cannot be evaluated.
    #[must_use]
    pub fn where_holds<'a>(&'a self, view: &View<'a>, state: &mut RuleState) -> Option<bool> {
        let Some(filter) = self.filter else {
            return Some(true);
        };
        self.evaluate(view, state, |evaluator| evaluator.holds(filter))
            .ok()
    }

    /// What WHERE compares, with its values for an event: each operand that is no constant.
    #[must_use]
    pub fn compared<'a>(&'a self, view: &View<'a>, state: &mut RuleState) -> Vec<Compared> {
        let mut operands = Vec::new();
        if let Some(filter) = self.filter {
            self.plan.collect_operands(filter, &mut operands);
        }
        let mut compared: Vec<Compared> = Vec::new();
        for operand in operands {
            let expression = self.plan.shown(operand);
            if compared.len() >= MAX_COMPARED || compared.iter().any(|c| c.expression == expression)
            {
                continue;
            }
            let value = self.evaluate(view, state, |evaluator| shown_value(evaluator, operand));
            compared.push(Compared {
                expression,
                value: value.unwrap_or_else(|fault| fault.to_string()),
            });
        }
        compared
    }

    /// What is wrong with the payload of an event, if the rule reads fields of it and it is not JSON.
    #[must_use]
    pub fn payload_problem(&self, view: &View<'_>) -> Option<String> {
        if !self.reads_payload() {
            return None;
        }
        let payload = view.event().payload?;
        let Ok(text) = str::from_utf8(payload) else {
            return Some("the payload is not JSON: it is not UTF-8".to_owned());
        };
        let error = crate::json::check(text).err()?;
        let end = text.trim_end().len();
        Some(match text.trim() {
            "" => "the payload is not JSON: it is empty".to_owned(),
            _ if error.offset >= end => {
                format!("the payload is truncated JSON: it ends at byte {end}")
            }
            _ => format!("the payload is not JSON: {error}"),
        })
    }

    /// Whether an output may have a column of this name. What other rules, bridges and devices send has any.
    #[must_use]
    pub(crate) fn may_have_column(&self, name: &str) -> bool {
        let columns = match &self.body {
            Body::Select(columns) | Body::Foreach { columns, .. } => columns,
            Body::Windowed(grouping) => &grouping.columns,
        };
        let is_open = |source: &Source| {
            matches!(
                source,
                Source::Rule(_) | Source::Bridge(_) | Source::Event(EventKind::Device)
            )
        };
        // The items of FOREACH are objects of any kind.
        let takes_items = matches!(&self.body, Body::Foreach { .. });
        columns.iter().any(|column| match column.target {
            Target::All => takes_items || self.sources.iter().any(is_open),
            Target::Key(key) => self.plan.text(key) == name,
            Target::Nested(list) => matches!(
                self.plan.puts(list).first(),
                Some(PutStep::Key(key)) if self.plan.text(*key) == name
            ),
        })
    }

    /// Whether an expression of the rule goes into the payload.
    fn reads_payload(&self) -> bool {
        let plan = &self.plan;
        let is_payload = |mut id: NodeId| loop {
            match plan.op(id) {
                Op::Memo(inner, _) => id = inner,
                op => return matches!(op, Op::Field(Field::Payload)),
            }
        };
        let is_path = |op: &Op| matches!(op, Op::Path(base, _) if is_payload(*base));
        let goes_through = match &self.body {
            Body::Foreach { list, .. } => is_payload(*list),
            Body::Select(_) | Body::Windowed(_) => false,
        };
        goes_through || plan.ops.iter().any(is_path)
    }
}

fn shown_value<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    operand: NodeId,
) -> Result<String, crate::fault::Fault> {
    let value: Value<'a> = evaluator.evaluate(operand)?;
    let mut json = Vec::new();
    value.write_json(&mut json);
    let mut text = String::from_utf8_lossy(&json).into_owned();
    if text.len() > MAX_VALUE_BYTES {
        text.truncate(text.floor_char_boundary(MAX_VALUE_BYTES));
        text.push_str("...");
    }
    Ok(text)
}

impl Plan {
    /// The operands of the comparisons in a condition.
    fn collect_operands(&self, id: NodeId, operands: &mut Vec<NodeId>) {
        match self.op(id) {
            Op::Memo(inner, _) | Op::Not(inner) => self.collect_operands(inner, operands),
            Op::Binary(BinaryOp::And | BinaryOp::Or, left, right) => {
                self.collect_operands(left, operands);
                self.collect_operands(right, operands);
            }
            Op::Binary(op, left, right) if op.is_comparison() => {
                self.collect_operand(left, operands);
                self.collect_operand(right, operands);
            }
            Op::IsNull(inner, _) | Op::MatchFilter(inner, _) => {
                self.collect_operand(inner, operands);
            }
            Op::Like(inner, pattern, _) => {
                self.collect_operand(inner, operands);
                self.collect_operand(pattern, operands);
            }
            Op::In(inner, list, _) | Op::Between(inner, list, _) => {
                self.collect_operand(inner, operands);
                self.collect_list(list, operands);
            }
            _ => self.collect_operand(id, operands),
        }
    }

    fn collect_list(&self, list: List, operands: &mut Vec<NodeId>) {
        for &id in self.list(list) {
            self.collect_operand(id, operands);
        }
    }

    fn collect_operand(&self, id: NodeId, operands: &mut Vec<NodeId>) {
        let is_constant = matches!(
            self.op(id),
            Op::Null | Op::Bool(_) | Op::Int(_) | Op::Float(_) | Op::Text(_) | Op::Owned(_)
        );
        if !is_constant {
            operands.push(id);
        }
    }
}

impl BinaryOp {
    fn is_comparison(self) -> bool {
        matches!(
            self,
            Self::Equal
                | Self::NotEqual
                | Self::Less
                | Self::LessEqual
                | Self::Greater
                | Self::GreaterEqual
                | Self::Match
        )
    }
}
