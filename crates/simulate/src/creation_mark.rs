//! By which objects on a node are recognised that a simulation has created.

use serde_json::Value;

/// In the descriptions of products and other objects, in the names of relay endpoints, and in the notes of packages.
pub(crate) const MARK: &str = "tidegate simulate";
/// Name of the tag of devices, whose value is [`MARK`].
pub(crate) const TAG: &str = "created-by";

/// A description with the mark.
pub(crate) fn marked(description: &Value) -> String {
    match description.as_str() {
        None | Some("") => MARK.to_owned(),
        Some(text) => format!("{text} ({MARK})"),
    }
}

/// Whether a description has the mark.
pub(crate) fn is_marked(description: &Value) -> bool {
    let text = description.as_str().unwrap_or_default();
    let end = text.strip_suffix(')').unwrap_or(text);
    let before = end.strip_suffix(MARK);
    before.is_some_and(|before| before.is_empty() || before.ends_with(" ("))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_marked_descriptions_are_recognised() {
        for text in [Value::Null, json!(""), json!("All pumps")] {
            assert!(is_marked(&json!(marked(&text))), "{text}");
        }
        for text in [
            json!("All pumps"),
            json!("for tidegate simulate"),
            Value::Null,
        ] {
            assert!(!is_marked(&text), "{text}");
        }
    }
}
