//! The settings of a running node as the API shows them: value, origin and accepted values, without
//! secrets.

use api::SettingInfo;
use serde_json::{Value as Json, json};

use super::config_draft::ConfigDraft;
use super::config_error::ValueOrigin;
use super::setting_kind::{Setting, SettingKind, SettingValue};
use super::settings_table::{LISTENER, NODE, USER};

/// All settings, sorted by key.
pub(super) fn list_settings(draft: &ConfigDraft) -> Vec<SettingInfo> {
    let mut shown = section_settings(draft, NODE, &draft.node, "");
    for listener in &draft.listeners {
        let prefix = format!("listener.{}.", listener.rest.name);
        shown.extend(section_settings(draft, LISTENER, listener, &prefix));
    }
    for user in &draft.users {
        let prefix = format!("user.{}.", user.username);
        shown.extend(section_settings(draft, USER, user, &prefix));
    }
    shown.sort_by(|a, b| a.key.cmp(&b.key));
    shown
}

/// Sets the effective value of a setting whose default comes from elsewhere.
pub(super) fn set_default_value(settings: &mut [SettingInfo], key: &str, value: &str) {
    let setting = settings.iter_mut().find(|setting| setting.key == key);
    if let Some(setting) = setting.filter(|setting| setting.value.is_null()) {
        setting.value = json!(value);
    }
}

fn section_settings<T>(
    draft: &ConfigDraft,
    table: &'static [Setting<T>],
    section: &T,
    prefix: &str,
) -> Vec<SettingInfo> {
    let row = |setting: &Setting<T>| {
        let key = format!("{prefix}{}", setting.key);
        let origin = match draft.origin(&key) {
            ValueOrigin::Default => "default".to_owned(),
            origin => origin.to_string(),
        };
        SettingInfo {
            value: json_of(setting.kind, (setting.get)(section)),
            origin,
            configured: None,
            changeable: setting.at_run_time,
            expected: setting.kind.expected_text(),
            help: setting.help.to_owned(),
            key,
        }
    };
    table.iter().map(row).collect()
}

pub(super) fn json_of(kind: SettingKind, value: Option<SettingValue>) -> Json {
    match (kind, value) {
        (_, None) => Json::Null,
        (SettingKind::Credential | SettingKind::Secret, Some(_)) => json!(secret::MASK),
        (_, Some(SettingValue::Flag(flag))) => json!(flag),
        (_, Some(SettingValue::Number(number))) => json!(number),
        (_, Some(SettingValue::Text(text))) => json!(text),
        (_, Some(SettingValue::Path(path))) => json!(path.display().to_string()),
        (_, Some(SettingValue::Bind(bind))) => json!(bind.to_string()),
    }
}
