//! The stream below SMTP, and the STARTTLS exchange.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use lettre::transport::smtp::client::AsyncTokioStream;
use outbound::stream::OutboundStream;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

/// Limit on a multi-line answer.
const MAX_ANSWER_BYTES: usize = 16 << 10;
/// A server greets once, before STARTTLS, but the library expects a greeting at the beginning.
const GREETING: &[u8] = b"220 TLS\r\n";

/// A connection to a mail server.
pub(super) struct SmtpStream {
    /// Bytes to return before those of the server.
    before: &'static [u8],
    stream: OutboundStream,
}

impl SmtpStream {
    pub(super) fn new(stream: OutboundStream) -> Self {
        let before = b"";
        Self { before, stream }
    }

    /// Wraps a stream on which the server has already greeted.
    pub(super) fn after_greeting(stream: OutboundStream) -> Self {
        let before = GREETING;
        Self { before, stream }
    }
}

/// Runs SMTP on a new connection up to the point where TLS begins.
pub(super) async fn start_tls(mut stream: TcpStream, hello: &str) -> Result<TcpStream, String> {
    read_reply(&mut stream, "220").await?;
    send_line(&mut stream, &format!("EHLO {hello}\r\n")).await?;
    let offers = read_reply(&mut stream, "250").await?;
    let is_starttls = |line: &str| {
        let offer = line.get(4..).unwrap_or_default();
        offer.trim().eq_ignore_ascii_case("STARTTLS")
    };
    if !offers.lines().any(is_starttls) {
        return Err(
            "the server has no STARTTLS; see the setting `security` of the connector".into(),
        );
    }
    send_line(&mut stream, "STARTTLS\r\n").await?;
    read_reply(&mut stream, "220").await?;
    Ok(stream)
}

async fn send_line(stream: &mut TcpStream, line: &str) -> Result<(), String> {
    let written = stream.write_all(line.as_bytes()).await;
    written.map_err(|error| error.to_string())
}

/// Reads an answer with this code, byte by byte so that no data after the switch to TLS is consumed. Data injected
/// before it breaks the handshake.
async fn read_reply(stream: &mut TcpStream, code: &str) -> Result<String, String> {
    let (mut text, mut begin) = (Vec::new(), 0);
    loop {
        let byte = stream.read_u8().await.map_err(|error| error.to_string())?;
        text.push(byte);
        if text.len() > MAX_ANSWER_BYTES {
            return Err("the server's answer is too long".into());
        }
        if byte != b'\n' {
            continue;
        }
        let is_last = text.get(begin + 3) != Some(&b'-');
        begin = text.len();
        if is_last {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    match text.starts_with(code) {
        true => Ok(text),
        false => Err(format!("the server answered {:?}", text.trim())),
    }
}

impl std::fmt::Debug for SmtpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Line")
    }
}

impl AsyncTokioStream for SmtpStream {
    /// Not used.
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok((Ipv4Addr::UNSPECIFIED, 0).into())
    }
}

impl AsyncRead for SmtpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.before.is_empty() {
            let (now, later) = self
                .before
                .split_at(self.before.len().min(buffer.remaining()));
            buffer.put_slice(now);
            self.before = later;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for SmtpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
