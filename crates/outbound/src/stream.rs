//! TCP connections, optionally with TLS, for protocols that are implemented in this workspace.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::target_policy;

/// Time-out for TCP, and again for TLS; a sink's own write time-out may be shorter.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a server was not reached; names the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StreamError(String);

/// A plain or TLS connection.
pub enum OutboundStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to a server.
pub async fn connect(host: &str, port: u16) -> Result<TcpStream, StreamError> {
    let connecting = target_policy::connect(host, port);
    let stream = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(StreamError(error.to_string())),
        Err(_) => {
            let s = CONNECT_TIMEOUT.as_secs();
            let what = format!("{host}:{port} does not answer within {s} seconds");
            return Err(StreamError(what));
        }
    };
    // Fails on a connection that is already closed, which the next read reports.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Adds TLS to a connection; `host` is the name that the certificate must contain.
pub async fn wrap_tls(
    stream: TcpStream,
    host: &str,
    config: &Arc<ClientConfig>,
) -> Result<OutboundStream, StreamError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| StreamError(format!("{host:?} is not a valid name for a certificate")))?;
    let shaking_hands = TlsConnector::from(config.clone()).connect(name, stream);
    match tokio::time::timeout(CONNECT_TIMEOUT, shaking_hands).await {
        Ok(Ok(stream)) => Ok(OutboundStream::Tls(Box::new(stream))),
        Ok(Err(error)) => Err(StreamError(format!("TLS with {host}: {error}"))),
        Err(_) => {
            let s = CONNECT_TIMEOUT.as_secs();
            let what = format!("no TLS handshake with {host} within {s} seconds");
            Err(StreamError(what))
        }
    }
}

impl AsyncRead for OutboundStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for OutboundStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
