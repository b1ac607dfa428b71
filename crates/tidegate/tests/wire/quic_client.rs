//! A QUIC client whose streams are read and written like sockets.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, VarInt};
use rustls::ClientConfig;
use tokio::runtime::Runtime;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::support::{DEADLINE, Stream};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap()
});

fn wait<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Elapsed> {
    RUNTIME.block_on(async { timeout(limit, future).await })
}

/// A connection with a UDP socket of its own.
pub(crate) struct QuicClient {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
}

impl QuicClient {
    /// Connects as a client of MQTT.
    pub(crate) fn connect(address: &str, tls: &Arc<ClientConfig>) -> QuicClient {
        Self::try_connect(address, tls, &[b"mqtt"])
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"))
    }

    /// Connects and offers these protocols.
    pub(crate) fn try_connect(
        address: &str,
        tls: &Arc<ClientConfig>,
        alpn: &[&[u8]],
    ) -> Result<QuicClient, ConnectionError> {
        let (endpoint, connecting) = start_connecting(address, tls, alpn);
        let connection = wait(DEADLINE, connecting);
        let connection = connection.unwrap_or(Err(ConnectionError::TimedOut))?;
        Ok(QuicClient {
            endpoint,
            connection,
        })
    }

    /// Opens a stream, of which the server learns with the first bytes.
    pub(crate) fn open(&self) -> QuicStream {
        let opened = self.try_open(DEADLINE);
        opened.expect("the server permits no further stream")
    }

    /// As [`QuicClient::open`]; `None` if the server permits no further stream within this time.
    pub(crate) fn try_open(&self, limit: Duration) -> Option<QuicStream> {
        let (send, receive) = wait(limit, self.connection.open_bi()).ok()?.unwrap();
        Some(QuicStream {
            send,
            receive,
            timeout: DEADLINE,
        })
    }

    /// Goes on from another socket at this IP address, as after a change of the network.
    pub(crate) fn move_to(&self, ip: &str) -> SocketAddr {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let _entered = RUNTIME.enter();
        self.endpoint.rebind(socket).unwrap();
        address
    }

    /// Why the server closed the connection.
    pub(crate) fn closed(&self) -> ConnectionError {
        let closed = wait(2 * DEADLINE, self.connection.closed());
        closed.expect("the server does not close the connection")
    }
}

/// Sends the first datagrams; the handshake goes on in the background.
pub(crate) fn start_connecting(
    address: &str,
    tls: &Arc<ClientConfig>,
    alpn: &[&[u8]],
) -> (Endpoint, quinn::Connecting) {
    let mut tls = ClientConfig::clone(tls);
    tls.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let tls = QuicClientConfig::try_from(tls).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(tls));
    let _entered = RUNTIME.enter();
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = address.parse().unwrap();
    let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
    (endpoint, connecting)
}

/// One bidirectional stream.
pub(crate) struct QuicStream {
    send: SendStream,
    receive: RecvStream,
    timeout: Duration,
}

impl QuicStream {
    /// Ends the own direction without closing the other one.
    pub(crate) fn finish(&mut self) {
        self.send.finish().unwrap();
    }
}

impl Read for QuicStream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = wait(self.timeout, self.receive.read(buffer));
        match read {
            Ok(Ok(count)) => Ok(count.unwrap_or(0)),
            Ok(Err(error)) => Err(Error::new(ErrorKind::ConnectionReset, error)),
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }
}

impl Write for QuicStream {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let written = wait(self.timeout, self.send.write(buffer));
        match written {
            Ok(Ok(count)) => Ok(count),
            Ok(Err(error)) => Err(Error::new(ErrorKind::ConnectionReset, error)),
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stream for QuicStream {
    fn set_timeouts(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    fn shut(&mut self) {
        let _ = self.send.reset(VarInt::from_u32(0));
        let _ = self.receive.stop(VarInt::from_u32(0));
    }
}
