//! The settings of a running node: those that may change while it runs are checked as those of the start are.

use std::fmt;
use std::path::Path;

use api::{HttpConfig, SettingChangeError};
use broker::config::BrokerLimits;
use serde_json::Value as Json;

use super::setting_kind::RawValue;
use super::settings_table::{NODE, NodeSettings};
use super::settings_view;

/// What holds now of the settings that exist once.
#[derive(Clone)]
pub(crate) struct RuntimeSettings(Box<NodeSettings>);

impl fmt::Debug for RuntimeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

impl RuntimeSettings {
    pub(super) fn new(node: &NodeSettings) -> Self {
        let mut node = Box::new(node.clone());
        // It may hold a password, and does not change.
        node.queue.url = None;
        Self(node)
    }

    /// Changes one setting, given as `tidegate.toml` has it; returns it as it is shown. The caller sees to it that it holds.
    pub(crate) fn change_setting(
        &mut self,
        key: &str,
        value: &Json,
    ) -> Result<Json, SettingChangeError> {
        let mut changeable = NODE.iter().filter(|setting| setting.at_run_time);
        let setting = changeable
            .find(|setting| setting.key == key)
            .ok_or(SettingChangeError::Fixed)?;
        let raw = match value {
            Json::Bool(flag) => RawValue::Boolean(*flag),
            Json::Number(number) => RawValue::Integer(number.to_string()),
            Json::String(text) => RawValue::String(text.clone()),
            Json::Null => RawValue::Other("null"),
            Json::Array(_) => RawValue::Other("an array"),
            Json::Object(_) => RawValue::Other("an object"),
        };
        let value = setting.kind.parse_value(&raw, Path::new(""));
        (setting.set)(&mut self.0, value.map_err(SettingChangeError::Invalid)?);
        Ok(settings_view::json_of(setting.kind, (setting.get)(&self.0)))
    }

    pub(crate) fn log_level(&self) -> &str {
        &self.0.log_level
    }

    pub(crate) fn limits(&self) -> &BrokerLimits {
        &self.0.broker.limits
    }

    pub(crate) fn auth(&self) -> &auth::AuthLimits {
        &self.0.auth
    }

    /// `now`, but for what may change.
    pub(crate) fn http_config(&self, now: &HttpConfig) -> HttpConfig {
        HttpConfig {
            bind: now.bind.clone(),
            ..self.0.http.clone()
        }
    }
}
