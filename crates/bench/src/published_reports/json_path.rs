//! Where a number is in the JSON of a command.
//!
//! A path is like a JSON pointer, `/brokers/0/measures/p99`. In an array of objects, `field=text` selects the first one
//! whose field has this text: `/what=simple rule: one message/value`.

use serde_json::Value;

/// The number at a path.
pub(super) fn number_at(value: &Value, path: &str) -> Option<f64> {
    let mut found = value;
    for step in path.strip_prefix('/')?.split('/') {
        found = match (found, step.split_once('=')) {
            (Value::Array(elements), Some((field, text))) => {
                elements.iter().find(|element| element[field] == text)?
            }
            (Value::Array(elements), None) => elements.get(step.parse::<usize>().ok()?)?,
            (value, _) => value.get(step)?,
        };
    }
    match found {
        Value::Bool(is_true) => Some(f64::from(u8::from(*is_true))),
        value => value.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finds_numbers() {
        let value = json!({"a": [{"what": "x", "value": 1}, {"what": "y", "value": 2.5}], "is_right": true});
        assert_eq!(number_at(&value, "/a/0/value"), Some(1.0));
        assert_eq!(number_at(&value, "/a/what=y/value"), Some(2.5));
        assert_eq!(number_at(&value, "/is_right"), Some(1.0));
        for path in ["/a/what=z/value", "/a/2/value", "/a", "a/0", "/b"] {
            assert_eq!(number_at(&value, path), None, "{path}");
        }
    }
}
