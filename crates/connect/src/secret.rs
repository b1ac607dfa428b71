//! Secret settings, which are never shown.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::settings::SettingsError;

/// Secrets are short; keys in PEM are the longest.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A password or key in a setting. Fields of this type are left out of every answer.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Reads a secret from a setting, or from the file that another setting (`FIELD_file`) names.
    pub fn from_setting(
        field: &str,
        given: Option<&Secret>,
        file: Option<&PathBuf>,
    ) -> Result<Option<Secret>, SettingsError> {
        let file_field = || format!("{field}_file");
        match (given, file) {
            (Some(_), Some(_)) => {
                let detail = format!("give either {field} or {field}_file");
                Err(SettingsError::new(&file_field(), detail))
            }
            (Some(given), None) => Ok(Some(given.clone())),
            (None, Some(path)) => match read(path) {
                Ok(secret) => Ok(Some(secret)),
                Err(error) => Err(SettingsError::new(&file_field(), error)),
            },
            (None, None) => Ok(None),
        }
    }
}

fn read(path: &Path) -> Result<Secret, String> {
    let wrong = |why: String| format!("{} cannot be read: {why}", path.display());
    // API users may not be operators of the host: reading a device or a pipe would never end.
    let about = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() || about.len() > MAX_FILE_BYTES {
        return Err(wrong(format!(
            "expected a regular file of at most {MAX_FILE_BYTES} bytes"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Secret(text.strip_suffix('\r').unwrap_or(text).to_owned()))
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "writeOnly": true})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_never_end_are_refused() {
        for path in ["/dev/zero", "/dev", "/missing"] {
            let file = PathBuf::from(path);
            let error = Secret::from_setting("token", None, Some(&file)).unwrap_err();
            assert_eq!(error.field, "token_file", "{path}");
        }
    }
}
