//! Installs a tool only once.

use std::fs;
use std::path::Path;

use crate::TaskError;

/// Runs `install` into an empty `dir` unless it did so before for the same `what`.
pub(crate) fn install_once(
    dir: &Path,
    what: &str,
    install: impl FnOnce(&Path) -> Result<(), TaskError>,
) -> Result<(), TaskError> {
    let stamp = dir.join(".installed");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == what) {
        return Ok(());
    }
    let describe = |error: std::io::Error| format!("{}: {error}", dir.display());
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(describe)?;
    }
    fs::create_dir_all(dir).map_err(describe)?;
    install(dir)?;
    fs::write(&stamp, what).map_err(describe)
}
