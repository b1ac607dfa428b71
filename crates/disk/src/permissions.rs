//! Who may use what this process creates: the user it runs as, and others only where that is the purpose.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::Mode;

const OTHERS_MODE_MASK: u32 = 0o077;
const UMASK_NOT_SET: u32 = u32::MAX;

/// What the process was started with.
static UMASK: AtomicU32 = AtomicU32::new(UMASK_NOT_SET);

/// From now on other users cannot use the files and directories that this process creates. For the start of a program.
pub fn restrict_umask() {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    UMASK.store(before.bits(), Ordering::Relaxed);
}

/// Gives a file, directory or socket that is meant for other users the mode it would have had without [`restrict_umask`].
///
/// # Errors
/// If the file system refuses.
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

/// Makes a directory that only its owner can enter, if it is not there.
///
/// # Errors
/// If the file system refuses.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The mode of a file or directory that other users can use; `None` if they cannot, or nothing is there.
#[must_use]
pub fn others_mode(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    (mode & OTHERS_MODE_MASK != 0).then_some(mode)
}

/// Takes the access of other users to a directory away; says whether they had any.
///
/// # Errors
/// If the directory belongs to somebody else, or the file system refuses.
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
