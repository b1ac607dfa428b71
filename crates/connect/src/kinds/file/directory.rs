//! The directory of a sink.

use std::path::Path;

/// Creates the directory of a sink, whose files other programs may read.
pub(super) fn make_directory(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(directory)?;
    disk::apply_original_umask(directory)
}

pub(super) fn probe_directory(directory: &Path) -> std::io::Result<()> {
    make_directory(directory)?;
    let path = directory.join(".test");
    std::fs::write(&path, b"")?;
    std::fs::remove_file(&path)
}

/// Whether a symbolic link of this name exists.
pub(super) fn is_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink())
}
