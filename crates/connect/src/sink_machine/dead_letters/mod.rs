//! Dead letters: rows that could not be written, with the reason, to be inspected, replayed or discarded.
//!
//! They are held in memory within limits and logged in a file, which is rewritten when most of it concerns removed letters.

mod file;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::copy_damaged_file;
use crate::row::SinkRow;
use crate::settings::DeadLetterSettings as Settings;
use file::{DeadLetterFile, DeadLetterLogLine, encode_line};

/// The file is rewritten when it exceeds its live content by this much.
const MAX_WASTED_LOG_BYTES: u64 = 1 << 20;

/// A row that could not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Unique within the sink, increasing.
    pub id: u64,
    pub at_ms: u64,
    pub error: String,
    pub attempts: u32,
    /// The packed row, see [`SinkRow`].
    pub row: Vec<u8>,
}

/// Observes rows that became dead letters because of their content and have an origin.
pub trait DeadLetterObserver: Send + Sync {
    /// Called once the letter is stored. Must not block.
    fn on_dead_letter(
        &self,
        sink: &str,
        row: SinkRow<'_>,
        origin: &str,
        error: &str,
        attempts: u32,
    );
}

pub(crate) struct DeadLetters {
    state: Mutex<DeadLettersState>,
}

struct DeadLettersState {
    settings: Settings,
    letters: VecDeque<DeadLetter>,
    bytes: usize,
    next_id: u64,
    log: Option<DeadLetterFile>,
}

/// Counts the letters in the files of a directory, and reports damage. Changes nothing.
///
/// # Errors
/// I/O errors of the file system.
pub fn check(directory: &Path) -> io::Result<(u64, Vec<String>)> {
    let (mut letters, mut problems) = (0, Vec::new());
    for path in files_in(directory)? {
        let mut state = DeadLettersState::new(&Settings::default());
        let found = file::examine(&path, |line| state.apply(line))?;
        letters += state.letters.len() as u64;
        problems.extend(
            found
                .iter()
                .map(|(path, detail)| format!("{}: {detail}", path.display())),
        );
    }
    Ok((letters, problems))
}

/// The file of each sink in a directory, including those of which only marks are left.
pub(crate) fn files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    file::all_in(directory)
}

/// Removes the file of a sink.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    file::remove(path)
}

impl DeadLetter {
    fn line(&self) -> Vec<u8> {
        let line = DeadLetterLogLine::Letter {
            id: self.id,
            at_ms: self.at_ms,
            error: self.error.clone(),
            attempts: self.attempts,
            row: SinkRow::from_bytes(&self.row).to_json(),
            packed: STANDARD.encode(&self.row),
        };
        encode_line(&line)
    }

    fn size_bytes(&self) -> usize {
        self.row.len() + self.error.len() + size_of::<Self>()
    }
}

impl DeadLetters {
    /// Opens the letters; with a path, those logged in its file are restored. Damage is logged.
    pub(crate) fn open(path: Option<&Path>, settings: &Settings) -> io::Result<Self> {
        let mut state = DeadLettersState::new(settings);
        if let Some(path) = path {
            state.load(path)?;
            state.trim();
            state.rewrite(path)?;
        }
        Ok(Self {
            state: Mutex::new(state),
        })
    }

    /// Leaves the file, which is about to be removed; letters are then in memory only.
    pub(crate) fn close_file(&self) {
        self.lock().log = None;
    }

    pub(crate) fn set_limits(&self, settings: &Settings) {
        self.lock().settings = settings.clone();
    }

