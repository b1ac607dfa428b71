//! A file layer that fails on request, and that loses unsynced data at a power failure.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::common::script::Random;
use crate::log::file_system::{FileSystem, LogFile, OsFileSystem};

const SECTOR: usize = 512;

/// The content before a write that is not on disk.
struct OverwrittenBytes {
    offset: u64,
    before: Vec<u8>,
}

impl OverwrittenBytes {
    fn covers(&self, other: &Self) -> bool {
        let end = |undo: &Self| undo.offset + undo.before.len() as u64;
        self.offset <= other.offset && end(self) >= end(other)
    }
}

#[derive(Default)]
struct UnsyncedWrites {
    writes: Vec<OverwrittenBytes>,
    /// Writes of a failed sync: later syncs do not bring them to disk.
    lost: Vec<OverwrittenBytes>,
}

pub(super) struct FaultState {
    random: Random,
    /// Number of next operations that fail.
    pub(super) failing_writes: u32,
    pub(super) failing_syncs: u32,
    pub(super) failing_creates: u32,
    /// The power is off: operations have no effect, although they succeed.
    is_off: bool,
    /// The file with the marks, as it was at that moment.
    marks: Option<(PathBuf, Vec<u8>)>,
    unsynced: HashMap<PathBuf, UnsyncedWrites>,
}

#[derive(Clone)]
pub(super) struct Faults(Arc<Mutex<FaultState>>);

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(FaultState {
            random: Random::new(seed),
            failing_writes: 0,
            failing_syncs: 0,
            failing_creates: 0,
            is_off: false,
            marks: None,
            unsynced: HashMap::new(),
        })))
    }

    pub(super) fn with<T>(&self, what: impl FnOnce(&mut FaultState) -> T) -> T {
        what(&mut self.0.lock().unwrap())
    }

    /// Lets some of the next operations of one kind fail, or none.
    pub(super) fn fail_next(&self, random: &mut Random) {
        self.with(|state| match random.below(4) {
            0 => state.failing_writes = 1 + random.below(4) as u32,
            1 => state.failing_syncs = 1 + random.below(4) as u32,
            2 => state.failing_creates = 1 + random.below(3) as u32,
            _ => {}
        });
    }

    /// Switches the power off; the file with the marks keeps its present content.
    pub(super) fn power_off(&self, marks: &Path) {
        self.with(|state| {
            state.is_off = true;
            state.marks = Some((marks.to_owned(), std::fs::read(marks).unwrap()));
        });
    }

    /// Removes a random part of the unsynced data. The files must no longer be in use.
    pub(super) fn lose(&self) {
        self.with(|state| {
            if let Some((path, mut bytes)) = state.marks.take() {
                in_another_boot(&mut bytes);
                std::fs::write(path, bytes).unwrap();
            }
            for (path, unsynced) in std::mem::take(&mut state.unsynced) {
                let Ok(file) = OsFileSystem.open(&path) else {
                    continue;
                };
                let len = file.len().unwrap();
                let undos = unsynced.lost.iter().chain(&unsynced.writes);
                for undo in undos.collect::<Vec<_>>().into_iter().rev() {
                    for (nth, sector) in undo.before.chunks(SECTOR).enumerate() {
                        let offset = undo.offset + (nth * SECTOR) as u64;
                        if state.random.one_in(2) && offset + sector.len() as u64 <= len {
                            file.write_at(sector, offset).unwrap();
                        }
                    }
                }
            }
        });
    }
}

/// Makes the marks look as if the system had been restarted since.
fn in_another_boot(marks: &mut [u8]) {
    marks[16..52].fill(b'7');
    let crc = crc32c::crc32c(&marks[12..64]);
    marks[8..12].copy_from_slice(&crc.to_le_bytes());
}

fn take_one(counter: &mut u32) -> bool {
    let is_due = *counter > 0;
    *counter = counter.saturating_sub(1);
    is_due
}

impl FileSystem for Faults {
    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn LogFile>> {
        let fails = self.with(|state| take_one(&mut state.failing_creates));
        if fails {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.with(|state| state.is_off) {
            return Err(io::Error::other("the power is off"));
        }
        self.with(|state| state.unsynced.remove(path));
        self.wrap(path, OsFileSystem.create(path, len)?)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        self.wrap(path, OsFileSystem.open(path)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            if state.is_off {
                return Ok(());
            }
            state.unsynced.remove(path);
            OsFileSystem.remove(path)
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.sync_dir(dir)
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl Faults {
    fn wrap(&self, path: &Path, inner: Arc<dyn LogFile>) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(FaultyFile {
            path: path.to_owned(),
            inner,
            faults: self.clone(),
        }))
    }
}

struct FaultyFile {
    path: PathBuf,
    inner: Arc<dyn LogFile>,
    faults: Faults,
}

impl LogFile for FaultyFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.faults.with(|state| {
            if state.is_off {
                return Ok(());
            }
            let mut before = vec![0; bytes.len()];
            self.inner.read_at(&mut before, offset)?;
            let undo = OverwrittenBytes { offset, before };
            let unsynced = state.unsynced.entry(self.path.clone()).or_default();
            unsynced.writes.push(undo);
            if take_one(&mut state.failing_writes) {
                let short = state.random.below(bytes.len() as u64 + 1) as usize;
                self.inner.write_at(&bytes[..short], offset)?;
                return Err(match state.random.below(2) {
                    0 => io::ErrorKind::StorageFull.into(),
                    _ => io::Error::from_raw_os_error(5),
                });
            }
            self.inner.write_at(bytes, offset)
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.with(|state| {
            if state.is_off {
                return Ok(());
            }
            let fails = take_one(&mut state.failing_syncs);
            let unsynced = state.unsynced.entry(self.path.clone()).or_default();
            let writes = std::mem::take(&mut unsynced.writes);
            if fails {
                unsynced.lost.extend(writes);
                return Err(io::Error::from_raw_os_error(5));
            }
            // What was lost and rewritten is on disk now.
            let is_covered =
                |lost: &OverwrittenBytes| writes.iter().any(|write| write.covers(lost));
            unsynced.lost.retain(|lost| !is_covered(lost));
            Ok(())
        })
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        if self.faults.with(|state| state.is_off) {
            return Ok(());
        }
        self.inner.truncate(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
}
