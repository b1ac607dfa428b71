//! `[[connector]]`, `[[sink]]` and `[[source]]`: tables converted to the JSON that the crate
//! `connect` also reads from the store.

use std::path::{Path, PathBuf};

use connect::objects::{CONNECTOR, SINK, SOURCE};
use connect::{ConnectorService, ConnectorServiceOptions};
use serde_json::Value;

use super::config_draft::ConfigDraft;
use super::config_table::ConfigTable;

/// Kind, name and settings of an object.
pub(crate) type DeclaredObject = (&'static str, String, Value);

/// Resolves relative file names in settings against the directory of the configuration file.
pub(super) fn resolve_files(table: &mut Value, directory: &Path) {
    let resolve = |value: &mut Value| {
        if let Some(text) = value.as_str() {
            *value = directory.join(text).display().to_string().into();
        }
    };
    for name in ["ca", "certificate", "key"] {
        if let Some(value) = table.pointer_mut(&format!("/tls/{name}")) {
            resolve(value);
        }
    }
    for (name, value) in table.as_object_mut().into_iter().flatten() {
        if name.ends_with("_file") {
            resolve(value);
        }
    }
}

/// Validates the connectors, sinks and sources of the file as the node will read them.
pub(super) fn finish_connectors(draft: &mut ConfigDraft) -> Vec<DeclaredObject> {
    let tables = [
        (CONNECTOR, std::mem::take(&mut draft.connectors)),
        (SINK, std::mem::take(&mut draft.sinks)),
        (SOURCE, std::mem::take(&mut draft.sources)),
    ];
    if tables.iter().all(|(_, tables)| tables.is_empty()) {
        return Vec::new();
    }
    // Nothing is connected here: tasks started on this runtime never run.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let origin = draft.origin(CONNECTOR);
            draft.add_error(origin, CONNECTOR, format!("cannot be checked: {error}"));
            return Vec::new();
        }
    };
    let options = ConnectorServiceOptions {
        // Nothing is written to the directory.
        directory: Some(PathBuf::new()),
        shards: 1,
    };
    let service = ConnectorService::new(runtime.handle().clone(), options);
    let mut declared: Vec<DeclaredObject> = Vec::new();
    // Connectors with errors; objects that use them get no further error.
    let mut broken = Vec::new();
    for (kind, tables) in tables {
        for table in tables {
            read_table(kind, table, &service, &mut declared, &mut broken, draft);
        }
    }
    declared
}

fn read_table(
    kind: &'static str,
    mut table: ConfigTable,
    service: &ConnectorService,
    declared: &mut Vec<DeclaredObject>,
    broken: &mut Vec<String>,
    draft: &mut ConfigDraft,
) {
    let name = table
        .value
        .as_object_mut()
        .and_then(|table| table.remove("name"));
    let key = format!("{kind}.name");
    let Some(Value::String(name)) = name.filter(|name| name != "") else {
        let message = format!("expected a text, which identifies the {kind}");
        draft.add_error(table.origin, key, message);
        return;
    };
    if declared
        .iter()
        .any(|(of, known, _)| *of == kind && *known == name)
    {
        let message = format!("there is a {kind} {name:?} already; names are unique");
        draft.add_error(table.origin, key, message);
        return;
    }
    let checked = match kind {
        CONNECTOR => service.set_connector(&name, &table.value),
        SOURCE => service.check_source(&table.value),
        _ => service.check_sink(&table.value),
    };
    match checked {
        Ok(()) => {
            draft.declared_at.insert((kind, name.clone()), table.origin);
            declared.push((kind, name, table.value));
        }
        Err(error)
            if kind != CONNECTOR
                && error.field == "connector"
                && broken
                    .iter()
                    .any(|name| table.value["connector"] == name.as_str()) => {}
        Err(error) if kind != CONNECTOR && error.field == "connector" => {
            let detail = format!("{name}: {}; declare it as [[connector]], too", error.detail);
            draft.add_error(table.origin, format!("{kind}.connector"), detail);
        }
        Err(error) => {
            let key = match error.field.as_str() {
                "" => kind.to_owned(),
                field => format!("{kind}.{field}"),
            };
            draft.add_error(table.origin, key, format!("{name}: {}", error.detail));
            if kind == CONNECTOR {
                broken.push(name);
            }
        }
    }
}
