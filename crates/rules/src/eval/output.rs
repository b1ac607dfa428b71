//! Puts an output together: columns in their order, a later one in place of an earlier one of the same name, nested ones
//! inside each other.

use bumpalo::collections::Vec;

use super::paths::position;
use super::{BYTES_PER_STEP, Evaluator, length};
use crate::fault::Fault;
use crate::field::{self, Field};
use crate::plan::{Column, NodeId, Op, PutStep, Target};
use crate::source::EventKind;
use crate::value::{Arena, Value};

pub(crate) type Columns<'a> = &'a [(&'a str, Value<'a>)];
type Fields<'a> = Vec<'a, (&'a str, Value<'a>)>;

impl<'a> Evaluator<'a, '_> {
    pub(crate) fn columns(&mut self, columns: &[Column]) -> Result<Columns<'a>, Fault> {
        if let [only] = columns
            && matches!(only.target, Target::All)
            && let Some(fields) = self.view.record(self.context.dialect)
        {
            self.bound(fields)?;
            return Ok(fields);
        }
        let all = columns
            .iter()
            .any(|column| matches!(column.target, Target::All));
        let capacity = columns.len() + if all { 20 } else { 0 };
        let mut fields = Vec::with_capacity_in(capacity, self.view.arena);
        for column in columns {
            match column.target {
                Target::All => self.all(&mut fields),
                Target::Key(name) => {
                    let value = self.column_value(column.node)?;
                    put(&mut fields, self.plan.text(name), value);
                }
                Target::Nested(list) => {
                    let value = self.column_value(column.node)?;
                    let puts = self.plan.puts(list);
                    self.spend(puts.len())?;
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
        self.bound(&fields)?;
        Ok(fields.into_bump_slice())
    }

    fn column_value(&mut self, node: NodeId) -> Result<Value<'a>, Fault> {
        match self.plan.op(node) {
            Op::Field(Field::Payload) => Ok(self.view.payload_column(self.context.dialect)),
            _ => self.evaluate(node),
        }
    }

    /// `SELECT *`
    fn all(&mut self, fields: &mut Fields<'a>) {
        let event = self.view.event;
        let is_open = !event.extra.is_null();
        if !is_open || event.kind == EventKind::Device {
            // The first columns are all different, so that nobody need look.
            let is_first = fields.is_empty();
            for &(name, field) in field::columns(event.kind, self.context.dialect) {
                let old = match is_first {
                    true => None,
                    false => fields.iter().position(|(old, _)| *old == name),
                };
                let at = old.unwrap_or_else(|| {
                    fields.push((name, Value::Undefined));
                    fields.len() - 1
                });
                match field {
                    Field::Payload => fields[at].1 = self.view.payload_column(self.context.dialect),
                    field => self.view.read_into(field, &mut fields[at].1),
                }
            }
        }
        if let Value::Map(extra) = event.extra.open(self.view.arena) {
            for &(name, value) in extra {
                put(fields, name, value);
            }
        }
    }

    fn bound(&mut self, fields: &[(&str, Value<'_>)]) -> Result<(), Fault> {
        let limit = self.context.limits.max_output_bytes;
        let mut bytes = 0_usize;
        for (name, value) in fields {
            bytes += name.len();
            bytes += match value {
                Value::Array(_) | Value::Map(_) => total_length(*value, limit),
                value => length(*value),
            };
        }
        if bytes > limit {
            return Err(Fault::TooLarge {
                function: "SELECT",
                limit,
                unit: "bytes",
            });
        }
        self.spend(bytes / BYTES_PER_STEP / 16)
    }

    /// The old value with the new one in its place inside.
    fn put_nested(
        &mut self,
        old: Value<'a>,
        steps: &[PutStep],
        value: Value<'a>,
    ) -> Result<Value<'a>, Fault> {
        let arena = self.view.arena;
        let Some((step, rest)) = steps.split_first() else {
            return Ok(value);
        };
        let old = opened(old, arena);
        let place = match *step {
            PutStep::Key(name) => Place::Key(self.plan.text(name)),
            PutStep::Index(index) => Place::Index(index.into()),
            PutStep::Head => Place::Head,
            PutStep::Tail => Place::Tail,
            PutStep::Computed(index) => match self.evaluate(index)? {
                Value::Str(name) => Place::Key(name),
                index => Place::Index(index.as_i64().unwrap_or(0)),
            },
        };
        Ok(match place {
            Place::Key(name) => {
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
            Place::Index(_) | Place::Head | Place::Tail => {
                let mut items = Vec::new_in(arena);
                if let Value::Array(old) = old {
                    items.extend_from_slice_copy(old);
                }
                let at = match place {
                    Place::Index(index) => position(index, items.len()),
                    _ => None,
                };
                let inner = at.map_or(Value::Undefined, |at| items[at]);
                let new = self.put_nested(inner, rest, value)?;
                match (place, at) {
                    (Place::Head, _) => items.insert(0, new),
                    (_, Some(at)) => items[at] = new,
                    // Of a list that is not there, the first item is made whatever its number.
                    (Place::Index(_), None) if !items.is_empty() => {}
                    _ => items.push(new),
                }
                Value::Array(items.into_bump_slice())
            }
        })
    }
}

/// Where in a value another is put.
#[derive(Clone, Copy)]
enum Place<'a> {
    Key(&'a str),
    Index(i64),
    Head,
    Tail,
}

/// Text that is JSON, and JSON that is text, as something to put into.
fn opened<'a>(value: Value<'a>, arena: &'a Arena) -> Value<'a> {
    match value {
        Value::Str(text) => match crate::json::parse_lazy(text, arena) {
            Ok(value) => value.open(arena),
            Err(_) => Value::Undefined,
        },
        value => value.open(arena),
    }
}

fn put<'a>(fields: &mut Fields<'a>, name: &'a str, value: Value<'a>) {
    match fields.iter_mut().find(|(field, _)| *field == name) {
        Some((_, old)) => *old = value,
        None => fields.push((name, value)),
    }
}

/// Bytes of text in it and about what numbers take; not much more than `enough` is counted.
fn total_length(value: Value<'_>, enough: usize) -> usize {
    let mut total = 0;
    match value {
        Value::Array(items) => {
            for item in items {
                total += 2 + total_length(*item, enough);
                if total > enough {
                    break;
                }
            }
        }
        Value::Map(fields) => {
            for (name, value) in fields {
                total += name.len() + 4 + total_length(*value, enough);
                if total > enough {
                    break;
                }
            }
        }
        Value::Int(_) | Value::Float(_) => total = 8,
        value => total = length(value),
    }
    total
}