    fn lock(&self) -> MutexGuard<'_, DeadLettersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().letters.len()
    }

    /// Adds letters, which receive ids; returns how many older ones were removed to make room.
    pub(crate) async fn add(self: &Arc<Self>, letters: Vec<DeadLetter>) -> u64 {
        self.change(move |state| state.add(letters)).await
    }

    /// Up to `limit` letters, oldest first, beginning after an id.
    pub(crate) fn list(&self, after: u64, limit: usize) -> Vec<DeadLetter> {
        let state = self.lock();
        let from = state.letters.partition_point(|letter| letter.id <= after);
        state.letters.range(from..).take(limit).cloned().collect()
    }

    pub(crate) fn get(&self, id: u64) -> Option<DeadLetter> {
        self.list(id.checked_sub(1)?, 1)
            .into_iter()
            .find(|letter| letter.id == id)
    }

    /// Removes letters, all of them if no ids are given, and returns them.
    pub(crate) async fn take(self: &Arc<Self>, ids: Option<Vec<u64>>) -> Vec<DeadLetter> {
        self.change(move |state| state.take(ids.as_deref())).await
    }

    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut DeadLettersState) -> T + Send + 'static,
    ) -> T {
        let this = self.clone();
        let changed = tokio::task::spawn_blocking(move || change(&mut this.lock()));
        match changed.await {
            Ok(changed) => changed,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl DeadLettersState {
    fn new(settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
            letters: VecDeque::new(),
            bytes: 0,
            next_id: 1,
            log: None,
        }
    }

    fn load(&mut self, path: &Path) -> io::Result<()> {
        let problems = file::examine(path, |line| self.apply(line))?;
        for (path, problem) in &problems {
            tracing::error!(
                path = %path.display(),
                problem,
                "dead letter file is damaged; keeping readable letters and a copy of the file as *.damaged"
            );
            copy_damaged_file(path)?;
        }
        Ok(())
    }

    fn apply(&mut self, line: DeadLetterLogLine) {
        match line {
            DeadLetterLogLine::Letter {
                id,
                at_ms,
                error,
                attempts,
                packed,
                ..
            } => {
                let row = STANDARD.decode(packed).unwrap_or_default();
                self.next_id = self.next_id.max(id + 1);
                self.push_loaded(DeadLetter {
                    id,
                    at_ms,
                    error,
                    attempts,
                    row,
                });
            }
            DeadLetterLogLine::Removed { removed } => drop(self.remove(Some(&removed))),
            DeadLetterLogLine::Head { .. } => {}
        }
    }

    fn push_loaded(&mut self, letter: DeadLetter) {
        self.bytes += letter.size_bytes();
        self.letters.push_back(letter);
    }

    fn add(&mut self, letters: Vec<DeadLetter>) -> u64 {
        let mut noted = Vec::new();
        for mut letter in letters {
            letter.id = self.next_id;
            self.next_id += 1;
            noted.extend(letter.line());
            self.push_loaded(letter);
        }
        self.append_to_log(&noted);
        let removed = self.trim();
        self.log_removals(removed.as_slice());
        removed.len() as u64
    }

    /// Removes the oldest letters beyond the limits.
    fn trim(&mut self) -> Vec<u64> {
        let mut removed = Vec::new();
        while self.letters.len() > self.settings.max_rows || self.bytes > self.settings.max_bytes {
            let Some(letter) = self.letters.pop_front() else {
                break;
            };
            self.bytes -= letter.size_bytes();
            removed.push(letter.id);
        }
        removed
    }

    fn remove(&mut self, ids: Option<&[u64]>) -> Vec<DeadLetter> {
        let letters = std::mem::take(&mut self.letters);
        let (removed, remaining): (Vec<_>, VecDeque<_>) = match ids {
            None => (letters.into(), VecDeque::new()),
            Some(ids) => {
                let ids: std::collections::HashSet<u64> = ids.iter().copied().collect();
                let mut removed = Vec::new();
                let mut remaining = VecDeque::new();
                for letter in letters {
                    match ids.contains(&letter.id) {
                        true => removed.push(letter),
                        false => remaining.push_back(letter),
                    }
                }
                (removed, remaining)
            }
        };
        self.letters = remaining;
        self.bytes -= removed.iter().map(DeadLetter::size_bytes).sum::<usize>();
        removed
    }

    fn take(&mut self, ids: Option<&[u64]>) -> Vec<DeadLetter> {
        let taken = self.remove(ids);
        let removed: Vec<u64> = taken.iter().map(|letter| letter.id).collect();
        self.log_removals(&removed);
        taken
    }

    fn log_removals(&mut self, removed: &[u64]) {
        if removed.is_empty() {
            return;
        }
        let path = self.log.as_ref().map(|log| log.path.clone());
        let is_stale = self.log.as_ref().is_some_and(|log| {
            // A letter is written twice, once in base64.
            log.bytes > (self.bytes as u64) * 4 + MAX_WASTED_LOG_BYTES
        });
        match path {
            Some(path) if is_stale => {
                if let Err(error) = self.rewrite(&path) {
                    tracing::error!(path = %path.display(), %error, "dead letter file write failed");
                }
            }
            _ => {
                let removed = removed.to_vec();
                self.append_to_log(&encode_line(&DeadLetterLogLine::Removed { removed }));
            }
        }
    }

    fn append_to_log(&mut self, lines: &[u8]) {
        if let Some(log) = &mut self.log
            && let Err(error) = log.append(lines)
        {
            tracing::error!(path = %log.path.display(), %error, "dead letter file write failed");
        }
    }

    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        self.log = Some(DeadLetterFile::create(
            path,
            self.letters.iter().map(DeadLetter::line),
        )?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use std::fs;

    use super::*;
    use crate::row::SinkRowWriter;

    fn letter(n: i64) -> DeadLetter {
        let mut row = Vec::new();
        SinkRowWriter::new(&mut row).int("n", n);
        DeadLetter {
            id: 0,
            at_ms: 1,
            error: "rejected".into(),
            attempts: 1,
            row,
        }
    }

    fn ids(letters: &[DeadLetter]) -> Vec<u64> {
        letters.iter().map(|letter| letter.id).collect()
    }

    #[tokio::test]
    async fn letters_survive_a_restart_until_they_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dead").join("s.jsonl");
        let open = || Arc::new(DeadLetters::open(Some(&path), &Settings::default()).unwrap());
        let dead = open();
        dead.add(vec![letter(1), letter(2), letter(3)]).await;
        assert_eq!(ids(&dead.take(Some(vec![2, 9])).await), [2]);
        drop(dead);
        // A killed process may leave half a line.
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"id\": 4, \"at").unwrap();
        let dead = open();
        assert_eq!(ids(&dead.list(0, 9)), [1, 3]);
        assert_eq!(dead.get(3).unwrap().row, letter(3).row);
        assert_eq!(ids(&dead.list(1, 9)), [3]);
        dead.add(vec![letter(4)]).await;
        assert_eq!(ids(&dead.take(None).await), [1, 3, 4]);
        assert_eq!(open().len(), 0);
    }

    #[tokio::test]
    async fn the_oldest_make_room() {
        let settings = Settings {
            max_rows: 2,
            ..Settings::default()
        };
        let dead = Arc::new(DeadLetters::open(None, &settings).unwrap());
        assert_eq!(dead.add(vec![letter(1), letter(2)]).await, 0);
        assert_eq!(dead.add(vec![letter(3)]).await, 1);
        assert_eq!(ids(&dead.list(0, 9)), [2, 3]);
    }

    #[tokio::test]
    async fn the_file_does_not_grow_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.jsonl");
        let settings = Settings {
            max_rows: 10,
            ..Settings::default()
        };
        let dead = Arc::new(DeadLetters::open(Some(&path), &settings).unwrap());
        for _ in 0..300 {
            dead.add((0..100).map(letter).collect()).await;
        }
        let length = fs::metadata(&path).unwrap().len();
        assert!(length < 2 * MAX_WASTED_LOG_BYTES, "{length}");
    }

    /// Kinds of damage to a file, with its resulting content; `None`: removed.
    fn damages(bytes: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
        let mut damages = vec![("removed".to_owned(), None)];
        for end in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            damages.push((format!("cut at {end}"), Some(bytes[..end].to_vec())));
        }
        // The end of a whole line.
        if let Some(end) = bytes[..bytes.len() - 1].iter().rposition(|&b| b == b'\n') {
            damages.push((
                "without the last line".to_owned(),
                Some(bytes[..=end].to_vec()),
            ));
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 4;
            damages.push((format!("flipped at {at}"), Some(flipped)));
        }
        damages
    }

    #[tokio::test]
    async fn damage_is_reported_and_loses_only_what_was_damaged() {
        let origin = tempfile::tempdir().unwrap();
        let path = origin.path().join("s.jsonl");
        let dead = Arc::new(DeadLetters::open(Some(&path), &Settings::default()).unwrap());
        dead.add((1..=5).map(letter).collect()).await;
        dead.take(Some(vec![2])).await;
        drop(dead);
        assert_eq!(check(origin.path()).unwrap(), (4, Vec::new()));
        for name in ["s.jsonl", "s.marks"] {
            let bytes = fs::read(origin.path().join(name)).unwrap();
            for (nth, (what, damaged)) in damages(&bytes).into_iter().enumerate() {
                let directory = tempfile::tempdir().unwrap();
                for name in ["s.jsonl", "s.marks"] {
                    fs::copy(origin.path().join(name), directory.path().join(name)).unwrap();
                }
                let path = directory.path().join(name);
                match damaged {
                    Some(bytes) => fs::write(&path, bytes).unwrap(),
                    None => fs::remove_file(&path).unwrap(),
                }
                let (_, problems) = check(directory.path()).unwrap();
                assert!(
                    !problems.is_empty(),
                    "{name} {what}: a check reports nothing"
                );
                let is_flipped = what.starts_with("flipped");
                if is_flipped && nth % 50 != 0 {
                    continue;
                }
                let letters = directory.path().join("s.jsonl");
                let dead = DeadLetters::open(Some(&letters), &Settings::default()).unwrap();
                let found = dead.len();
                drop(dead);
                match (name, is_flipped) {
                    ("s.marks", _) => assert_eq!(found, 4, "{name} {what}"),
                    // At most two lines, if the end of one was hit; losing a removal restores its letter.
                    (_, true) => assert!((2..=5).contains(&found), "{name} {what}: {found}"),
                    (_, false) => assert!(found <= 5, "{name} {what}: {found}"),
                }
                let (_, problems) = check(directory.path()).unwrap();
                assert!(problems.is_empty(), "{name} {what}: {problems:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_process_that_ends_while_the_file_is_replaced_damages_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.jsonl");
        let marks = directory.path().join("s.marks");
        let open = || Arc::new(DeadLetters::open(Some(&path), &Settings::default()).unwrap());
        let dead = open();
        dead.add((1..=5).map(letter).collect()).await;
        drop(dead);
        let (old, old_marks) = (fs::read(&path).unwrap(), fs::read(&marks).unwrap());
        let disk::MarksFileState::Intact {
            numbers: old_numbers,
            ..
        } = disk::read_high_water_marks(&marks).unwrap()
        else {
            panic!("the marks cannot be read");
        };
        drop(open());
        let new = fs::read(&path).unwrap();
        let disk::MarksFileState::Intact { numbers, .. } =
            disk::read_high_water_marks(&marks).unwrap()
        else {
            panic!("the marks cannot be read");
        };
        let announced = [&old_numbers[..3], &numbers[..2]].concat();
        for file in [&old, &new] {
            fs::write(&path, file).unwrap();
            drop(disk::HighWaterMarks::create(directory.path(), "s.marks", &announced).unwrap());
            assert_eq!(check(directory.path()).unwrap(), (5, Vec::new()));
        }
        // The old file with the new marks is a separate case.
        fs::write(&path, &new).unwrap();
        fs::write(&marks, old_marks).unwrap();
        assert!(!check(directory.path()).unwrap().1.is_empty());
    }
}
