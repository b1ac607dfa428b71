//! The settings of a running node: those that may change while it runs are checked as those of the start are.

use std::fmt;
use std::path::Path;

use api::{HttpConfig, SettingError};
use broker::config::Limits;
use serde_json::Value as Json;

use super::setting::Raw;
use super::shown;
use super::table::{NODE, Node};

/// What holds now of the settings that exist once.
#[derive(Clone)]
pub(crate) struct Running(Box<Node>);

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

impl Running {
    pub(super) fn new(node: &Node) -> Self {
        let mut node = Box::new(node.clone());
        // It may hold a password, and does not change.
        node.queue.url = None;
        Self(node)
    }

    /// Changes one setting, given as `tidegate.toml` has it; returns it as it is shown. The caller sees to it that it holds.
    pub(crate) fn change(&mut self, key: &str, value: &Json) -> Result<Json, SettingError> {
        let mut changeable = NODE.iter().filter(|setting| setting.at_run_time);
        let setting = changeable
            .find(|setting| setting.key == key)
            .ok_or(SettingError::Fixed)?;
        let raw = match value {
            Json::Bool(flag) => Raw::Boolean(*flag),
            Json::Number(number) => Raw::Integer(number.to_string()),
            Json::String(text) => Raw::String(text.clone()),
            Json::Null => Raw::Other("null"),
            Json::Array(_) => Raw::Other("an array"),
            Json::Object(_) => Raw::Other("an object"),
        };
        let value = setting.kind.read(&raw, Path::new(""));
        (setting.set)(&mut self.0, value.map_err(SettingError::Invalid)?);
        Ok(shown::json_of(setting.kind, (setting.get)(&self.0)))
    }

    pub(crate) fn log_level(&self) -> &str {
        &self.0.log_level
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.broker.limits
    }

    pub(crate) fn auth(&self) -> &auth::Limits {
        &self.0.auth
    }

    /// `now`, but for what may change.
    pub(crate) fn http(&self, now: &HttpConfig) -> HttpConfig {
        HttpConfig {
            bind: now.bind.clone(),
            ..self.0.http.clone()
        }
    }
}
