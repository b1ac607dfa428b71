//! Byte streams in binary frames of WebSocket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use link::net::Carrier;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use ws::{
    ClientHandshake, ClientRequest, DEFAULT_MAX_HEADER_BYTES, Decoder, DecoderEvent,
    DecoderOptions, MaskKeys, Opcode, Role, ServerHandshake, ServerHandshakeStep, ServerOptions,
};

use crate::WEBSOCKET_SUBPROTOCOL;

/// Bytes of one frame, and of one read.
const FRAME_BYTES: usize = 128 * 1024;
/// Pongs that a peer makes this end queue without reading them.
const MAX_QUEUED_PONG_BYTES: usize = 64 * 1024;

/// A byte stream over a WebSocket connection.
pub(crate) struct WebSocketStream<S> {
    stream: S,
    decoder: Decoder,
    /// The keys of a client; a server does not mask.
    masks: Option<MaskKeys>,
    /// Bytes of the stream from `decoded` on: frames that are not decoded.
    incoming: Vec<u8>,
    decoded: usize,
    /// The part of `incoming` that is content and has not been read.
    content: std::ops::Range<usize>,
    /// Frames that wait to be written, from `written` on.
    outgoing: Vec<u8>,
    written: usize,
    is_close_sent: bool,
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// What a server accepts at `path`.
pub(crate) fn server_options(path: &str) -> Arc<ServerOptions> {
    Arc::new(ServerOptions {
        path: path.to_owned(),
        subprotocols: vec![WEBSOCKET_SUBPROTOCOL.to_owned()],
        require_subprotocol: true,
        prefix: None,
        allowed_origins: Vec::new(),
        compression: false,
        max_header_bytes: DEFAULT_MAX_HEADER_BYTES,
    })
}

impl<S: Carrier> WebSocketStream<S> {
    /// Performs the handshake of a client.
    pub(crate) async fn connect(mut stream: S, host: &str, path: &str) -> io::Result<Self> {
        let request = ClientRequest {
            host,
            path,
            subprotocols: &[WEBSOCKET_SUBPROTOCOL],
            headers: &[],
        };
        let (mut handshake, request) = ClientHandshake::start(&request).map_err(invalid)?;
        stream.write_all(&request).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        let accepted = loop {
            read_some(&mut stream, &mut answer).await?;
            if let Some(accepted) = handshake.feed(&answer).map_err(invalid)? {
                break accepted;
            }
        };
        if accepted.subprotocol.is_none() {
            return Err(invalid(
                "the server supports WebSocket, but not the sub-protocol tidegate-link",
            ));
        }
        let incoming = answer.split_off(accepted.consumed);
        Ok(Self::new(stream, Role::Client, incoming))
    }

    /// Performs the handshake of a server.
    pub(crate) async fn accept(mut stream: S, options: &ServerOptions) -> io::Result<Self> {
        let mut handshake = ServerHandshake::new();
        let mut head = Vec::new();
        loop {
            read_some(&mut stream, &mut head).await?;
            match handshake.feed(options, &head) {
                ServerHandshakeStep::Incomplete => {}
                ServerHandshakeStep::Rejected(rejected) => {
                    stream.write_all(&rejected.response).await?;
                    stream.shutdown().await?;
                    return Err(invalid(rejected.reason));
                }
                ServerHandshakeStep::Accepted(accepted) => {
                    stream.write_all(&accepted.response).await?;
                    stream.flush().await?;
                    let incoming = head.split_off(accepted.consumed);
                    return Ok(Self::new(stream, Role::Server, incoming));
                }
            }
        }
    }

    fn new(stream: S, role: Role, incoming: Vec<u8>) -> Self {
        Self {
            stream,
            decoder: Decoder::new(DecoderOptions::byte_stream(role)),
            masks: (role == Role::Client).then(MaskKeys::new),
            incoming,
            decoded: 0,
            content: 0..0,
            outgoing: Vec::new(),
            written: 0,
            is_close_sent: false,
        }
    }

