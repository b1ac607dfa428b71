//! A TOML file as a JSON value and the positions of its fields; `--set` changes the value.
//!
//! Errors name a path such as `fleet.meters.send[0].every`, wherever they are detected. The document finds its line.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use super::error::{DefinitionError, DefinitionErrors, FieldPosition};

/// A larger file is none that a person wrote.
const MAX_FILE_BYTES: usize = 1 << 20;

/// The content of a file with its positions.
#[derive(Clone, Debug)]
pub(crate) struct SourceDocument {
    file: PathBuf,
    text: String,
    value: Value,
    /// Arguments of `--set` with the path that each sets.
    sets: Vec<(String, String)>,
}

impl SourceDocument {
    /// Parses `text`, which is the content of `file`.
    pub(crate) fn parse(file: &Path, text: &str) -> Result<Self, DefinitionErrors> {
        let mut document = Self {
            file: file.to_owned(),
            text: text.to_owned(),
            value: Value::Null,
            sets: Vec::new(),
        };
        if text.len() > MAX_FILE_BYTES {
            let message = "larger than 1 MiB; expected a simulation file in TOML";
            return Err(document.errors(vec![DefinitionError::new("", message)]));
        }
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let errors = errors.iter().map(|error| {
                let at = error.span().map_or(0, |span| span.start);
                let message = format!("not TOML: {}", error.message());
                (line_and_column(text, at), DefinitionError::new("", message))
            });
            return Err(DefinitionErrors {
                file: document.file,
                errors: errors.collect(),
            });
        }
        document.value = table_to_json(table.get_ref());
        Ok(document)
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// Applies `--set NAME=VALUE`, with a value in TOML or a text without quotes.
    pub(crate) fn set(&mut self, argument: &str) -> Result<(), DefinitionErrors> {
        let error = |message: &str| DefinitionErrors {
            file: self.file.clone(),
            errors: vec![(
                FieldPosition::Argument(argument.to_owned()),
                DefinitionError::new("", message),
            )],
        };
        let Some((path, text)) = argument.split_once('=') else {
            return Err(error(
                "expected NAME=VALUE, for example fleet.meters.count=1000",
            ));
        };
        let path = path.trim();
        let value = match DeValue::parse(text.trim()) {
            Ok(value) => to_json(value.get_ref()),
            Err(_) => Value::String(text.to_owned()),
        };
        let mut place = &mut self.value;
        for part in split_path(path) {
            place = match part {
                PathPart::Key(key) => match place {
                    Value::Object(fields) => fields
                        .entry(key)
                        .or_insert_with(|| Value::Object(Map::new())),
                    _ => return Err(error("the name leads through a value that is not a table")),
                },
                PathPart::Index(index) => match place {
                    Value::Array(entries) => {
                        let count = entries.len();
                        match entries.get_mut(index) {
                            Some(entry) => entry,
                            None => {
                                return Err(error(&format!(
                                    "[{index}] does not exist; the file has {count} entries, numbered from 0"
                                )));
                            }
                        }
                    }
                    _ => {
                        return Err(error(
                            "a number in brackets follows the name of a list only",
                        ));
                    }
                },
            };
        }
        *place = value;
        self.sets.push((path.to_owned(), argument.to_owned()));
        Ok(())
    }

    /// Adds positions to errors.
    pub(crate) fn errors(&self, errors: Vec<DefinitionError>) -> DefinitionErrors {
        let errors = errors
            .into_iter()
            .map(|error| (self.position(&error.path), error));
        DefinitionErrors {
            file: self.file.clone(),
            errors: errors.collect(),
        }
    }

