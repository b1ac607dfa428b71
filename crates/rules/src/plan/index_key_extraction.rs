//! Extracts index keys: what a condition requires of the events that can satisfy it.

use std::cmp::Ordering;

use super::{ListRange, Op, OpId, Plan};
use crate::event_field::EventField;
use crate::index_keys::{IndexKeys, TopicKey};
use crate::syntax::ast::BinaryOp;
use crate::value::Value;

/// A longer list is not worth one index entry per alternative.
const MAX_ALTERNATIVES: usize = 64;

impl Plan {
    /// The keys of the events that can satisfy the condition.
    pub(crate) fn extract_keys(&self, condition: OpId) -> IndexKeys {
        match self.op(condition) {
            Op::Bool(true) => IndexKeys::default(),
            op if self
                .constant(condition)
                .is_some_and(|value| !value.is_truthy())
                && !matches!(op, Op::Memo(..)) =>
            {
                IndexKeys {
                    topics: Some(Box::default()),
                    ..IndexKeys::default()
                }
            }
            Op::Memo(inner, _) => self.extract_keys(inner),
            Op::Binary(BinaryOp::And, left, right) => {
                intersect_keys(self.extract_keys(left), self.extract_keys(right))
            }
            Op::Binary(BinaryOp::Or, left, right) => {
                union_keys(self.extract_keys(left), self.extract_keys(right))
            }
            Op::Binary(op, left, right) => {
                let Some(value) = self.constant(right) else {
                    return match self.constant(left) {
                        Some(value) => self.comparison_keys(right, mirrored_operator(op), value),
                        None => IndexKeys::default(),
                    };
                };
                self.comparison_keys(left, op, value)
            }
            Op::MatchFilter(subject, filter) if self.is_field(subject, EventField::Topic) => {
                IndexKeys {
                    topics: Some([TopicKey::Filter(self.text(filter).into())].into()),
                    ..IndexKeys::default()
                }
            }
            Op::In(subject, list, false) => self.in_list_keys(subject, list),
            Op::Between(subject, list, false) => {
                let &[low, high] = self.list(list) else {
                    return IndexKeys::default();
                };
                match (self.constant(low), self.constant(high)) {
                    (Some(low), Some(high)) => intersect_keys(
                        self.comparison_keys(subject, BinaryOp::GreaterEqual, low),
                        self.comparison_keys(subject, BinaryOp::LessEqual, high),
                    ),
                    _ => IndexKeys::default(),
                }
            }
            _ => IndexKeys::default(),
        }
    }

    /// The part of the condition that remains after the index has matched the only topic that the keys allow.
    /// Filters, and names that contain wildcards, are evaluated again, because the index does not match them
    /// exactly.
    pub(crate) fn remaining_condition(&self, condition: OpId, keys: &IndexKeys) -> Option<OpId> {
        match keys.topics.as_deref() {
            Some([TopicKey::Exact(topic)]) if !mqtt::has_wildcards(topic) => {
                self.remove_topic_condition(condition, topic)
            }
            _ => Some(condition),
        }
    }

    fn remove_topic_condition(&self, condition: OpId, topic: &str) -> Option<OpId> {
        let is_topic = |id| matches!(self.op(id), Op::Field(EventField::Topic));
        let is_text = |id| matches!(self.op(id), Op::Text(text) if self.text(text) == topic);
        match self.op(condition) {
            Op::Binary(BinaryOp::Equal, left, right)
                if is_topic(left) && is_text(right) || is_text(left) && is_topic(right) =>
            {
                None
            }
            Op::Binary(BinaryOp::And, left, right) => {
                if self.remove_topic_condition(left, topic).is_none() {
                    self.remove_topic_condition(right, topic)
                } else if self.remove_topic_condition(right, topic).is_none() {
                    Some(left)
                } else {
                    Some(condition)
                }
            }
            _ => Some(condition),
        }
    }

    fn is_field(&self, id: OpId, field: EventField) -> bool {
        match self.op(id) {
            Op::Field(own) => own == field,
            Op::Memo(inner, _) => self.is_field(inner, field),
            _ => false,
        }
    }

