//! Paths: into the payload (parsed lazily), into values, and into text that is JSON.

use super::Evaluator;
use crate::evaluation_error::EvaluationError;
use crate::event_field::EventField;
use crate::function_context::Dialect;
use crate::lazy_document::LazyDocument;
use crate::list_positions::{list_position, slice};
use crate::plan::{Op, OpId, StepOp};
use crate::value::Value;

/// A path step with its computed position or name.
enum ResolvedStep<'a> {
    Key(&'a str),
    Index(i64),
    Slice(i64, i64),
    /// The step is null; the path yields nothing.
    Missing,
}

impl<'a> Evaluator<'a, '_> {
    pub(super) fn evaluate_path(
        &mut self,
        base: OpId,
        steps: &'a [StepOp],
    ) -> Result<Value<'a>, EvaluationError> {
        if self.is_payload(base) {
            let is_of_statement = matches!(self.plan.op(base), Op::Field(_));
            return self.payload_path(steps, is_of_statement);
        }
        let value = self.evaluate(base)?;
        self.walk_value(value, steps)
    }

    /// Evaluates a path into the payload. In EMQX's dialect a payload that is not JSON is an error, except in
    /// templates. Finding a member does not validate the text after it; that is checked after the rule has
    /// passed.
    fn payload_path(
        &mut self,
        steps: &'a [StepOp],
        is_of_statement: bool,
    ) -> Result<Value<'a>, EvaluationError> {
        let document = self.view.document();
        let value = match document {
            Some(document) => self.walk_document(document, steps)?,
            None => Value::Undefined,
        };
        if is_of_statement
            && self.context.dialect == Dialect::Emqx
            && value.is_undefined()
            && !self.view.is_json()
        {
            return Err(self.view.not_json_error());
        }
        Ok(value)
    }

    /// Whether the base is the payload of the event and not a column of that name.
    fn is_payload(&self, base: OpId) -> bool {
        match self.plan.op(base) {
            Op::Field(EventField::Payload) => true,
            Op::Column(name, Some(EventField::Payload)) => {
                let name = self.plan.text(name);
                self.output.iter().all(|(column, _)| *column != name)
            }
            _ => false,
        }
    }

    /// Follows the path through lazily parsed arrays and objects.
    fn walk_document(
        &mut self,
        document: &'a LazyDocument<'a>,
        steps: &'a [StepOp],
    ) -> Result<Value<'a>, EvaluationError> {
        let mut document = document;
        for (at, step) in steps.iter().enumerate() {
            let rest = &steps[at + 1..];
            let member = match self.resolve_step(step)? {
                ResolvedStep::Key(key) => document.member_by_key(key),
                ResolvedStep::Index(index) => document.member_by_index(index),
                ResolvedStep::Slice(from, to) => {
                    let Some(items) = document.items(from, to) else {
                        return self.non_list_range(Value::Map(&[]));
                    };
                    return self.walk_value(Value::Array(items), rest);
                }
                ResolvedStep::Missing => None,
            };
            let Some(member) = member else {
                return match rest.first() {
                    Some(StepOp::Slice(..)) if !document.is_broken() => {
                        self.non_list_range(Value::Undefined)
                    }
                    _ => Ok(Value::Undefined),
                };
            };
            if rest.is_empty() {
                return Ok(member.value());
            }
            match member.nested_document(self.view.arena) {
                Some(inner) => document = inner,
                None if matches!(rest.first(), Some(StepOp::Slice(..))) => {
                    return self.non_list_range(member.value());
                }
                None => return Ok(Value::Undefined),
            }
        }
        Ok(Value::Undefined)
    }

    fn walk_value(
        &mut self,
        value: Value<'a>,
        steps: &'a [StepOp],
    ) -> Result<Value<'a>, EvaluationError> {
        let mut value = value;
        for (at, step) in steps.iter().enumerate() {
            if matches!(step, StepOp::Slice(..)) && value.type_name() != "array" && !is_text(value)
            {
                return self.non_list_range(value);
            }
            value = match value {
                Value::Str(text) | Value::Json(text) => {
                    return match LazyDocument::new(text, self.view.arena) {
                        Some(document) => self.walk_document(document, &steps[at..]),
                        None => Ok(Value::Undefined),
                    };
                }
                Value::Bytes(bytes) => {
                    let document = str::from_utf8(bytes)
                        .ok()
                        .and_then(|text| LazyDocument::new(text, self.view.arena));
                    return match document {
                        Some(document) => self.walk_document(document, &steps[at..]),
                        None => Ok(Value::Undefined),
                    };
                }
                Value::Map(fields) => match self.resolve_step(step)? {
                    ResolvedStep::Key(key) => fields
                        .iter()
                        .rev()
                        .find(|(name, _)| *name == key)
                        .map_or(Value::Undefined, |(_, value)| *value),
                    _ => Value::Undefined,
                },
                Value::Array(items) => match self.resolve_step(step)? {
                    ResolvedStep::Index(index) => {
                        list_position(index, items.len()).map_or(Value::Undefined, |at| items[at])
                    }
                    ResolvedStep::Slice(from, to) => Value::Array(slice(items, from, to)),
                    _ => Value::Undefined,
                },
                _ => return Ok(Value::Undefined),
            };
        }
        Ok(value)
    }

    /// A range of a value that is not a list: undefined, and in EMQX's dialect an error.
    fn non_list_range(&self, value: Value<'a>) -> Result<Value<'a>, EvaluationError> {
        match self.context.dialect {
            Dialect::Fluxmq => Ok(Value::Undefined),
            Dialect::Emqx => Err(EvaluationError::WrongType {
                function: "[..]",
                argument: 1,
                expected: "an array",
                found: value.type_name(),
            }),
        }
    }

    fn resolve_step(&mut self, step: &StepOp) -> Result<ResolvedStep<'a>, EvaluationError> {
        Ok(match *step {
            StepOp::Key(key) => ResolvedStep::Key(self.plan.text(key)),
            StepOp::Index(index) => ResolvedStep::Index(index.into()),
            StepOp::Computed(id) => match self.evaluate(id)? {
                Value::Str(key) => ResolvedStep::Key(key),
                value => value
                    .as_i64()
                    .map_or(ResolvedStep::Missing, ResolvedStep::Index),
            },
            StepOp::Get(id) => match self.evaluate(id)? {
                Value::Str(key) => ResolvedStep::Key(key),
                value => match value.as_i64() {
                    // Positions count from 0 here; negative ones count from the end as usual.
                    Some(index @ 0..) => ResolvedStep::Index(index.saturating_add(1)),
                    Some(index) => ResolvedStep::Index(index),
                    None => ResolvedStep::Missing,
                },
            },
            StepOp::Slice(from, to) => {
                let (from, to) = (self.evaluate(from)?, self.evaluate(to)?);
                match (from.as_i64(), to.as_i64()) {
                    (Some(from), Some(to)) => ResolvedStep::Slice(from, to),
                    _ => ResolvedStep::Missing,
                }
            }
        })
    }
}

/// Whether the value may be the text of a list.
fn is_text(value: Value<'_>) -> bool {
    matches!(value, Value::Str(_) | Value::Bytes(_) | Value::Json(_))
}
