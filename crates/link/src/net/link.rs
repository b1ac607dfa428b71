//! What an application does with a link.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::core::{CoreStatistics, LinkCore, SendError};
use crate::error_code::ErrorCode;
use crate::message::{MessageBatch, MessageId, ReceivedMessage};
use crate::net::carrier_task::{LinkEnd, SharedLink, now};
use crate::priority::Priority;

/// Why an operation of a link failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("the link has been shut down")]
    ShutDown,
    #[error("the peer rejects the link: {text} ({code})")]
    Rejected { code: ErrorCode, text: String },
    #[error("the peer did not connect again within the expiry of the link")]
    Expired,
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("the stream failed: {text} ({code})")]
    Stream { code: ErrorCode, text: String },
}

impl From<LinkEnd> for LinkError {
    fn from(end: LinkEnd) -> Self {
        match end {
            LinkEnd::ShutDown => Self::ShutDown,
            LinkEnd::Rejected { code, text } => Self::Rejected { code, text },
            LinkEnd::Expired => Self::Expired,
        }
    }
}

/// One end of a link. Clones are the same end.
///
/// Everything works with or without a carrier; what is sent in between is transmitted when there is one.
#[derive(Debug, Clone)]
pub struct Link {
    pub(crate) shared: Arc<SharedLink>,
}

impl Link {
    /// Sends a message. It waits while too much is not acknowledged; when it returns, the message is queued and will be
    /// delivered once. [`flush`](Self::flush) waits for its acknowledgement.
    pub async fn send(&self, priority: Priority, payload: Bytes) -> Result<MessageId, LinkError> {
        let sent = self.wait(|core| match core.send_shared(priority, &payload) {
            Err(SendError::Full) => None,
            Err(SendError::ShuttingDown) => Some(Err(LinkError::ShutDown)),
            result => Some(result.map_err(LinkError::from)),
        });
        let id = sent.await??;
        self.shared.outgoing.notify_one();
        Ok(id)
    }

    /// Sends messages, which is faster than one by one if they are small, and removes them from `payloads`. It waits like
    /// [`send`](Self::send). If it fails or is cancelled, `payloads` contains those that are not queued.
    pub async fn send_all(
        &self,
        priority: Priority,
        payloads: &mut VecDeque<Bytes>,
    ) -> Result<(), LinkError> {
        while !payloads.is_empty() {
            let sent = self.wait(|core| {
                let mut is_sent = false;
                while let Some(payload) = payloads.front() {
                    match core.send_shared(priority, payload) {
                        Ok(_) => payloads.pop_front(),
                        Err(SendError::Full) => break,
                        Err(SendError::ShuttingDown) => return Some(Err(LinkError::ShutDown)),
                        Err(error) => return Some(Err(error.into())),
                    };
                    is_sent = true;
                }
                is_sent.then_some(Ok(()))
            });
            sent.await??;
            self.shared.outgoing.notify_one();
        }
        Ok(())
    }

    /// Sends copies of messages, which is the fastest way for tiny ones. It waits like [`send`](Self::send) until there is
    /// room for one, and returns how many it has queued: at least one, unless there are none.
    pub async fn send_copies(
        &self,
        priority: Priority,
        messages: &[impl AsRef<[u8]>],
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        let result = self.wait(|core| {
            for message in messages {
                match core.send_copy(priority, message.as_ref()) {
                    Ok(_) => count += 1,
                    Err(SendError::Full) if count == 0 => return None,
                    Err(_) if count > 0 => break,
                    Err(SendError::ShuttingDown) => return Some(Err(LinkError::ShutDown)),
                    Err(error) => return Some(Err(error.into())),
                }
            }
            Some(Ok(()))
        });
        result.await??;
        self.shared.outgoing.notify_one();
        Ok(count)
    }

    /// The next message of at most the size class `large`. Larger ones come as streams.
    pub async fn receive(&self) -> Result<ReceivedMessage, LinkError> {
        let message = self.wait(LinkCore::next_message).await?;
        self.shared.outgoing.notify_one();
        Ok(message)
    }

    /// All messages that have arrived, at least one, added to `batches`. It costs less than [`receive`](Self::receive)
    /// if messages are small.
    pub async fn receive_batches(&self, batches: &mut Vec<MessageBatch>) -> Result<(), LinkError> {
        self.wait(|core| {
            let before = batches.len();
            core.take_batches(batches);
            (batches.len() > before).then_some(())
        })
        .await?;
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Confirms that a message is durable, if the link acknowledges on confirmation.
    pub fn acknowledge(&self, id: MessageId) {
        self.shared.lock().acknowledge(id, now());
        self.shared.outgoing.notify_one();
    }

    /// Waits until the peer has acknowledged everything.
    pub async fn flush(&self) -> Result<(), LinkError> {
        self.wait(|core| core.is_idle().then_some(())).await
    }

    /// Waits until the peer has acknowledged a message.
    pub async fn settled(&self, id: MessageId) -> Result<(), LinkError> {
        self.wait(|core| core.is_settled(id).then_some(())).await
    }

    /// Ends this end at once, without a word to the peer: its carrier is closed, and no other is opened.
    pub fn abandon(&self) {
        self.shared.end(LinkEnd::ShutDown);
        // The carrier's task finds that it has been replaced.
        self.shared.begin_carrier(|_| {});
    }

    /// Shuts the link down: nothing new is accepted, and what was accepted is completed. Returns when both ends have
    /// finished.
    pub async fn shut_down(&self, code: ErrorCode, text: &str) {
        self.shared.lock().shut_down(code, text);
        self.shared.outgoing.notify_one();
        // Any end is the end.
        let _ = self.wait(|core| core.is_closed().then_some(())).await;
    }

    /// Whether the link has a carrier.
    pub fn is_connected(&self) -> bool {
        self.shared.lock().is_connected()
    }

    /// Waits until the link has a carrier whose handshake is complete.
    pub async fn connected(&self) -> Result<(), LinkError> {
        self.wait(|core| core.is_connected().then_some(())).await
    }

    /// How often the peer has lost its state of the link, for example because it was restarted. What it had received and
    /// not stored is gone, and so is what it was about to answer.
    pub fn peer_state_losses(&self) -> u64 {
        self.shared.peer_state_losses()
    }

    /// Waits until [`peer_state_losses`](Self::peer_state_losses) is more than `known`, and returns it.
    pub async fn peer_state_lost(&self, known: u64) -> Result<u64, LinkError> {
        self.wait(|_| {
            let losses = self.peer_state_losses();
            (losses > known).then_some(losses)
        })
        .await
    }

    /// Waits until the link ends, and returns why.
    pub async fn ended(&self) -> LinkError {
        loop {
            if let Err(end) = self.wait(|_| None::<()>).await {
                return end;
            }
        }
    }

    pub fn statistics(&self) -> CoreStatistics {
        self.shared.lock().statistics()
    }

    /// Waits until `poll` returns something, or until the link ends.
    pub(crate) async fn wait<T>(
        &self,
        mut poll: impl FnMut(&mut LinkCore) -> Option<T>,
    ) -> Result<T, LinkError> {
        // Usually there is nothing to wait for, and registering for notifications costs more than the rest.
        if let Some(result) = poll(&mut self.shared.lock()) {
            return Ok(result);
        }
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(result) = poll(&mut self.shared.lock()) {
                return Ok(result);
            }
            if let Some(end) = self.shared.ended() {
                return Err(end.into());
            }
            changed.await;
        }
    }
}