    fn constant(&self, id: OpId) -> Option<Value<'_>> {
        Some(match self.op(id) {
            Op::Null => Value::Undefined,
            Op::Bool(value) => Value::Bool(value),
            Op::Int(value) => Value::Int(value),
            Op::Float(value) => Value::Float(value),
            Op::Text(text) => Value::Str(self.text(text)),
            Op::Memo(inner, _) => return self.constant(inner),
            _ => return None,
        })
    }

    /// The keys for a comparison of a field with a constant.
    fn comparison_keys(&self, subject: OpId, op: BinaryOp, value: Value<'_>) -> IndexKeys {
        let mut keys = IndexKeys::default();
        if self.is_field(subject, EventField::Qos) {
            keys.qos = qos_bits(|qos| qos_comparison(op, qos, value));
        }
        // A number also equals texts that spell it differently.
        if let (BinaryOp::Equal, Value::Str(text)) = (op, value) {
            if self.is_field(subject, EventField::Topic) {
                keys.topics = Some([TopicKey::Exact(text.into())].into());
            } else if self.is_field(subject, EventField::ClientId) {
                keys.client_ids = Some([text.into()].into());
            }
        }
        keys
    }

    fn in_list_keys(&self, subject: OpId, list: ListRange) -> IndexKeys {
        self.list(list)
            .iter()
            .map(|&item| match self.constant(item) {
                Some(value) => self.comparison_keys(subject, BinaryOp::Equal, value),
                None => IndexKeys::default(),
            })
            .reduce(union_keys)
            .unwrap_or_default()
    }
}

fn mirrored_operator(op: BinaryOp) -> BinaryOp {
    match op {
        BinaryOp::Less => BinaryOp::Greater,
        BinaryOp::LessEqual => BinaryOp::GreaterEqual,
        BinaryOp::Greater => BinaryOp::Less,
        BinaryOp::GreaterEqual => BinaryOp::LessEqual,
        // `'t' =~ topic` does not restrict the topic.
        BinaryOp::Match => BinaryOp::Concat,
        op => op,
    }
}

fn qos_comparison(op: BinaryOp, qos: i64, value: Value<'_>) -> Option<bool> {
    let ordering = Value::Int(qos).compare(&value);
    Some(match op {
        BinaryOp::Equal => ordering == Some(Ordering::Equal),
        BinaryOp::NotEqual => !value.is_null() && ordering != Some(Ordering::Equal),
        BinaryOp::Less => ordering == Some(Ordering::Less),
        BinaryOp::LessEqual => matches!(ordering, Some(Ordering::Less | Ordering::Equal)),
        BinaryOp::Greater => ordering == Some(Ordering::Greater),
        BinaryOp::GreaterEqual => matches!(ordering, Some(Ordering::Greater | Ordering::Equal)),
        _ => return None,
    })
}

fn qos_bits(holds: impl Fn(i64) -> Option<bool>) -> Option<u8> {
    let mut bits = 0;
    for qos in 0..3 {
        bits |= u8::from(holds(qos)?) << qos;
    }
    Some(bits)
}

fn intersect_keys(left: IndexKeys, right: IndexKeys) -> IndexKeys {
    IndexKeys {
        topics: cheaper_list(left.topics, right.topics, |topics| {
            let filters = topics
                .iter()
                .filter(|topic| matches!(topic, TopicKey::Filter(_)))
                .count();
            topics.len() + filters
        }),
        client_ids: cheaper_list(left.client_ids, right.client_ids, <[_]>::len),
        qos: match (left.qos, right.qos) {
            (Some(left), Some(right)) => Some(left & right),
            (left, right) => left.or(right),
        },
    }
}

fn union_keys(left: IndexKeys, right: IndexKeys) -> IndexKeys {
    // A side that can never be true adds nothing.
    if left.topics.as_deref().is_some_and(<[_]>::is_empty) {
        return right;
    }
    if right.topics.as_deref().is_some_and(<[_]>::is_empty) {
        return left;
    }
    IndexKeys {
        topics: concat_lists(left.topics, right.topics),
        client_ids: concat_lists(left.client_ids, right.client_ids),
        qos: left.qos.zip(right.qos).map(|(left, right)| left | right),
    }
}

/// Both conditions must be true, so either list suffices: chooses the one that is cheaper to look up.
fn cheaper_list<T>(
    left: Option<Box<[T]>>,
    right: Option<Box<[T]>>,
    cost: impl Fn(&[T]) -> usize,
) -> Option<Box<[T]>> {
    match (left, right) {
        (Some(left), Some(right)) => Some(if cost(&right) < cost(&left) {
            right
        } else {
            left
        }),
        (left, right) => left.or(right),
    }
}

fn concat_lists<T: PartialEq>(left: Option<Box<[T]>>, right: Option<Box<[T]>>) -> Option<Box<[T]>> {
    let mut all = left?.into_vec();
    for item in right? {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    (all.len() <= MAX_ALTERNATIVES).then(|| all.into())
}
