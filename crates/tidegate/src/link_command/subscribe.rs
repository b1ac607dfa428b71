//! `tidegate link subscribe`.

use std::io::{self, Write as _};

use clap::Args;
use link::config::AckPolicy;
use link::error_code::ErrorCode;
use link::priority::Priority;
use link_gateway::exchange::{
    Publication, RequestedSubscription, SubscriptionAnswer, SubscriptionRequest,
    SubscriptionRequestKind,
};
use mqtt::ReasonCode;

use super::options::{CommandLink, LinkConnectArgs};
use crate::client::ClientError;

#[derive(Args)]
pub(crate) struct LinkSubscribeArgs {
    /// Topic filters
    #[arg(value_name = "FILTER", index = 2, required = true, num_args = 1..)]
    filters: Vec<String>,
    /// Maximum quality of service: 0 or 1
    #[arg(long, short, value_name = "QOS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    qos: u8,
    /// Write the topic before the payload
    #[arg(long, short)]
    verbose: bool,
    /// End after this many messages
    #[arg(long, short = 'C', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    connect: LinkConnectArgs,
}

impl LinkSubscribeArgs {
    pub(super) async fn run(self) -> Result<(), ClientError> {
        // A message is acknowledged when it is written.
        let link = self.connect.open_with(AckPolicy::OnConfirmation).await?;
        let mut subscriber = LinkSubscriber {
            link: &link,
            filters: self.filters,
            qos: self.qos,
            is_verbose: self.verbose,
            remaining: self.count,
            last_request: 0,
        };
        link.run(subscriber.run()).await?;
        link.run(async {
            link.link.shut_down(ErrorCode::NONE, "").await;
            Ok(())
        })
        .await
    }
}

struct LinkSubscriber<'a> {
    link: &'a CommandLink,
    filters: Vec<String>,
    qos: u8,
    is_verbose: bool,
    /// Remaining messages; `None`: unlimited.
    remaining: Option<u64>,
    last_request: u64,
}

impl LinkSubscriber<'_> {
    /// Returns when all messages are written, or when nobody reads them any more.
    async fn run(&mut self) -> Result<(), ClientError> {
        let link = &self.link.link;
        let failed = |error| self.link.error(error);
        let mut losses = link.peer_state_losses();
        self.subscribe().await?;
        loop {
            let message = tokio::select! {
                message = link.receive() => message.map_err(failed)?,
                // A node that was restarted knows no subscriptions of the link.
                now = link.peer_state_lost(losses) => {
                    losses = now.map_err(failed)?;
                    self.subscribe().await?;
                    continue;
                }
            };
            let id = message.id;
            let content = message.payload.into_bytes();
            if let Ok(answer) = serde_json::from_slice::<SubscriptionAnswer>(&content) {
                self.check(&answer)?;
            } else if let Ok(publication) = Publication::decode(&content)
                && !self.write(&publication)?
            {
                link.acknowledge(id);
                return Ok(());
            }
            link.acknowledge(id);
        }
    }

    async fn subscribe(&mut self) -> Result<(), ClientError> {
        self.last_request += 1;
        let requested = |filter: &String| RequestedSubscription {
            filter: filter.clone(),
            qos: self.qos,
        };
        let request = SubscriptionRequest {
            request: self.last_request,
            kind: SubscriptionRequestKind::Subscribe(self.filters.iter().map(requested).collect()),
        };
        let request = serde_json::to_vec(&request).expect("texts and numbers are valid JSON");
        let sent = self.link.link.send(Priority::High, request.into()).await;
        sent.map(drop).map_err(|error| self.link.error(error))
    }

    /// Reports rejected filters; an error if none is left.
    fn check(&self, answer: &SubscriptionAnswer) -> Result<(), ClientError> {
        let mut rejection = answer
            .error
            .clone()
            .filter(|_| answer.reason_codes.is_empty());
        let mut is_any_accepted = false;
        for (filter, code) in self.filters.iter().zip(&answer.reason_codes) {
            let code = ReasonCode(*code);
            is_any_accepted |= !code.is_error();
            if code.is_error() {
                let text = format!("{filter:?}: {code}");
                if self.filters.len() > 1 {
                    eprintln!("the node rejected the subscription to {text}");
                }
                rejection = Some(text);
            }
        }
        match rejection {
            Some(reason) if !is_any_accepted => Err(ClientError::Rejected {
                what: "the subscription".into(),
                reason,
                is_passing: false,
            }),
            _ => Ok(()),
        }
    }

    /// Writes a message. Returns whether another one is wanted.
    fn write(&mut self, message: &Publication<'_>) -> Result<bool, ClientError> {
        let mut line = Vec::new();
        if self.is_verbose {
            line.extend_from_slice(message.topic.as_bytes());
            line.push(b' ');
        }
        line.extend_from_slice(message.payload);
        line.push(b'\n');
        let mut out = io::stdout().lock();
        match out.write_all(&line).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => {
                return Err(ClientError::Local {
                    what: "cannot write to standard output".into(),
                    error,
                });
            }
        }
        self.remaining = self.remaining.map(|count| count - 1);
        Ok(self.remaining != Some(0))
    }
}
