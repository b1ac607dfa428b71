//! Free space on the file system, read at most a few times per second.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a reading is used.
const READING_AGE: Duration = Duration::from_millis(250);

pub(crate) struct FreeSpace {
    directory: PathBuf,
    /// When the space was read last, and what has been free since, without the bytes reserved meanwhile.
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

    /// Subtracts bytes that are about to be written from the last reading. Otherwise a fast sender would fill the disk before the
    /// next one.
    pub(crate) fn reserve(&self, bytes: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, free)) = last.as_mut() {
            *free = free.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_about_to_be_written_are_not_free() {
        let space = FreeSpace::new(&std::env::temp_dir());
        let in_an_hour = Instant::now() + Duration::from_secs(3600);
        *space.last.lock().unwrap() = Some((in_an_hour, 1000));
        space.reserve(300);
        assert_eq!(space.bytes().unwrap(), 700);
        space.reserve(800);
        assert_eq!(space.bytes().unwrap(), 0);
    }
}
