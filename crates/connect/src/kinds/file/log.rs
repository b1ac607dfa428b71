//! The file that is written, and those it was before.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) struct Rotation {
    pub(super) max_bytes: u64,
    pub(super) max_age: Option<Duration>,
    pub(super) max_files: usize,
}

pub(super) struct Log {
    directory: PathBuf,
    name: String,
    rotation: Rotation,
    /// What each file begins with.
    head: Vec<u8>,
    sync: bool,
    open: Option<Open>,
}

struct Open {
    file: File,
    bytes: u64,
    since: SystemTime,
}

impl Log {
    pub(super) fn new(
        directory: &Path,
        name: &str,
        rotation: Rotation,
        head: Vec<u8>,
        sync: bool,
    ) -> Self {
        Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
            rotation,
            head,
            sync,
            open: None,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Appends lines: all of them or nothing.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.open()?,
        };
        let head = self.head.len() as u64;
        let is_old = self.rotation.max_age.is_some_and(|max| {
            let age = open.since.elapsed().unwrap_or_default();
            age >= max
        });
        let is_large = open.bytes + lines.len() as u64 > self.rotation.max_bytes;
        if open.bytes > head && (is_old || is_large) {
            drop(open);
            self.rotate()?;
            open = self.open()?;
        }
        let written = open.file.write_all(lines).and_then(|()| match self.sync {
            true => open.file.sync_data(),
            false => Ok(()),
        });
        match written {
            Ok(()) => {
                open.bytes += lines.len() as u64;
                self.open = Some(open);
                Ok(())
            }
            Err(error) => {
                // What was written of it must not stand before what comes when it is tried again.
                let _ = open.file.set_len(open.bytes);
                Err(error)
            }
        }
    }

    fn open(&self) -> io::Result<Open> {
        fs::create_dir_all(&self.directory)?;
        let path = self.path();
        let mut file = File::options().create(true).append(true).open(&path)?;
        let about = file.metadata()?;
        let mut bytes = about.len();
        let since = about.created().unwrap_or_else(|_| SystemTime::now());
        if bytes == 0 {
            file.write_all(&self.head)?;
            bytes = self.head.len() as u64;
        }
        Ok(Open { file, bytes, since })
    }

    /// `NAME.EXT` becomes `NAME-20260131T235959.123Z.EXT`.
    fn rotate(&self) -> io::Result<()> {
        let (stem, extension) = match self.name.rsplit_once('.') {
            Some((stem, extension)) => (stem, format!(".{extension}")),
            None => (self.name.as_str(), String::new()),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut ms = now.map_or(0, |now| now.as_millis() as u64);
        let path = loop {
            let path = self
                .directory
                .join(format!("{stem}-{}{extension}", stamp(ms)));
            if !path.exists() {
                break path;
            }
            ms += 1;
        };
        fs::rename(self.path(), path)?;
        self.remove_oldest(stem, &extension)
    }

    fn remove_oldest(&self, stem: &str, extension: &str) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let stamp = name
                .strip_prefix(stem)
                .and_then(|rest| rest.strip_prefix('-'))
                .and_then(|rest| rest.strip_suffix(extension));
            if stamp.is_some_and(is_stamp) {
                files.push(name);
            }
        }
        files.sort();
        let too_many = files.len().saturating_sub(self.rotation.max_files);
        for name in files.drain(..too_many) {
            fs::remove_file(self.directory.join(name))?;
        }
        Ok(())
    }

    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take()
            && let Err(error) = open.file.sync_data()
        {
            tracing::warn!(path = %self.path().display(), %error, "a file of a sink cannot be synced");
        }
    }
}

/// Milliseconds since 1970 as `20260131T235959.123Z`: these sort by time.
fn stamp(ms: u64) -> String {
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}{month:02}{day:02}T{:02}{:02}{:02}.{ms:03}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

fn is_stamp(text: &str) -> bool {
    let shape = "00000000T000000.000Z";
    text.len() == shape.len()
        && text.bytes().zip(shape.bytes()).all(|(byte, of)| match of {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        })
}

/// Year, month and day of a number of days since 1970 in the Gregorian calendar, counting years from March so that a leap
/// day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // Days from 1 March 0 to 1 January 1970.
    let days = days + 719_468;
    let (era, of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = match month_from_march {
        0..=9 => month_from_march + 3,
        _ => month_from_march - 9,
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_named() {
        assert_eq!(stamp(0), "19700101T000000.000Z");
        assert_eq!(stamp(951_782_399_999), "20000228T235959.999Z");
        assert_eq!(stamp(951_782_400_000), "20000229T000000.000Z");
        assert_eq!(stamp(1_767_225_599_001), "20251231T235959.001Z");
        assert!(is_stamp(&stamp(1_767_225_599_001)) && !is_stamp("20251231"));
    }

    #[test]
    fn files_are_rotated_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let rotation = Rotation {
            max_bytes: 100,
            max_age: None,
            max_files: 2,
        };
        let head = b"n\n".to_vec();
        let mut log = Log::new(directory.path(), "a.csv", rotation, head, false);
        fs::write(directory.path().join("a-other.csv"), b"").unwrap();
        for n in 0..20 {
            log.append(format!("{n:039}\n").as_bytes()).unwrap();
        }
        log.close();
        let entries = fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        let text = fs::read_to_string(directory.path().join("a.csv")).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "n");
        assert_eq!(lines[2].parse(), Ok(19));
        assert_eq!(lines.len(), 3);
    }
}
