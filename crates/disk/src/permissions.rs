//! File permissions: files belong to the process's user only; other users get access only where intended.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::Mode;

const OTHERS_MODE_MASK: u32 = 0o077;
const UMASK_NOT_SET: u32 = u32::MAX;

/// The umask with which the process was started.
static UMASK: AtomicU32 = AtomicU32::new(UMASK_NOT_SET);

/// Denies other users access to files and directories that this process creates from now on. Call it at program start.
pub fn restrict_umask() {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    UMASK.store(before.bits(), Ordering::Relaxed);
}

/// Sets the mode of a file, directory or socket intended for other users to what it would be without
/// [`restrict_umask`].
///
/// # Errors
/// If the file system returns an error.
pub fn apply_original_umask(path: &Path) -> io::Result<()> {
    let umask = UMASK.load(Ordering::Relaxed);
    if umask == UMASK_NOT_SET {
        return Ok(());
    }
    let kind = fs::metadata(path)?.file_type();
    let all = if kind.is_dir() || kind.is_socket() {
        0o777
    } else {
        0o666
    };
    fs::set_permissions(path, Permissions::from_mode(all & !umask))
}

/// Creates a directory with mode 0700, unless it exists.
///
/// # Errors
/// If the file system returns an error.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The mode of a file or directory accessible to other users; `None` if it is not accessible or does not exist.
#[must_use]
pub fn others_mode(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    (mode & OTHERS_MODE_MASK != 0).then_some(mode)
}

/// Revokes the access of other users to a directory. Returns whether they had any.
///
/// # Errors
/// If the directory belongs to another user, or the file system returns an error.
pub fn revoke_others_access(path: &Path) -> io::Result<bool> {
    let Some(mode) = others_mode(path) else {
        return Ok(false);
    };
    fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS_MODE_MASK))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_open_to_others_is_closed() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("data");
        create_private_dir(&dir).unwrap();
        assert_eq!(others_mode(&dir), None);
        assert!(!revoke_others_access(&dir).unwrap());
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(others_mode(&dir), Some(0o755));
        assert!(revoke_others_access(&dir).unwrap());
        assert_eq!(others_mode(&dir), None);
        assert_eq!(others_mode(&parent.path().join("nothing")), None);
    }
}
