//! `tidegate config explain`: value, origin, accepted values and meaning of a setting.

use std::fmt::Write as _;

use api::SettingInfo;

use super::node_config::Config;

/// No setting has this key or this prefix.
#[derive(Debug, thiserror::Error)]
#[error("there is no setting {key:?}; {suggestion}`tidegate config reference` lists all of them")]
pub(crate) struct UnknownSettingError {
    key: String,
    /// Empty, or a question followed by a blank.
    suggestion: String,
}

/// Explains the setting `key`, or all settings whose keys begin with it (`limits`,
/// `listener.mqtt`).
pub(crate) fn explain(config: &Config, key: &str) -> Result<String, UnknownSettingError> {
    let section = format!("{key}.");
    let mut text = String::new();
    let matching = config
        .settings
        .iter()
        .filter(|setting| setting.key == key || setting.key.starts_with(&section));
    for setting in matching {
        if !text.is_empty() {
            text.push('\n');
        }
        write_setting(&mut text, setting);
    }
    if !text.is_empty() {
        return Ok(text);
    }
    let keys = config.settings.iter().map(|setting| setting.key.as_str());
    let suggestion = match rules::nearest_key(key, keys) {
        Some(near) => format!("did you mean `{near}`? "),
        None => String::new(),
    };
    Err(UnknownSettingError {
        key: key.to_owned(),
        suggestion,
    })
}

fn write_setting(text: &mut String, setting: &SettingInfo) {
    let value = match &setting.value {
        serde_json::Value::Null => "not set".to_owned(),
        value => value.to_string(),
    };
    let change = match setting.changeable {
        true => "while the node runs (`tidegate ctl settings set`)",
        false => "at the next start",
    };
    let _ = write!(
        text,
        "{}\n  value     {value}\n  from      {}\n  expected  {}\n  changes   {change}\n  meaning   {}\n",
        setting.key, setting.origin, setting.expected, setting.help,
    );
}
