//! Values of telemetry between the nodes of a cluster.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Size of a value without its texts.
const BYTES_PER_VALUE: usize = 48;

/// A value; that of a number has all its bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum SharedValue {
    #[serde(rename = "b")]
    Bool(bool),
    #[serde(rename = "i")]
    Int(i64),
    /// The bits of a number with fractional digits, which may not be the same after reading them as decimal digits.
    #[serde(rename = "f")]
    Float(u64),
    #[serde(rename = "t")]
    Text(String),
    #[serde(rename = "j")]
    Json(Value),
}

impl From<Value> for SharedValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(value),
            Value::String(text) => Self::Text(text),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(value), _) => Self::Int(value),
                (None, Some(value)) => Self::Float(value.to_bits()),
                (None, None) => Self::Json(Value::Number(number)),
            },
            value @ (Value::Null | Value::Array(_) | Value::Object(_)) => Self::Json(value),
        }
    }
}

impl From<SharedValue> for Value {
    fn from(value: SharedValue) -> Self {
        match value {
            SharedValue::Bool(value) => value.into(),
            SharedValue::Int(value) => value.into(),
            SharedValue::Float(bits) => f64::from_bits(bits).into(),
            SharedValue::Text(text) => text.into(),
            SharedValue::Json(value) => value,
        }
    }
}

/// Size of a value in an answer.
pub(crate) fn size_of(value: &SharedValue) -> usize {
    BYTES_PER_VALUE
        + match value {
            SharedValue::Text(text) => text.len(),
            SharedValue::Json(value) => value.to_string().len(),
            SharedValue::Bool(_) | SharedValue::Int(_) | SharedValue::Float(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_the_same_at_the_other_node() {
        let numbers = [0.1 + 0.2, 1.0, 5e-324, 1.7976931348623157e308, -0.0];
        let numbers = numbers.iter().map(|number| json!(number));
        let others = [
            json!(i64::MIN),
            json!(true),
            json!("1"),
            json!(null),
            json!({"a": [1, 2.5]}),
        ];
        for value in numbers.chain(others) {
            let sent = serde_json::to_vec(&SharedValue::from(value.clone())).unwrap();
            let received: SharedValue = serde_json::from_slice(&sent).unwrap();
            assert_eq!(Value::from(received).to_string(), value.to_string());
        }
    }
}
