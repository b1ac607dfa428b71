//! Texts with `${...}` for what differs between rows, parsed once and filled in for each row.

mod command;
mod expression;
mod path;
mod sql;

pub use command::Commands;
use expression::Expression;
pub use path::Path;
pub use sql::{Dialect, Sql};

use crate::row::{Row, Value};
use crate::settings::Invalid;

const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// A text to fill in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Path(Path),
    Expression(Expression),
}

impl Template {
    /// `field` is the setting the text is from, for the error.
    pub fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        let parts = parse(text).map_err(|error| Invalid::new(field, error))?;
        Ok(Self { parts })
    }

    /// The text, if it is the same for all rows.
    pub fn constant(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text for a row; what the row has not is left out.
    pub fn render(&self, row: Row<'_>, out: &mut Vec<u8>) {
        let mut scratch = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Path(path) => path.find(row, &mut scratch).write_text(out),
                Part::Expression(expression) => {
                    expression.find(row, &mut scratch).write_text(out);
                }
            }
        }
    }

    pub fn render_string(&self, row: Row<'_>) -> String {
        let mut out = Vec::new();
        self.render(row, &mut out);
        String::from_utf8(out)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The text for a row, with each value encoded for a URL.
    pub fn render_encoded(&self, row: Row<'_>) -> String {
        let mut scratch = Vec::new();
        let mut text = Vec::new();
        let mut url = String::new();
        for part in &self.parts {
            let value = match part {
                Part::Text(text) => {
                    url.push_str(text);
                    continue;
                }
                Part::Path(path) => path.find(row, &mut scratch),
                Part::Expression(expression) => expression.find(row, &mut scratch),
            };
            text.clear();
            value.write_text(&mut text);
            for byte in &text {
                match byte {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                        url.push(char::from(*byte));
                    }
                    byte => url.push_str(&format!("%{byte:02X}")),
                }
            }
        }
        url
    }

    /// The value for a row with its type: that of the field if the template is one placeholder and nothing else, a text
    /// otherwise. `scratch` is what it may borrow from.
    pub fn value<'a>(&self, row: Row<'a>, scratch: &'a mut Vec<u8>) -> Value<'a> {
        match &self.parts[..] {
            [Part::Path(path)] => path.find(row, scratch),
            [Part::Expression(expression)] => expression.find(row, scratch),
            _ => {
                scratch.clear();
                self.render(row, scratch);
                match std::str::from_utf8(scratch) {
                    Ok(text) => Value::Text(text),
                    Err(_) => Value::Bytes(scratch),
                }
            }
        }
    }
}

/// What is up to the `}` that ends a placeholder, quotes minded, and what is behind it.
pub(crate) fn split_placeholder(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '}') => return Some((&text[..at], &text[at + 1..])),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    None
}

fn parse(text: &str) -> Result<Vec<Part>, String> {
    if text.len() > MAX_TEMPLATE_BYTES {
        return Err(format!("it is longer than {MAX_TEMPLATE_BYTES} bytes"));
    }
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (inside, behind) =
            split_placeholder(after).ok_or_else(|| format!("a ${{ without its }} in {text:?}"))?;
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        parts.push(match Path::is_path(inside) {
            true => Part::Path(Path::parse(inside)?),
            false => Part::Expression(Expression::parse(inside)?),
        });
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::RowWriter;
    use serde_json::json;

    fn row() -> Vec<u8> {
        let value = json!({
            "topic": "t/1", "n": 7, "payload": "{\"t\": [1.5, {\"x\": \"y\"}]}", "m": {"a b": {"c": true}}, "none": null
        });
        let mut bytes = Vec::new();
        RowWriter::new(&mut bytes).json_fields(value.as_object().unwrap());
        bytes
    }

    fn filled(text: &str) -> String {
        let bytes = row();
        let template = Template::parse("f", text).unwrap();
        template.render_string(Row::from_bytes(&bytes))
    }

    #[test]
    fn placeholders_are_filled_in() {
        assert_eq!(filled("a ${topic}/${n}!"), "a t/1/7!");
        assert_eq!(filled("${none}|${missing}|${m.x.y}"), "||");
        assert_eq!(filled("${m}"), r#"{"a b":{"c":true}}"#);
        assert_eq!(filled("${m.'a b'.c} ${m.\"a b\".c}"), "true true");
        assert_eq!(filled("$ {x} }"), "$ {x} }");
    }

    #[test]
    fn a_placeholder_may_be_an_expression() {
        assert_eq!(filled("${upper(topic)}-${n + 1}"), "T/1-8");
        assert_eq!(filled("${concat('}', topic)}"), "}t/1");
        assert_eq!(filled("a${none + 1}b"), "ab");
        let bytes = row();
        let mut scratch = Vec::new();
        let sum = Template::parse("f", "${n * 2}").unwrap();
        assert_eq!(
            sum.value(Row::from_bytes(&bytes), &mut scratch),
            Value::Int(14)
        );
        let error = Template::parse("f", "${nosuchfunction(1)}").unwrap_err();
        assert!(error.detail.contains("nosuchfunction"), "{error}");
    }

    #[test]
    fn values_in_urls_are_encoded() {
        let bytes = row();
        let template = Template::parse("f", "/a b/${topic}?x=${m}").unwrap();
        assert_eq!(
            template.render_encoded(Row::from_bytes(&bytes)),
            "/a b/t%2F1?x=%7B%22a%20b%22%3A%7B%22c%22%3Atrue%7D%7D"
        );
    }

    #[test]
    fn a_path_goes_into_a_text_that_is_json() {
        assert_eq!(filled("${payload.t[1]} ${payload.t[-1].x}"), "1.5 y");
        assert_eq!(filled("${topic.x}"), "");
    }

    #[test]
    fn the_whole_row_is_json() {
        let bytes = row();
        let all = serde_json::from_str::<serde_json::Value>(&filled("${.}")).unwrap();
        assert_eq!(all, Row::from_bytes(&bytes).to_json());
    }

    #[test]
    fn a_value_keeps_its_type() {
        let bytes = row();
        let mut scratch = Vec::new();
        let one = Template::parse("f", "${n}").unwrap();
        assert_eq!(
            one.value(Row::from_bytes(&bytes), &mut scratch),
            Value::Int(7)
        );
        let text = Template::parse("f", "no ${n}").unwrap();
        assert_eq!(
            text.value(Row::from_bytes(&bytes), &mut scratch),
            Value::Text("no 7")
        );
    }

    #[test]
    fn errors_name_the_field() {
        for text in ["${a", "${}", "${a..b}", "${a[x]}", "${a[0]}", "${a.'b}"] {
            let error = Template::parse("sql", text).unwrap_err();
            assert_eq!(error.field, "sql", "{text}");
        }
    }
}
