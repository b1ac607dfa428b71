//! Streams of a link.

use bytes::Bytes;
use content::{ContentDigest, ContentHasher, RangeSet};

use crate::core::{
    Chunk, IncomingStreamInfo, LinkCore, NewStream, OutgoingStreamState, SendError, StreamError,
    StreamRead,
};
use crate::durable::Journal as _;
use crate::error_code::ErrorCode;
use crate::message::MessageId;
use crate::net::carrier_task::{OpenedStream, lock, now};
use crate::net::link::{Link, LinkError};
use crate::wire::control::Done;

impl Link {
    /// Opens a stream.
    pub async fn send_stream(&self, new: NewStream) -> Result<OutgoingStream, LinkError> {
        let id = self
            .wait(|core| match core.open_stream(new.clone()) {
                Err(SendError::Full) => None,
                Err(error) => Some(Err(LinkError::from(error))),
                Ok(id) => {
                    let recorded = self.shared.record(core, |file| file.record_opened(id));
                    Some(recorded.map(|()| id).map_err(LinkError::from))
                }
            })
            .await??;
        self.shared.outgoing.notify_one();
        Ok(OutgoingStream::new(self.clone(), id))
    }

    /// The next stream that the peer has opened.
    pub async fn receive_stream(&self) -> Result<IncomingStream, LinkError> {
        let shared = &self.shared;
        let opened = self.wait(|_| lock(&shared.opened).pop_front()).await?;
        Ok(IncomingStream::new(self.clone(), opened))
    }
}

/// A stream to the peer.
#[derive(Debug)]
pub struct OutgoingStream {
    link: Link,
    id: MessageId,
}

impl OutgoingStream {
    pub(crate) fn new(link: Link, id: MessageId) -> Self {
        Self { link, id }
    }

    /// Waits for the peer's answer: the ranges that it has and that need not be written.
    pub async fn accepted(&self) -> Result<RangeSet, LinkError> {
        let result = self.link.wait(|core| match core.outgoing_stream(self.id) {
            OutgoingStreamState::Active { accepted, .. } => accepted.map(Ok),
            OutgoingStreamState::Complete => Some(Ok(RangeSet::new())),
            OutgoingStreamState::Failed(failure) => Some(Err(LinkError::Stream {
                code: failure.code,
                text: failure.text,
            })),
        });
        result.await?
    }

    /// Writes content; offsets ascend. It waits while too much is not acknowledged.
    pub async fn write(&self, offset: u64, bytes: Bytes) -> Result<(), LinkError> {
        let result = self
            .link
            .wait(|core| match core.write(self.id, offset, bytes.clone()) {
                Err(SendError::Full) => None,
                Err(SendError::StreamEnded) => Some(Err(match core.outgoing_stream(self.id) {
                    OutgoingStreamState::Failed(failure) => LinkError::Stream {
                        code: failure.code,
                        text: failure.text,
                    },
                    _ => SendError::StreamEnded.into(),
                })),
                result => Some(result.map_err(LinkError::from)),
            });
        result.await??;
        self.link.shared.outgoing.notify_one();
        Ok(())
    }

    /// Bytes that the peer has acknowledged.
    pub fn acknowledged_bytes(&self) -> u64 {
        match self.link.shared.lock().outgoing_stream(self.id) {
            OutgoingStreamState::Active {
                acknowledged_bytes, ..
            } => acknowledged_bytes,
            _ => 0,
        }
    }

    /// Ends the content and waits until the peer has confirmed all of it.
    pub async fn finish(self, size: u64, digest: Option<ContentDigest>) -> Result<(), LinkError> {
        self.link.shared.lock().finish(self.id, size, digest)?;
        self.link.shared.outgoing.notify_one();
        let result = self.link.wait(|core| match core.outgoing_stream(self.id) {
            OutgoingStreamState::Active { .. } => None,
            OutgoingStreamState::Complete => Some(Ok(())),
            OutgoingStreamState::Failed(failure) => {
                core.forget_failure(self.id);
                Some(Err(LinkError::Stream {
                    code: failure.code,
                    text: failure.text,
                }))
            }
        });
        result.await?
    }
}

impl Drop for OutgoingStream {
    /// A stream that is not finished is cancelled.
    fn drop(&mut self) {
        let mut core = self.link.shared.lock();
        if let OutgoingStreamState::Active { .. } = core.outgoing_stream(self.id) {
            core.cancel_sending(self.id, ErrorCode::CANCELLED, "the sender stopped");
        }
        core.forget_failure(self.id);
        drop(core);
        self.link.shared.outgoing.notify_one();
    }
}

/// A stream from the peer.
#[derive(Debug)]
pub struct IncomingStream {
    link: Link,
    info: IncomingStreamInfo,
    /// See [`OpenedStream`].
    losses: u64,
    is_complete: bool,
}

