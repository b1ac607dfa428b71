//! Bodies of requests: in memory, or streamed from what another thread reads.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces of a body that are read ahead.
const PIECES_AHEAD: usize = 2;
/// Size of the pieces of a body in memory whose progress is reported.
const PIECE_BYTES: usize = 64 << 10;

/// Called with the number of bytes that were passed to the connection.
pub type BodyProgress = Box<dyn Fn(u64) + Send + Sync>;

/// The body of a request. Its length is known, so it is sent with Content-Length.
pub struct RequestBody {
    source: BodySource,
    left: u64,
    progress: Option<BodyProgress>,
}

enum BodySource {
    Memory(Bytes),
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self {
            left: bytes.len() as u64,
            source: BodySource::Memory(bytes),
            progress: None,
        }
    }
}

impl From<Vec<u8>> for RequestBody {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl RequestBody {
    /// A body of `len` bytes and the sender of its pieces. The receiver is gone when the request has ended.
    #[must_use]
    pub fn streamed(len: u64) -> (Self, mpsc::Sender<io::Result<Bytes>>) {
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        let body = Self {
            source: BodySource::Pieces(pieces),
            left: len,
            progress: None,
        };
        (body, sender)
    }

    /// Reports what is passed to the connection.
    #[must_use]
    pub fn with_progress(mut self, progress: BodyProgress) -> Self {
        self.progress = Some(progress);
        self
    }

    fn next_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        match &mut self.source {
            BodySource::Memory(bytes) => {
                let len = match self.progress {
                    Some(_) => bytes.len().min(PIECE_BYTES),
                    None => bytes.len(),
                };
                Poll::Ready(Some(Ok(bytes.split_to(len))))
            }
            BodySource::Pieces(pieces) => match std::task::ready!(pieces.poll_recv(context)) {
                Some(piece) => Poll::Ready(Some(piece)),
                None => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            },
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(piece) = std::task::ready!(self.next_piece(context)) else {
            return Poll::Ready(None);
        };
        let piece = piece?;
        let len = piece.len() as u64;
        self.left = self.left.checked_sub(len).ok_or_else(|| {
            io::Error::other("the source of a request body has more bytes than announced")
        })?;
        if let Some(progress) = &self.progress {
            progress(len);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
