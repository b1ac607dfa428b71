//! Secrets in settings and API objects: given directly or in a file, and never shown. Random bytes for generated ones.

mod object;
mod random;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

pub use object::{MASK, SecretFields, written_and_shown_schemas};
pub use random::{RandomSourceError, random_bytes};

/// Secrets are short; keys in PEM are the longest.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A password or key in a setting. `Debug` prints `***`, and the schema is `writeOnly`. Only fields that name a function of
/// [`stored`] are serialised.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

/// A secret that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct SecretError {
    pub field: String,
    pub detail: String,
}

impl Secret {
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Reads a secret from the setting `field`, or from the file that the setting `FIELD_file` names.
    ///
    /// # Errors
    /// Fails if both are given, or if the file cannot be read. One line end at the end of the file is ignored.
    pub fn from_setting(
        field: &str,
        given: Option<&Secret>,
        file: Option<&PathBuf>,
    ) -> Result<Option<Secret>, SecretError> {
        let error = |detail| SecretError {
            field: format!("{field}_file"),
            detail,
        };
        match (given, file) {
            (Some(_), Some(_)) => Err(error(format!("give either {field} or {field}_file"))),
            (Some(given), None) => Ok(Some(given.clone())),
            (None, Some(path)) => read(path).map(Some).map_err(error),
            (None, None) => Ok(None),
        }
    }
}

/// Functions for `serialize_with` in objects that are serialised to be stored.
pub mod stored {
    use std::collections::BTreeMap;

    use serde::{Serialize as _, Serializer};

    use super::Secret;

    pub fn optional<S: Serializer>(secret: &Option<Secret>, to: S) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(Secret::reveal).serialize(to)
    }

    pub fn by_name<S: Serializer>(
        secrets: &BTreeMap<String, Secret>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(secrets.iter().map(|(name, secret)| (name, secret.reveal())))
    }
}

fn read(path: &Path) -> Result<Secret, String> {
    let wrong = |why: String| format!("{} cannot be read: {why}", path.display());
    // API users may not be operators of the host: reading a device or a pipe would never end.
    let about = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    if about.is_file() {
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
        read.map_err(|error| wrong(error.to_string()))?;
    }
    if !about.is_file() || text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(format!(
            "expected a regular file of at most {MAX_FILE_BYTES} bytes"
        )));
    }
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Secret(text.strip_suffix('\r').unwrap_or(text).to_owned()))
}

/// For callers whose errors are texts.
impl From<SecretError> for String {
    fn from(error: SecretError) -> Self {
        error.to_string()
    }
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_that_never_end_are_rejected() {
        for path in ["/dev/zero", "/dev", "/missing"] {
            let file = PathBuf::from(path);
            let error = Secret::from_setting("token", None, Some(&file)).unwrap_err();
            assert_eq!(error.field, "token_file", "{path}");
        }
    }

    #[test]
    fn one_line_end_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for (text, secret) in [
            ("pencil", "pencil"),
            ("pencil\r\n", "pencil"),
            (" two\n\n", " two\n"),
        ] {
            std::fs::write(&path, text).unwrap();
            let read = Secret::from_setting("password", None, Some(&path));
            assert_eq!(read.unwrap().unwrap().reveal(), secret);
        }
        std::fs::write(&path, "x".repeat(MAX_FILE_BYTES as usize + 1)).unwrap();
        let error = Secret::from_setting("password", None, Some(&path)).unwrap_err();
        assert!(error.detail.contains("at most 65536 bytes"), "{error}");
    }

    #[test]
    fn a_secret_is_given_once_and_not_printed() {
        let (given, file) = (Secret::from("pencil"), PathBuf::from("/dev/null"));
        let error = Secret::from_setting("password", Some(&given), Some(&file)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "password_file: give either password or password_file"
        );
        assert_eq!(format!("{given:?}"), "***");
    }
}
