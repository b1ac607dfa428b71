//! The file of a sink's dead letters, and the marks beside it that show a loss.
//!
//! `NAME.jsonl` is lines of JSON: a head (`{"epoch": N}`), then one line for each letter and one for each removal
//! (`{"removed": [ids]}`). The last field of each line, `crc32c`, is the CRC-32C of what precedes it in the line, in hexadecimal
//! digits. `NAME.marks` is a file of [marks](disk::HighWaterMarks): the epoch of the file, the bytes written to it, the bytes on disk,
//! and the epoch and length of the file that is about to replace it. The epoch is a random number, drawn when the file is
//! written anew.
//!
//! Invariants: a mark is set after the data that it records was written, and the successor of a file is durably in the marks
//! before it is renamed into place. Therefore neither a crash nor a power failure makes a sound file look damaged.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use disk::{HighWaterMarks, MAX_HIGH_WATER_MARK, MarksFileState};
use serde::{Deserialize, Serialize};

use super::super::random_mark;

const EPOCH: usize = 0;
const WRITTEN: usize = 1;
const SYNCED: usize = 2;
const NEXT_EPOCH: usize = 3;
const NEXT_BYTES: usize = 4;
const MARKS: usize = 5;
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Separator between the fields of a line and their checksum.
const BEFORE_CRC: &[u8] = br#","crc32c":""#;
const AFTER_CRC: &[u8] = b"\"}\n";
const CRC_DIGITS: usize = 8;

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum DeadLetterLogLine {
    Letter {
        id: u64,
        at_ms: u64,
        error: String,
        attempts: u32,
        /// For people; `packed` is what a replay sends.
        row: serde_json::Value,
        packed: String,
    },
    Removed {
        removed: Vec<u64>,
    },
    /// The first line.
    Head {
        epoch: u64,
    },
}

/// A damaged or missing file, or marks of it, with the description of the damage.
pub(super) type FileDamage = (PathBuf, String);

/// An open file of dead letters.
pub(super) struct DeadLetterFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    file: File,
    marks: HighWaterMarks,
    epoch: u64,
    synced_at: Instant,
    is_dirty: bool,
}

/// Encodes a line with its checksum.
pub(super) fn encode_line(line: &DeadLetterLogLine) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).expect("its fields are plain");
    // The checksum becomes the last field of the object.
    text.pop();
    let crc = crc32c::crc32c(&text);
    text.extend_from_slice(BEFORE_CRC);
    text.extend_from_slice(format!("{crc:08x}").as_bytes());
    text.extend_from_slice(AFTER_CRC);
    text
}

fn parse(text: &[u8]) -> Option<DeadLetterLogLine> {
    let rest = text.strip_suffix(AFTER_CRC)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(CRC_DIGITS)?)?;
    let fields = rest.strip_suffix(BEFORE_CRC)?;
    let expected = format!("{:08x}", crc32c::crc32c(fields));
    if digits != expected.as_bytes() {
        return None;
    }
    serde_json::from_slice(&[fields, b"}"].concat()).ok()
}

fn marks_path(path: &Path) -> PathBuf {
    path.with_extension("marks")
}

