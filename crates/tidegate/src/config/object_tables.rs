//! `[[namespace]]`, `[[rule_chain]]`, `[[device_group]]`, `[[endpoint]]`, `[[pull_source]]` and `[[notification]]`: tables converted to
//! the JSON that is also read from the store. Their references may name stored objects,
//! and the store is not open yet, so they are checked at the start of the node.

use std::fmt;
use std::ops::Deref;
use std::path::Path;

use devices::alarm::{MAX_NOTIFICATIONS, NOTIFICATION_KIND, check_notification};
use devices::pull::{self, PullScheduler};
use devices::{chain, group};
use namespaces::NamespaceDefinition;
use relay::{EndpointDefinition, EndpointError};
use secret::Secret;
use serde_json::{Value, json};

use super::config_draft::ConfigDraft;
use super::config_table::ConfigTable;
use super::connector_tables;

const MAX_NAME_BYTES: usize = 256;

/// Kind, name and definition of objects.
#[derive(Clone, Default)]
pub(crate) struct DeclaredObjects(pub(crate) Vec<(&'static str, String, Value)>);

impl Deref for DeclaredObjects {
    type Target = [(&'static str, String, Value)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl fmt::Debug for DeclaredObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The definitions may contain secrets.
        let names = self.iter().map(|(kind, name, _)| (kind, name));
        f.debug_list().entries(names).finish()
    }
}

/// Converts the table of an id to the stored form; the error is a field and a message.
type ReadObjectFn = fn(&str, Value) -> Result<Value, (String, String)>;

/// A kind of tables.
struct ObjectTableSpec {
    /// Name of the section in the file.
    section: &'static str,
    kind: &'static str,
    name_field: &'static str,
    most: usize,
    read: ReadObjectFn,
}

/// Ordered so that references point to earlier kinds.
const TABLES: [ObjectTableSpec; 6] = [
    ObjectTableSpec {
        section: "namespace",
        kind: namespaces::KIND,
        name_field: "id",
        most: namespaces::MAX_NAMESPACES,
        read: |id, value| {
            let read = NamespaceDefinition::read(id, &value);
            Ok(json!(read.map_err(|error| (error.field, error.detail))?))
        },
    },
    ObjectTableSpec {
        section: "notification",
        kind: NOTIFICATION_KIND,
        name_field: "name",
        most: MAX_NOTIFICATIONS,
        read: |_, value| {
            let read = check_notification(&value).map_err(|error| (error.field, error.detail))?;
            Ok(json!(read))
        },
    },
    ObjectTableSpec {
        section: "rule_chain",
        kind: chain::KIND,
        name_field: "id",
        most: chain::MAX_CHAINS,
        read: |_, value| {
            let read = chain::ChainDefinition::read(&value);
            let (read, _) = read.map_err(|error| (error.field, error.detail))?;
            Ok(json!(read))
        },
    },
    ObjectTableSpec {
        section: "device_group",
        kind: group::KIND,
        name_field: "id",
        most: group::MAX_GROUPS,
        read: |_, value| {
            let read = group::GroupDefinition::read(&value);
            Ok(json!(read.map_err(|error| (error.field, error.detail))?))
        },
    },
    ObjectTableSpec {
        section: "endpoint",
        kind: relay::KIND,
        name_field: "id",
        most: relay::MAX_ENDPOINTS,
        read: |id, mut value| {
            let invalid = |error: EndpointError| (error.field, error.detail);
            EndpointDefinition::check_id(id).map_err(invalid)?;
            take_access_key_file(&mut value)?;
            let read = EndpointDefinition::read(value, None);
            Ok(json!(read.map_err(invalid)?))
        },
    },
    ObjectTableSpec {
        section: "pull_source",
        kind: pull::KIND,
        name_field: "name",
        most: pull::MAX_SOURCES,
        read: |_, value| {
            PullScheduler::stored_form(&value).map_err(|error| (error.field, error.detail))
        },
    },
];

/// Replaces the field `access_key_file` of a relay endpoint by the content of the file.
fn take_access_key_file(value: &mut Value) -> Result<(), (String, String)> {
    let Some(fields) = value.as_object_mut() else {
        return Ok(());
    };
    let file = match fields.remove("access_key_file") {
        None => return Ok(()),
        Some(Value::String(file)) => file,
        Some(_) => {
            let detail = "expected the name of a file".to_owned();
            return Err(("access_key_file".to_owned(), detail));
        }
    };
    let field = "access_key";
    if fields.contains_key(field) {
        let detail = "give either access_key or access_key_file".to_owned();
        return Err(("access_key_file".to_owned(), detail));
    }
    let key = Secret::from_setting(field, None, Some(&file.into()));
    let key = key.map_err(|error| (error.field, error.detail))?;
    fields.extend(key.map(|key| (field.to_owned(), key.reveal().into())));
    Ok(())
}

/// The section with this name, if it is one of these.
pub(super) fn section(name: &str) -> Option<&'static str> {
    let mut sections = TABLES.iter().map(|table| table.section);
    sections.find(|section| *section == name)
}

/// Resolves relative file names in settings against the directory of the configuration file.
pub(super) fn resolve_files(table: &mut Value, directory: &Path) {
    // Of an endpoint.
    connector_tables::resolve_files(table, directory);
    for place in ["/prometheus/server", "/http/server", "/ipmi"] {
        if let Some(settings) = table.pointer_mut(place) {
            connector_tables::resolve_files(settings, directory);
        }
    }
}

/// Validates the objects of the file as the node will read them.
pub(super) fn finish_objects(draft: &mut ConfigDraft) -> DeclaredObjects {
    let tables = std::mem::take(&mut draft.objects);
    let mut declared = DeclaredObjects::default();
    if tables.is_empty() {
        return declared;
    }
    // Nothing is queried here: tasks started on this runtime never run.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let origin = draft.origin(TABLES[0].section);
            let message = format!("cannot be checked: {error}");
            draft.add_error(origin, TABLES[0].section, message);
            return declared;
        }
    };
    let _runtime = runtime.enter();
    for table in &TABLES {
        let mut count = 0;
        for (_, entry) in tables.iter().filter(|(name, _)| *name == table.section) {
            count += 1;
            if count == table.most + 1 {
                let message = format!("there are {} already, which are the most", table.most);
                draft.add_error(entry.origin.clone(), table.section, message);
                break;
            }
            read_table(table, entry, &mut declared, draft);
        }
    }
    declared
}

