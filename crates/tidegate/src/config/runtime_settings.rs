//! The settings of a running node. Changes at run time are validated like the settings at the
//! start.

use std::fmt;
use std::path::Path;

use api::{HttpConfig, SettingChangeError};
use broker::config::BrokerLimits;
use serde_json::Value as Json;

use super::setting_kind::RawValue;
use super::settings_table::{NODE, NodeSettings};
use super::settings_view;

/// The current values of the settings outside repeated tables.
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
        // The URL may contain a password, and cannot change.
        node.queue.url = None;
        Self(node)
    }

    /// Changes one setting, given as in `tidegate.toml`, and returns its new value. The caller
    /// applies it.
    pub(crate) fn change_setting(
        &mut self,
        key: &str,
        value: &Json,
    ) -> Result<Json, SettingChangeError> {
        let mut changeable = NODE.iter().filter(|setting| setting.at_run_time);
        let setting = changeable
            .find(|setting| setting.key == key)
            .ok_or(SettingChangeError::Fixed)?;
        let raw = RawValue::from_json(value);
        let value = setting.kind.parse_value(&raw, Path::new(""));
        (setting.set)(&mut self.0, value.map_err(SettingChangeError::Invalid)?);
        Ok(settings_view::json_of(setting.kind, (setting.get)(&self.0)))
    }

    /// Gives one setting the value that it has in `configured`, and returns it.
    pub(crate) fn reset_setting(
        &mut self,
        key: &str,
        configured: &Self,
    ) -> Result<Json, SettingChangeError> {
        let mut changeable = NODE.iter().filter(|setting| setting.at_run_time);
        let setting = changeable
            .find(|setting| setting.key == key)
            .ok_or(SettingChangeError::Fixed)?;
        let value = (setting.get)(&configured.0).ok_or(SettingChangeError::Fixed)?;
        (setting.set)(&mut self.0, value);
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

    /// The configuration `now` with the settings that may change at run time.
    pub(crate) fn http_config(&self, now: &HttpConfig) -> HttpConfig {
        HttpConfig {
            bind: now.bind.clone(),
            ..self.0.http.clone()
        }
    }
}
