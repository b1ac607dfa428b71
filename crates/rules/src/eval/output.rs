//! Builds an output from its columns in order. A later column replaces an earlier one of the same name;
//! nested columns are merged into each other.

use bumpalo::collections::Vec;

use super::{BYTES_PER_STEP, Evaluator, input_bytes};
use crate::evaluation_error::EvaluationError;
use crate::event_field::{self, EventField};
use crate::list_positions::list_position;
use crate::plan::{ColumnTarget, Op, OpId, OutputColumn, PutStep};
use crate::value::{Arena, Value};

pub(crate) type OutputColumns<'a> = &'a [(&'a str, Value<'a>)];
type OutputFields<'a> = Vec<'a, (&'a str, Value<'a>)>;

impl<'a> Evaluator<'a, '_> {
    pub(crate) fn columns(
        &mut self,
        columns: &[OutputColumn],
    ) -> Result<OutputColumns<'a>, EvaluationError> {
        if let [only] = columns
            && matches!(only.target, ColumnTarget::All)
            && let Some(fields) = self.view.publish_columns(self.context.dialect)
        {
            self.check_output_size(fields)?;
            return Ok(fields);
        }
        let all = columns
            .iter()
            .any(|column| matches!(column.target, ColumnTarget::All));
        let capacity = columns.len() + if all { 20 } else { 0 };
        let mut fields = Vec::with_capacity_in(capacity, self.view.arena);
        for column in columns {
            match column.target {
                ColumnTarget::All => self.select_all(&mut fields),
                ColumnTarget::Key(name) => {
                    let value = self.column_value(column.node)?;
                    put(&mut fields, self.plan.text(name), value);
                }
                ColumnTarget::Nested(list) => {
                    let value = self.column_value(column.node)?;
                    let puts = self.plan.puts(list);
                    self.charge_steps(puts.len())?;
                    if let Some((PutStep::Key(first), rest)) = puts.split_first() {
                        let name = self.plan.text(*first);
                        let old = fields
                            .iter()
                            .find(|(field, _)| *field == name)
                            .map_or(Value::Undefined, |(_, value)| *value);
                        let new = self.put_nested(old, rest, value)?;
                        put(&mut fields, name, new);
                    }
                }
            }
        }
        self.check_output_size(&fields)?;
        Ok(fields.into_bump_slice())
    }

    fn column_value(&mut self, node: OpId) -> Result<Value<'a>, EvaluationError> {
        match self.plan.op(node) {
            Op::Field(EventField::Payload) => Ok(self.view.payload_column(self.context.dialect)),
            _ => self.evaluate(node),
        }
    }

    /// `SELECT *`
    fn select_all(&mut self, fields: &mut OutputFields<'a>) {
        let event = self.view.event;
        let is_open = !event.extra.is_null();
        if !is_open || event.kind.extends_columns() {
            // The first columns have distinct names, so no lookup is necessary.
            let is_first = fields.is_empty();
            for &(name, field) in event_field::columns(event.kind, self.context.dialect) {
                let old = match is_first {
                    true => None,
                    false => fields.iter().position(|(old, _)| *old == name),
                };
                let at = old.unwrap_or_else(|| {
                    fields.push((name, Value::Undefined));
                    fields.len() - 1
                });
                match field {
                    EventField::Payload => {
                        fields[at].1 = self.view.payload_column(self.context.dialect)
                    }
                    field => self.view.read_into(field, &mut fields[at].1),
                }
            }
        }
        if let Value::Map(extra) = event.extra.parse_one_level(self.view.arena) {
            for &(name, value) in extra {
                put(fields, name, value);
            }
        }
    }

    fn check_output_size(&mut self, fields: &[(&str, Value<'_>)]) -> Result<(), EvaluationError> {
        let limit = self.context.limits.max_output_bytes;
        let mut bytes = 0_usize;
        for (name, value) in fields {
            bytes += name.len();
            bytes += match value {
                Value::Array(_) | Value::Map(_) => estimated_bytes(*value, limit),
                value => input_bytes(*value),
            };
        }
        if bytes > limit {
            return Err(EvaluationError::TooLarge {
                function: "SELECT",
                limit,
                unit: "bytes",
            });
        }
        self.charge_steps(bytes / BYTES_PER_STEP / 16)
    }

    /// Returns the old value with the new one inserted at the path.
    fn put_nested(
        &mut self,
        old: Value<'a>,
        steps: &[PutStep],
        value: Value<'a>,
    ) -> Result<Value<'a>, EvaluationError> {
        let arena = self.view.arena;
        let Some((step, rest)) = steps.split_first() else {
            return Ok(value);
        };
        let old = to_container(old, arena);
        let place = match *step {
            PutStep::Key(name) => PutPosition::Key(self.plan.text(name)),
            PutStep::Index(index) => PutPosition::Index(index.into()),
            PutStep::Head => PutPosition::Head,
            PutStep::Tail => PutPosition::Tail,
            PutStep::Computed(index) => match self.evaluate(index)? {
                Value::Str(name) => PutPosition::Key(name),
                index => PutPosition::Index(index.as_i64().unwrap_or(0)),
            },
        };
        Ok(match place {
            PutPosition::Key(name) => {
                let mut fields = Vec::new_in(arena);
                if let Value::Map(old) = old {
                    fields.extend_from_slice_copy(old);
                }
                let inner = fields
                    .iter()
                    .find(|(field, _)| *field == name)
                    .map_or(Value::Undefined, |(_, value)| *value);
                let inner = self.put_nested(inner, rest, value)?;
                put(&mut fields, name, inner);
                Value::Map(fields.into_bump_slice())
            }
            PutPosition::Index(_) | PutPosition::Head | PutPosition::Tail => {
                let mut items = Vec::new_in(arena);
                if let Value::Array(old) = old {
                    items.extend_from_slice_copy(old);
                }
                let at = match place {
                    PutPosition::Index(index) => list_position(index, items.len()),
                    _ => None,
                };
                let inner = at.map_or(Value::Undefined, |at| items[at]);
                let new = self.put_nested(inner, rest, value)?;
                match (place, at) {
                    (PutPosition::Head, _) => items.insert(0, new),
                    (_, Some(at)) => items[at] = new,
                    // In a missing list the first item is created at any index.
                    (PutPosition::Index(_), None) if !items.is_empty() => {}
                    _ => items.push(new),
                }
                Value::Array(items.into_bump_slice())
            }
        })
    }
}