impl IncomingStream {
    pub(crate) fn new(link: Link, opened: OpenedStream) -> Self {
        let OpenedStream { info, losses } = opened;
        Self {
            link,
            info,
            losses,
            is_complete: false,
        }
    }

    /// Changes the state of the stream, unless the peer has lost it.
    fn change(&self, change: impl FnOnce(&mut LinkCore, MessageId)) {
        let shared = &self.link.shared;
        let mut core = shared.lock();
        if shared.peer_state_losses() == self.losses {
            change(&mut core, self.info.id);
        }
        drop(core);
        shared.outgoing.notify_one();
    }

    pub fn info(&self) -> &IncomingStreamInfo {
        &self.info
    }

    /// Accepts the stream. `received` is what is already stored of this transfer.
    pub fn accept(&self, received: &RangeSet) {
        self.change(|core, id| core.accept_stream(id, received));
    }

    /// The next piece of content; `Err`: all has been read, or the stream failed.
    pub async fn read(&mut self) -> Result<Result<Chunk, Done>, LinkError> {
        let id = self.info.id;
        let shared = &self.link.shared;
        let read = self.link.wait(|core| {
            if shared.peer_state_losses() != self.losses {
                let text = "the peer has lost its state of the stream".to_owned();
                let code = ErrorCode::CANCELLED;
                return Some(StreamRead::Cancelled(StreamError { code, text }));
            }
            match core.read(id) {
                StreamRead::Pending => None,
                read => Some(read),
            }
        });
        match read.await? {
            StreamRead::Chunk(chunk) => {
                self.link.shared.outgoing.notify_one();
                Ok(Ok(chunk))
            }
            StreamRead::End(done) => Ok(Err(done)),
            StreamRead::Cancelled(failure) => Err(LinkError::Stream {
                code: failure.code,
                text: failure.text,
            }),
            StreamRead::Pending => unreachable!("`wait` waits for something else"),
        }
    }

    /// Confirms content that need not be sent again.
    pub fn acknowledge(&self, range: std::ops::Range<u64>) {
        self.change(|core, id| core.acknowledge_data(id, range, now()));
    }

    /// Confirms the whole content, after [`read`](Self::read) has returned its end. If a process with a journal is killed before, the
    /// peer sends the stream again.
    pub fn complete(mut self) {
        self.is_complete = true;
        let shared = &self.link.shared;
        self.change(|core, id| {
            if core.is_stream_read(id) {
                // Its number is never accepted again. If it cannot be recorded, the link has ended.
                let recorded = shared.record(core, |file| {
                    file.record_received(id, &Bytes::new())?;
                    file.record_processed(id)
                });
                if recorded.is_err() {
                    return;
                }
            }
            core.complete_stream(id, now());
        });
    }

    /// Rejects the stream.
    pub fn reject(mut self, code: ErrorCode, text: &str) {
        self.is_complete = true;
        self.change(|core, id| core.reject_stream(id, code, text));
    }

    /// Accepts the stream, reads all of it, verifies its digest and confirms it.
    ///
    /// # Errors
    /// Also if the content is longer than `limit`, or if the digest is wrong; the peer learns the reason.
    pub async fn read_to_end(mut self, limit: u64) -> Result<Vec<u8>, LinkError> {
        self.accept(&RangeSet::new());
        let mut content = Vec::new();
        let mut hasher = self.info.digest.map(ContentHasher::new);
        let error = loop {
            match self.read().await? {
                Ok(chunk) if chunk.offset != content.len() as u64 => {
                    break (ErrorCode::PROTOCOL_VIOLATION, "content out of order");
                }
                Ok(chunk) if chunk.range().end > limit => {
                    break (ErrorCode::TOO_LARGE, "longer than the receiver accepts");
                }
                Ok(chunk) => {
                    if let Some(hasher) = &mut hasher {
                        hasher.update(&chunk.bytes);
                    }
                    content.extend_from_slice(&chunk.bytes);
                    self.acknowledge(chunk.range());
                }
                Err(done) if done.digest != hasher.map(|hasher| hasher.finish()) => {
                    break (ErrorCode::DIGEST_MISMATCH, "the digest differs");
                }
                Err(_) => {
                    self.complete();
                    return Ok(content);
                }
            }
        };
        let (code, text) = error;
        self.reject(code, text);
        Err(LinkError::Stream {
            code,
            text: text.to_owned(),
        })
    }
}

impl Drop for IncomingStream {
    /// A stream that is not completed is rejected.
    fn drop(&mut self) {
        if !self.is_complete {
            let text = "the receiver stopped";
            self.change(|core, id| core.reject_stream(id, ErrorCode::CANCELLED, text));
        }
    }
}
