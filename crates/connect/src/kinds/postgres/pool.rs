//! Connections to PostgreSQL: a batch has one for itself, and closes it if it did not come to an end.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::tls::ChannelBinding;
use tokio_postgres::{Client, Config, NoTls, config::SslMode};

use super::Prepared;
use crate::connector::Failure;

/// A connection whose server does not acknowledge bytes for so long is given up.
const SILENT_FOR: Duration = Duration::from_secs(10);
/// Sinks whose statements a connection keeps prepared; one more and it starts anew.
const PREPARED: usize = 256;

pub(super) struct Pool {
    config: Config,
    host: String,
    port: u16,
    tls: Option<tokio_rustls::TlsConnector>,
    within: Duration,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
}

/// A connection that is used by one batch. Dropping it closes it.
pub(super) struct Connection {
    pub(super) client: Client,
    /// By the writer's key.
    pub(super) prepared: HashMap<u64, Prepared>,
    driver: Driver,
    _place: OwnedSemaphorePermit,
}

type Idle = (Client, HashMap<u64, Prepared>, Driver);

/// Moves a connection's bytes until it ends or is dropped.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pool {
    pub(super) fn new(
        mut config: Config,
        host: String,
        port: u16,
        tls: Option<Arc<ClientConfig>>,
        size: usize,
        within: Duration,
    ) -> Self {
        config.ssl_mode(match tls {
            Some(_) => SslMode::Require,
            None => SslMode::Disable,
        });
        Self {
            config,
            host,
            port,
            tls: tls.map(Into::into),
            within,
            places: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
        }
    }

    pub(super) async fn take(&self) -> Result<Connection, Failure> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(Failure::passing)?;
        loop {
            let idle = self
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            let Some((client, prepared, driver)) = idle else {
                break;
            };
            if !client.is_closed() {
                return Ok(Connection {
                    client,
                    prepared,
                    driver,
                    _place: place,
                });
            }
        }
        match tokio::time::timeout(self.within, self.connect()).await {
            Ok(Ok((client, driver))) => Ok(Connection {
                client,
                prepared: HashMap::new(),
                driver,
                _place: place,
            }),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                let ms = self.within.as_millis();
                Err(Failure::passing(format!("no connection within {ms} ms")))
            }
        }
    }

    pub(super) fn give_back(&self, connection: Connection) {
        let Connection {
            client,
            prepared,
            driver,
            _place,
        } = connection;
        if client.is_closed() || prepared.len() > PREPARED {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((client, prepared, driver));
    }

    async fn connect(&self) -> Result<(Client, Driver), Failure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(Failure::passing)?;
        prepare(&stream).map_err(Failure::passing)?;
        match &self.tls {
            None => {
                let connected = self.config.connect_raw(stream, NoTls).await;
                let (client, connection) = connected.map_err(super::failure)?;
                Ok((client, drive(connection)))
            }
            Some(connector) => {
                let connect = TlsConnect {
                    host: self.host.clone(),
                    connector: connector.clone(),
                };
                let connected = self.config.connect_raw(stream, connect).await;
                let (client, connection) = connected.map_err(super::failure)?;
                Ok((client, drive(connection)))
            }
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(SILENT_FOR))?;
    socket.set_tcp_user_timeout(Some(SILENT_FOR))
}

fn drive<S, T>(connection: tokio_postgres::Connection<S, T>) -> Driver
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Driver(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to PostgreSQL ended");
        }
    }))
}

/// TLS by rustls, as everywhere.
struct TlsConnect {
    host: String,
    connector: tokio_rustls::TlsConnector,
}

impl tokio_postgres::tls::TlsConnect<TcpStream> for TlsConnect {
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
    /// Passwords are not bound to the channel; the certificate says who the server is.
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
