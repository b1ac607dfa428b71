//! `tidegate link receive`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use link::error_code::ErrorCode;
use link::net::LinkError;
use link::priority::Priority;
use link_gateway::exchange::{FileAnswer, FileMetadata, FileRequest};
use tokio::task::JoinSet;

use super::incoming_file::{IncomingFileError, ReceivedFile, ReceivedFiles};
use super::options::{CommandLink, LinkConnectArgs, TransferArgs};
use super::rate_limit::RateLimit;
use crate::client::ClientError;
use crate::transfer_progress::{ProgressDisplay, TransferProgress};

#[derive(Args)]
pub(crate) struct LinkReceiveArgs {
    /// Files and directories of the sender; `.` stands for all of them
    #[arg(value_name = "NAME", required = true, index = 2)]
    names: Vec<String>,
    /// Directory for the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    to: PathBuf,
    #[command(flatten)]
    connect: LinkConnectArgs,
    #[command(flatten)]
    transfer: TransferArgs,
}

impl LinkReceiveArgs {
    pub(super) async fn run(self) -> Result<(), ClientError> {
        let progress = Arc::new(TransferProgress::default());
        let limit = self.transfer.rate_limit();
        let link = self.connect.open().await?;
        let display = ProgressDisplay::start(progress.clone(), self.transfer.quiet);
        let mut receiver = FileReceiver {
            files: Arc::new(ReceivedFiles::new(self.to)),
            limit,
            progress,
            resumes: self.transfer.resume,
            complete: Vec::new(),
        };
        link.run(receiver.receive_all(&link, self.names)).await?;
        drop(display);
        for file in receiver.complete {
            let checksum = file.digest.map(|digest| format!("{digest:?}"));
            let checksum = checksum.unwrap_or_default();
            println!("{checksum}  {} bytes  {}", file.size, file.name);
        }
        link.run(async {
            link.link.shut_down(ErrorCode::NONE, "").await;
            Ok(())
        })
        .await
    }
}

struct FileReceiver {
    files: Arc<ReceivedFiles>,
    limit: Arc<RateLimit>,
    progress: Arc<TransferProgress>,
    /// Whether content of interrupted transfers is used.
    resumes: bool,
    complete: Vec<ReceivedFile>,
}

impl FileReceiver {
    /// Asks for files until all of them are complete. A sender that was restarted has forgotten the request.
    async fn receive_all(
        &mut self,
        link: &CommandLink,
        mut names: Vec<String>,
    ) -> Result<(), ClientError> {
        for request in 1.. {
            let losses = link.link.peer_state_losses();
            let round = self.receive_round(link, request, &names);
            tokio::select! {
                missing = round => {
                    names = missing?;
                    if names.is_empty() {
                        return Ok(());
                    }
                }
                lost = link.link.peer_state_lost(losses) => {
                    lost.map_err(|error| link.error(error))?;
                }
            }
            self.resumes = true;
        }
        Ok(())
    }

    /// Asks once. Returns the names of files that were interrupted.
    async fn receive_round(
        &mut self,
        link: &CommandLink,
        request: u64,
        names: &[String],
    ) -> Result<Vec<String>, ClientError> {
        let failed = |error: LinkError| link.error(error);
        let text = serde_json::to_vec(&FileRequest {
            request,
            names: names.to_vec(),
            resume: self.resumes,
        });
        let text = text.expect("texts and numbers are valid JSON");
        let sent = link.link.send(Priority::High, text.into()).await;
        sent.map_err(failed)?;
        let answer = loop {
            let message = link.link.receive().await.map_err(failed)?;
            let answer = serde_json::from_slice::<FileAnswer>(&message.payload.into_bytes())
                .map_err(|error| ClientError::Protocol(format!("answer of the sender: {error}")))?;
            if answer.request == request {
                break answer;
            }
        };
        if let Some(error) = answer.error {
            return Err(ClientError::Rejected {
                what: "the request".into(),
                reason: error,
                is_passing: false,
            });
        }
        // What was complete before counts for the bar, too.
        let complete_bytes: u64 = self.complete.iter().map(|file| file.size).sum();
        let mut missing: HashMap<String, u64> = answer
            .files
            .into_iter()
            .filter(|file| !self.complete.iter().any(|other| other.name == file.name))
            .map(|file| (file.name, file.size))
            .collect();
        let missing_bytes: u64 = missing.values().sum();
        self.progress
            .reset(complete_bytes + missing_bytes, complete_bytes);
        let mut interrupted = Vec::new();
        let mut tasks = JoinSet::new();
        while !missing.is_empty() {
            tokio::select! {
                stream = link.link.receive_stream() => {
                    let stream = stream.map_err(failed)?;
                    let metadata: Option<FileMetadata> =
                        serde_json::from_slice(&stream.info().metadata).ok();
                    let Some(metadata) = metadata.filter(|it| {
                        it.request == Some(request) && missing.contains_key(&it.name)
                    }) else {
                        stream.reject(ErrorCode::NOT_PERMITTED, "the file was not requested");
                        continue;
                    };
                    let (files, limit) = (self.files.clone(), self.limit.clone());
                    let (progress, discards) = (self.progress.clone(), !self.resumes);
                    tasks.spawn(async move {
                        let result = files.receive(stream, &limit, &progress, discards).await;
                        (metadata.name, result)
                    });
                }
                Some(joined) = tasks.join_next() => {
                    let (name, result) =
                        joined.map_err(|error| ClientError::Lost(error.to_string()))?;
                    match result {
                        Ok(file) => self.complete.push(file),
                        // The sender lost its state or the file; the next request shows which.
                        Err(IncomingFileError::Link(LinkError::Stream { .. })) => {
                            interrupted.push(name.clone());
                        }
                        Err(IncomingFileError::Link(error)) => return Err(link.error(error)),
                        Err(IncomingFileError::Rejected { text, .. }) => {
                            return Err(ClientError::Local {
                                what: format!("cannot receive {name}"),
                                error: std::io::Error::other(text),
                            });
                        }
                    }
                    missing.remove(&name);
                }
            }
        }
        Ok(interrupted)
    }
}
