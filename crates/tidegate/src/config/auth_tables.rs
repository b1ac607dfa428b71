//! `[[auth.authenticator]]`, `[[auth.rule_source]]` and `[[auth.rule]]`: tables converted to the
//! JSON that the crate `auth` also reads from the store.

use std::path::Path;

use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use super::config_draft::ConfigDraft;
use super::config_error::ValueOrigin;
use super::config_table::ConfigTable;

/// Converts a TOML table to JSON; relative paths are resolved against `directory`, if given.
pub(super) fn json_of(table: &DeTable<'_>, directory: Option<&Path>) -> Value {
    let mut fields = Map::new();
    for (key, value) in table {
        let key = key.get_ref().as_ref();
        let mut value = json_of_value(value.get_ref(), directory);
        let is_path = key == "path" || key == "tls_ca" || key.ends_with("_file");
        if let (true, Some(directory), Some(text)) = (is_path, directory, value.as_str()) {
            value = directory.join(text).display().to_string().into();
        }
        fields.insert(key.to_owned(), value);
    }
    Value::Object(fields)
}

fn json_of_value(value: &DeValue<'_>, directory: Option<&Path>) -> Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            i64::from_str_radix(&digits, number.radix()).map_or(digits.into(), Into::into)
        }
        DeValue::Float(number) => {
            let number: Option<f64> = number.as_str().parse().ok();
            number.map_or(Value::Null, Into::into)
        }
        DeValue::Datetime(when) => when.to_string().into(),
        DeValue::Array(values) => {
            let values = values.iter();
            values
                .map(|value| json_of_value(value.get_ref(), directory))
                .collect()
        }
        DeValue::Table(table) => json_of(table, directory),
    }
}

/// Validates the authentication and authorisation settings as the node will read them.
pub(super) fn finish_auth(
    draft: &mut ConfigDraft,
    users: Vec<hooks::UserConfig>,
) -> auth::AuthSettings {
    let values = |tables: &[ConfigTable]| tables.iter().map(|table| table.value.clone()).collect();
    let tables = &draft.auth_tables;
    let settings = auth::AuthSettings {
        limits: draft.node.auth.clone(),
        users,
        authenticators: values(&tables.authenticators),
        rule_sources: values(&tables.rule_sources),
        rules: values(&tables.rules),
    };
    for (kind, ids, tables) in [
        (
            auth::objects::AUTHENTICATOR,
            settings.authenticator_ids(),
            &tables.authenticators,
        ),
        (auth::objects::ACL_RULE, settings.rule_ids(), &tables.rules),
    ] {
        let declared = ids.into_iter().zip(tables);
        let declared = declared.map(|(id, table)| ((kind, id), table.origin.clone()));
        draft.declared_at.extend(declared);
    }
    // Nothing is queried here: tasks started on this runtime never run.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let message = format!("cannot be checked: {error}");
            draft.add_error(ValueOrigin::Default, "auth", message);
            return settings;
        }
    };
    let problems = auth::AuthService::new(&settings, runtime.handle().clone()).err();
    for problem in problems.into_iter().flatten() {
        let tables = &mut draft.auth_tables;
        let list = problem.section.strip_prefix("auth.");
        let list = list.and_then(|list| tables.tables_for_key(list));
        let origin = list.and_then(|tables| Some(tables.get(problem.index)?.origin.clone()));
        // Credentials of users were validated as settings before.
        if let Some(origin) = origin {
            draft.add_error(origin, problem.section, problem.message);
        }
    }
    settings
}
