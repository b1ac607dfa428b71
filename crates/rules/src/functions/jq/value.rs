//! Values of a running program. Arrays and objects are shared and know their depth and size. No program can thus create
//! one that is too large to print, compare or drop.

use std::rc::Rc;

use super::execution_meter;
use crate::json;
use crate::value::{Arena, Value};

#[derive(Clone, Default)]
pub(super) enum JqValue {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<str>),
    Array(Rc<SizedTree<Vec<JqValue>>>),
    Object(Rc<SizedTree<ObjectFields>>),
}

impl JqValue {
    pub(super) fn text(text: &str) -> JqValue {
        execution_meter::count_bytes(text.len());
        JqValue::Str(text.into())
    }

    pub(super) fn array(items: Vec<JqValue>) -> JqValue {
        JqValue::Array(Rc::new(SizedTree::from_items(items)))
    }

    pub(super) fn object(fields: ObjectFields) -> JqValue {
        JqValue::Object(Rc::new(SizedTree::from_fields(fields)))
    }

    pub(super) fn depth(&self) -> u32 {
        match self {
            JqValue::Array(tree) => tree.depth,
            JqValue::Object(tree) => tree.depth,
            _ => 0,
        }
    }

    /// Approximate length when printed.
    pub(super) fn bytes(&self) -> usize {
        match self {
            JqValue::Str(text) => text.len() + 2,
            JqValue::Array(tree) => tree.bytes,
            JqValue::Object(tree) => tree.bytes,
            _ => 8,
        }
    }

    pub(super) fn from_value(value: Value<'_>, arena: &Arena) -> JqValue {
        match value.parse_one_level(arena) {
            Value::Undefined | Value::Null => JqValue::Null,
            Value::Bool(truth) => JqValue::Bool(truth),
            Value::Int(number) => JqValue::Int(number),
            Value::Float(number) => JqValue::Float(number),
            Value::Array(items) => JqValue::array(
                items
                    .iter()
                    .map(|item| JqValue::from_value(*item, arena))
                    .collect(),
            ),
            Value::Map(fields) => {
                let mut copy = ObjectFields::default();
                for (name, value) in fields {
                    copy.set(name, JqValue::from_value(*value, arena));
                }
                JqValue::object(copy)
            }
            other => JqValue::text(other.text(arena)),
        }
    }

    /// Converts a value. As in jq, NaN becomes null and infinity the greatest float.
    pub(super) fn to_value<'a>(&self, arena: &'a Arena) -> Value<'a> {
        match self {
            JqValue::Null => Value::Null,
            JqValue::Bool(truth) => Value::Bool(*truth),
            JqValue::Int(number) => Value::Int(*number),
            JqValue::Float(number) if number.is_nan() => Value::Null,
            JqValue::Float(number) => Value::Float(number.clamp(f64::MIN, f64::MAX)),
            JqValue::Str(text) => Value::Str(arena.alloc_str(text)),
            JqValue::Array(tree) => Value::Array(
                arena.alloc_slice_fill_iter(tree.inner.iter().map(|item| item.to_value(arena))),
            ),
            JqValue::Object(tree) => Value::Map(
                arena.alloc_slice_fill_iter(
                    tree.inner
                        .iter()
                        .map(|(name, item)| (&*arena.alloc_str(name), item.to_value(arena))),
                ),
            ),
        }
    }

    pub(super) fn to_json(&self) -> String {
        let arena = Arena::new();
        json::text(&self.to_value(&arena), &arena).to_owned()
    }
}

/// The contents of an array or object with their depth and size.
pub(super) struct SizedTree<T> {
    pub(super) inner: T,
    pub(super) depth: u32,
    pub(super) bytes: usize,
}

/// The fields of an object in their original order, with unique names.
#[derive(Clone, Default)]
pub(super) struct ObjectFields(pub(super) Vec<(Rc<str>, JqValue)>);

impl ObjectFields {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &JqValue)> {
        self.0.iter().map(|(name, item)| (&**name, item))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&JqValue> {
        execution_meter::count_steps(self.0.len() as u64 / 16);
        self.iter()
            .find(|(field, _)| *field == name)
            .map(|(_, item)| item)
    }

    pub(super) fn set(&mut self, name: &str, item: JqValue) {
        execution_meter::count_steps(self.0.len() as u64 / 16);
        match self.0.iter_mut().find(|(field, _)| **field == *name) {
            Some((_, old)) => *old = item,
            None => self.0.push((name.into(), item)),
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(field, _)| **field != *name);
    }

    /// The fields sorted by name.
    pub(super) fn sorted(&self) -> Vec<(&str, &JqValue)> {
        execution_meter::count_steps(self.0.len() as u64);
        let mut fields: Vec<_> = self.iter().collect();
        fields.sort_by_key(|(name, _)| *name);
        fields
    }
}

impl SizedTree<Vec<JqValue>> {
    pub(super) fn from_items(items: Vec<JqValue>) -> Self {
        let mut tree = SizedTree {
            inner: Vec::new(),
            depth: 0,
            bytes: 2,
        };
        for item in &items {
            tree.depth = tree.depth.max(item.depth());
            tree.bytes = tree.bytes.saturating_add(item.bytes() + 1);
        }
        tree.inner = items;
        tree.checked()
    }
}

impl SizedTree<ObjectFields> {
    pub(super) fn from_fields(fields: ObjectFields) -> Self {
        let mut tree = SizedTree {
            inner: ObjectFields::default(),
            depth: 0,
            bytes: 2,
        };
        for (name, item) in fields.iter() {
            tree.depth = tree.depth.max(item.depth());
            tree.bytes = tree.bytes.saturating_add(name.len() + 4 + item.bytes());
        }
        tree.inner = fields;
        tree.checked()
    }
}

impl<T> SizedTree<T> {
    fn checked(mut self) -> Self {
        self.depth += 1;
        execution_meter::check_depth(self.depth);
        execution_meter::count_bytes(self.bytes);
        self
    }
}
