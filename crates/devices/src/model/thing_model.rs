//! A compiled thing model: properties, functions, events and tags.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use rules::value::{Arena, Value};
use series::PointValue as Stored;

use super::value_error::{ValueError, wrong_kind};
use super::value_type::{FieldType, ValueType, check_fields, untyped};

/// Limits of a model.
pub const MAX_PROPERTIES: usize = 4096;
pub const MAX_ITEMS: usize = 1024;
pub const MAX_TYPE_DEPTH: usize = 8;

/// Treatment of keys that the model does not have.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum UnknownKeys {
    /// Stored unchanged.
    #[default]
    Keep,
    /// Rejected and counted.
    Reject,
}

/// A compiled thing model.
#[derive(Debug, Clone, Default)]
pub struct ThingModel {
    pub(super) properties: Box<[PropertyModel]>,
    pub(super) by_id: HashMap<Box<str>, u16, RandomState>,
    pub functions: Box<[FunctionModel]>,
    pub events: Box<[EventModel]>,
    pub tags: Box<[PropertyModel]>,
    pub unknown_keys: UnknownKeys,
}

/// A property that a device measures or can be set.
#[derive(Debug, Clone, PartialEq)]
pub struct PropertyModel {
    /// Its index among the properties of the model.
    pub index: u16,
    pub id: Box<str>,
    pub name: Box<str>,
    pub value_type: ValueType,
    /// Such as `celsiusDegrees` or `%`.
    pub unit: Option<Box<str>>,
    pub may_read: bool,
    pub may_write: bool,
    pub may_report: bool,
}

/// A function that a device can execute.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionModel {
    pub id: Box<str>,
    pub name: Box<str>,
    pub is_async: bool,
    pub inputs: Box<[FieldType]>,
    pub output: Option<ValueType>,
}

/// An event that a device reports.
#[derive(Debug, Clone, PartialEq)]
pub struct EventModel {
    pub id: Box<str>,
    pub name: Box<str>,
    /// `ordinary`, `warn`, `urgent` in JetLinks.
    pub level: Option<Box<str>>,
    pub value_type: ValueType,
}

impl ThingModel {
    pub(super) fn new(properties: Vec<PropertyModel>) -> Self {
        let names = properties.iter();
        let by_id = names.map(|property| (property.id.clone(), property.index));
        Self {
            by_id: by_id.collect(),
            properties: properties.into(),
            ..Self::default()
        }
    }

    /// In order; [`PropertyModel::index`] is the index.
    #[must_use]
    pub fn properties(&self) -> &[PropertyModel] {
        &self.properties
    }

    #[inline]
    #[must_use]
    pub fn property(&self, id: &str) -> Option<&PropertyModel> {
        let at = self.by_id.get(id)?;
        self.properties.get(usize::from(*at))
    }

    #[must_use]
    pub fn function(&self, id: &str) -> Option<&FunctionModel> {
        self.functions.iter().find(|function| &*function.id == id)
    }

    #[must_use]
    pub fn event(&self, id: &str) -> Option<&EventModel> {
        self.events.iter().find(|event| &*event.id == id)
    }

    /// Returns the stored form of a reported value.
    #[inline]
    pub fn check<'a>(
        &self,
        key: &str,
        value: Value<'a>,
        arena: &'a Arena,
    ) -> Result<Stored<'a>, ValueError<'_>> {
        match self.property(key) {
            Some(property) => property.value_type.check(value, arena),
            None if self.unknown_keys == UnknownKeys::Keep => untyped(value, arena),
            None => Err(ValueError::Unknown),
        }
    }
}

impl FunctionModel {
    /// Checks the arguments of a call against the function's inputs.
    pub fn check<'m>(&'m self, inputs: Value<'_>, arena: &Arena) -> Result<(), ValueError<'m>> {
        let inputs = match inputs {
            Value::Json(text) => rules::json::parse_one_level(text, arena),
            other => other,
        };
        match inputs {
            Value::Map(found) => check_fields(&self.inputs, found, arena),
            Value::Null if !self.inputs.iter().any(|input| input.is_required) => Ok(()),
            other => Err(wrong_kind("an object of inputs", &other)),
        }
    }
}
