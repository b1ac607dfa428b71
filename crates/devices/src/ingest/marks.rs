//! High-water marks of mailboxes, in the file `marks` beside them: the extent of each half, so that damage of
//! a half is detected.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{HighWaterMarks, MARKS_PER_CACHE_LINE_PAIR, MAX_HIGH_WATER_MARK, MarksFileState};

const FILE: &str = "marks";
const USED: usize = 0;
const SALT: usize = 1;
const SEQUENCE: usize = 2;

/// Content of a half when the process ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MarkValues {
    pub(super) used: usize,
    pub(super) salt: u64,
    pub(super) sequence: u64,
}

/// The marks of one half.
#[derive(Clone)]
pub(super) struct HalfMark {
    marks: Arc<HighWaterMarks>,
    half: usize,
}

impl HalfMark {
    #[inline]
    pub(super) fn set_used(&self, used: usize) {
        self.marks
            .set(self.half * MARKS_PER_CACHE_LINE_PAIR + USED, used as u64);
    }

    /// Marks the half as empty; its new records have this salt.
    pub(super) fn reset(&self, sequence: u64, salt: u64) {
        self.set_used(0);
        let line = self.half * MARKS_PER_CACHE_LINE_PAIR;
        self.marks.set(line + SALT, salt & MAX_HIGH_WATER_MARK);
        self.marks
            .set(line + SEQUENCE, sequence & MAX_HIGH_WATER_MARK);
    }
}

/// The marks file of a directory.
pub(super) struct MarkFile {
    marks: Arc<HighWaterMarks>,
    values: Vec<MarkValues>,
}

pub(super) type MailboxDamage = (PathBuf, String);

/// Reads the marks of the halves and reports damage. After a power failure, marks of data that was not synced
/// do not count.
pub(super) fn read(directory: &Path) -> io::Result<(Vec<MarkValues>, Option<MailboxDamage>)> {
    let path = directory.join(FILE);
    let wrong = |detail: &str| {
        let detail = format!("{detail}; lost messages cannot be detected");
        Some((path.clone(), detail))
    };
    match disk::read_high_water_marks(&path)? {
        MarksFileState::Intact {
            is_same_boot: false,
            ..
        } => Ok((Vec::new(), None)),
        MarksFileState::Intact { numbers, .. } => {
            let known = numbers
                .chunks_exact(MARKS_PER_CACHE_LINE_PAIR)
                .map(|line| MarkValues {
                    used: line[USED] as usize,
                    salt: line[SALT],
                    sequence: line[SEQUENCE],
                });
            Ok((known.collect(), None))
        }
        MarksFileState::Damaged => Ok((Vec::new(), wrong("it is damaged"))),
        MarksFileState::Missing if directory.join("mailbox-0a").exists() => {
            Ok((Vec::new(), wrong("it is missing")))
        }
        MarksFileState::Missing => Ok((Vec::new(), None)),
    }
}

impl MarkFile {
    /// Opens the file with the known marks, for at least this many mailboxes.
    pub(super) fn open(
        directory: &Path,
        mailboxes: usize,
    ) -> io::Result<(Self, Option<MailboxDamage>)> {
        let (known, problem) = read(directory)?;
        let halves = known.len().max(2 * mailboxes);
        let mut numbers = vec![0; halves * MARKS_PER_CACHE_LINE_PAIR];
        for (half, known) in known.iter().enumerate() {
            let line = half * MARKS_PER_CACHE_LINE_PAIR;
            numbers[line + USED] = known.used as u64;
            numbers[line + SALT] = known.salt;
            numbers[line + SEQUENCE] = known.sequence;
        }
        let marks = Arc::new(HighWaterMarks::create(directory, FILE, &numbers)?);
        Ok((
            Self {
                marks,
                values: known,
            },
            problem,
        ))
    }

    pub(super) fn values_of(&self, half: usize) -> Option<MarkValues> {
        self.values.get(half).copied()
    }

    pub(super) fn mark(&self, half: usize) -> HalfMark {
        HalfMark {
            marks: self.marks.clone(),
            half,
        }
    }

    /// Whether this mailbox is empty according to the file.
    pub(super) fn is_empty(&self, mailbox: usize) -> bool {
        let halves = [2 * mailbox, 2 * mailbox + 1];
        let mut known = halves.iter().filter_map(|half| self.values_of(*half));
        known.all(|known| known.used == 0)
    }

    /// Number of halves in the file.
    pub(super) fn half_count(&self) -> usize {
        self.values.len()
    }
}
