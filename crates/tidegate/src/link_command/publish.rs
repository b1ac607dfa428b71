//! `tidegate link publish`.

use std::io::{self, BufRead as _, Read as _};
use std::path::PathBuf;

use clap::Args;
use link::core::SendError;
use link::error_code::ErrorCode;
use link::message::MessageId;
use link::net::LinkError;
use link::priority::Priority;
use link_gateway::exchange::{FileAnswer, FileRequest, Publication, PublicationRejection};
use tokio::sync::mpsc;

use super::options::{CommandLink, LinkConnectArgs, random_bytes};
use crate::client::ClientError;

/// Longest message; a node may accept less.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// Lines that are read before the first of them is sent.
const MAX_READ_LINES: usize = 64;

#[derive(Args)]
pub(crate) struct LinkPublishArgs {
    /// Topic of the message
    #[arg(value_name = "TOPIC", index = 2)]
    topic: String,
    /// The message; without it, standard input is read
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Publish each line of standard input as a message
    #[arg(long, short, conflicts_with = "message")]
    lines: bool,
    /// Whether the node retains the message
    #[arg(long, short)]
    retain: bool,
    /// Store messages in this directory until the node has them. The next command with the same directory sends those that
    /// a command has left there because it was killed or did not reach the node
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    #[command(flatten)]
    connect: LinkConnectArgs,
}

impl LinkPublishArgs {
    pub(super) async fn run(self) -> Result<(), ClientError> {
        if self.topic.len() > usize::from(u16::MAX) {
            let text = "TOPIC: expected at most 65,535 bytes";
            return Err(ClientError::Usage(text.into()));
        }
        let input = match (self.message, self.lines) {
            (Some(text), _) => PublishInput::One(text.into_bytes()),
            (None, false) => PublishInput::One(read_input()?),
            (None, true) => PublishInput::Lines(read_lines()),
        };
        let link = match &self.journal {
            None => self.connect.open().await?,
            Some(dir) => self.connect.open_with_journal(dir)?,
        };
        let mut publisher = LinkPublisher {
            link: &link,
            topic: self.topic,
            retain: self.retain,
            has_journal: self.journal.is_some(),
            has_lines: self.lines,
            first_sent: None,
            sent: 0,
            read: 0,
            unsent_lines: Vec::new(),
            rejected: 0,
            last_reason: String::new(),
        };
        let published = publisher.publish(input).await;
        let sent = publisher.sent;
        if let (Err(error), Some(dir)) = (&published, &self.journal)
            && error.is_transient()
        {
            let dir = dir.display();
            eprintln!(
                "messages that the node does not have yet are in {dir}, {sent} of them new; the next command with --journal {dir} sends them"
            );
        }
        published?;
        link.run(async {
            link.link.shut_down(ErrorCode::NONE, "").await;
            if self.journal.is_some() {
                // The journal is removed after both ends have finished.
                link.link.ended().await;
            }
            Ok(())
        })
        .await
    }
}

enum PublishInput {
    One(Vec<u8>),
    Lines(mpsc::Receiver<Result<Vec<u8>, ClientError>>),
}

fn read_error(error: io::Error) -> ClientError {
    let what = "cannot read standard input".into();
    ClientError::Local { what, error }
}

fn too_long(what: &str) -> ClientError {
    ClientError::Usage(format!(
        "{what}: expected at most {MAX_MESSAGE_BYTES} bytes; send more as a file"
    ))
}

fn read_input() -> Result<Vec<u8>, ClientError> {
    let mut content = Vec::new();
    let mut input = io::stdin().lock().take(MAX_MESSAGE_BYTES + 1);
    input.read_to_end(&mut content).map_err(read_error)?;
    match content.len() as u64 > MAX_MESSAGE_BYTES {
        false => Ok(content),
        true => Err(too_long("the message")),
    }
}

/// Lines of standard input, read by a thread of its own: each is sent when it arrives.
fn read_lines() -> mpsc::Receiver<Result<Vec<u8>, ClientError>> {
    let (lines, receiver) = mpsc::channel(MAX_READ_LINES);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        for number in 1_u64.. {
            let mut line = Vec::new();
            // One byte for the end of the line.
            let mut limited = (&mut input).take(MAX_MESSAGE_BYTES + 1);
            let read = limited.read_until(b'\n', &mut line);
            let is_last = matches!(read, Ok(0));
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let line = match read {
                Ok(_) if line.len() as u64 > MAX_MESSAGE_BYTES => {
                    Err(too_long(&format!("line {number}")))
                }
                Ok(_) => Ok(line),
                Err(error) => Err(read_error(error)),
            };
            let has_failed = line.is_err();
            if is_last || lines.blocking_send(line).is_err() || has_failed {
                return;
            }
        }
    });
    receiver
}

