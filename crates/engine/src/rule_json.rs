//! JSON text that keeps the order of its fields.

use rules::RuleOutput;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Maximum length of a payload or an output in a trace or test, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// JSON as it was written. A [`Value`] would sort the fields, so that the columns of an output would lose the
/// order of SELECT.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct RuleJson(#[schemars(with = "Value")] Box<RawValue>);

impl RuleJson {
    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// The text as a JSON string.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(to_raw_value(text).unwrap_or_default())
    }

    pub(crate) fn from_value(value: &rules::Value<'_>) -> Self {
        let mut bytes = Vec::new();
        value.write_json(&mut bytes);
        remove_whitespace(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        match text.len() {
            0..=MAX_TEXT_BYTES => {
                Self(RawValue::from_string(text.into_owned()).unwrap_or_default())
            }
            _ => Self::from_text(&truncate_text(&text)),
        }
    }

    pub(crate) fn from_output(output: &RuleOutput<'_>) -> Self {
        Self::from_value(&output.value())
    }
}

/// Removes whitespace between tokens. Parts of a payload are written as they are received. A line break in them would
/// end the line of a stream that shows them.
fn remove_whitespace(json: &mut Vec<u8>) {
    let (mut in_string, mut is_escaped) = (false, false);
    json.retain(|byte| {
        let is_kept = in_string || !byte.is_ascii_whitespace();
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            _ => {}
        }
        is_kept
    });
}

pub(crate) fn truncate_text(text: &str) -> String {
    match text.len() {
        0..=MAX_TEXT_BYTES => text.to_owned(),
        _ => format!("{}...", &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]),
    }
}
