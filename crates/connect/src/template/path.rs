//! What is between `${` and `}`: the way to a value within a row.

use std::fmt;

use crate::row::{Row, RowWriter, Value};

const MAX_STEPS: usize = 64;

/// `a.b[1].'odd key'`; `.` is the whole row. Indexes count from 1, or from -1 at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(i64),
}

impl Path {
    /// Whether a placeholder is the way to a value and nothing else: names, quoted or not, and indexes.
    pub(crate) fn is_path(text: &str) -> bool {
        let mut quote = None;
        text.trim().chars().all(|c| match (quote, c) {
            (Some(open), c) => {
                if c == open {
                    quote = None;
                }
                true
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                true
            }
            (None, c) => c.is_alphanumeric() || matches!(c, '.' | '_' | '[' | ']' | '-' | '$'),
        })
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "." {
            return Ok(Self(Vec::new()));
        }
        let wrong = |why: &str| format!("${{{text}}}: {why}");
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            let (key, behind) = match rest.chars().next() {
                Some(quote @ ('\'' | '"')) => rest[1..]
                    .split_once(quote)
                    .ok_or_else(|| wrong("a quote is not closed"))?,
                _ => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
            };
            if key.is_empty() {
                return Err(wrong("expected the name of a field"));
            }
            steps.push(Step::Key(key.to_owned()));
            rest = behind;
            while let Some(inside) = rest.strip_prefix('[') {
                let (index, behind) = inside
                    .split_once(']')
                    .ok_or_else(|| wrong("a [ without its ]"))?;
                match index.trim().parse() {
                    Ok(0) | Err(_) => {
                        return Err(wrong("an index is a number from 1, or from -1 at the end"));
                    }
                    Ok(index) => steps.push(Step::Index(index)),
                }
                rest = behind;
            }
            if steps.len() > MAX_STEPS {
                return Err(wrong("it is too long"));
            }
            if rest.is_empty() {
                return Ok(Self(steps));
            }
            rest = rest
                .strip_prefix('.')
                .ok_or_else(|| wrong("expected a . or a ["))?;
        }
    }

    /// The value in a row; null if there is none. `scratch` is what it may borrow from.
    pub fn find<'a>(&self, row: Row<'a>, scratch: &'a mut Vec<u8>) -> Value<'a> {
        let mut value = Value::Map(row);
        for (at, step) in self.0.iter().enumerate() {
            let next = match (value, step) {
                (Value::Map(map), Step::Key(key)) if at == 0 => column(map, key),
                (Value::Map(map), Step::Key(key)) => map.get(key),
                (Value::Array(items), Step::Index(index)) => items.nth(*index),
                (Value::Text(text) | Value::Json(text), _) => {
                    return within_json(text, &self.0[at..], scratch);
                }
                _ => None,
            };
            match next {
                Some(next) => value = next,
                None => return Value::Null,
            }
        }
        value
    }
}

/// A column by its name, or by another spelling of the event's field of this name.
fn column<'a>(row: Row<'a>, name: &str) -> Option<Value<'a>> {
    let other = || rules::spellings(name).find_map(|other| row.get(other));
    row.get(name).or_else(other)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("${")?;
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if at == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        if self.0.is_empty() {
            f.write_str(".")?;
        }
        f.write_str("}")
    }
}

/// The value within the text of a JSON document.
fn within_json<'a>(text: &str, steps: &[Step], scratch: &'a mut Vec<u8>) -> Value<'a> {
    if !text.trim_start().starts_with(['{', '[']) {
        return Value::Null;
    }
    let Ok(document) = serde_json::from_str::<serde_json::Value>(text) else {
        return Value::Null;
    };
    let mut value = &document;
    for step in steps {
        let next = match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.as_array().and_then(|items| {
                let count = i64::try_from(items.len()).ok()?;
                let at = if *index > 0 { index - 1 } else { count + index };
                items.get(usize::try_from(at).ok()?)
            }),
        };
        match next {
            Some(next) => value = next,
            None => return Value::Null,
        }
    }
    scratch.clear();
    RowWriter::new(scratch).json_value("", value);
    Row::from_bytes(scratch).get("").unwrap_or(Value::Null)
}