fn read_table(
    table: &ObjectTableSpec,
    entry: &ConfigTable,
    declared: &mut DeclaredObjects,
    draft: &mut ConfigDraft,
) {
    let ObjectTableSpec {
        section,
        name_field,
        ..
    } = table;
    let (mut value, origin) = (entry.value.clone(), entry.origin.clone());
    let fields = value.as_object_mut();
    let name = fields.and_then(|fields| fields.remove(*name_field));
    let fits = |name: &str| {
        (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
    };
    let key = format!("{section}.{name_field}");
    let Some(name) = name.as_ref().and_then(Value::as_str).filter(|n| fits(n)) else {
        let message = format!(
            "expected a text of 1 to {MAX_NAME_BYTES} bytes without control characters, which identifies the {section}"
        );
        return draft.add_error(origin, key, message);
    };
    let mut known = declared.iter();
    if known.any(|(kind, known, _)| *kind == table.kind && known == name) {
        let message = format!("there is a {section} {name:?} already; each {name_field} is unique");
        return draft.add_error(origin, key, message);
    }
    match (table.read)(name, value) {
        Ok(value) => {
            let known = (table.kind, name.to_owned());
            draft.declared_at.insert(known, origin);
            declared.0.push((table.kind, name.to_owned(), value));
        }
        Err((field, detail)) => {
            let key = match field.as_str() {
                "" => (*section).to_owned(),
                field => format!("{section}.{field}"),
            };
            draft.add_error(origin, key, format!("{name}: {detail}"));
        }
    }
}
