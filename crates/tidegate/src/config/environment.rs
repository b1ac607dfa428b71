//! Settings from the environment and the command line: `TIDEGATE_LIMITS__MAX_QOS=1`, `--set
//! limits.max_qos=1`.

use std::path::Path;

use super::config_draft::ConfigDraft;
use super::config_error::ValueOrigin;
use super::setting_kind::RawValue;
use super::settings_table::NODE;

const PREFIX: &str = "TIDEGATE_";
/// Variables that are not settings: the configuration file, the password of `pub` and `sub`,
/// options of `ctl`.
const OTHER_VARIABLES: [&str; 5] = [
    "TIDEGATE_CONFIG",
    "TIDEGATE_PASSWORD",
    "TIDEGATE_API_URL",
    "TIDEGATE_API_KEY",
    "TIDEGATE_API_TOKEN",
];
const DATA_DIR: &str = "TIDEGATE_DATA_DIR";

/// Applies every variable that has the form of a setting. Other `TIDEGATE_` variables are ignored,
/// because container platforms set some (`TIDEGATE_PORT_1883_TCP`) for a service of that name.
pub(super) fn read_variables<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    draft: &mut ConfigDraft,
) {
    let mut variables: Vec<_> = variables.into_iter().collect();
    variables.sort_unstable();
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let origin = ValueOrigin::Environment(name.to_owned());
        let raw = RawValue::from_text(value);
        if name == DATA_DIR {
            draft.assign("node.data_dir", &raw, &origin, Path::new(""));
        } else if rest.contains("__") {
            draft.assign(&key_of(rest), &raw, &origin, Path::new(""));
        } else if !OTHER_VARIABLES.contains(&name)
            && let Some(meant) = suggest_variable(name)
        {
            let message = format!("unknown variable; did you mean {meant}?");
            draft.add_error(origin, "", message);
        }
    }
}

/// Applies `--set KEY=VALUE`.
pub(super) fn read_sets(sets: &[String], draft: &mut ConfigDraft) {
    for set in sets {
        match set.split_once('=') {
            Some((key, value)) => {
                let key = key.trim();
                let origin = ValueOrigin::Set(key.to_owned());
                draft.assign(key, &RawValue::from_text(value), &origin, Path::new(""));
            }
            None => {
                let message = "expected KEY=VALUE, such as --set limits.max_qos=1";
                draft.add_error(ValueOrigin::Set(set.clone()), "", message);
            }
        }
    }
}

/// Converts `LISTENER__MQTT__BIND` to `listener.mqtt.bind`. User names keep their case.
fn key_of(rest: &str) -> String {
    if let Some((section, rest)) = rest.split_once("__")
        && section.eq_ignore_ascii_case("user")
        && let Some((name, key)) = rest.rsplit_once("__")
    {
        return format!("user.{name}.{}", key.to_lowercase());
    }
    rest.to_lowercase().replace("__", ".")
}

/// The variable of a key: `limits.max_qos` is `TIDEGATE_LIMITS__MAX_QOS`.
pub(super) fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").to_uppercase())
}

/// Suggests a variable for an unknown one: one underscore instead of two, or a typo of one
/// character.
fn suggest_variable(name: &str) -> Option<String> {
    let mut settings = NODE.iter().map(|setting| variable_of(setting.key));
    if let Some(meant) = settings.find(|known| known.replace("__", "_") == name) {
        return Some(meant);
    }
    let near = rules::nearest_name(name, OTHER_VARIABLES.into_iter().chain([DATA_DIR]))?;
    (near.len().abs_diff(name.len()) <= 1).then(|| near.to_owned())
}