struct LinkPublisher<'a> {
    link: &'a CommandLink,
    topic: String,
    retain: bool,
    has_journal: bool,
    has_lines: bool,
    /// The first message of this command, which may follow others of a journal.
    first_sent: Option<MessageId>,
    sent: u64,
    /// Messages of the input.
    read: u64,
    /// Those of them that could not be sent.
    unsent_lines: Vec<u64>,
    rejected: u64,
    last_reason: String,
}

impl LinkPublisher<'_> {
    /// Returns when the node has published all messages.
    async fn publish(&mut self, input: PublishInput) -> Result<(), ClientError> {
        let mut input_error = None;
        match input {
            PublishInput::One(payload) => self.send(&payload).await?,
            PublishInput::Lines(mut lines) => {
                // A later line may come after hours, so nobody minds how long there is no connection meanwhile.
                loop {
                    tokio::select! {
                        line = lines.recv() => match line {
                            Some(Ok(line)) => self.send(&line).await?,
                            // The lines before it are still sent.
                            Some(Err(error)) => {
                                input_error = Some(error);
                                break;
                            }
                            None => break,
                        },
                        message = self.link.link.receive() => {
                            let message = message.map_err(|error| self.link.error(error))?;
                            self.handle_answer(message.id, &message.payload.into_bytes());
                        }
                    }
                }
            }
        }
        let link = self.link;
        link.wait_connected().await?;
        link.run(self.finish()).await?;
        match (input_error, self.rejected) {
            (Some(error), _) => Err(error),
            (None, 0) => Ok(()),
            _ => Err(ClientError::Rejected {
                what: match self.rejected {
                    1 => "the message".into(),
                    rejected => format!("{rejected} messages, the last one"),
                },
                reason: std::mem::take(&mut self.last_reason),
                is_passing: false,
            }),
        }
    }

    async fn send(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        let mut content = Vec::new();
        Publication {
            topic: &self.topic,
            payload,
            retain: self.retain,
        }
        .encode(&mut content);
        let link = self.link;
        let send = async { Ok(link.link.send(Priority::Normal, content.into()).await) };
        self.read += 1;
        match link.run(send).await? {
            Ok(id) => {
                self.first_sent.get_or_insert(id);
                self.sent += 1;
                Ok(())
            }
            Err(LinkError::Send(error @ SendError::TooLarge { .. })) => {
                self.unsent_lines.push(self.read);
                self.record_rejection(Some(self.read), error.to_string());
                Ok(())
            }
            Err(error) => Err(link.error(error)),
        }
    }

    /// Waits until the node has published or rejected what was sent.
    async fn finish(&mut self) -> Result<(), ClientError> {
        let link = &self.link.link;
        let failed = |error| self.link.error(error);
        while let Err(error) = link.flush().await {
            match error {
                LinkError::Stream { code, text } => {
                    self.record_rejection(None, format!("{text} ({code})"))
                }
                error => return Err(failed(error)),
            }
        }
        // The answer follows the rejections of all messages that have been acknowledged. A journal may contain requests
        // of earlier commands, so the number is not used again.
        let random = random_bytes();
        let number = u64::from(u32::from_le_bytes([
            random[0], random[1], random[2], random[3],
        ]));
        let request = FileRequest {
            request: number,
            names: Vec::new(),
            resume: false,
        };
        let request = serde_json::to_vec(&request).expect("texts and numbers are valid JSON");
        let sent = link.send(Priority::High, request.into()).await;
        sent.map_err(failed)?;
        loop {
            let message = link.receive().await.map_err(failed)?;
            let content = message.payload.into_bytes();
            self.handle_answer(message.id, &content);
            if serde_json::from_slice(&content)
                .is_ok_and(|answer: FileAnswer| answer.request == number)
            {
                return Ok(());
            }
        }
    }

    /// Reports a rejection.
    fn handle_answer(&mut self, id: MessageId, content: &[u8]) {
        if let Ok(PublicationRejection { rejected }) = serde_json::from_slice(content) {
            // Messages of earlier commands in the journal have lower numbers.
            let position =
                (self.first_sent).and_then(|first| rejected.number.checked_sub(first.number));
            let line = position.map(|position| {
                let unsent_lines = self.unsent_lines.iter();
                unsent_lines.fold(position + 1, |line, unsent| {
                    line + u64::from(*unsent <= line)
                })
            });
            self.record_rejection(line, rejected.reason);
        }
        self.link.link.acknowledge(id);
    }

    fn record_rejection(&mut self, line: Option<u64>, reason: String) {
        self.rejected += 1;
        let message = match line {
            Some(line) if self.has_lines => format!("line {line}"),
            _ => format!("a message to {:?}", self.topic),
        };
        if self.has_lines || self.has_journal {
            eprintln!("the node rejected {message}: {reason}");
        }
        self.last_reason = reason;
    }
}
