//! Thing models: the properties, functions and events of a product's devices, in JetLinks' metadata format.
//!
//! [`ThingModel::read`] compiles the JSON document into the form that messages are checked against: one
//! look-up by key, and one or two comparisons.

mod date;
mod parser;
mod thing_model;
mod value_error;
mod value_type;

pub use date::DateFormat;
pub use parser::ThingModelError;
pub use thing_model::{
    EventModel, FunctionModel, MAX_ITEMS, MAX_PROPERTIES, MAX_TYPE_DEPTH, PropertyModel,
    ThingModel, UnknownKeys,
};
pub use value_error::{NestedValueError, ValueError};
pub use value_type::{
    BooleanType, EnumerationType, FieldType, FileEncoding, IntegerType, MAX_VALUE_BYTES,
    NumberType, TextType, ValueType, untyped,
};

#[cfg(test)]
mod tests;
