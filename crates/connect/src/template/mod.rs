//! Texts with `${...}` for values of a row, parsed once and rendered for each row.
//!
//! A template that is JSON renders valid JSON for every row: see `rules::TemplateFormat`. Null and missing values become `null`.
//! Where null is meaningless, as in a topic or a path, [`Template::render_name`] fails instead.

mod expression;
mod redis_command;
mod sql;
mod value_path;

use expression::TemplateExpression;
pub use redis_command::RedisCommands;
pub use sql::{SqlDialect, SqlStatement};
pub use value_path::ValuePath;

use rules::template::{PlaceholderPosition, TemplateFormat, ends_in_string};

use crate::connector::ConnectorError;
use crate::row::{SinkRow, SinkValue};
use crate::settings::SettingsError;

const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
    form: TemplateFormat,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    Text(String),
    Path(ValuePath, PlaceholderPosition),
    Expression(TemplateExpression, PlaceholderPosition),
}

impl Template {
    /// `field` is the name of the setting, for errors.
    pub fn parse(field: &str, text: &str) -> Result<Self, SettingsError> {
        let form = TemplateFormat::detect(text);
        let parts = parse(text, form).map_err(|error| SettingsError::new(field, error))?;
        Ok(Self { parts, form })
    }

    /// The text, if it is constant.
    pub fn constant(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether it renders valid JSON for every row.
    pub fn is_json(&self) -> bool {
        self.form == TemplateFormat::Json
    }

    /// Appends the rendered text for a row.
    pub fn render(&self, row: SinkRow<'_>, out: &mut Vec<u8>) {
        let mut scratch = Vec::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Path(path, position) => {
                    put_value(path.find(row, &mut scratch), *position, out);
                }
                TemplatePart::Expression(expression, position) => {
                    put_value(expression.find(row, &mut scratch), *position, out);
                }
            }
        }
    }

    pub fn render_string(&self, row: SinkRow<'_>) -> String {
        let mut out = Vec::new();
        self.render(row, &mut out);
        String::from_utf8(out)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Renders a name, such as a topic: a null value is an error of the row. `what` names the setting.
    pub fn render_name(&self, what: &str, row: SinkRow<'_>) -> Result<String, ConnectorError> {
        self.check_no_null(what, row)?;
        Ok(self.render_string(row))
    }

    /// Renders the text with each value encoded for a URL. A null value is an error of the row.
    pub fn render_encoded(&self, what: &str, row: SinkRow<'_>) -> Result<String, ConnectorError> {
        self.check_no_null(what, row)?;
        let mut scratch = Vec::new();
        let mut text = Vec::new();
        let mut url = String::new();
        for part in &self.parts {
            let value = match part {
                TemplatePart::Text(text) => {
                    url.push_str(text);
                    continue;
                }
                TemplatePart::Path(path, _) => path.find(row, &mut scratch),
                TemplatePart::Expression(expression, _) => expression.find(row, &mut scratch),
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
        Ok(url)
    }

    fn check_no_null(&self, what: &str, row: SinkRow<'_>) -> Result<(), ConnectorError> {
        let mut scratch = Vec::new();
        for part in &self.parts {
            let (value, placeholder) = match part {
                TemplatePart::Text(_) => continue,
                TemplatePart::Path(path, _) => (path.find(row, &mut scratch), path.to_string()),
                TemplatePart::Expression(expression, _) => {
                    (expression.find(row, &mut scratch), expression.to_string())
                }
            };
            if value.is_null() {
                let what = format!("{what}: {placeholder} is null or not in the row");
                return Err(ConnectorError::bad_rows(what));
            }
        }
        Ok(())
    }

    /// The value for a row. If the template is a single placeholder, it has the type of the field; otherwise it is a text.
    /// `scratch` provides memory to borrow from.
    pub fn value<'a>(&self, row: SinkRow<'a>, scratch: &'a mut Vec<u8>) -> SinkValue<'a> {
        match &self.parts[..] {
            [TemplatePart::Path(path, _)] => path.find(row, scratch),
            [TemplatePart::Expression(expression, _)] => expression.find(row, scratch),
            _ => {
                scratch.clear();
                self.render(row, scratch);
                match std::str::from_utf8(scratch) {
                    Ok(text) => SinkValue::Text(text),
                    Err(_) => SinkValue::Bytes(scratch),
                }
            }
        }
    }
}

/// Replaces line breaks in a rendered text, so that it stays one line.
pub(crate) fn keep_one_line(text: &mut [u8]) {
    for byte in text {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

fn put_value(value: SinkValue<'_>, position: PlaceholderPosition, out: &mut Vec<u8>) {
    match position {
        PlaceholderPosition::Text if value.is_null() => out.extend_from_slice(b"null"),
        PlaceholderPosition::Text => value.write_text(out),
        PlaceholderPosition::JsonValue => value.write_json(out),
        PlaceholderPosition::JsonPayload => match value {
            SinkValue::Text(text) if rules::json::check(text.trim()).is_ok() => {
                out.extend_from_slice(text.trim().as_bytes());
            }
            value => value.write_json(out),
        },
        PlaceholderPosition::JsonString => {
            let mut text = Vec::new();
            put_value(value, PlaceholderPosition::Text, &mut text);
            let text = String::from_utf8_lossy(&text);
            let mut quoted = Vec::new();
            SinkValue::Text(&text).write_json(&mut quoted);
            out.extend_from_slice(&quoted[1..quoted.len() - 1]);
        }
    }
}

/// Splits a text at the `}` that ends a placeholder, with respect to quotes.
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

fn parse(text: &str, form: TemplateFormat) -> Result<Vec<TemplatePart>, String> {
    if text.len() > MAX_TEMPLATE_BYTES {
        return Err(format!("it is longer than {MAX_TEMPLATE_BYTES} bytes"));
    }
    let mut parts = Vec::new();
    let mut rest = text;
    let mut is_in_string = false;
    while let Some((before, after)) = rest.split_once("${") {
        let (inside, behind) =
            split_placeholder(after).ok_or_else(|| format!("a ${{ without its }} in {text:?}"))?;
        if !before.is_empty() {
            parts.push(TemplatePart::Text(before.to_owned()));
        }
        is_in_string = ends_in_string(before, is_in_string);
        let position = PlaceholderPosition::for_placeholder(form, is_in_string, inside);
        parts.push(match ValuePath::is_path(inside) {
            true => TemplatePart::Path(ValuePath::parse(inside)?, position),
            false => TemplatePart::Expression(TemplateExpression::parse(inside)?, position),
        });
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(TemplatePart::Text(rest.to_owned()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;
    use serde_json::json;

    fn row() -> Vec<u8> {
        let value = json!({
            "topic": "t/1", "n": 7, "payload": "{\"t\": [1.5, {\"x\": \"y\"}]}", "m": {"a b": {"c": true}}, "none": null
        });
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).json_fields(value.as_object().unwrap());
        bytes
    }

    fn filled(text: &str) -> String {
        let bytes = row();
        let template = Template::parse("f", text).unwrap();
        template.render_string(SinkRow::from_bytes(&bytes))
    }

    #[test]
    fn placeholders_are_filled_in() {
        assert_eq!(filled("a ${topic}/${n}!"), "a t/1/7!");
        assert_eq!(filled("${none}|${missing}|${m.x.y}"), "null|null|null");
        assert_eq!(filled("${m}"), r#"{"a b":{"c":true}}"#);
        assert_eq!(filled("${m.'a b'.c} ${m.\"a b\".c}"), "true true");
        assert_eq!(filled("$ {x} }"), "$ {x} }");
    }

    #[test]
    fn a_placeholder_may_be_an_expression() {
        assert_eq!(filled("${upper(topic)}-${n + 1}"), "T/1-8");
        assert_eq!(filled("${concat('}', topic)}"), "}t/1");
        assert_eq!(filled("a${none + 1}b"), "anullb");
        let bytes = row();
        let mut scratch = Vec::new();
        let sum = Template::parse("f", "${n * 2}").unwrap();
        assert_eq!(
            sum.value(SinkRow::from_bytes(&bytes), &mut scratch),
            SinkValue::Int(14)
        );
        let error = Template::parse("f", "${nosuchfunction(1)}").unwrap_err();
        assert!(error.detail.contains("nosuchfunction"), "{error}");
    }

    #[test]
    fn values_in_urls_are_encoded() {
        let bytes = row();
        let template = Template::parse("f", "/a b/${topic}?x=${m}").unwrap();
        let rendered = template.render_encoded("path", SinkRow::from_bytes(&bytes));
        assert_eq!(
            rendered.unwrap(),
            "/a b/t%2F1?x=%7B%22a%20b%22%3A%7B%22c%22%3Atrue%7D%7D"
        );
    }

    #[test]
    fn a_null_in_a_name_is_an_error_of_the_row() {
        let bytes = row();
        let row = SinkRow::from_bytes(&bytes);
        for text in ["t/${none}", "t/${missing.x}", "${none + 1}"] {
            let template = Template::parse("topic", text).unwrap();
            let failure = template.render_name("topic", row).unwrap_err();
            assert!(failure.message.contains("is null"), "{failure}");
            assert!(template.render_encoded("path", row).is_err());
        }
        let template = Template::parse("topic", "t/${n}").unwrap();
        assert_eq!(template.render_name("topic", row).unwrap(), "t/7");
    }

    #[test]
    fn a_template_that_is_json_stays_json() {
        let value = json!({
            "name": "a\", \"admin\": true, \"x\": \"\n", "none": null, "n": 5, "list": [1], "payload": "{\"t\": 1}", "raw": "{1}"
        });
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).json_fields(value.as_object().unwrap());
        let rendered = |text: &str| {
            let template = Template::parse("body", text).unwrap();
            assert!(template.is_json(), "{text}");
            let text = template.render_string(SinkRow::from_bytes(&bytes));
            serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|_| panic!("{text}"))
        };
        assert_eq!(
            rendered(
                r#"{"q": "<${name}>", "v": ${name}, "t": ${none}, "s": "${none}", "n": ${n}, "m": "${n}"}"#
            ),
            json!({
                "q": format!("<{}>", value["name"].as_str().unwrap()), "v": value["name"], "t": null, "s": "null", "n": 5, "m": "5"
            })
        );
        assert_eq!(
            rendered(r#"[${payload}, "${payload}", ${raw}, ${list}, ${missing}]"#),
            json!([{"t": 1}, "{\"t\": 1}", "{1}", [1], null])
        );
    }

    #[test]
    fn fields_are_known_by_all_their_spellings() {
        let value = json!({"payload": "{\"t\": 1}", "clientid": "c", "timestamp": 5});
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).json_fields(value.as_object().unwrap());
        let template = Template::parse(
            "f",
            "${msg} ${msg.t} ${clientId} ${time} ${upper(clientId)}",
        );
        let text = template.unwrap().render_string(SinkRow::from_bytes(&bytes));
        assert_eq!(text, "{\"t\": 1} 1 c 5 C");
    }

    #[test]
    fn a_path_goes_into_a_text_that_is_json() {
        assert_eq!(filled("${payload.t[1]} ${payload.t[-1].x}"), "1.5 y");
        assert_eq!(filled("${topic.x}"), "null");
    }

    #[test]
    fn the_whole_row_is_json() {
        let bytes = row();
        let all = serde_json::from_str::<serde_json::Value>(&filled("${.}")).unwrap();
        assert_eq!(all, SinkRow::from_bytes(&bytes).to_json());
    }

    #[test]
    fn a_value_keeps_its_type() {
        let bytes = row();
        let mut scratch = Vec::new();
        let one = Template::parse("f", "${n}").unwrap();
        assert_eq!(
            one.value(SinkRow::from_bytes(&bytes), &mut scratch),
            SinkValue::Int(7)
        );
        let text = Template::parse("f", "no ${n}").unwrap();
        assert_eq!(
            text.value(SinkRow::from_bytes(&bytes), &mut scratch),
            SinkValue::Text("no 7")
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
