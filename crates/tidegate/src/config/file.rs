//! Parses `tidegate.toml` into assignments with their positions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::config_draft::ConfigDraft;
use super::config_error::ValueOrigin;
use super::config_table::ConfigTable;
use super::setting_kind::RawValue;
use super::settings_table::SECTIONS;
use super::{auth_tables, connector_tables, object_tables, product_tables};

/// Sections written as `[[name]]`, with the key that identifies an entry.
const REPEATED: [&str; 2] = ["listener", "user"];
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads a file into the draft; errors are added to the draft.
pub(super) fn read(path: &Path, draft: &mut ConfigDraft) {
    let whole = ValueOrigin::WholeFile(Arc::new(path.to_owned()));
    let too_large = std::fs::metadata(path).is_ok_and(|found| found.len() > MAX_FILE_BYTES);
    if too_large {
        return draft.add_error(whole, "", "larger than 16 MiB; is it a configuration file?");
    }
    match std::fs::read_to_string(path) {
        Ok(text) => read_text(path, &text, draft),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            draft.add_error(whole, "", "not UTF-8 text; is it a configuration file?");
        }
        Err(error) => draft.add_error(whole, "", format!("cannot be read: {error}")),
    }
}

pub(super) fn read_text(path: &Path, text: &str, draft: &mut ConfigDraft) {
    let directory = path.parent().unwrap_or(Path::new("")).to_owned();
    let places = SourcePositions {
        path: Arc::new(path.to_owned()),
        text,
        directory,
    };
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            let origin = places.origin_at(error.span().map_or(0, |span| span.start));
            draft.add_error(origin, "", format!("not TOML: {}", error.message()));
        }
        return;
    }
    for (section, value) in document.get_ref() {
        let name = section.get_ref().as_ref();
        let here = places.origin_at(section.span().start);
        let repeated = REPEATED.contains(&name);
        match value.get_ref() {
            DeValue::Array(entries) if repeated => {
                if name == "listener" {
                    draft.listeners.clear();
                }
                for entry in entries {
                    let here = places.origin_at(entry.span().start);
                    match entry.get_ref() {
                        DeValue::Table(entry) => read_entry(name, entry, &here, &places, draft),
                        other => {
                            let found = other.type_str();
                            let message = format!("expected a table, found {found}");
                            draft.add_error(here, name, message);
                        }
                    }
                }
            }
            _ if repeated => draft.add_error(here, name, format!("write it as [[{name}]]")),
            DeValue::Array(entries) if name == "product" => {
                read_products(entries, &places, draft);
            }
            _ if name == "product" => draft.add_error(here, name, "write it as [[product]]"),
            DeValue::Array(entries) if name == "rule" => read_rules(entries, &places, draft),
            _ if name == "rule" => draft.add_error(here, name, "write it as [[rule]]"),
            DeValue::Array(entries) if matches!(name, "connector" | "sink" | "source") => {
                read_connectors(name, entries, &places, draft);
            }
            _ if matches!(name, "connector" | "sink" | "source") => {
                draft.add_error(here, name, format!("write it as [[{name}]]"));
            }
            DeValue::Array(entries) if object_tables::section(name).is_some() => {
                let section = object_tables::section(name).unwrap_or_default();
                read_objects(section, entries, &places, draft);
            }
            _ if object_tables::section(name).is_some() => {
                draft.add_error(here, name, format!("write it as [[{name}]]"));
            }
            DeValue::Table(table) if name == "auth" => read_auth(table, &places, draft),
            DeValue::Table(table) if is_section(name) => read_table(name, table, &places, draft),
            _ if is_section(name) => draft.add_error(here, name, format!("write it as [{name}]")),
            DeValue::Table(_) | DeValue::Array(_) => {
                let guess = rules::nearest_name(name, SECTIONS.iter().map(|(name, _)| *name));
                let message = match guess {
                    Some(guess) => format!("unknown section; did you mean `{guess}`?"),
                    None => format!("unknown section; there are {}", section_names()),
                };
                draft.add_error(here, name, message);
            }
            _ => draft.assign(name, &raw_value(value.get_ref()), &here, &places.directory),
        }
    }
}

/// Reads an entry of `[[listener]]` or `[[user]]`: first its name, then its keys under that name.
fn read_entry(
    section: &str,
    entry: &DeTable<'_>,
    here: &ValueOrigin,
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
) {
    let text = |key: &str| entry.get(key).and_then(|value| value.get_ref().as_str());
    let name_key = if section == "listener" {
        "name"
    } else {
        "username"
    };
    if let Some(value) = entry.get(name_key)
        && !value.get_ref().is_str()
    {
        let found = value.get_ref().type_str();
        let origin = places.origin_at(value.span().start);
        let message = format!("expected a text, found {found}");
        return draft.add_error(origin, format!("{section}.{name_key}"), message);
    }
    let (name, declared) = if section == "listener" {
        let name = text("name").or_else(|| text("protocol")).unwrap_or("mqtt");
        (name, draft.declare_listener(name, here))
    } else {
        let name = text("username").unwrap_or_default();
        (name, draft.declare_user(name, here))
    };
    if !declared {
        return;
    }
    let prefix = format!("{section}.{name}");
    for (key, value) in entry {
        if key.get_ref() != name_key {
            read_pair(&prefix, key, value, places, draft);
        }
    }
}

