//! Free space on the file system, read at most a few times per second.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a reading is used.
const READING_AGE: Duration = Duration::from_millis(250);

pub(crate) struct FreeSpace {
    directory: PathBuf,
    last: Mutex<Option<(Instant, u64)>>,
}

impl FreeSpace {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            last: Mutex::default(),
        }
    }

    /// Free bytes, at most a quarter of a second old.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((read, bytes)) = *last
            && now.duration_since(read) < READING_AGE
        {
            return Ok(bytes);
        }
        let stat = rustix::fs::statvfs(&self.directory)?;
        let bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        *last = Some((now, bytes));
        Ok(bytes)
    }
}
