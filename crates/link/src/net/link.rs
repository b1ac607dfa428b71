//! What an application does with a link.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::core::{CoreStatistics, LinkCore, SendError, StreamError};
use crate::durable::Journal as _;
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
    /// What was accepted before is in the journal. A process that opens it again continues the link.
    #[error("the journal of the link failed: {0}")]
    Journal(String),
    #[error(transparent)]
    Send(#[from] SendError),
    /// Also of a message that the peer has rejected.
    #[error("the stream failed: {text} ({code})")]
    Stream { code: ErrorCode, text: String },
}

impl From<StreamError> for LinkError {
    fn from(error: StreamError) -> Self {
        let StreamError { code, text } = error;
        Self::Stream { code, text }
    }
}

impl From<LinkEnd> for LinkError {
    fn from(end: LinkEnd) -> Self {
        match end {
            LinkEnd::ShutDown => Self::ShutDown,
            LinkEnd::Rejected { code, text } => Self::Rejected { code, text },
            LinkEnd::Expired => Self::Expired,
            LinkEnd::JournalFailed(error) => Self::Journal(error),
        }
    }
}

/// One end of a link. Clones are the same end.
///
/// Everything works with or without a carrier; what is sent in between is transmitted when there is one.
///
/// A link with a [journal](crate::net::connect_with_journal) survives the end of the process. Then a message is durable when a method
/// has accepted it for sending or has returned it. `receive` returns it again after a restart, until
/// [`acknowledge`](Self::acknowledge). The methods sync a file, for which they block their thread.
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
            Err(error) => Some(Err(error.into())),
            Ok(id) => {
                let recorded = self
                    .shared
                    .record(core, |file| file.record_sent(id, &payload));
                Some(recorded.map(|()| id).map_err(LinkError::from))
            }
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
                let mut recorded = Vec::new();
                let mut end = None;
                while let Some(payload) = payloads.front() {
                    match core.send_shared(priority, payload) {
                        Ok(id) if self.shared.has_journal() => {
                            recorded.extend(payloads.pop_front().map(|payload| (id, payload)));
                        }
                        Ok(_) => drop(payloads.pop_front()),
                        Err(SendError::Full) => break,
                        Err(SendError::ShuttingDown) => {
                            end = Some(LinkError::ShutDown);
                            break;
                        }
                        Err(error) => {
                            end = Some(error.into());
                            break;
                        }
                    }
                    is_sent = true;
                }
                if let Err(end) = self.record_sent(core, &recorded) {
                    return Some(Err(end.into()));
                }
                end.map(Err).or(is_sent.then_some(Ok(())))
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
            let mut recorded = Vec::new();
            for message in messages {
                match core.send_copy(priority, message.as_ref()) {
                    Ok(id) => {
                        count += 1;
                        if self.shared.has_journal() {
                            recorded.push((id, Bytes::copy_from_slice(message.as_ref())));
                        }
                    }
                    Err(SendError::Full) if count == 0 => return None,
                    Err(_) if count > 0 => break,
                    Err(SendError::ShuttingDown) => return Some(Err(LinkError::ShutDown)),
                    Err(error) => return Some(Err(error.into())),
                }
            }
            Some(self.record_sent(core, &recorded).map_err(LinkError::from))
        });
        result.await??;
        self.shared.outgoing.notify_one();
        Ok(count)
    }

    /// Records messages that were accepted for sending, if there is a journal.
    fn record_sent(
        &self,
        core: &mut LinkCore,
        messages: &[(MessageId, Bytes)],
    ) -> Result<(), LinkEnd> {
        if messages.is_empty() {
            return Ok(());
        }
        self.shared.record(core, |file| {
            let mut messages = messages.iter();
            messages.try_for_each(|(id, payload)| file.record_sent(*id, payload))
        })
    }

    /// The number of the last message or stream of a priority that was accepted for sending; 0: none. An application that continues
    /// a link with a journal after a restart learns from it what it had sent.
    pub fn last_sent(&self, priority: Priority) -> u64 {
        self.shared.lock().last_sent(priority)
    }

    /// The next message of at most the size class `large`. Larger ones come as streams.
    pub async fn receive(&self) -> Result<ReceivedMessage, LinkError> {
        let message = self
            .wait(|core| {
                if !self.shared.has_journal() {
                    return core.next_message();
                }
                // If it fails, the link has ended.
                let next = self
                    .shared
                    .with_journal(core, |core, journal| journal.next_message(core, now()));
                next.ok().flatten().flatten()
            })
            .await?;
        self.shared.outgoing.notify_one();
        Ok(message)
    }

    /// All messages that have arrived, at least one, added to `batches`. It costs less than [`receive`](Self::receive)
    /// if messages are small.
    pub async fn receive_batches(&self, batches: &mut Vec<MessageBatch>) -> Result<(), LinkError> {
        self.wait(|core| {
            let before = batches.len();
            if self.shared.has_journal() {
                // If it fails, the link has ended; what was recorded before is received after a restart.
                let taken = self.shared.with_journal(core, |core, journal| {
                    journal.take_batches(core, batches, now())
                });
                if taken.is_err() {
                    batches.truncate(before);
                }
            } else {
                core.take_batches(batches);
            }
            (batches.len() > before).then_some(())
        })
        .await?;
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Confirms that a message is durable, if the link acknowledges on confirmation. On a link with a journal, it confirms that the
    /// message is processed: it is not received again after a restart.
    pub fn acknowledge(&self, id: MessageId) {
        self.acknowledge_all(&[id]);
    }

    /// As [`acknowledge`](Self::acknowledge) for several messages, which costs a link with a journal no more than for one.
    pub fn acknowledge_all(&self, ids: &[MessageId]) {
        let mut core = self.shared.lock();
        if self.shared.has_journal() {
            // If it fails, the link has ended.
            let _ = self.shared.record(&mut core, |file| {
                ids.iter().try_for_each(|id| file.record_processed(*id))
            });
            return;
        }
        for id in ids {
            core.acknowledge(*id, now());
        }
        drop(core);
        self.shared.outgoing.notify_one();
    }

    /// Waits until the peer has acknowledged or rejected everything.
    ///
    /// # Errors
    /// [`LinkError::Stream`] if the peer has rejected a message and the application was not told yet; another call continues.
    pub async fn flush(&self) -> Result<(), LinkError> {
        let flushed = self.wait(|core| {
            let rejection = core.take_first_rejection();
            let rejected = rejection.map(|(_, failure)| Err(LinkError::from(failure)));
            rejected.or_else(|| core.is_idle().then_some(Ok(())))
        });
        flushed.await?
    }

    /// Waits until the peer has acknowledged a message.
    ///
    /// # Errors
    /// [`LinkError::Stream`] if the peer has rejected the message.
    pub async fn settled(&self, id: MessageId) -> Result<(), LinkError> {
        let settled = self.wait(|core| {
            let rejected = core.take_rejection(id).map(LinkError::from);
            rejected
                .map(Err)
                .or_else(|| core.is_settled(id).then_some(Ok(())))
        });
        settled.await?
    }

    /// Ends this end at once, without a word to the peer: its carrier is closed, and no other is opened.
    pub fn abandon(&self) {
        self.shared.end(LinkEnd::ShutDown);
        self.shared.close_carrier();
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

    /// Why the link has ended; `None`: it has not.
    pub fn end(&self) -> Option<LinkError> {
        self.shared.ended().map(LinkError::from)
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
