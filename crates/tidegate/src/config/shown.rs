//! The settings of a running node as the API shows them: value, origin, what else a value may be. No secrets.

use api::SettingInfo;
use serde_json::{Value as Json, json};

use super::draft::Draft;
use super::problem::Origin;
use super::setting::{Kind, Setting, Value};
use super::table::{LISTENER, NODE, USER};

/// Instead of a secret.
const HIDDEN: &str = "***";

/// All of them, sorted by key.
pub(super) fn settings(draft: &Draft) -> Vec<SettingInfo> {
    let mut shown = of_section(draft, NODE, &draft.node, "");
    for listener in &draft.listeners {
        let prefix = format!("listener.{}.", listener.rest.name);
        shown.extend(of_section(draft, LISTENER, listener, &prefix));
    }
    for user in &draft.users {
        let prefix = format!("user.{}.", user.username);
        shown.extend(of_section(draft, USER, user, &prefix));
    }
    shown.sort_by(|a, b| a.key.cmp(&b.key));
    shown
}

/// Gives a setting the value it gets from elsewhere if nobody says one.
pub(super) fn fill_in(settings: &mut [SettingInfo], key: &str, value: &str) {
    let setting = settings.iter_mut().find(|setting| setting.key == key);
    if let Some(setting) = setting.filter(|setting| setting.value.is_null()) {
        setting.value = json!(value);
    }
}

fn of_section<T>(
    draft: &Draft,
    table: &'static [Setting<T>],
    section: &T,
    prefix: &str,
) -> Vec<SettingInfo> {
    let row = |setting: &Setting<T>| {
        let key = format!("{prefix}{}", setting.key);
        let origin = match draft.origin(&key) {
            Origin::Default => "default".to_owned(),
            origin => origin.to_string(),
        };
        SettingInfo {
            value: json_of(setting.kind, (setting.get)(section)),
            origin,
            changeable: setting.at_run_time,
            expected: setting.kind.expected(),
            help: setting.help.to_owned(),
            key,
        }
    };
    table.iter().map(row).collect()
}

pub(super) fn json_of(kind: Kind, value: Option<Value>) -> Json {
    match (kind, value) {
        (_, None) => Json::Null,
        (Kind::Credential | Kind::Secret, Some(_)) => json!(HIDDEN),
        (_, Some(Value::Flag(flag))) => json!(flag),
        (_, Some(Value::Number(number))) => json!(number),
        (_, Some(Value::Text(text))) => json!(text),
        (_, Some(Value::Path(path))) => json!(path.display().to_string()),
        (_, Some(Value::Bind(bind))) => json!(bind.to_string()),
    }
}
