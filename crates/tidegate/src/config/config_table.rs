//! Repeated tables of the file that declare objects.

use serde_json::Value;

use super::config_error::ValueOrigin;

/// A table and its place in the file.
pub(super) struct ConfigTable {
    pub(super) value: Value,
    pub(super) origin: ValueOrigin,
}

/// All tables, each kind in the order of the file.
#[derive(Default)]
pub(super) struct AuthTables {
    pub(super) authenticators: Vec<ConfigTable>,
    pub(super) rule_sources: Vec<ConfigTable>,
    pub(super) rules: Vec<ConfigTable>,
}

impl AuthTables {
    /// The list of tables for a key of `[auth]`, if it is one.
    pub(super) fn tables_for_key(&mut self, key: &str) -> Option<&mut Vec<ConfigTable>> {
        match key {
            "authenticator" => Some(&mut self.authenticators),
            "rule_source" => Some(&mut self.rule_sources),
            "rule" => Some(&mut self.rules),
            _ => None,
        }
    }
}
