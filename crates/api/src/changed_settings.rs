//! Settings that were changed over the API. They are stored, and applied again after a start, when they
//! override the configuration.

use serde_json::{Value, json};
use store::{ExpectedVersion, ObjectError, Objects};

use crate::node_backend::{ProgramBackend, SettingChangeError};

/// Kind of changed settings in the store; their ids are the keys.
const CHANGED_SETTING_KIND: &str = "changed_setting";
/// There are fewer settings.
const MAX_CHANGED: usize = 10_000;

/// Stores the value of a setting. Blocks.
pub(crate) fn store_change(objects: &Objects, key: &str, value: &Value) -> Result<(), ObjectError> {
    let stored = json!({"value": value});
    let put = objects.put(CHANGED_SETTING_KIND, key, stored, ExpectedVersion::Any);
    put.map(drop)
}

/// Forgets the stored value of a setting, if there is one. Blocks.
pub(crate) fn forget_change(objects: &Objects, key: &str) -> Result<(), ObjectError> {
    match objects.get(CHANGED_SETTING_KIND, key) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => objects
            .delete(CHANGED_SETTING_KIND, key, ExpectedVersion::Any)
            .map(drop),
        Err(error) => Err(ObjectError::Storage(error)),
    }
}

/// Applies all stored changes after a start. Blocks.
pub(crate) fn apply_changes(objects: &Objects, program: &dyn ProgramBackend) {
    let stored = match objects.list(CHANGED_SETTING_KIND, None, MAX_CHANGED) {
        Ok(stored) => stored,
        Err(error) => {
            tracing::error!(%error, "settings changed over the API cannot be read; the configuration applies");
            return;
        }
    };
    for object in stored {
        let key = object.id;
        match program.set_setting(&key, &object.value["value"]) {
            Ok(()) => {
                tracing::info!(
                    key,
                    "setting changed over the API applies instead of the configuration"
                );
            }
            Err(SettingChangeError::Fixed) => {
                tracing::warn!(
                    key,
                    "setting changed over the API cannot change at run time any more; the configuration applies"
                );
            }
            Err(SettingChangeError::Invalid(expected)) => {
                tracing::warn!(
                    key,
                    expected,
                    "setting changed over the API is invalid; the configuration applies"
                );
            }
        }
    }
}
