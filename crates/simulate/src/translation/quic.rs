//! MQTT over QUIC: the bytes of a connection are one bidirectional stream.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use load_client::endpoint::SourceAddresses;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, TransportConfig, VarInt};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::server_target::{source_addresses, tls};
use crate::definition::TargetDefinition;

const ALPN: &[u8] = b"mqtt";
const READ_BYTES: usize = 4 * 1024;
/// Devices have little memory.
const WINDOW_BYTES: u32 = 256 * 1024;
/// Idle devices keep their connections: QUIC ends those without packets, and NAT forgets them.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time for the last bytes of a device that leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A broker, and the UDP sockets of all connections to it.
#[derive(Debug)]
pub(crate) struct QuicTarget {
    /// By their local addresses. Connections from one address use one socket.
    endpoints: Mutex<HashMap<IpAddr, Endpoint>>,
    /// Those of the file.
    sources: SourceAddresses,
    config: ClientConfig,
    address: SocketAddr,
    server_name: String,
}

impl QuicTarget {
    pub(super) fn new(
        address: SocketAddr,
        host: String,
        target: &TargetDefinition,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let (tls, _) = tls(&host, target, folder)?;
        let mut tls = rustls::ClientConfig::clone(&tls);
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let crypto = QuicClientConfig::try_from(tls).context("QUIC requires TLS 1.3")?;
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
            .receive_window(VarInt::from_u32(WINDOW_BYTES))
            .send_window(WINDOW_BYTES.into())
            .datagram_receive_buffer_size(None)
            .keep_alive_interval(Some(KEEP_ALIVE));
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        Ok(Self {
            endpoints: Mutex::default(),
            sources: source_addresses(target)?,
            config,
            address,
            server_name: target.server_name.clone().unwrap_or(host),
        })
    }

    /// Where connections come from; empty: the system chooses.
    pub(super) fn sources(&self) -> &SourceAddresses {
        &self.sources
    }

    /// The socket of connections from `source`.
    fn endpoint(&self, source: Option<IpAddr>) -> io::Result<Endpoint> {
        let local = source.unwrap_or(match self.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        let endpoints = self.endpoints.lock();
        let mut endpoints = endpoints.unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoints.get(&local) {
            return Ok(endpoint.clone());
        }
        let endpoint = Endpoint::client(SocketAddr::new(local, 0))?;
        endpoints.insert(local, endpoint.clone());
        Ok(endpoint)
    }

    /// Connects from `source`, and passes bytes in both directions until one end closes.
    pub(super) async fn carry(
        &self,
        pipe: &mut DuplexStream,
        source: Option<IpAddr>,
        timeout: Duration,
    ) -> Result<(), String> {
        let endpoint = self.endpoint(source);
        let endpoint = endpoint.map_err(|error| format!("cannot open a UDP socket: {error}"))?;
        let connecting = endpoint
            .connect_with(self.config.clone(), self.address, &self.server_name)
            .map_err(|error| error.to_string())?;
        let connected = async {
            let connection = connecting.await?;
            let streams = connection.open_bi().await?;
            Ok::<_, quinn::ConnectionError>((connection, streams))
        };
        let connected = tokio::time::timeout(timeout, connected).await;
        let connected = connected.map_err(|_| "timed out".to_owned())?;
        let (connection, (mut send, mut receive)) = connected.map_err(|error| error.to_string())?;
        let connection = ClosedOnDrop(connection);
        let (mut reader, mut writer) = tokio::io::split(pipe);
        let outgoing = async {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                match reader.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(len) => {
                        let written = send.write_all(&buffer[..len]).await;
                        written.map_err(|error| error.to_string())?;
                    }
                }
            }
            // DISCONNECT of the device arrives before the connection ends.
            if send.finish().is_ok() {
                let _ = tokio::time::timeout(LEAVE_TIMEOUT, send.stopped()).await;
            }
            Ok(())
        };
        let incoming = async {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                let read = receive.read(&mut buffer).await;
                match read.map_err(|error| error.to_string())? {
                    Some(len) if writer.write_all(&buffer[..len]).await.is_ok() => {}
                    _ => return Ok(()),
                }
            }
        };
        let ended = tokio::select! {
            ended = outgoing => ended,
            ended = incoming => ended,
        };
        drop(connection);
        ended
    }
}

struct ClosedOnDrop(Connection);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.close(VarInt::from_u32(0), b"");
    }
}
