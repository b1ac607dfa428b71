//! Explains why an event has no output: the values that WHERE compared, and the JSON error of the payload.
//! For people; not on the message path.

use super::{ColumnTarget, ListRange, Op, OpId, Plan, PutStep};
use crate::eval::Evaluator;
use crate::event_field::EventField;
use crate::event_view::EventView;
use crate::rule::{Rule, RuleBody, RuleState};
use crate::rule_source::RuleSource;
use crate::syntax::ast::BinaryOp;
use crate::value::Value;

const MAX_COMPARED: usize = 16;
/// Maximum length of the text of one value, in bytes.
const MAX_VALUE_BYTES: usize = 200;

/// An operand of WHERE with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparedOperand {
    pub expression: String,
    /// The value as JSON, or the error of its evaluation.
    pub value: String,
}

impl Rule {
    /// Whether WHERE is true for an event; `None` if its evaluation fails.
    #[must_use]
    pub fn evaluate_where<'a>(
        &'a self,
        view: &EventView<'a>,
        state: &mut RuleState,
    ) -> Option<bool> {
        let Some(filter) = self.filter else {
            return Some(true);
        };
        self.evaluate(view, state, |evaluator| evaluator.is_condition_true(filter))
            .ok()
    }

    /// The operands that WHERE compares, except constants, with their values for an event.
    #[must_use]
    pub fn compared_operands<'a>(
        &'a self,
        view: &EventView<'a>,
        state: &mut RuleState,
    ) -> Vec<ComparedOperand> {
        let mut operands = Vec::new();
        if let Some(filter) = self.filter {
            self.program.plan.collect_operands(filter, &mut operands);
        }
        let mut compared: Vec<ComparedOperand> = Vec::new();
        for operand in operands {
            let expression = self.program.plan.render(operand);
            if compared.len() >= MAX_COMPARED || compared.iter().any(|c| c.expression == expression)
            {
                continue;
            }
            let value = self.evaluate(view, state, |evaluator| display_value(evaluator, operand));
            compared.push(ComparedOperand {
                expression,
                value: value.unwrap_or_else(|fault| fault.to_string()),
            });
        }
        compared
    }

    /// The JSON error of an event's payload, if the rule reads fields of it.
    #[must_use]
    pub fn payload_error(&self, view: &EventView<'_>) -> Option<String> {
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

    /// Whether an output can have a column of this name. Outputs of rules over other rules, bridges and
    /// devices can have any column.
    #[must_use]
    pub(crate) fn may_have_column(&self, name: &str) -> bool {
        let columns = match &self.body {
            RuleBody::Select(columns) | RuleBody::Foreach { columns, .. } => columns,
            RuleBody::Windowed(grouping) => &grouping.columns,
        };
        let is_open = RuleSource::has_open_fields;
        // The items of FOREACH are objects with arbitrary fields.
        let takes_items = matches!(&self.body, RuleBody::Foreach { .. });
        columns.iter().any(|column| match column.target {
            ColumnTarget::All => {
                let has_own = |source: &RuleSource| source.own_fields().contains(&name);
                takes_items || self.sources.iter().any(|it| is_open(it) || has_own(it))
            }
            ColumnTarget::Key(key) => self.program.plan.text(key) == name,
            ColumnTarget::Nested(list) => matches!(
                self.program.plan.puts(list).first(),
                Some(PutStep::Key(key)) if self.program.plan.text(*key) == name
            ),
        })
    }

    /// Whether an expression of the rule reads fields of the payload.
    fn reads_payload(&self) -> bool {
        let plan = &self.program.plan;
        let is_payload = |mut id: OpId| loop {
            match plan.op(id) {
                Op::Memo(inner, _) => id = inner,
                op => return matches!(op, Op::Field(EventField::Payload)),
            }
        };
        let is_path = |op: &Op| matches!(op, Op::Path(base, _) if is_payload(*base));
        let goes_through = match &self.body {
            RuleBody::Foreach { list, .. } => is_payload(*list),
            RuleBody::Select(_) | RuleBody::Windowed(_) => false,
        };
        goes_through || plan.ops.iter().any(is_path)
    }
}

fn display_value<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    operand: OpId,
) -> Result<String, crate::evaluation_error::EvaluationError> {
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
    /// Collects the operands of the comparisons in a condition.
    fn collect_operands(&self, id: OpId, operands: &mut Vec<OpId>) {
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

    fn collect_list(&self, list: ListRange, operands: &mut Vec<OpId>) {
        for &id in self.list(list) {
            self.collect_operand(id, operands);
        }
    }

    fn collect_operand(&self, id: OpId, operands: &mut Vec<OpId>) {
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
