//! Carriers over QUIC: one bidirectional stream per connection.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint, RecvStream, SendStream, TransportConfig, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;

use crate::{ALPN, BoxedCarrier};

/// Bytes that one end has sent and the other one has not read. It limits the rate to the window per round trip.
const WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// How much later than the previous address of a host an address is tried.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The link has an idle timeout of its own, which is shorter.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let window = VarInt::from_u32(WINDOW_BYTES);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(WINDOW_BYTES.into())
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(IDLE_TIMEOUT.try_into().ok());
    Arc::new(transport)
}

/// The configuration of a client that offers only this protocol.
fn client_config(tls: &rustls::ClientConfig, alpn: &[u8]) -> io::Result<quinn::ClientConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let tls = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(transport());
    Ok(config)
}

/// The configuration of a server that accepts only the protocol of links.
pub(crate) fn server_config(tls: &rustls::ServerConfig) -> io::Result<quinn::ServerConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(transport());
    Ok(config)
}

/// The local address of sockets that reach servers with addresses of the same family as `server`.
pub(crate) fn unspecified_address(server: SocketAddr) -> IpAddr {
    match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Where a QUIC stream leads.
#[derive(Debug, Clone, Copy)]
pub struct QuicTarget<'a> {
    pub host: &'a str,
    pub port: u16,
    /// The name that the certificate of the server contains.
    pub server_name: &'a str,
    /// The ALPN protocol, which replaces those of the TLS configuration.
    pub alpn: &'a [u8],
}

/// Opens a connection over QUIC with one bidirectional stream. The caller limits the time.
///
/// # Errors
/// If no address of the host answers, or the TLS configuration cannot be used.
pub async fn open_quic_stream(
    target: QuicTarget<'_>,
    tls: &rustls::ClientConfig,
) -> io::Result<BoxedCarrier> {
    let endpoint = |server| Endpoint::client(SocketAddr::new(unspecified_address(server), 0));
    open(target, tls, endpoint).await
}

/// Tries the addresses of a host, each a little later than the one before, and takes the first that answers. Nothing
/// tells that no server is at an address. `endpoint` returns the socket for an address.
pub(crate) async fn open(
    target: QuicTarget<'_>,
    tls: &rustls::ClientConfig,
    endpoint: impl Fn(SocketAddr) -> io::Result<Endpoint>,
) -> io::Result<BoxedCarrier> {
    let QuicTarget { host, port, .. } = target;
    let config = client_config(tls, target.alpn)?;
    let mut result = Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("{host} has no address"),
    ));
    let mut attempts = JoinSet::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        let endpoint = match endpoint(address) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                result = Err(error);
                continue;
            }
        };
        let (config, name) = (config.clone(), target.server_name.to_owned());
        let delay = ATTEMPT_DELAY * attempts.len() as u32;
        attempts.spawn(async move {
            tokio::time::sleep(delay).await;
            connect(&endpoint, config, address, &name).await
        });
    }
    while let Some(attempt) = attempts.join_next().await {
        result = attempt.map_err(io::Error::other).flatten();
        if result.is_ok() {
            break;
        }
    }
    Ok(Box::new(result?))
}

/// Opens a carrier to `server`, whose certificate contains `name`.
async fn connect(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    server: SocketAddr,
    name: &str,
) -> io::Result<QuicCarrier> {
    let connecting = endpoint
        .connect_with(config, server, name)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let connection = connecting.await?;
    let (send, receive) = connection.open_bi().await?;
    Ok(QuicCarrier::new(connection, send, receive))
}

/// Completes the handshake of an accepted connection.
pub(crate) async fn accept(
    incoming: quinn::Incoming,
) -> io::Result<(QuicCarrier, Option<CertificateDer<'static>>)> {
    let connection = incoming.accept()?.await?;
    let certificate = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .and_then(|chain| chain.into_iter().next());
    let (send, receive) = connection.accept_bi().await?;
    Ok((QuicCarrier::new(connection, send, receive), certificate))
}

type DeliveryFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// The stream of a QUIC connection, which ends with it.
pub(crate) struct QuicCarrier {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
    /// Set by `shutdown`: until everything has been delivered, the end of the connection would discard it.
    delivered: Option<DeliveryFuture>,
}

impl QuicCarrier {
    fn new(connection: Connection, send: SendStream, receive: RecvStream) -> Self {
        Self {
            connection,
            send,
            receive,
            delivered: None,
        }
    }
}

impl Drop for QuicCarrier {
    fn drop(&mut self) {
        self.connection.close(VarInt::from_u32(0), b"");
    }
}

impl AsyncRead for QuicCarrier {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receive), cx, buffer)
    }
}

impl AsyncWrite for QuicCarrier {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let delivered = match &mut self.delivered {
            Some(delivered) => delivered,
            None => {
                // It fails if the stream has ended already.
                let _ = self.send.finish();
                let stopped = self.send.stopped();
                self.delivered.insert(Box::pin(async move {
                    stopped.await.map(|_| ()).map_err(io::Error::other)
                }))
            }
        };
        let result = ready!(delivered.as_mut().poll(cx));
        Poll::Ready(result)
    }
}
