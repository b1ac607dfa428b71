//! Bulk import and export of devices as lines of CSV or JSON. A rejected line is reported and does not stop the
//! import; repeating an import changes nothing.

use std::collections::BTreeMap;

use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use store::Durability;

use super::new_device::{NewDevice, PreparedDevice, WritePrecondition};
use super::{Registry, RegistryError};
use crate::credential::NewCredential;
use crate::device::Device;

/// Number of lines written in one batch.
const BATCH_LINES: usize = 2_000;
/// Maximum number of rejected lines that are reported; further ones are only counted. The limit covers a chunk of
/// some MiB with only rejected lines, and takes a few MiB of memory.
const MAX_REJECTED: usize = 50_000;
/// Maximum length of one rejection reason.
const MAX_REASON_BYTES: usize = 256;
const COLUMNS: [&str; 13] = [
    "id",
    "product",
    "name",
    "group",
    "parent",
    "gateway",
    "enabled",
    "tags",
    "token",
    "username",
    "password",
    "secure_id",
    "secure_key",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportFormat {
    /// One JSON object per line, with the fields of a device.
    Jsonl,
    /// A header line with column names, then one line per device.
    Csv,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportMode {
    /// Existing devices are replaced; they keep their credentials unless the line contains some.
    #[default]
    Replace,
    /// Existing devices are rejected.
    Create,
}

/// A rejected line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ImportRejection {
    /// Line number as counted by the caller, from 1 on.
    pub line: u64,
    /// Path of the invalid field; empty if no single field is invalid.
    pub field: String,
    pub reason: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ImportSummary {
    pub created: u64,
    pub updated: u64,
    /// Number of rejected lines; the first 50,000 are listed in `rejections`.
    pub rejected: u64,
    pub rejections: Vec<ImportRejection>,
    /// Number of the line after the last one, where the next import continues.
    pub next_line: u64,
}

impl Registry {
    /// Imports the devices of `text`. `first_line` is the number of its first line. CSV always begins with the header
    /// line, which is not counted if `first_line` is greater than 1. Imported devices are on disk when this returns.
    pub fn import(
        &self,
        text: &str,
        format: ImportFormat,
        mode: ImportMode,
        first_line: u64,
    ) -> Result<ImportSummary, RegistryError> {
        self.import_selected(text, format, mode, first_line, &NamespaceSelection::All)
    }

    /// Like [`Registry::import`] for devices of some namespaces; those of others are rejected.
    ///
    /// # Errors
    /// As [`Registry::import`].
    pub fn import_selected(
        &self,
        text: &str,
        format: ImportFormat,
        mode: ImportMode,
        first_line: u64,
        namespaces: &NamespaceSelection,
    ) -> Result<ImportSummary, RegistryError> {
        let expected = match mode {
            ImportMode::Replace => WritePrecondition::Any,
            ImportMode::Create => WritePrecondition::Absent,
        };
        let mut imported = ImportSummary::default();
        let mut portion: Vec<(u64, PreparedDevice)> = Vec::with_capacity(BATCH_LINES);
        // Spreadsheets write a byte order mark at the beginning of a file.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut records = ImportRecords { rest: text };
        let mut line = first_line;
        let head = match format {
            ImportFormat::Jsonl => Vec::new(),
            ImportFormat::Csv => {
                let head = records.next_csv_record().unwrap_or_default().0;
                check_header(&head)?;
                // The header of the file itself is its first line.
                line = line.max(2);
                head
            }
        };
        loop {
            let (read, lines) = match format {
                ImportFormat::Jsonl => match records.next_line() {
                    None => break,
                    Some(text) if text.trim().is_empty() => (None, 1),
                    Some(text) => (Some(from_json(text)), 1),
                },
                ImportFormat::Csv => match records.next_csv_record() {
                    None => break,
                    Some((fields, lines)) if fields.iter().all(String::is_empty) => (None, lines),
                    Some((fields, lines)) => (Some(from_csv(&head, fields)), lines),
                },
            };
            let sealed = read
                .map(|device| device.and_then(|device| self.prepare_selected(device, namespaces)));
            match sealed {
                None => {}
                Some(Ok(sealed)) => portion.push((line, sealed)),
                Some(Err(error)) => imported.add_rejection(line, &error),
            }
            line += lines;
            if portion.len() == BATCH_LINES {
                let durability = Durability::Buffered;
                self.import_batch(&mut portion, expected, durability, &mut imported)?;
            }
        }
        // The last batch syncs the batches before it.
        self.import_batch(&mut portion, expected, Durability::Synced, &mut imported)?;
        self.inner.wait_until_shared();
        imported.rejections.sort_by_key(|rejected| rejected.line);
        imported.next_line = line;
        Ok(imported)
    }

    /// Prepares a device of these namespaces. A product of another one is answered like an absent one.
    fn prepare_selected(
        &self,
        device: NewDevice,
        namespaces: &NamespaceSelection,
    ) -> Result<PreparedDevice, RegistryError> {
        match self.product(&device.product) {
            Some(product) if !namespaces.contains(product.get().namespace()) => {
                Err(RegistryError::NotFound {
                    what: "product",
                    id: device.product,
                })
            }
            _ => self.inner.prepare(device, false),
        }
    }

    fn import_batch(
        &self,
        portion: &mut Vec<(u64, PreparedDevice)>,
        expected: WritePrecondition,
        durability: Durability,
        imported: &mut ImportSummary,
    ) -> Result<(), RegistryError> {
        let (lines, devices): (Vec<_>, Vec<_>) = portion.drain(..).unzip();
        let results = self.inner.put_all(devices, expected, durability)?;
        for (line, written) in lines.into_iter().zip(results) {
            match written {
                Ok(written) if written.was_created => imported.created += 1,
                Ok(_) => imported.updated += 1,
                Err(error) => imported.add_rejection(line, &error),
            }
        }
        Ok(())
    }

    /// A device as a line of an export, including the line end. Exports contain no secrets.
    pub fn export_line(
        &self,
        device: &Device,
        format: ImportFormat,
        out: &mut String,
    ) -> Result<(), RegistryError> {
        let written = self.to_new_device(device)?;
        match format {
            ImportFormat::Jsonl => {
                let mut fields = serde_json::Map::new();
                let mut put = |name: &str, value: serde_json::Value| {
                    let is_default = value.is_null() || value == "" || value == false;
                    if !is_default || name == "enabled" {
                        fields.insert(name.to_owned(), value);
                    }
                };
                put("id", written.id.into());
                put("product", written.product.into());
                put("name", written.name.into());
                put("group", written.group.into());
                put("parent", written.parent.into());
                put("gateway", written.gateway.into());
                put("enabled", written.enabled.into());
                if !written.tags.is_empty() {
                    put("tags", serde_json::json!(written.tags));
                }
                out.push_str(&serde_json::Value::Object(fields).to_string());
            }
            ImportFormat::Csv => {
                let tags = written
                    .tags
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"));
                let tags = tags.collect::<Vec<_>>().join(";");
                let texts = [
                    &written.id,
                    &written.product,
                    &written.name,
                    written.group.as_ref().unwrap_or(&String::new()),
                    written.parent.as_ref().unwrap_or(&String::new()),
                    &written.gateway.to_string(),
                    &written.enabled.to_string(),
                    &tags,
                ]
                .map(|text| quoted(text));
                out.push_str(&texts.join(","));
            }
        }
        out.push('\n');
        Ok(())
    }
}

/// The header line of an export.
#[must_use]
pub fn export_header(format: ImportFormat) -> Option<String> {
    match format {
        ImportFormat::Jsonl => None,
        ImportFormat::Csv => Some(format!("{}\n", COLUMNS[..8].join(","))),
    }
}

impl ImportSummary {
    fn add_rejection(&mut self, line: u64, error: &RegistryError) {
        self.rejected += 1;
        if self.rejections.len() == MAX_REJECTED {
            return;
        }
        let (field, mut reason) = match error {
            RegistryError::Invalid { field, message } => (field.as_str(), message.clone()),
            RegistryError::NameTaken { field, .. } => (*field, error.to_string()),
            RegistryError::Exists { .. } => ("id", error.to_string()),
            RegistryError::NotFound { what, .. } => (*what, error.to_string()),
            other => ("", other.to_string()),
        };
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        self.rejections.push(ImportRejection {
            line,
            field: field.to_owned(),
            reason,
        });
    }
}

fn invalid(field: &str, message: impl Into<String>) -> RegistryError {
    RegistryError::Invalid {
        field: field.to_owned(),
        message: message.into(),
    }
}

fn from_json(line: &str) -> Result<NewDevice, RegistryError> {
    let mut json = serde_json::Deserializer::from_str(line);
    let device = definition::read_definition(&mut json)
        .map_err(|error| invalid(&error.field, error.detail))?;
    json.end().map_err(|error| invalid("", error.to_string()))?;
    Ok(device)
}

fn check_header(head: &[String]) -> Result<(), RegistryError> {
    if let Some(other) = head.iter().find(|name| {
        let name = name.trim();
        !COLUMNS.contains(&name) && name != "common_name"
    }) {
        let columns = COLUMNS.join(", ");
        return Err(invalid(
            "head line",
            format!("unknown column {other:?}; expected some of {columns}, common_name"),
        ));
    }
    for needed in ["id", "product"] {
        if !head.iter().any(|name| name.trim() == needed) {
            return Err(invalid(
                "head line",
                format!("the column {needed} is missing"),
            ));
        }
    }
    Ok(())
}

fn from_csv(head: &[String], fields: Vec<String>) -> Result<NewDevice, RegistryError> {
    if fields.len() != head.len() {
        let (expected, found) = (head.len(), fields.len());
        return Err(invalid(
            "",
            format!("expected {expected} fields, found {found}"),
        ));
    }
    let mut row: BTreeMap<&str, String> = BTreeMap::new();
    for (name, field) in head.iter().zip(fields) {
        if !field.is_empty() {
            row.insert(name.trim(), field);
        }
    }
    let mut take = |name: &str| row.remove(name);
    let flag = |name: &str, text: Option<String>, default: bool| match text.as_deref() {
        None => Ok(default),
        Some("true" | "1" | "yes") => Ok(true),
        Some("false" | "0" | "no") => Ok(false),
        Some(_) => Err(invalid(name, "expected true or false")),
    };
    let mut tags = BTreeMap::new();
    for tag in take("tags").unwrap_or_default().split(';') {
        match tag.split_once('=') {
            Some((key, value)) => {
                tags.insert(key.trim().to_owned(), value.trim().to_owned());
            }
            None if tag.trim().is_empty() => {}
            None => return Err(invalid("tags", "expected key=value;key=value")),
        }
    }
    let mut credentials = Vec::new();
    if let Some(token) = take("token") {
        let token = Some(token);
        credentials.push(NewCredential::Token { token });
    }
    match (take("username"), take("password")) {
        (username, Some(password)) => credentials.push(NewCredential::Password {
            username,
            password: Some(password),
        }),
        (Some(_), None) => return Err(invalid("password", "required with username")),
        (None, None) => {}
    }
    match (take("secure_id"), take("secure_key")) {
        (secure_id, Some(secure_key)) => credentials.push(NewCredential::Secure {
            secure_id,
            secure_key: Some(secure_key),
        }),
        (Some(_), None) => return Err(invalid("secure_key", "required with secure_id")),
        (None, None) => {}
    }
    if let Some(common_name) = take("common_name") {
        let common_name = Some(common_name);
        credentials.push(NewCredential::Certificate { common_name });
    }
    Ok(NewDevice {
        id: take("id").unwrap_or_default(),
        product: take("product").unwrap_or_default(),
        name: take("name").unwrap_or_default(),
        group: take("group"),
        tags,
        parent: take("parent"),
        enabled: flag("enabled", take("enabled"), true)?,
        gateway: flag("gateway", take("gateway"), false)?,
        credentials: (!credentials.is_empty()).then_some(credentials),
    })
}

struct ImportRecords<'a> {
    rest: &'a str,
}

impl<'a> ImportRecords<'a> {
    fn next_line(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        Some(line)
    }

    /// Reads a record as defined in RFC 4180; returns its fields and its number of lines.
    fn next_csv_record(&mut self) -> Option<(Vec<String>, u64)> {
        if self.rest.is_empty() {
            return None;
        }
        let mut fields = vec![String::new()];
        let (mut lines, mut is_quoted) = (1, false);
        let mut characters = self.rest.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            let field = fields.last_mut().expect("a record has at least one field");
            match character {
                '"' if is_quoted => match characters.next_if(|(_, next)| *next == '"') {
                    Some(_) => field.push('"'),
                    None => is_quoted = false,
                },
                '"' if field.is_empty() => is_quoted = true,
                ',' if !is_quoted => fields.push(String::new()),
                '\r' if !is_quoted && characters.peek().is_some_and(|(_, next)| *next == '\n') => {}
                '\n' if !is_quoted => {
                    self.rest = &self.rest[at + 1..];
                    return Some((fields, lines));
                }
                character => {
                    lines += u64::from(character == '\n');
                    field.push(character);
                }
            }
        }
        self.rest = "";
        Some((fields, lines))
    }
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
