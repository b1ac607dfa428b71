//! Marks of mailboxes, in the file `marks` beside them: what each half contains, so that damage of a half is noticed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{MARKS_PER_LINE, MAX_MARK, Marks, Reading};

const FILE: &str = "marks";
const USED: usize = 0;
const SALT: usize = 1;
const SEQUENCE: usize = 2;

/// What a half contained when the process ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) used: usize,
    pub(super) salt: u64,
    pub(super) sequence: u64,
}

/// The marks of one half.
#[derive(Clone)]
pub(super) struct Mark {
    marks: Arc<Marks>,
    half: usize,
}

impl Mark {
    #[inline]
    pub(super) fn set_used(&self, used: usize) {
        self.marks
            .set(self.half * MARKS_PER_LINE + USED, used as u64);
    }

    /// The half is empty from now on; its records have this salt.
    pub(super) fn begin(&self, sequence: u64, salt: u64) {
        self.set_used(0);
        let line = self.half * MARKS_PER_LINE;
        self.marks.set(line + SALT, salt & MAX_MARK);
        self.marks.set(line + SEQUENCE, sequence & MAX_MARK);
    }
}

/// The file of a directory.
pub(super) struct Guard {
    marks: Arc<Marks>,
    known: Vec<Known>,
}

pub(super) type Problem = (PathBuf, String);

/// Halves as the file knows them; after a power failure nothing that was not synced is known. Also what is wrong with it.
pub(super) fn read(directory: &Path) -> io::Result<(Vec<Known>, Option<Problem>)> {
    let path = directory.join(FILE);
    let wrong = |detail: &str| {
        let detail = format!("{detail}; whether messages that waited are lost cannot be told");
        Some((path.clone(), detail))
    };
    match disk::read_marks(&path)? {
        Reading::Whole {
            is_same_boot: false,
            ..
        } => Ok((Vec::new(), None)),
        Reading::Whole { numbers, .. } => {
            let known = numbers.chunks_exact(MARKS_PER_LINE).map(|line| Known {
                used: line[USED] as usize,
                salt: line[SALT],
                sequence: line[SEQUENCE],
            });
            Ok((known.collect(), None))
        }
        Reading::Damaged => Ok((Vec::new(), wrong("it is not what was written"))),
        Reading::Missing if directory.join("mailbox-0a").exists() => {
            Ok((Vec::new(), wrong("it is missing")))
        }
        Reading::Missing => Ok((Vec::new(), None)),
    }
}

impl Guard {
    /// Begins with what is known of so many mailboxes or more.
    pub(super) fn open(directory: &Path, mailboxes: usize) -> io::Result<(Self, Option<Problem>)> {
        let (known, problem) = read(directory)?;
        let halves = known.len().max(2 * mailboxes);
        let mut numbers = vec![0; halves * MARKS_PER_LINE];
        for (half, known) in known.iter().enumerate() {
            let line = half * MARKS_PER_LINE;
            numbers[line + USED] = known.used as u64;
            numbers[line + SALT] = known.salt;
            numbers[line + SEQUENCE] = known.sequence;
        }
        let marks = Arc::new(Marks::create(directory, FILE, &numbers)?);
        Ok((Self { marks, known }, problem))
    }

    pub(super) fn known(&self, half: usize) -> Option<Known> {
        self.known.get(half).copied()
    }

    pub(super) fn mark(&self, half: usize) -> Mark {
        Mark {
            marks: self.marks.clone(),
            half,
        }
    }

    /// Whether nothing waits in this mailbox as far as the file knows.
    pub(super) fn is_empty(&self, mailbox: usize) -> bool {
        let halves = [2 * mailbox, 2 * mailbox + 1];
        let mut known = halves.iter().filter_map(|half| self.known(*half));
        known.all(|known| known.used == 0)
    }

    /// Halves that the file knows.
    pub(super) fn halves(&self) -> usize {
        self.known.len()
    }
}
