//! The file operations of the log, behind a trait so that tests can make them fail.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

/// A file of the log.
pub(crate) trait LogFile: Send + Sync {
    /// Writes all bytes or fails.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Reads until the buffer is full or the file ends; returns the number of bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    fn sync(&self) -> io::Result<()>;
    fn truncate(&self, len: u64) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
}

/// The file system below the log.
pub(crate) trait FileSystem: Send + Sync {
    /// Creates an empty file with space for `len` bytes.
    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn LogFile>>;
    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations and removals in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// The file system of the operating system.
pub(crate) struct OsFileSystem;

impl LogFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset + filled as u64;
            match std::os::unix::fs::FileExt::read_at(self, &mut buffer[filled..], at) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl FileSystem for OsFileSystem {
    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn LogFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len);
        match allocated.map_err(io::Error::from) {
            Ok(()) => {}
            // For file systems without the operation: there, a full disk shows only on writing.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.set_len(len)?,
            Err(error) => {
                drop(file);
                // Frees the space it took, if any. The caller only needs the file to be gone.
                let _ = fs::remove_file(path);
                return Err(error);
            }
        }
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        disk::sync_dir(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
