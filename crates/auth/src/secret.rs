//! Secrets, which `Debug` never prints.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A password or key from the settings.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Reads a secret from a setting or from the file named by another setting. `field` is the name of
    /// the first setting.
    pub(crate) fn from_setting(
        field: &str,
        given: Option<&Secret>,
        file: Option<&PathBuf>,
    ) -> Result<Option<Secret>, String> {
        match (given, file) {
            (Some(_), Some(_)) => Err(format!("{field} and {field}_file: give one of them")),
            (Some(given), None) => Ok(Some(given.clone())),
            (None, Some(path)) => read_file(path)
                .map(Some)
                .map_err(|error| format!("{field}_file: {error}")),
            (None, None) => Ok(None),
        }
    }
}

fn read_file(path: &Path) -> Result<Secret, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
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
