//! Detects whether a template is text or JSON.

use crate::json;

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateFormat {
    /// Text and bytes unchanged, everything else as JSON.
    Text,
    /// The template is JSON: a placeholder inside a string literal is escaped, one outside becomes a JSON
    /// value. A plain `payload` or `msg` outside is embedded unchanged if it is JSON.
    Json,
}

impl TemplateFormat {
    /// JSON if the template begins with `{`, `[` or `"` and would be valid JSON with a value for each
    /// placeholder: one document, or one per line. Everything else is text.
    #[must_use]
    pub fn detect(template: &str) -> Self {
        let begins_as_json = template.trim_start().starts_with(['{', '[', '"']);
        if !begins_as_json || !template.contains("${") {
            return Self::Text;
        }
        let filled = with_null_placeholders(template);
        let mut lines = filled.lines().filter(|line| !line.trim().is_empty());
        let is_json = |text: &str| json::check(text.trim()).is_ok();
        match is_json(&filled) || lines.all(is_json) {
            true => Self::Json,
            false => Self::Text,
        }
    }
}

/// The position of a placeholder, which decides how its value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceholderPosition {
    /// In text: text and bytes unchanged, everything else as JSON.
    Text,
    /// At a place where JSON expects a value.
    JsonValue,
    /// Like `JsonValue` for the payload: JSON is embedded unchanged, everything else becomes a JSON value.
    JsonPayload,
    /// Between the quotes of a JSON string.
    JsonString,
}

impl PlaceholderPosition {
    /// Determines the position from the text between the braces and from whether the placeholder is inside a
    /// string literal.
    #[must_use]
    pub fn for_placeholder(form: TemplateFormat, is_in_string: bool, placeholder: &str) -> Self {
        match form {
            TemplateFormat::Text => Self::Text,
            TemplateFormat::Json if is_in_string => Self::JsonString,
            TemplateFormat::Json if matches!(placeholder.trim(), "payload" | "msg") => {
                Self::JsonPayload
            }
            TemplateFormat::Json => Self::JsonValue,
        }
    }
}

/// Whether JSON text that begins inside or outside a string ends inside one.
#[must_use]
pub fn ends_in_string(text: &str, in_string: bool) -> bool {
    let mut in_string = in_string;
    let mut escaped = false;
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ => {}
        }
    }
    in_string
}

/// The template with `null` for each placeholder.
fn with_null_placeholders(template: &str) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(before);
            filled.push_str("${");
            rest = behind;
            continue;
        }
        filled.push_str(before);
        let Some(length) = placeholder_length(behind) else {
            return template.to_owned();
        };
        filled.push_str("null");
        rest = &behind[length + 1..];
    }
    filled.push_str(rest);
    filled
}

/// Length up to the closing brace; braces in quoted text and of maps are skipped.
pub(super) fn placeholder_length(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut open = 0;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(expected), byte) if byte == expected => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"' | b'`') => quote = Some(byte),
            (None, b'{') => open += 1,
            (None, b'}') if open == 0 => return Some(at),
            (None, b'}') => open -= 1,
            (None, _) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::TemplateFormat;

    #[test]
    fn json_is_recognised() {
        for template in [
            r#"{"a": ${a}, "b": "x ${b} y"}"#,
            r#" [${a}, "${b}"]"#,
            "{\"a\": ${a}}\n{\"a\": ${b}}\n",
            r#""${a}""#,
            r#"{"${'}"'}": 1}"#,
        ] {
            assert_eq!(
                TemplateFormat::detect(template),
                TemplateFormat::Json,
                "{template}"
            );
        }
        for template in [
            "${.}",
            "${payload}",
            "t/${a}",
            "{temperature=${t}}",
            r#"{"a": 1}"#,
            r#"{"a": ${a}${b}}"#,
            r#"{"a": "$${a}"}x${b}"#,
            "[${a",
        ] {
            assert_eq!(
                TemplateFormat::detect(template),
                TemplateFormat::Text,
                "{template}"
            );
        }
    }
}
