//! Connections to PostgreSQL with TLS by rustls. A server that disappears silently is detected.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::ChannelBinding;
use tokio_postgres::{Client, Config, Connection, NoTls};
use tokio_rustls::TlsConnector;

/// A connection is closed if the server does not acknowledge sent bytes within this time.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(10);

/// Address, credentials and TLS configuration of a server.
pub struct PostgresServer {
    config: Config,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("{}", error_message(.0))]
    Postgres(#[from] tokio_postgres::Error),
}

/// The error including the server's message, which the error's own text omits.
pub fn error_message(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

impl PostgresServer {
    /// `config` contains user, password and database.
    pub fn new(
        mut config: Config,
        host: String,
        port: u16,
        tls: Option<Arc<ClientConfig>>,
    ) -> Self {
        config.application_name("tidegate");
        config.ssl_mode(match tls {
            Some(_) => SslMode::Require,
            None => SslMode::Disable,
        });
        Self {
            config,
            host,
            port,
            tls: tls.map(Into::into),
        }
    }

    /// Connects. Returns the client and the task that drives the connection until it ends.
    pub async fn connect(&self) -> Result<(Client, JoinHandle<()>), PostgresError> {
        let stream = crate::target_policy::connect(&self.host, self.port).await?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(UNACKNOWLEDGED_TIMEOUT))?;
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT))?;
        match &self.tls {
            None => {
                let (client, connection) = self.config.connect_raw(stream, NoTls).await?;
                Ok((client, spawn_driver(connection)))
            }
            Some(connector) => {
                let secure = RustlsConnect {
                    host: self.host.clone(),
                    connector: connector.clone(),
                };
                let (client, connection) = self.config.connect_raw(stream, secure).await?;
                Ok((client, spawn_driver(connection)))
            }
        }
    }
}

fn spawn_driver<S, T>(connection: Connection<S, T>) -> JoinHandle<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "PostgreSQL connection closed");
        }
    })
}

/// Wraps a stream in TLS.
struct RustlsConnect {
    host: String,
    connector: TlsConnector,
}

impl tokio_postgres::tls::TlsConnect<TcpStream> for RustlsConnect {
    type Stream = TlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsStream>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(TlsStream(self.connector.connect(name, stream).await?))
        })
    }
}

struct TlsStream(tokio_rustls::client::TlsStream<TcpStream>);

impl tokio_postgres::tls::TlsStream for TlsStream {
    /// No channel binding; the certificate authenticates the server.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