    /// Decodes frames until there is content. Returns whether there is.
    fn decode(&mut self) -> io::Result<bool> {
        loop {
            let step = self.decoder.decode(&mut self.incoming[self.decoded..]);
            let step = step.map_err(invalid)?;
            self.decoded += step.consumed;
            match step.event {
                // The end of what was consumed is the chunk.
                Some(DecoderEvent::Data { chunk, .. }) => {
                    self.content = self.decoded - chunk.len()..self.decoded;
                    if !self.content.is_empty() {
                        return Ok(true);
                    }
                }
                Some(DecoderEvent::Ping(payload)) => {
                    if self.outgoing.len() - self.written < MAX_QUEUED_PONG_BYTES {
                        let mask = self.masks.as_mut().map(MaskKeys::next_key);
                        ws::encode_frame(Opcode::Pong, payload, mask, &mut self.outgoing);
                    }
                }
                Some(DecoderEvent::Pong(_)) => {}
                Some(DecoderEvent::Close { .. }) => self.queue_close(),
                None => return Ok(false),
            }
        }
    }

    fn queue_close(&mut self) {
        if !self.is_close_sent {
            self.is_close_sent = true;
            let mask = self.masks.as_mut().map(MaskKeys::next_key);
            let code = Some(ws::close_codes::NORMAL);
            ws::encode_close(code, "", mask, &mut self.outgoing);
        }
    }

    /// Writes the queued frames.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outgoing.len() {
            let stream = Pin::new(&mut self.stream);
            let count = ready!(stream.poll_write(cx, &self.outgoing[self.written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
        }
        self.outgoing.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

async fn read_some(stream: &mut (impl AsyncRead + Unpin), into: &mut Vec<u8>) -> io::Result<()> {
    if stream.read_buf(into).await? == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the peer closed the connection during the WebSocket handshake",
        ));
    }
    Ok(())
}

impl<S: Carrier> AsyncRead for WebSocketStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.content.is_empty() {
                let count = this.content.len().min(buffer.remaining());
                let start = this.content.start;
                buffer.put_slice(&this.incoming[start..start + count]);
                this.content.start += count;
                return Poll::Ready(Ok(()));
            }
            if this.decode()? {
                continue;
            }
            if this.outgoing.len() > this.written
                && let Poll::Ready(result) = this.poll_drain(cx)
            {
                result?;
                let _ = Pin::new(&mut this.stream).poll_flush(cx)?;
            }
            if this.decoder.is_closed() {
                return Poll::Ready(Ok(()));
            }
            // An incomplete header stays in front of the next bytes.
            this.incoming.drain(..this.decoded);
            this.decoded = 0;
            this.content = 0..0;
            let kept = this.incoming.len();
            this.incoming.resize(kept + FRAME_BYTES, 0);
            let mut room = ReadBuf::new(&mut this.incoming[kept..]);
            let result = Pin::new(&mut this.stream).poll_read(cx, &mut room);
            let count = room.filled().len();
            this.incoming.truncate(kept + count);
            ready!(result)?;
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: Carrier> AsyncWrite for WebSocketStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    /// Makes one frame of the slices.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let len = total.min(FRAME_BYTES);
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        let mask = this.masks.as_mut().map(MaskKeys::next_key);
        ws::encode_header(Opcode::Binary, len, mask, &mut this.outgoing);
        let start = this.outgoing.len();
        for slice in slices {
            let missing = start + len - this.outgoing.len();
            let part = &slice[..slice.len().min(missing)];
            this.outgoing.extend_from_slice(part);
        }
        if let Some(key) = mask {
            ws::apply_mask(&mut this.outgoing[start..], key);
        }
        // The frame is accepted; what the stream does not take now is written by the next call or `flush`.
        if let Poll::Ready(Err(error)) = this.poll_drain(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.queue_close();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}
