//! Paths to a value within a row, as written between `${` and `}`.

use std::fmt;

use crate::row::{SinkRow, SinkRowWriter, SinkValue};

const MAX_STEPS: usize = 64;

/// `a.b[1].'odd key'`; `.` is the whole row. Indexes count from 1, or from -1 at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValuePath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Key(String),
    Index(i64),
}

impl ValuePath {
    /// Whether a placeholder is a plain path: names, quoted or not, and indexes.
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
            steps.push(PathStep::Key(key.to_owned()));
            rest = behind;
            while let Some(inside) = rest.strip_prefix('[') {
                let (index, behind) = inside
                    .split_once(']')
                    .ok_or_else(|| wrong("a [ without its ]"))?;
                match index.trim().parse() {
                    Ok(0) | Err(_) => {
                        return Err(wrong("an index is a number from 1, or from -1 at the end"));
                    }
                    Ok(index) => steps.push(PathStep::Index(index)),
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

    /// The value in a row; null if there is none. `scratch` provides memory to borrow from.
    pub fn find<'a>(&self, row: SinkRow<'a>, scratch: &'a mut Vec<u8>) -> SinkValue<'a> {
        let mut value = SinkValue::Map(row);
        for (at, step) in self.0.iter().enumerate() {
            let next = match (value, step) {
                (SinkValue::Map(map), PathStep::Key(key)) if at == 0 => find_column(map, key),
                (SinkValue::Map(map), PathStep::Key(key)) => map.get(key),
                (SinkValue::Array(items), PathStep::Index(index)) => items.nth(*index),
                (SinkValue::Text(text) | SinkValue::Json(text), _) => {
                    return within_json(text, &self.0[at..], scratch);
                }
                _ => None,
            };
            match next {
                Some(next) => value = next,
                None => return SinkValue::Null,
            }
        }
        value
    }
}

/// A column by its name, or by another spelling of the event field with this name.
fn find_column<'a>(row: SinkRow<'a>, name: &str) -> Option<SinkValue<'a>> {
    let other = || rules::spellings(name).find_map(|other| row.get(other));
    row.get(name).or_else(other)
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("${")?;
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if at == 0 => f.write_str(key)?,
                PathStep::Key(key) => write!(f, ".{key}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        if self.0.is_empty() {
            f.write_str(".")?;
        }
        f.write_str("}")
    }
}

/// The value within a JSON text.
fn within_json<'a>(text: &str, steps: &[PathStep], scratch: &'a mut Vec<u8>) -> SinkValue<'a> {
    if !text.trim_start().starts_with(['{', '[']) {
        return SinkValue::Null;
    }
    let Ok(document) = serde_json::from_str::<serde_json::Value>(text) else {
        return SinkValue::Null;
    };
    let mut value = &document;
    for step in steps {
        let next = match step {
            PathStep::Key(key) => value.get(key),
            PathStep::Index(index) => value.as_array().and_then(|items| {
                let count = i64::try_from(items.len()).ok()?;
                let at = if *index > 0 { index - 1 } else { count + index };
                items.get(usize::try_from(at).ok()?)
            }),
        };
        match next {
            Some(next) => value = next,
            None => return SinkValue::Null,
        }
    }
    scratch.clear();
    SinkRowWriter::new(scratch).json_value("", value);
    SinkRow::from_bytes(scratch)
        .get("")
        .unwrap_or(SinkValue::Null)
}
