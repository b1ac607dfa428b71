//! What a condition says about the events that can meet it.

use std::cmp::Ordering;

use super::{List, NodeId, Op, Plan};
use crate::field::Field;
use crate::keys::{Keys, TopicKey};
use crate::syntax::ast::BinaryOp;
use crate::value::Value;

/// More than this is not worth an entry for each in the index.
const MAX_ALTERNATIVES: usize = 64;

impl Plan {
    /// The keys of events that can meet the condition.
    pub(crate) fn keys(&self, condition: NodeId) -> Keys {
        match self.op(condition) {
            Op::Bool(true) => Keys::default(),
            op if self.constant(condition).is_some_and(|value| !value.truth())
                && !matches!(op, Op::Memo(..)) =>
            {
                Keys {
                    topics: Some(Box::default()),
                    ..Keys::default()
                }
            }
            Op::Memo(inner, _) => self.keys(inner),
            Op::Binary(BinaryOp::And, left, right) => both(self.keys(left), self.keys(right)),
            Op::Binary(BinaryOp::Or, left, right) => either(self.keys(left), self.keys(right)),
            Op::Binary(op, left, right) => {
                let Some(value) = self.constant(right) else {
                    return match self.constant(left) {
                        Some(value) => self.compared(right, mirrored(op), value),
                        None => Keys::default(),
                    };
                };
                self.compared(left, op, value)
            }
            Op::MatchFilter(subject, filter) if self.is_field(subject, Field::Topic) => Keys {
                topics: Some([TopicKey::Filter(self.text(filter).into())].into()),
                ..Keys::default()
            },
            Op::In(subject, list, false) => self.in_list(subject, list),
            Op::Between(subject, list, false) => {
                let &[low, high] = self.list(list) else {
                    return Keys::default();
                };
                match (self.constant(low), self.constant(high)) {
                    (Some(low), Some(high)) => both(
                        self.compared(subject, BinaryOp::GreaterEqual, low),
                        self.compared(subject, BinaryOp::LessEqual, high),
                    ),
                    _ => Keys::default(),
                }
            }
            _ => Keys::default(),
        }
    }

    /// What is left of the condition once the index has found the event under the one topic that the keys allow. Filters, and
    /// names with wildcards, are asked again: the index does not stand for those.
    pub(crate) fn left_to_ask(&self, condition: NodeId, keys: &Keys) -> Option<NodeId> {
        match keys.topics.as_deref() {
            Some([TopicKey::Exact(topic)]) if !mqtt::has_wildcards(topic) => {
                self.without_topic(condition, topic)
            }
            _ => Some(condition),
        }
    }

    fn without_topic(&self, condition: NodeId, topic: &str) -> Option<NodeId> {
        let is_topic = |id| matches!(self.op(id), Op::Field(Field::Topic));
        let is_text = |id| matches!(self.op(id), Op::Text(text) if self.text(text) == topic);
        match self.op(condition) {
            Op::Binary(BinaryOp::Equal, left, right)
                if is_topic(left) && is_text(right) || is_text(left) && is_topic(right) =>
            {
                None
            }
            Op::Binary(BinaryOp::And, left, right) => {
                if self.without_topic(left, topic).is_none() {
                    self.without_topic(right, topic)
                } else if self.without_topic(right, topic).is_none() {
                    Some(left)
                } else {
                    Some(condition)
                }
            }
            _ => Some(condition),
        }
    }

    fn is_field(&self, id: NodeId, field: Field) -> bool {
        match self.op(id) {
            Op::Field(own) => own == field,
            Op::Memo(inner, _) => self.is_field(inner, field),
            _ => false,
        }
    }

    fn constant(&self, id: NodeId) -> Option<Value<'_>> {
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

    /// A field beside a constant.
    fn compared(&self, subject: NodeId, op: BinaryOp, value: Value<'_>) -> Keys {
        let mut keys = Keys::default();
        if self.is_field(subject, Field::Qos) {
            keys.qos = qos_bits(|qos| holds(op, qos, value));
        }
        // A number would also equal text that spells it otherwise.
        if let (BinaryOp::Equal, Value::Str(text)) = (op, value) {
            if self.is_field(subject, Field::Topic) {
                keys.topics = Some([TopicKey::Exact(text.into())].into());
            } else if self.is_field(subject, Field::ClientId) {
                keys.client_ids = Some([text.into()].into());
            }
        }
        keys
    }

    fn in_list(&self, subject: NodeId, list: List) -> Keys {
        self.list(list)
            .iter()
            .map(|&item| match self.constant(item) {
                Some(value) => self.compared(subject, BinaryOp::Equal, value),
                None => Keys::default(),
            })
            .reduce(either)
            .unwrap_or_default()
    }
}

fn mirrored(op: BinaryOp) -> BinaryOp {
    match op {
        BinaryOp::Less => BinaryOp::Greater,
        BinaryOp::LessEqual => BinaryOp::GreaterEqual,
        BinaryOp::Greater => BinaryOp::Less,
        BinaryOp::GreaterEqual => BinaryOp::LessEqual,
        // `'t' =~ topic` says nothing about the topic.
        BinaryOp::Match => BinaryOp::Concat,
        op => op,
    }
}

fn holds(op: BinaryOp, qos: i64, value: Value<'_>) -> Option<bool> {
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

fn both(left: Keys, right: Keys) -> Keys {
    Keys {
        topics: fewest(left.topics, right.topics, |topics| {
            let filters = topics
                .iter()
                .filter(|topic| matches!(topic, TopicKey::Filter(_)))
                .count();
            topics.len() + filters
        }),
        client_ids: fewest(left.client_ids, right.client_ids, <[_]>::len),
        qos: match (left.qos, right.qos) {
            (Some(left), Some(right)) => Some(left & right),
            (left, right) => left.or(right),
        },
    }
}

fn either(left: Keys, right: Keys) -> Keys {
    // What can never be adds nothing.
    if left.topics.as_deref().is_some_and(<[_]>::is_empty) {
        return right;
    }
    if right.topics.as_deref().is_some_and(<[_]>::is_empty) {
        return left;
    }
    Keys {
        topics: joined(left.topics, right.topics),
        client_ids: joined(left.client_ids, right.client_ids),
        qos: left.qos.zip(right.qos).map(|(left, right)| left | right),
    }
}

/// Both conditions hold, so that either list will do: the one that is cheaper to look up.
fn fewest<T>(
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

fn joined<T: PartialEq>(left: Option<Box<[T]>>, right: Option<Box<[T]>>) -> Option<Box<[T]>> {
    let mut all = left?.into_vec();
    for item in right? {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    (all.len() <= MAX_ALTERNATIVES).then(|| all.into())
}
