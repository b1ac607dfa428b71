//! Secrets in settings of pull sources: set directly or read from a file.

use std::path::PathBuf;

use super::definition::{HiddenText, PullSourceError};

/// A secret that is set directly or read from a file.
pub(super) fn secret(
    place: &str,
    field: &str,
    given: Option<&HiddenText>,
    file: Option<&PathBuf>,
) -> Result<Option<String>, PullSourceError> {
    let of_file = |detail: String| PullSourceError::new(format!("{place}.{field}_file"), detail);
    match (given, file) {
        (Some(_), Some(_)) => Err(of_file(format!("set either {field} or {field}_file"))),
        (Some(given), None) => Ok(Some(given.reveal().to_owned())),
        (None, None) => Ok(None),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path);
            let text = text
                .map_err(|error| of_file(format!("reading {} failed: {error}", path.display())))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
    }
}
