//! Values of a running program. Arrays and objects are shared, and each knows how deep and how large it is, so that no program can
//! make one that is too much to print, to compare or to drop.

use std::rc::Rc;

use super::meter;
use super::tree::{Fields, Tree};
use crate::json;
use crate::value::{Arena, Value};

#[derive(Clone, Default)]
pub(super) enum Item {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<str>),
    Array(Rc<Tree<Vec<Item>>>),
    Object(Rc<Tree<Fields>>),
}

impl Item {
    pub(super) fn text(text: &str) -> Item {
        meter::bytes(text.len());
        Item::Str(text.into())
    }

    pub(super) fn array(items: Vec<Item>) -> Item {
        Item::Array(Rc::new(Tree::of_items(items)))
    }

    pub(super) fn object(fields: Fields) -> Item {
        Item::Object(Rc::new(Tree::of_fields(fields)))
    }

    pub(super) fn depth(&self) -> u32 {
        match self {
            Item::Array(tree) => tree.depth,
            Item::Object(tree) => tree.depth,
            _ => 0,
        }
    }

    /// About what it takes to print.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Item::Str(text) => text.len() + 2,
            Item::Array(tree) => tree.bytes,
            Item::Object(tree) => tree.bytes,
            _ => 8,
        }
    }

    pub(super) fn from_value(value: Value<'_>, arena: &Arena) -> Item {
        match value.open(arena) {
            Value::Undefined | Value::Null => Item::Null,
            Value::Bool(truth) => Item::Bool(truth),
            Value::Int(number) => Item::Int(number),
            Value::Float(number) => Item::Float(number),
            Value::Array(items) => Item::array(
                items
                    .iter()
                    .map(|item| Item::from_value(*item, arena))
                    .collect(),
            ),
            Value::Map(fields) => {
                let mut copy = Fields::default();
                for (name, value) in fields {
                    copy.set(name, Item::from_value(*value, arena));
                }
                Item::object(copy)
            }
            other => Item::text(other.text(arena)),
        }
    }

    /// What is no number becomes null, what is infinite the greatest float, as in jq.
    pub(super) fn to_value<'a>(&self, arena: &'a Arena) -> Value<'a> {
        match self {
            Item::Null => Value::Null,
            Item::Bool(truth) => Value::Bool(*truth),
            Item::Int(number) => Value::Int(*number),
            Item::Float(number) if number.is_nan() => Value::Null,
            Item::Float(number) => Value::Float(number.clamp(f64::MIN, f64::MAX)),
            Item::Str(text) => Value::Str(arena.alloc_str(text)),
            Item::Array(tree) => Value::Array(
                arena.alloc_slice_fill_iter(tree.inner.iter().map(|item| item.to_value(arena))),
            ),
            Item::Object(tree) => Value::Map(
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
