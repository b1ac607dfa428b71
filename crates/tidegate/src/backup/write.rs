//! Writes a backup while the node runs.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use series::Series;
use store::{Objects, SavedState};
use transfer::FileService;
use wall_clock::now_ms;

use super::container::BackupFileWriter;
use super::{
    BackupHead, BackupProgress, FILES_PREFIX, HEAD_ENTRY, OBJECTS_ENTRY, TELEMETRY_PREFIX,
    state_entry,
};

const PIECE_BYTES: usize = 256 << 10;
/// Free space is looked at after this many bytes.
const SPACE_CHECK_BYTES: u64 = 16 << 20;

/// What is backed up.
#[derive(Clone)]
pub(crate) struct BackupSources {
    pub(crate) objects: Objects,
    pub(crate) series: Series,
    pub(crate) files: FileService,
}

/// Limits of a backup, so that it does not disturb the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackupLimits {
    /// 0: no limit.
    pub(crate) max_bytes_per_s: u64,
    /// Free space that stays on the file system of the backup.
    pub(crate) min_free_bytes: u64,
}

impl BackupSources {
    /// Writes a backup to a file. `on_total` receives the expected number of bytes.
    ///
    /// # Errors
    /// If data cannot be read or the file cannot be written; what was written is not a complete backup then.
    pub(crate) fn write(
        &self,
        path: &Path,
        limits: BackupLimits,
        on_total: &mut dyn FnMut(u64),
        progress: &mut BackupProgress<'_>,
    ) -> anyhow::Result<()> {
        // Before the objects: a device that is created meanwhile has no rows, and numbers of removed devices are not reused.
        let snapshot = self.series.snapshot();
        let snapshot = snapshot.context("the rows in memory cannot be written to files")?;
        // Before the objects too: a firmware package that is created meanwhile would lack its image otherwise.
        let (files, file_bytes) = self.files.complete_files();
        let head = BackupHead {
            created_at_ms: now_ms(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            telemetry_bytes: snapshot.bytes(),
            telemetry_rows: snapshot.rows,
            files: files.len() as u64,
            file_bytes,
        };
        on_total(head.telemetry_bytes + head.file_bytes);
        let paced = PacedFile {
            file: create_file(path).with_context(|| format!("cannot create {}", path.display()))?,
            directory: path.parent().unwrap_or(Path::new(".")),
            limits,
            began: Instant::now(),
            written: 0,
            next_space_check: 0,
        };
        let cannot_write = || format!("cannot write {}", path.display());
        let mut file = BackupFileWriter::new(BufWriter::with_capacity(PIECE_BYTES, paced))
            .with_context(cannot_write)?;
        let mut entry = file.entry(HEAD_ENTRY).with_context(cannot_write)?;
        serde_json::to_writer(&mut entry, &head).context("cannot encode the description")?;
        entry.finish().with_context(cannot_write)?;
        let mut entry = file.entry(OBJECTS_ENTRY).with_context(cannot_write)?;
        (self.objects.export_to(&mut entry)).context("cannot export the objects")?;
        entry.finish().with_context(cannot_write)?;
        for state in SavedState::ALL {
            let name = state_entry(state);
            let mut entry = file.entry(&name).with_context(cannot_write)?;
            let exported = self.objects.export_state(state, &mut entry);
            exported.with_context(|| format!("cannot export {name}"))?;
            entry.finish().with_context(cannot_write)?;
        }
        let mut done = 0;
        let mut copy = |name: &str, content: &mut dyn Read, bytes: u64, is_counted: bool| {
            let mut piece = vec![0; PIECE_BYTES];
            let mut entry = file.entry(name).with_context(cannot_write)?;
            let mut copied = 0;
            loop {
                let read = content.read(&mut piece);
                let read = read.with_context(|| format!("cannot read {name}"))?;
                if read == 0 {
                    break;
                }
                entry.write_all(&piece[..read]).with_context(cannot_write)?;
                copied += read as u64;
                if is_counted {
                    done += read as u64;
                }
                if !progress(done) {
                    bail!("cancelled");
                }
            }
            if copied != bytes {
                bail!("{name} has {copied} bytes; expected {bytes}");
            }
            entry.finish().with_context(cannot_write)
        };
        for source in snapshot.into_files() {
            let mut source = source?;
            let name = format!("{TELEMETRY_PREFIX}{}", source.path);
            copy(&name, &mut source.content, source.bytes, true)?;
        }
        for id in files {
            let saved = self.files.saved_files(&id);
            let saved = saved.with_context(|| format!("cannot read the file {id}"))?;
            for mut source in saved {
                let name = format!("{FILES_PREFIX}{}", source.path);
                let is_data = source.path.ends_with("/data");
                copy(&name, &mut source.content, source.bytes, is_data)?;
            }
        }
        let out = file.finish().with_context(cannot_write)?;
        let paced = out
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .with_context(cannot_write)?;
        paced.file.sync_all().with_context(cannot_write)
    }
}

/// It contains password hashes and keys.
fn create_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// A file that is written no faster than permitted, and that leaves space for the node.
struct PacedFile<'p> {
    file: File,
    directory: &'p Path,
    limits: BackupLimits,
    began: Instant,
    written: u64,
    next_space_check: u64,
}

impl Write for PacedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written >= self.next_space_check {
            self.next_space_check = self.written + SPACE_CHECK_BYTES;
            self.limits.check_free_space(self.directory)?;
        }
        let written = self.file.write(bytes)?;
        self.written += written as u64;
        if self.limits.max_bytes_per_s > 0 {
            let due = self.written as f64 / self.limits.max_bytes_per_s as f64;
            let ahead = Duration::from_secs_f64(due).saturating_sub(self.began.elapsed());
            std::thread::sleep(ahead);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl BackupLimits {
    /// Whether enough space stays free for the node.
    pub(super) fn check_free_space(&self, directory: &Path) -> io::Result<()> {
        let stat = rustix::fs::statvfs(directory)?;
        let free = stat.f_bavail * stat.f_frsize;
        if free < self.min_free_bytes.saturating_add(SPACE_CHECK_BYTES) {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "{free} bytes are free, and store.min_free_bytes = {} must stay free for the node; set \
                     backup.directory to another file system, or delete old backups",
                    self.min_free_bytes
                ),
            ));
        }
        Ok(())
    }
}
