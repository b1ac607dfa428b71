//! Directory locks, and file names that survive a power failure.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A directory that could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryLockError {
    #[error("locked by another process")]
    Locked,
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Locks a directory for this process and creates it if it is missing. It revokes the access of other users. The lock
/// is released when the file is closed, at the latest by the end of the process.
///
/// # Errors
/// If another process holds the lock, or the file `lock` cannot be opened.
pub fn lock_directory(dir: &Path) -> Result<File, DirectoryLockError> {
    let path = dir.join("lock");
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| DirectoryLockError::Io { what, path, source }
    };
    crate::permissions::create_private_dir(dir).map_err(failed("create the directory", dir))?;
    // The directory may belong to another user; then its mode stays unchanged.
    let _ = crate::permissions::revoke_others_access(dir);
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed("open", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(DirectoryLockError::Locked),
        Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
    }
}

/// Syncs a directory, so that created, renamed and removed names are durable.
///
/// # Errors
/// If the file system returns an error.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Replaces a file atomically: after a crash there is the old or the new file, never a part. The new content is first
/// written to `name.new`.
///
/// # Errors
/// If the file system returns an error; the old file may still be in place.
pub fn replace_file(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = dir.join(format!("{name}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, dir.join(name))?;
    sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_once() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("new");
        let lock = lock_directory(&dir).unwrap();
        // The lock also excludes a second file handle of the same process.
        assert!(matches!(
            lock_directory(&dir),
            Err(DirectoryLockError::Locked)
        ));
        drop(lock);
        lock_directory(&dir).unwrap();
    }

    #[test]
    fn errors_name_the_path() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        let error = lock_directory(&file).unwrap_err().to_string();
        assert!(error.starts_with("cannot create the directory "), "{error}");
        assert!(error.contains(file.to_str().unwrap()), "{error}");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["first", "second, which is longer", ""] {
            replace_file(dir.path(), "version", text.as_bytes()).unwrap();
            assert_eq!(
                fs::read_to_string(dir.path().join("version")).unwrap(),
                text
            );
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