fn read_table(
    prefix: &str,
    table: &DeTable<'_>,
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
) {
    for (key, value) in table {
        read_pair(prefix, key, value, places, draft);
    }
}

/// Reads `[auth]` and its lists of tables.
fn read_auth(table: &DeTable<'_>, places: &SourcePositions<'_>, draft: &mut ConfigDraft) {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        if draft.auth_tables.tables_for_key(name).is_none() {
            read_pair("auth", key, value, places, draft);
            continue;
        }
        let entries = match value.get_ref() {
            DeValue::Array(entries) => entries,
            _ => {
                let origin = places.origin_at(key.span().start);
                let message = format!("write it as [[auth.{name}]]");
                draft.add_error(origin, format!("auth.{name}"), message);
                continue;
            }
        };
        let tables = read_tables(&format!("auth.{name}"), entries, places, draft, |table| {
            auth_tables::json_of(table, Some(&places.directory))
        });
        if let Some(list) = draft.auth_tables.tables_for_key(name) {
            list.extend(tables);
        }
    }
}

/// Converts the tables of a list to JSON with the given function; other values are errors.
fn read_tables(
    name: &str,
    entries: &[Spanned<DeValue<'_>>],
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
    json: impl Fn(&DeTable<'_>) -> Value,
) -> Vec<ConfigTable> {
    let mut tables = Vec::new();
    for entry in entries {
        let origin = places.origin_at(entry.span().start);
        match entry.get_ref() {
            DeValue::Table(entry) => tables.push(ConfigTable {
                value: json(entry),
                origin,
            }),
            other => {
                let found = other.type_str();
                draft.add_error(origin, name, format!("expected a table, found {found}"));
            }
        }
    }
    tables
}

/// Reads `[[rule]]`; the rules are validated like those of the API once all settings are known.
fn read_rules(
    entries: &[Spanned<DeValue<'_>>],
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
) {
    let rules = read_tables("rule", entries, places, draft, |table| {
        auth_tables::json_of(table, Some(&places.directory))
    });
    draft.rules.extend(rules);
}

/// Reads `[[product]]` in the same way.
fn read_products(
    entries: &[Spanned<DeValue<'_>>],
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
) {
    let products = read_tables("product", entries, places, draft, |table| {
        let mut value = auth_tables::json_of(table, None);
        product_tables::resolve_files(&mut value, &places.directory);
        value
    });
    draft.products.extend(products);
}

/// Reads `[[connector]]`, `[[sink]]` and `[[source]]` in the same way.
fn read_connectors(
    name: &str,
    entries: &[Spanned<DeValue<'_>>],
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
) {
    let tables = read_tables(name, entries, places, draft, |table| {
        let mut value = auth_tables::json_of(table, None);
        connector_tables::resolve_files(&mut value, &places.directory);
        value
    });
    let list = match name {
        "connector" => &mut draft.connectors,
        "source" => &mut draft.sources,
        _ => &mut draft.sinks,
    };
    list.extend(tables);
}

/// Reads the sections of `object_tables` in the same way.
fn read_objects(
    section: &'static str,
    entries: &[Spanned<DeValue<'_>>],
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
) {
    let tables = read_tables(section, entries, places, draft, |table| {
        let mut value = auth_tables::json_of(table, None);
        object_tables::resolve_files(&mut value, &places.directory);
        value
    });
    let objects = tables.into_iter().map(|table| (section, table));
    draft.objects.extend(objects);
}

fn read_pair(
    prefix: &str,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    places: &SourcePositions<'_>,
    draft: &mut ConfigDraft,
) {
    let whole_key = format!("{prefix}.{}", key.get_ref());
    match value.get_ref() {
        DeValue::Table(table) => read_table(&whole_key, table, places, draft),
        plain => {
            let origin = places.origin_at(key.span().start);
            draft.assign(&whole_key, &raw_value(plain), &origin, &places.directory);
        }
    }
}

fn raw_value(value: &DeValue<'_>) -> RawValue {
    match value {
        DeValue::String(text) => RawValue::String(text.as_ref().to_owned()),
        DeValue::Boolean(flag) => RawValue::Boolean(*flag),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            let decimal = i128::from_str_radix(&digits, number.radix());
            RawValue::Integer(decimal.map_or(digits, |number| number.to_string()))
        }
        DeValue::Float(_) => RawValue::Other("a number with a fraction"),
        DeValue::Datetime(_) => RawValue::Other("a date"),
        DeValue::Array(_) => RawValue::Other("a list"),
        DeValue::Table(_) => RawValue::Other("a table"),
    }
}

fn is_section(name: &str) -> bool {
    SECTIONS.iter().any(|(known, _)| *known == name)
}

fn section_names() -> String {
    let names: Vec<_> = SECTIONS
        .iter()
        .map(|(name, _)| match REPEATED.contains(name) {
            true => format!("[[{name}]]"),
            false => format!("[{name}]"),
        })
        .collect();
    names.join(", ")
}

/// Converts byte offsets to lines and columns.
struct SourcePositions<'a> {
    path: Arc<PathBuf>,
    text: &'a str,
    /// Base of relative paths.
    directory: PathBuf,
}

impl SourcePositions<'_> {
    fn origin_at(&self, offset: usize) -> ValueOrigin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ValueOrigin::File {
            path: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}
