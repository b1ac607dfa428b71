//! Files that are copied into the directory of a connector.
//!
//! A copy is written to a hidden file in its directory, verified, synced and renamed. A later attempt continues that file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::connector::FileConnector;
use super::directory::{is_link, make_directory};
use super::settings::FileSinkSettings;
use crate::connector::{BoxFuture, ConnectorError, ContentWriter};
use crate::content::{AfterExport, ContentExport, SentBytes};
use crate::dated_template::{DatedTemplate, row_time_ms};
use crate::row::SinkRow;
use crate::settings::SettingsError;

const BLOCK_BYTES: usize = 256 << 10;
/// Limit of a name on common file systems.
const MAX_NAME_BYTES: usize = 255;
const MAX_DIRECTORIES: usize = 32;

pub(super) struct FileContentWriter {
    directory: Arc<FileConnector>,
    file: DatedTemplate,
    after: AfterExport,
}

/// What one copy needs.
struct CopyJob {
    source: File,
    size: u64,
    sha256: [u8; 32],
    part: PathBuf,
    target: PathBuf,
    progress: Arc<SentBytes>,
    is_cancelled: Arc<AtomicBool>,
}

/// Ends a copy whose caller is gone.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl FileContentWriter {
    pub(super) fn new(
        directory: Arc<FileConnector>,
        settings: &FileSinkSettings,
    ) -> Result<Self, SettingsError> {
        if settings.file.is_empty() || settings.file.starts_with('/') {
            let detail =
                "expected a path below the directory of the connector, as ${deviceId}/${name}";
            return Err(SettingsError::new("file", detail));
        }
        Ok(Self {
            directory,
            file: DatedTemplate::parse("file", &settings.file)?,
            after: settings.after,
        })
    }

    /// The names of the directories and of the file for a row.
    fn steps(&self, row: SinkRow<'_>) -> Result<Vec<String>, ConnectorError> {
        let path = self.file.render("file", row, row_time_ms(row))?;
        let steps: Vec<String> = path.split('/').map(str::to_owned).collect();
        // Hidden names are those of copies that are not complete.
        let is_name = |step: &String| {
            !step.is_empty()
                && !step.starts_with('.')
                && !step.contains(['\\', '\0'])
                && step.len() <= MAX_NAME_BYTES
        };
        match steps.len() <= MAX_DIRECTORIES && steps.iter().all(is_name) {
            true => Ok(steps),
            false => {
                let what = format!(
                    "file: {path:?} is not a path of at most {MAX_DIRECTORIES} names; a name has 1 to {MAX_NAME_BYTES} bytes and \
                     does not begin with a dot"
                );
                Err(ConnectorError::bad_rows(what))
            }
        }
    }

    async fn copy(
        &self,
        row: SinkRow<'_>,
        export: &ContentExport,
    ) -> Result<String, ConnectorError> {
        let steps = self.steps(row)?;
        let content = &export.content;
        let source = content
            .file
            .try_clone()
            .map_err(ConnectorError::transient)?;
        let target = steps
            .iter()
            .fold(self.directory.path.clone(), |path, step| path.join(step));
        let part = target.with_file_name(format!(".{}.part", content.id));
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(is_cancelled.clone());
        let job = CopyJob {
            source,
            size: content.size,
            sha256: content.sha256,
            part,
            target: target.clone(),
            progress: export.sent_bytes().clone(),
            is_cancelled,
        };
        let directory = self.directory.clone();
        let copying = tokio::task::spawn_blocking(move || {
            directory.check_links()?;
            create_directories(&directory.path, &steps)?;
            job.run()
        });
        match copying.await {
            Ok(Ok(())) => Ok(target.display().to_string()),
            Ok(Err(error)) => Err(ConnectorError::transient(error)),
            Err(error) => Err(ConnectorError::transient(error)),
        }
    }
}

impl ContentWriter for FileContentWriter {
    fn after(&self) -> AfterExport {
        self.after
    }

    fn write_content<'a>(
        &'a self,
        row: SinkRow<'a>,
        export: &'a ContentExport,
    ) -> BoxFuture<'a, Result<String, ConnectorError>> {
        Box::pin(self.copy(row, export))
    }
}

/// Creates the directories of a target, whose last step is its name. Symbolic links, which would redirect the copy, are refused.
fn create_directories(root: &Path, steps: &[String]) -> io::Result<()> {
    make_directory(root)?;
    let mut path = root.to_owned();
    for (at, step) in steps.iter().enumerate() {
        path.push(step);
        if is_link(&path) {
            let what = format!(
                "{} is a symbolic link, which sinks do not follow",
                path.display()
            );
            return Err(io::Error::other(what));
        }
        if at + 1 < steps.len() {
            make_directory(&path)?;
        }
    }
    Ok(())
}

impl CopyJob {
    fn run(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        if is_link(&self.part) {
            fs::remove_file(&self.part)?;
        }
        let mut part = options.open(&self.part)?;
        // An earlier attempt that was abandoned may not have noticed it yet.
        part.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another attempt still copies the file"),
            TryLockError::Error(error) => error,
        })?;
        if part.metadata()?.len() > self.size {
            part.set_len(0)?;
        }
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        let mut block = vec![0; BLOCK_BYTES];
        let mut at = 0;
        // What an earlier attempt has copied is part of the digest.
        loop {
            let read = part.read(&mut block)?;
            if read == 0 {
                break;
            }
            self.check_cancelled()?;
            digest.update(&block[..read]);
            at += read as u64;
            self.progress.add(read as u64);
        }
        while at < self.size {
            self.check_cancelled()?;
            let wanted = block
                .len()
                .min(usize::try_from(self.size - at).unwrap_or(usize::MAX));
            let read = self.source.read_at(&mut block[..wanted], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            part.write_all(&block[..read])?;
            digest.update(&block[..read]);
            at += read as u64;
            self.progress.add(read as u64);
        }
        if digest.finish().as_ref() != self.sha256 {
            part.set_len(0)?;
            let what = "the copy has another SHA-256 digest than the file; it is made anew";
            return Err(io::Error::other(what));
        }
        part.sync_all()?;
        disk::apply_original_umask(&self.part)?;
        fs::rename(&self.part, &self.target)?;
        match self.target.parent() {
            Some(directory) => disk::sync_dir(directory),
            None => Ok(()),
        }
    }

    fn check_cancelled(&self) -> io::Result<()> {
        match self.is_cancelled.load(Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}