    /// The position of a field, or of the nearest table around it.
    fn position(&self, path: &str) -> FieldPosition {
        let set = self.sets.iter().rev().find(|(set, _)| {
            path.strip_prefix(set.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        });
        if let Some((_, argument)) = set {
            return FieldPosition::Argument(argument.clone());
        }
        let (table, _) = DeTable::parse_recoverable(&self.text);
        let mut found = None;
        let mut value: Option<&DeValue<'_>> = None;
        for part in split_path(path) {
            let fields = match value {
                None => Some(table.get_ref()),
                Some(value) => value.as_table(),
            };
            let next = match &part {
                PathPart::Key(key) => fields.and_then(|fields| {
                    let (name, value) = fields.iter().find(|(name, _)| name.get_ref() == key)?;
                    Some((name.span().start, value.get_ref()))
                }),
                PathPart::Index(index) => value.and_then(DeValue::as_array).and_then(|entries| {
                    let entry = entries.get(*index)?;
                    Some((entry.span().start, entry.get_ref()))
                }),
            };
            let Some((at, next)) = next else {
                break;
            };
            found = Some(at);
            value = Some(next);
        }
        match found {
            Some(at) => line_and_column(&self.text, at),
            None => FieldPosition::Unknown,
        }
    }
}

fn line_and_column(text: &str, at: usize) -> FieldPosition {
    let before = &text[..text.floor_char_boundary(at)];
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    FieldPosition::Line {
        line: before.matches('\n').count() + 1,
        column: before[start..].chars().count() + 1,
    }
}

enum PathPart {
    Key(String),
    Index(usize),
}

/// Splits `fleet.meters.send[0].every`.
fn split_path(path: &str) -> Vec<PathPart> {
    let mut parts = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let mut pieces = part.split('[');
        parts.extend(
            pieces
                .next()
                .filter(|key| !key.is_empty())
                .map(|key| PathPart::Key(key.to_owned())),
        );
        parts.extend(
            pieces
                .filter_map(|piece| piece.trim_end_matches(']').parse().ok())
                .map(PathPart::Index),
        );
    }
    parts
}

fn table_to_json(table: &DeTable<'_>) -> Value {
    let fields = table.iter();
    let fields = fields.map(|(name, value)| (name.get_ref().to_string(), to_json(value.get_ref())));
    Value::Object(fields.collect())
}

fn to_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => {
            let digits = number.as_str();
            match i64::from_str_radix(digits, number.radix()) {
                Ok(number) => number.into(),
                Err(_) => Value::String(digits.to_owned()),
            }
        }
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) => number.into(),
            Err(_) => Value::String(number.as_str().to_owned()),
        },
        DeValue::Boolean(value) => (*value).into(),
        DeValue::Datetime(time) => Value::String(time.to_string()),
        DeValue::Array(entries) => entries
            .iter()
            .map(|entry| to_json(entry.get_ref()))
            .collect(),
        DeValue::Table(table) => table_to_json(table),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "seed = 3\n[fleet.meters]\ncount = 5\n[[fleet.meters.send]]\nevery = \"10s\"\n";

    fn document() -> SourceDocument {
        SourceDocument::parse(Path::new("a.toml"), TEXT).expect("well-formed")
    }

    fn shown(document: &SourceDocument, path: &str) -> String {
        document
            .errors(vec![DefinitionError::new(path, "wrong")])
            .to_string()
    }

    #[test]
    fn errors_have_the_position_of_the_nearest_field() {
        let document = document();
        assert_eq!(shown(&document, "seed"), "a.toml:1:1: seed: wrong");
        assert_eq!(
            shown(&document, "fleet.meters.send[0].every"),
            "a.toml:5:1: fleet.meters.send[0].every: wrong"
        );
        assert_eq!(
            shown(&document, "fleet.meters.send[0].topic"),
            "a.toml:4:1: fleet.meters.send[0].topic: wrong"
        );
        assert_eq!(shown(&document, "phase[0]"), "a.toml: phase[0]: wrong");
    }

    #[test]
    fn arguments_change_values() {
        let mut document = document();
        for argument in [
            "fleet.meters.count=7",
            "fleet.meters.send[0].every=2s",
            "target.broker=mqtt://h:1",
        ] {
            document.set(argument).expect("it exists");
        }
        let value = document.value();
        assert_eq!(value["fleet"]["meters"]["count"], 7);
        assert_eq!(value["fleet"]["meters"]["send"][0]["every"], "2s");
        assert_eq!(value["target"]["broker"], "mqtt://h:1");
        assert_eq!(
            shown(&document, "fleet.meters.count"),
            "--set fleet.meters.count=7: fleet.meters.count: wrong"
        );
        let error = |argument: &str| document.clone().set(argument).unwrap_err().to_string();
        assert!(error("seed").contains("NAME=VALUE"));
        assert!(error("fleet.meters.send[3].every=1s").contains("has 1 entries"));
        assert!(error("seed.x=1").contains("not a table"));
    }

    #[test]
    fn says_where_a_file_is_not_toml() {
        let error = SourceDocument::parse(Path::new("a.toml"), "a = 1\nb = \n").unwrap_err();
        assert!(error.to_string().starts_with("a.toml:2:"), "{error}");
    }
}
