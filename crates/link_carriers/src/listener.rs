//! Accepts carriers.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use link::net::Carrier;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use crate::address::{CarrierAddress, Transport};
use crate::tcp::configure_tcp;
use crate::websocket::{WebSocketStream, server_options};
use crate::{ALPN, BoxedCarrier, quic};

/// Limit of the handshakes of TLS, WebSocket and QUIC together.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts carriers at one address.
#[derive(Debug)]
pub struct CarrierListener {
    socket: ListeningSocket,
    /// The configuration of new carriers over TLS.
    tls: RwLock<Option<Arc<ServerConfig>>>,
    websocket: Option<Arc<ws::ServerOptions>>,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
    Quic(quinn::Endpoint),
}

/// An accepted connection whose handshakes have not begun.
#[derive(Debug)]
pub struct PendingCarrier {
    connection: PendingConnection,
    tls: Option<Arc<ServerConfig>>,
    websocket: Option<Arc<ws::ServerOptions>>,
}

#[derive(Debug)]
enum PendingConnection {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
    Quic(Box<quinn::Incoming>),
}

/// An accepted carrier.
pub struct AcceptedCarrier {
    pub carrier: BoxedCarrier,
    /// `None`: a Unix socket.
    pub peer: Option<SocketAddr>,
    /// The verified certificate of the peer, if it has shown one.
    pub certificate: Option<CertificateDer<'static>>,
}

impl CarrierListener {
    /// Listens at an address; a host name is that of a local address. `tls` is needed if the transport
    /// [is encrypted](Transport::is_encrypted); its ALPN protocols are replaced. It must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the address is in use or not local, or the TLS configuration is missing or cannot be used.
    pub async fn bind(
        address: &CarrierAddress,
        tls: Option<&Arc<ServerConfig>>,
    ) -> io::Result<Self> {
        let (transport, host, port) = match address {
            CarrierAddress::Unix(path) => return Ok(Self::from_unix(UnixListener::bind(path)?)),
            CarrierAddress::Network {
                transport,
                host,
                port,
            } => (transport, host.as_str(), *port),
        };
        let tls = match tls {
            None if transport.is_encrypted() => {
                let text = format!("{address} needs a TLS configuration");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            tls => tls.filter(|_| transport.is_encrypted()),
        };
        let socket = match (transport, tls) {
            (Transport::Quic, Some(tls)) => {
                let config = quic::server_config(tls)?;
                let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
                for address in tokio::net::lookup_host((host, port)).await? {
                    result = quinn::Endpoint::server(config.clone(), address);
                    if result.is_ok() {
                        break;
                    }
                }
                ListeningSocket::Quic(result?)
            }
            _ => ListeningSocket::Tcp(TcpListener::bind((host, port)).await?),
        };
        let listener = Self {
            socket,
            tls: RwLock::default(),
            websocket: match transport {
                Transport::WebSocket { path, .. } => Some(server_options(path)),
                _ => None,
            },
        };
        if let Some(tls) = tls {
            listener.set_tls(tls)?;
        }
        Ok(listener)
    }

    /// Accepts carriers at a Unix socket that has been opened elsewhere.
    pub fn from_unix(socket: UnixListener) -> Self {
        Self {
            socket: ListeningSocket::Unix(socket),
            tls: RwLock::default(),
            websocket: None,
        }
    }

    /// Accepts carriers at a TCP socket that has been opened elsewhere.
    pub fn from_tcp(socket: TcpListener) -> Self {
        Self {
            socket: ListeningSocket::Tcp(socket),
            tls: RwLock::default(),
            websocket: None,
        }
    }

    /// Replaces the TLS configuration for new carriers.
    pub fn set_tls(&self, tls: &Arc<ServerConfig>) -> io::Result<()> {
        if let ListeningSocket::Quic(endpoint) = &self.socket {
            endpoint.set_server_config(Some(quic::server_config(tls)?));
            return Ok(());
        }
        let mut config = ServerConfig::clone(tls);
        config.alpn_protocols = match &self.websocket {
            Some(_) => vec![b"http/1.1".to_vec()],
            None => vec![ALPN.to_vec()],
        };
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
        Ok(())
    }

    /// The address that the system has assigned; `None`: a Unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListeningSocket::Tcp(socket) => socket.local_addr().ok(),
            ListeningSocket::Unix(_) => None,
            ListeningSocket::Quic(endpoint) => endpoint.local_addr().ok(),
        }
    }

    /// The next connection. Its handshakes happen in [`PendingCarrier::complete`], so that no peer delays others.
    ///
    /// # Errors
    /// If the system cannot accept connections, for example because too many files are open. Try again later.
    pub async fn accept(&self) -> io::Result<PendingCarrier> {
        let connection = match &self.socket {
            ListeningSocket::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                PendingConnection::Tcp(stream, peer)
            }
            ListeningSocket::Unix(socket) => PendingConnection::Unix(socket.accept().await?.0),
            ListeningSocket::Quic(endpoint) => {
                let incoming = endpoint.accept().await;
                let closed = || io::Error::new(io::ErrorKind::NotConnected, "QUIC is closed");
                PendingConnection::Quic(Box::new(incoming.ok_or_else(closed)?))
            }
        };
        Ok(PendingCarrier {
            connection,
            tls: self
                .tls
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            websocket: self.websocket.clone(),
        })
    }
}

impl PendingCarrier {
    /// The address of the peer; `None`: a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        match &self.connection {
            PendingConnection::Tcp(_, peer) => Some(*peer),
            PendingConnection::Unix(_) => None,
            PendingConnection::Quic(incoming) => Some(incoming.remote_address()),
        }
    }

    /// Completes the handshakes below the link.
    ///
    /// # Errors
    /// If a handshake fails or takes more than 10 seconds.
    pub async fn complete(self) -> io::Result<AcceptedCarrier> {
        let late = |_| {
            let text = "the handshake took longer than 10 seconds";
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        tokio::time::timeout(HANDSHAKE_TIMEOUT, self.perform_handshakes())
            .await
            .map_err(late)?
    }

    async fn perform_handshakes(self) -> io::Result<AcceptedCarrier> {
        let peer = self.peer();
        let accepted = |carrier: BoxedCarrier, certificate| AcceptedCarrier {
            carrier,
            peer,
            certificate,
        };
        match self.connection {
            PendingConnection::Unix(stream) => Ok(accepted(Box::new(stream), None)),
            PendingConnection::Quic(incoming) => {
                let (carrier, certificate) = quic::accept(*incoming).await?;
                Ok(accepted(Box::new(carrier), certificate))
            }
            PendingConnection::Tcp(stream, _) => {
                configure_tcp(&stream)?;
                let Some(tls) = self.tls else {
                    return Ok(accepted(upgrade(stream, self.websocket).await?, None));
                };
                let stream = TlsAcceptor::from(tls).accept(stream).await?;
                let chain = stream.get_ref().1.peer_certificates();
                let certificate = chain.and_then(|chain| chain.first());
                let certificate = certificate.map(|certificate| certificate.clone().into_owned());
                Ok(accepted(
                    upgrade(stream, self.websocket).await?,
                    certificate,
                ))
            }
        }
    }
}

/// Adds WebSocket if the listener has a path for it.
async fn upgrade(
    stream: impl Carrier,
    websocket: Option<Arc<ws::ServerOptions>>,
) -> io::Result<BoxedCarrier> {
    Ok(match websocket {
        None => Box::new(stream),
        Some(options) => Box::new(WebSocketStream::accept(stream, &options).await?),
    })
}
