//! Opens carriers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::address::{CarrierAddress, Transport};
use crate::quic::QuicTarget;
use crate::tcp::configure_tcp;
use crate::websocket::WebSocketStream;
use crate::{ALPN, BoxedCarrier, quic, tcp};

/// Opens carriers to one address, as [`link::net::connect`] needs them.
#[derive(Debug)]
pub struct CarrierConnector {
    address: CarrierAddress,
    tls: Option<TlsTarget>,
    /// The sockets of QUIC connections by their local addresses.
    endpoints: Mutex<HashMap<IpAddr, quinn::Endpoint>>,
}

#[derive(Debug)]
struct TlsTarget {
    config: Arc<ClientConfig>,
    /// The name that the certificate must contain.
    name: String,
}

impl CarrierConnector {
    /// `tls` is needed if the transport [is encrypted](Transport::is_encrypted); its ALPN protocols are replaced.
    /// `server_name` is the name in the certificate, by default the host.
    ///
    /// # Errors
    /// If the address needs TLS and there is no configuration, or a name is not valid.
    pub fn new(
        address: CarrierAddress,
        tls: Option<&ClientConfig>,
        server_name: Option<String>,
    ) -> io::Result<Self> {
        let mut target = None;
        if let CarrierAddress::Network {
            transport, host, ..
        } = &address
            && transport.is_encrypted()
        {
            let Some(tls) = tls else {
                let text = format!("{address} needs a TLS configuration");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            };
            let name = server_name.unwrap_or_else(|| host.clone());
            server_name_of(&name)?;
            let mut config = tls.clone();
            config.alpn_protocols = match transport {
                Transport::WebSocket { .. } => vec![b"http/1.1".to_vec()],
                _ => vec![ALPN.to_vec()],
            };
            target = Some(TlsTarget {
                config: Arc::new(config),
                name,
            });
        }
        Ok(Self {
            address,
            tls: target,
            endpoints: Mutex::default(),
        })
    }

    pub fn address(&self) -> &CarrierAddress {
        &self.address
    }

    /// Opens a carrier. The caller limits the time.
    pub async fn open(&self) -> io::Result<BoxedCarrier> {
        self.open_from(None).await
    }

    /// Opens a carrier from a local address, which has no meaning for a Unix socket. The caller limits the time.
    ///
    /// # Errors
    /// Also if the host has no address of the same family as `source`.
    pub async fn open_from(&self, source: Option<IpAddr>) -> io::Result<BoxedCarrier> {
        let (transport, host, port) = match &self.address {
            CarrierAddress::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            CarrierAddress::Network {
                transport,
                host,
                port,
            } => (transport, host.as_str(), *port),
        };
        if *transport == Transport::Quic {
            return self.open_quic(host, port, source).await;
        }
        let stream = match source {
            None => TcpStream::connect((host, port)).await?,
            Some(source) => tcp::connect_from(source, host, port).await?,
        };
        configure_tcp(&stream)?;
        let stream: BoxedCarrier = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = server_name_of(&tls.name)?;
                let connector = TlsConnector::from(tls.config.clone());
                Box::new(connector.connect(name, stream).await?)
            }
        };
        let Transport::WebSocket { path, .. } = transport else {
            return Ok(stream);
        };
        let host = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        Ok(Box::new(
            WebSocketStream::connect(stream, &host, path).await?,
        ))
    }

    async fn open_quic(
        &self,
        host: &str,
        port: u16,
        source: Option<IpAddr>,
    ) -> io::Result<BoxedCarrier> {
        let Some(tls) = &self.tls else {
            return Err(io::Error::other("QUIC without TLS"));
        };
        let target = QuicTarget {
            host,
            port,
            server_name: &tls.name,
            alpn: ALPN,
        };
        let endpoint = |server: SocketAddr| match source {
            Some(source) if source.is_ipv4() != server.is_ipv4() => {
                Err(tcp::unreachable_from(source, host))
            }
            Some(source) => self.quic_endpoint(source),
            None => self.quic_endpoint(quic::unspecified_address(server)),
        };
        quic::open(target, &tls.config, endpoint).await
    }

    /// All connections from one address use one socket.
    fn quic_endpoint(&self, local: IpAddr) -> io::Result<quinn::Endpoint> {
        let mut endpoints = self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoints.get(&local) {
            return Ok(endpoint.clone());
        }
        let endpoint = quinn::Endpoint::client(SocketAddr::new(local, 0))?;
        endpoints.insert(local, endpoint.clone());
        Ok(endpoint)
    }
}

fn server_name_of(name: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        let text = format!("{name:?} is not a valid name of a certificate");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}
