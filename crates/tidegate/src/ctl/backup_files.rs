//! `tidegate ctl backup` and `restore`: all configuration objects as one file.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::error::CtlError;
use super::http::ApiClient;
use super::output::{CtlOutput, print_text};

#[derive(Args)]
pub(super) struct BackupArgs {
    /// Output file [default: standard output]
    file: Option<PathBuf>,
}

impl BackupArgs {
    pub(super) async fn run(self, client: &ApiClient) -> anyhow::Result<()> {
        let body = client.stream("/api/v1/backup").await?;
        let backup = client.read_body(body).await?;
        let Some(file) = &self.file else {
            return print_text(&String::from_utf8_lossy(&backup));
        };
        write_private_file(file, &backup)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let objects = backup
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            .saturating_sub(1);
        eprintln!(
            "{objects} objects written to {}; the file contains password hashes, and passwords of connectors in plain text.",
            file.display()
        );
        Ok(())
    }
}

/// Writes a file that only its owner may read. The old file stays until the new one is complete.
fn write_private_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)
}

#[derive(Args)]
pub(super) struct RestoreArgs {
    /// A file written by `tidegate ctl backup`
    file: PathBuf,
    /// Delete objects that are not in the file
    #[arg(long)]
    replace: bool,
}

impl RestoreArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        let shown = self.file.display();
        let file = std::fs::read(&self.file).with_context(|| format!("cannot read {shown}"))?;
        let path = match self.replace {
            true => "/api/v1/restore?replace=true",
            false => "/api/v1/restore",
        };
        let answer = client.post_file(path, "application/x-ndjson", file).await?;
        let (written, removed) = (&answer["written"], &answer["removed"]);
        output.print_done(
            &format!("{written} objects restored, {removed} deleted"),
            &answer,
        )
    }
}

/// Whether the file name indicates CSV; without an extension the format is JSON lines.
pub(super) fn is_csv(file: &Path) -> Result<bool, CtlError> {
    let ending = file.extension().and_then(OsStr::to_str).unwrap_or_default();
    match ending.to_ascii_lowercase().as_str() {
        "csv" => Ok(true),
        "" | "jsonl" | "ndjson" | "json" => Ok(false),
        _ => Err(unknown_ending(file, ".jsonl, .ndjson or .csv")),
    }
}

/// The error for an unsupported file name extension.
pub(super) fn unknown_ending(file: &Path, supported: &str) -> CtlError {
    let shown = file.display();
    CtlError::Usage(format!(
        "{shown}: unknown file format; expected a name that ends in {supported}"
    ))
}