/// Removes a file of letters and its marks.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for path in [path.to_owned(), marks_path(path)] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The file of each sink in a directory, including those of which only marks are left.
pub(super) fn all_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|end| end == "jsonl" || end == "marks")
        {
            found.push(path.with_extension("jsonl"));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The content that the marks require of a file.
struct ExpectedContent {
    epoch: u64,
    bytes: u64,
}

/// `None`: the marks say nothing about the file.
fn read_expected_contents(
    path: &Path,
    problems: &mut Vec<FileDamage>,
) -> io::Result<Option<[ExpectedContent; 2]>> {
    let marks = marks_path(path);
    let unknown = "lost dead letters cannot be detected";
    match disk::read_high_water_marks(&marks)? {
        MarksFileState::Intact {
            numbers,
            is_same_boot,
        } if numbers.len() == MARKS => {
            let written = match is_same_boot {
                true => numbers[WRITTEN].max(numbers[SYNCED]),
                // Unsynced data may be lost after a power failure.
                false => numbers[SYNCED],
            };
            Ok(Some([
                ExpectedContent {
                    epoch: numbers[EPOCH],
                    bytes: written,
                },
                ExpectedContent {
                    epoch: numbers[NEXT_EPOCH],
                    bytes: numbers[NEXT_BYTES],
                },
            ]))
        }
        MarksFileState::Missing if !path.exists() => Ok(None),
        MarksFileState::Missing => {
            problems.push((marks, format!("it is missing; {unknown}")));
            Ok(None)
        }
        MarksFileState::Intact { .. } | MarksFileState::Damaged => {
            problems.push((marks, format!("it is not what was written; {unknown}")));
            Ok(None)
        }
    }
}

/// Passes the readable lines on, and reports damaged or missing ones. Changes nothing.
pub(super) fn examine(
    path: &Path,
    mut each: impl FnMut(DeadLetterLogLine),
) -> io::Result<Vec<FileDamage>> {
    let mut problems = Vec::new();
    let demands = read_expected_contents(path, &mut problems)?;
    let mut problem = |detail: String| problems.push((path.to_owned(), detail));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Without an epoch there was no file yet.
            if demands.is_some_and(|[now, _]| now.epoch != 0) {
                problem("it is missing; the dead letters in it are lost".to_owned());
            }
            return Ok(problems);
        }
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::new(file);
    let (mut text, mut length, mut due) = (Vec::new(), 0, 0);
    let mut unread: Vec<u64> = Vec::new();
    while reader.read_until(b'\n', &mut text)? > 0 {
        let begin = length;
        length += text.len() as u64;
        let line = parse(&text);
        if begin == 0 {
            let epoch = match &line {
                Some(DeadLetterLogLine::Head { epoch }) => Some(*epoch),
                _ => None,
            };
            due = match &demands {
                Some([_, next]) if epoch == Some(next.epoch) => next.bytes,
                Some([now, _]) => {
                    if epoch.is_some_and(|epoch| epoch != now.epoch) {
                        problem("it is not the file that its marks belong to".to_owned());
                    }
                    now.bytes
                }
                // Every complete file has a head.
                None => 1,
            };
        }
        match line {
            Some(DeadLetterLogLine::Head { .. }) if begin == 0 => {}
            Some(line) => each(line),
            None => unread.push(begin),
        }
        text.clear();
    }
    if length == 0 {
        due = demands.map_or(1, |[now, _]| now.bytes);
    }
    let damaged = unread.iter().filter(|&&begin| begin < due);
    for begin in damaged {
        problem(format!(
            "the line at byte {begin} is not what was written and is lost"
        ));
    }
    if length < due {
        problem(format!(
            "it ends at byte {length}, and {due} bytes were written to it; the dead letters behind are lost"
        ));
    } else if let Some(begin) = unread.iter().find(|&&begin| begin >= due) {
        tracing::warn!(
            path = %path.display(), byte = begin,
            "dead letter file has a torn end, as after a crash; ignoring it"
        );
    }
    Ok(problems)
}

impl DeadLetterFile {
    /// Creates the file with these lines, replacing an existing one.
    pub(super) fn create(path: &Path, lines: impl Iterator<Item = Vec<u8>>) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let beside = path.with_extension("new");
        // An epoch is never 0.
        let epoch = random_mark()?.max(1);
        let mut file = File::create(&beside)?;
        let mut bytes = 0;
        for line in std::iter::once(encode_line(&DeadLetterLogLine::Head { epoch })).chain(lines) {
            bytes += line.len() as u64;
            file.write_all(&line)?;
        }
        file.sync_data()?;
        let marks_path = marks_path(path);
        let marks_name = marks_path.file_name().unwrap_or_default();
        let marks_name = marks_name.to_string_lossy();
        let before = match disk::read_high_water_marks(&marks_path)? {
            MarksFileState::Intact { numbers, .. } if numbers.len() == MARKS => {
                [numbers[EPOCH], numbers[WRITTEN], numbers[SYNCED]]
            }
            _ => [0; 3],
        };
        let [old_epoch, old_written, old_synced] = before;
        let announced = [old_epoch, old_written, old_synced, epoch, bytes];
        drop(HighWaterMarks::create(directory, &marks_name, &announced)?);
        fs::rename(&beside, path)?;
        disk::sync_dir(directory)?;
        let marks = HighWaterMarks::create(directory, &marks_name, &[epoch, bytes, bytes, 0, 0])?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
            file,
            marks,
            epoch,
            synced_at: Instant::now(),
            is_dirty: false,
        })
    }

    /// Appends whole lines. They survive the end of the process, and a power failure about a second later.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            // A partial write must not precede the next one.
            self.file.set_len(self.bytes)?;
            io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        self.marks.set(WRITTEN, self.bytes.min(MAX_HIGH_WATER_MARK));
        self.is_dirty = true;
        match self.synced_at.elapsed() >= SYNC_EVERY {
            true => self.sync(),
            false => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.synced_at = Instant::now();
        if std::mem::take(&mut self.is_dirty) {
            self.file.sync_data()?;
            debug_assert_ne!(self.epoch, 0);
            self.marks.set(SYNCED, self.bytes.min(MAX_HIGH_WATER_MARK));
        }
        Ok(())
    }
}

impl Drop for DeadLetterFile {
    fn drop(&mut self) {
        if let Err(error) = self.sync() {
            tracing::error!(path = %self.path.display(), %error, "dead letter file sync failed");
        }
    }
}