/// A position inside a value at which another value is inserted.
#[derive(Clone, Copy)]
enum PutPosition<'a> {
    Key(&'a str),
    Index(i64),
    Head,
    Tail,
}

/// Converts text that is JSON, and unparsed JSON, into a container to insert into.
fn to_container<'a>(value: Value<'a>, arena: &'a Arena) -> Value<'a> {
    match value {
        Value::Str(text) => match crate::json::parse_lazy(text, arena) {
            Ok(value) => value.parse_one_level(arena),
            Err(_) => Value::Undefined,
        },
        value => value.parse_one_level(arena),
    }
}

fn put<'a>(fields: &mut OutputFields<'a>, name: &'a str, value: Value<'a>) {
    match fields.iter_mut().find(|(field, _)| *field == name) {
        Some((_, old)) => *old = value,
        None => fields.push((name, value)),
    }
}

/// Estimates the bytes of a value: its text, and a constant per number. Stops counting soon after `enough`.
fn estimated_bytes(value: Value<'_>, enough: usize) -> usize {
    let mut total = 0;
    match value {
        Value::Array(items) => {
            for item in items {
                total += 2 + estimated_bytes(*item, enough);
                if total > enough {
                    break;
                }
            }
        }
        Value::Map(fields) => {
            for (name, value) in fields {
                total += name.len() + 4 + estimated_bytes(*value, enough);
                if total > enough {
                    break;
                }
            }
        }
        Value::Int(_) | Value::Float(_) => total = 8,
        value => total = input_bytes(value),
    }
    total
}
