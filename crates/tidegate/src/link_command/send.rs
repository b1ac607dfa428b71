//! `tidegate link send`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use content::DigestAlgorithm;
use link::error_code::ErrorCode;
use tokio::task::JoinSet;

use super::file_path::path_in;
use super::options::{CommandLink, LinkConnectArgs, TransferArgs};
use super::outgoing_file::{FileSending, LocalFile, OutgoingFileError, collect_files};
use crate::client::ClientError;
use crate::transfer_progress::{ProgressDisplay, TransferProgress};

/// Files that are sent at a time, so that small ones do not wait for each other's acknowledgement.
const FILES_AT_A_TIME: usize = 8;

#[derive(Args)]
pub(crate) struct LinkSendArgs {
    /// Files and directories
    #[arg(value_name = "PATH", required = true, index = 2)]
    paths: Vec<PathBuf>,
    /// Directory at the receiver, relative to its own
    #[arg(long, value_name = "DIR", default_value = "")]
    to: String,
    /// Checksum of each file
    #[arg(long, value_enum, default_value = "blake3")]
    checksum: Checksum,
    #[command(flatten)]
    connect: LinkConnectArgs,
    #[command(flatten)]
    transfer: TransferArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Checksum {
    Blake3,
    Sha256,
}

impl LinkSendArgs {
    pub(super) async fn run(self) -> Result<(), ClientError> {
        let files = self.files()?;
        let progress = Arc::new(TransferProgress::default());
        progress.add_total(files.iter().map(|file| file.size).sum());
        let sending = FileSending {
            digest: match self.checksum {
                Checksum::Blake3 => DigestAlgorithm::Blake3,
                Checksum::Sha256 => DigestAlgorithm::Sha256,
            },
            is_resume: self.transfer.resume,
            request: None,
            limit: self.transfer.rate_limit(),
            progress: progress.clone(),
        };
        let link = self.connect.open().await?;
        let display = ProgressDisplay::start(progress, self.transfer.quiet);
        let sent = link.run(send_all(&link, files, sending)).await?;
        drop(display);
        for (file, checksum) in sent {
            println!("{checksum}  {} bytes  {}", file.size, file.name);
        }
        link.run(async {
            link.link.shut_down(ErrorCode::NONE, "").await;
            Ok(())
        })
        .await
    }

    /// All files, with their names at the receiver.
    fn files(&self) -> Result<Vec<LocalFile>, ClientError> {
        let mut files = Vec::new();
        for path in &self.paths {
            let failed = |error| ClientError::Local {
                what: format!("cannot read {}", path.display()),
                error,
            };
            // `.` and `..` have a name only after that.
            let absolute = path.canonicalize().map_err(failed)?;
            let last = path.file_name().or(absolute.file_name());
            let Some(name) = last.and_then(|name| name.to_str()) else {
                let text = format!("{} has no name in UTF-8", path.display());
                return Err(ClientError::Usage(text));
            };
            let name = match self.to.trim_matches('/') {
                "" => name.to_owned(),
                dir => format!("{dir}/{name}"),
            };
            files.extend(collect_files(&absolute, &name).map_err(failed)?);
        }
        for file in &files {
            path_in("".as_ref(), &file.name).map_err(ClientError::Usage)?;
        }
        Ok(files)
    }
}

/// Sends all files. Returns them with their checksums, in order.
async fn send_all(
    link: &CommandLink,
    files: Vec<LocalFile>,
    sending: FileSending,
) -> Result<Vec<(LocalFile, String)>, ClientError> {
    let mut tasks = JoinSet::new();
    let mut results: Vec<Option<(LocalFile, String)>> = files.iter().map(|_| None).collect();
    let mut waiting = files.into_iter().enumerate();
    loop {
        while tasks.len() < FILES_AT_A_TIME
            && let Some((index, file)) = waiting.next()
        {
            let (link, sending) = (link.link.clone(), sending.clone());
            tasks.spawn(async move {
                let result = sending.send(&link, &file).await;
                (index, file, result)
            });
        }
        let Some(joined) = tasks.join_next().await else {
            return Ok(results.into_iter().flatten().collect());
        };
        let (index, file, result) = joined.map_err(|error| ClientError::Lost(error.to_string()))?;
        match result {
            Ok(digest) => results[index] = Some((file, format!("{digest:?}"))),
            Err(OutgoingFileError::Link(error)) => return Err(link.error(error)),
            Err(error) => {
                return Err(ClientError::Local {
                    what: format!("cannot send {}", file.name),
                    error: std::io::Error::other(error),
                });
            }
        }
    }
}
