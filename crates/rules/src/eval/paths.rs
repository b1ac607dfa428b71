//! Paths: into the payload as far as needed, into values, into text that is JSON.

use super::Evaluator;
use crate::fault::Fault;
use crate::field::Field;
use crate::payload::Document;
use crate::plan::{NodeId, Op, StepOp};
use crate::value::Value;

/// A step with what had to be worked out.
enum Step<'a> {
    Key(&'a str),
    Index(i64),
    Slice(i64, i64),
    /// A step with null leads nowhere.
    Nowhere,
}

impl<'a> Evaluator<'a, '_> {
    pub(super) fn path(&mut self, base: NodeId, steps: &'a [StepOp]) -> Result<Value<'a>, Fault> {
        if self.is_payload(base) {
            return match self.view.document() {
                Some(document) => self.walk(document, steps),
                None => Ok(Value::Null),
            };
        }
        let value = self.evaluate(base)?;
        self.follow(value, steps)
    }

    /// The payload of the event, not a column of that name.
    fn is_payload(&self, base: NodeId) -> bool {
        match self.plan.op(base) {
            Op::Field(Field::Payload) => true,
            Op::Column(name, Some(Field::Payload)) => {
                let name = self.plan.text(name);
                self.output.iter().all(|(column, _)| *column != name)
            }
            _ => false,
        }
    }

    /// Through arrays and objects of which only a part is read.
    fn walk(
        &mut self,
        document: &'a Document<'a>,
        steps: &'a [StepOp],
    ) -> Result<Value<'a>, Fault> {
        let mut document = document;
        for (at, step) in steps.iter().enumerate() {
            let rest = &steps[at + 1..];
            let member = match self.step(step)? {
                Step::Key(key) => document.key(key),
                Step::Index(index) => document.index(index),
                Step::Slice(from, to) => {
                    let Some(items) = document.items(from, to) else {
                        return Ok(Value::Null);
                    };
                    return self.follow(Value::Array(items), rest);
                }
                Step::Nowhere => None,
            };
            let Some(member) = member else {
                return Ok(Value::Null);
            };
            if rest.is_empty() {
                return Ok(member.value());
            }
            match member.document(self.view.arena) {
                Some(inner) => document = inner,
                None => return Ok(Value::Null),
            }
        }
        Ok(Value::Null)
    }

    fn follow(&mut self, value: Value<'a>, steps: &'a [StepOp]) -> Result<Value<'a>, Fault> {
        let mut value = value;
        for (at, step) in steps.iter().enumerate() {
            value = match value {
                Value::Str(text) | Value::Json(text) => {
                    return match Document::new(text, self.view.arena) {
                        Some(document) => self.walk(document, &steps[at..]),
                        None => Ok(Value::Null),
                    };
                }
                Value::Bytes(bytes) => {
                    let document = str::from_utf8(bytes)
                        .ok()
                        .and_then(|text| Document::new(text, self.view.arena));
                    return match document {
                        Some(document) => self.walk(document, &steps[at..]),
                        None => Ok(Value::Null),
                    };
                }
                Value::Map(fields) => match self.step(step)? {
                    Step::Key(key) => fields
                        .iter()
                        .rev()
                        .find(|(name, _)| *name == key)
                        .map_or(Value::Null, |(_, value)| *value),
                    _ => Value::Null,
                },
                Value::Array(items) => match self.step(step)? {
                    Step::Index(index) => {
                        position(index, items.len()).map_or(Value::Null, |at| items[at])
                    }
                    Step::Slice(from, to) => Value::Array(slice(items, from, to)),
                    _ => Value::Null,
                },
                _ => return Ok(Value::Null),
            };
        }
        Ok(value)
    }

    fn step(&mut self, step: &StepOp) -> Result<Step<'a>, Fault> {
        Ok(match *step {
            StepOp::Key(key) => Step::Key(self.plan.text(key)),
            StepOp::Index(index) => Step::Index(index.into()),
            StepOp::Computed(id) => match self.evaluate(id)? {
                Value::Str(key) => Step::Key(key),
                value => value.as_i64().map_or(Step::Nowhere, Step::Index),
            },
            StepOp::Get(id) => match self.evaluate(id)? {
                Value::Str(key) => Step::Key(key),
                value => match value.as_i64() {
                    // From 0 here; what is negative counts from the end as ever.
                    Some(index @ 0..) => Step::Index(index.saturating_add(1)),
                    Some(index) => Step::Index(index),
                    None => Step::Nowhere,
                },
            },
            StepOp::Slice(from, to) => {
                let (from, to) = (self.evaluate(from)?, self.evaluate(to)?);
                match (from.as_i64(), to.as_i64()) {
                    (Some(from), Some(to)) => Step::Slice(from, to),
                    _ => Step::Nowhere,
                }
            }
        })
    }
}

/// From 1, or from the end.
pub(super) fn position(index: i64, length: usize) -> Option<usize> {
    let at = if index > 0 {
        index - 1
    } else {
        (length as i64).checked_add(index)?
    };
    usize::try_from(at)
        .ok()
        .filter(|&at| index != 0 && at < length)
}

/// From one position to another, both included.
pub(crate) fn slice<T>(items: &[T], from: i64, to: i64) -> &[T] {
    let length = items.len() as i64;
    let place = |index: i64| {
        if index < 0 {
            length.saturating_add(index)
        } else {
            index - 1
        }
    };
    let start = place(from).clamp(0, length) as usize;
    let end = place(to).saturating_add(1).clamp(0, length) as usize;
    items.get(start..end).unwrap_or_default()
}
