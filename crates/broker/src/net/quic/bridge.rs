//! One QUIC connection: its handshake, and its connection to a shard.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hooks::{CertificateNames, PeerAddress};
use quinn::{Connection, Incoming, RecvStream, SendStream, ServerConfig, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::net::UnixStream;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use super::shared::QuicShared;
use super::streams::{ClientStreams, LINGER};
use crate::net::inbox::{AcceptedConnection, InboxItem};
use crate::net::reserved_connection::ReservedConnection;
use crate::net::socket_pair::open_socket_pair;
use crate::net::tls;

/// Why an accepted connection has not become a connection of MQTT.
pub(super) enum HandshakeError {
    Failed,
    TimedOut,
}

/// The application error code of a closed connection, as in EMQX.
const CLOSED: VarInt = VarInt::from_u32(0);

/// A connection whose client has opened its first stream.
pub(super) struct AcceptedClient {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
}

/// Completes the handshake and waits for the first stream, within the time for CONNECT.
pub(super) async fn accept(
    shared: &QuicShared,
    incoming: Incoming,
    config: Arc<ServerConfig>,
) -> Result<AcceptedClient, HandshakeError> {
    let limit = Duration::from_secs(shared.context.config.connect_timeout_s.into());
    let accepted = timeout(limit, async {
        let connection = incoming.accept_with(config)?.await?;
        let (send, receive) = connection.accept_bi().await?;
        Ok::<_, quinn::ConnectionError>(AcceptedClient {
            connection,
            send,
            receive,
        })
    });
    match accepted.await {
        Ok(Ok(accepted)) => Ok(accepted),
        Ok(Err(error)) => {
            tracing::debug!(listener = shared.context.config.name, %error, "QUIC handshake failed");
            Err(HandshakeError::Failed)
        }
        Err(_) => Err(HandshakeError::TimedOut),
    }
}

impl AcceptedClient {
    /// Passes the connection to a shard, and transfers bytes until it ends.
    pub(super) async fn serve(self, shared: Arc<QuicShared>, reserved: ReservedConnection) {
        match self.attach(&shared, reserved) {
            Ok(shard) => self.transfer(shared, shard).await,
            Err(error) => {
                tracing::warn!(%error, "cannot pass a QUIC connection to a shard; connection closed");
            }
        }
    }

    /// Gives the shard one end of a pair of sockets, and returns the other one.
    fn attach(&self, shared: &QuicShared, reserved: ReservedConnection) -> io::Result<UnixStream> {
        let (own, of_shard) = open_socket_pair()?;
        let local_ip = self.connection.local_ip();
        let local = local_ip.unwrap_or_else(|| shared.local.ip());
        let connection = self.connection.clone();
        shared
            .next_inbox()
            .push(InboxItem::Accepted(Box::new(AcceptedConnection {
                reserved,
                stream: of_shard,
                peer: PeerAddress::Tcp(self.connection.remote_address()),
                address_source: Some(Arc::new(move || connection.remote_address())),
                local: Some(SocketAddr::new(local, shared.local.port())),
                certificate: self.certificate(),
                is_tunnel_exit: false,
            })));
        Ok(own)
    }

    fn certificate(&self) -> Option<CertificateNames> {
        let identity = self.connection.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        tls::certificate_names(chain.first()?)
    }

    async fn transfer(self, shared: Arc<QuicShared>, shard: UnixStream) {
        let (from_shard, to_shard) = shard.into_split();
        // Both carry one entry per stream, and the number of open streams is limited.
        let (commands, to_execute) = unbounded_channel();
        let (stopped, to_close) = unbounded_channel();
        let streams = Arc::new(ClientStreams::new(shared, self.connection.clone()));
        let receive = streams
            .clone()
            .receive(self.receive, to_shard, commands, to_close);
        let send = streams.send(self.send, from_shard, to_execute, stopped);
        tokio::pin!(send);
        tokio::select! {
            // The shard reads the end of the stream, and may still answer what came before.
            () = receive => drop(timeout(LINGER, &mut send).await),
            () = &mut send => {}
        }
        // The client may still have to read what it has received, which the end of the connection would discard.
        let _ = timeout(LINGER, self.connection.closed()).await;
        self.connection.close(CLOSED, b"");
    }
}
