//! `tidegate link publish`.

use std::io::Read as _;

use bytes::Bytes;
use clap::Args;
use link::error_code::ErrorCode;
use link::priority::Priority;
use link_gateway::exchange::{FileAnswer, FileRequest, Publication, PublicationRejection};

use super::options::{CommandLink, LinkConnectArgs};
use crate::client::ClientError;

/// Longest message; a node may accept less.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct LinkPublishArgs {
    /// Topic of the message
    #[arg(value_name = "TOPIC", index = 2)]
    topic: String,
    /// The message; without it, standard input is read
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Whether the node retains the message
    #[arg(long, short)]
    retain: bool,
    #[command(flatten)]
    connect: LinkConnectArgs,
}

impl LinkPublishArgs {
    pub(super) async fn run(self) -> Result<(), ClientError> {
        let payload = match self.message {
            Some(text) => text.into_bytes(),
            None => read_input()?,
        };
        if self.topic.len() > usize::from(u16::MAX) {
            let text = "TOPIC: expected at most 65,535 bytes";
            return Err(ClientError::Usage(text.into()));
        }
        let mut content = Vec::new();
        Publication {
            topic: &self.topic,
            payload: &payload,
            retain: self.retain,
        }
        .encode(&mut content);
        let link = self.connect.open().await?;
        link.run(publish(&link, content.into())).await?;
        link.run(async {
            link.link.shut_down(ErrorCode::NONE, "").await;
            Ok(())
        })
        .await
    }
}

fn read_input() -> Result<Vec<u8>, ClientError> {
    let failed = |error| ClientError::Local {
        what: "cannot read standard input".into(),
        error,
    };
    let mut content = Vec::new();
    let mut input = std::io::stdin().lock().take(MAX_MESSAGE_BYTES + 1);
    input.read_to_end(&mut content).map_err(failed)?;
    match content.len() as u64 > MAX_MESSAGE_BYTES {
        false => Ok(content),
        true => Err(ClientError::Usage(format!(
            "the message: expected at most {MAX_MESSAGE_BYTES} bytes; send more as a file"
        ))),
    }
}

/// Returns when the node has published the message.
async fn publish(link: &CommandLink, content: Bytes) -> Result<(), ClientError> {
    let failed = |error| link.error(error);
    let sent = link.link.send(Priority::Normal, content).await;
    sent.map_err(failed)?;
    link.link.flush().await.map_err(failed)?;
    // The answer follows the rejections of all messages that have been acknowledged.
    let request = FileRequest {
        request: 1,
        names: Vec::new(),
        resume: false,
    };
    let request = serde_json::to_vec(&request).expect("texts and numbers are valid JSON");
    let sent = link.link.send(Priority::High, request.into()).await;
    sent.map_err(failed)?;
    loop {
        let message = link.link.receive().await.map_err(failed)?;
        let message = message.payload.into_bytes();
        if let Ok(PublicationRejection { rejected }) = serde_json::from_slice(&message) {
            return Err(ClientError::Rejected {
                what: "the message".into(),
                reason: rejected.reason,
                is_passing: false,
            });
        }
        if serde_json::from_slice::<FileAnswer>(&message).is_ok() {
            return Ok(());
        }
    }
}
