//! Listening sockets: one per shard where the system distributes connections over them, otherwise one whose connections
//! go to the shards in turn.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::tls::ListenerTls;
use crate::config::{BindAddress, ListenerConfig};
use crate::info::ListenerInfo;
use hooks::relay::RELAY_SUBPROTOCOL;

/// Datagrams that may wait in the system, for all connections of a QUIC listener.
const UDP_BUFFER_BYTES: usize = 4 << 20;

/// State shared by the sockets of one listener.
pub(crate) struct ListenerContext {
    pub(crate) index: u16,
    pub(crate) config: ListenerConfig,
    pub(crate) tls: Option<Arc<ListenerTls>>,
    pub(crate) websocket: Option<Arc<ws::ServerOptions>>,
    rate: Mutex<AcceptRate>,
}

struct AcceptRate {
    tokens: f64,
    refilled: Instant,
}

/// One listening socket.
pub(crate) struct ListenerSocket {
    pub(crate) context: Arc<ListenerContext>,
    pub(crate) socket: Socket,
}

impl ListenerContext {
    pub(crate) fn new(index: u16, config: &ListenerConfig, tls: Option<Arc<ListenerTls>>) -> Self {
        let websocket = config.websocket_path.as_ref().map(|path| {
            Arc::new(ws::ServerOptions {
                prefix: config.relay_path.as_ref().map(|prefix| ws::PrefixPath {
                    prefix: prefix.clone(),
                    subprotocols: vec![RELAY_SUBPROTOCOL.into()],
                }),
                allowed_origins: config.allowed_origins.clone(),
                compression: config.compression,
                ..ws::ServerOptions::mqtt(path.clone())
            })
        });
        Self {
            index,
            config: config.clone(),
            tls,
            websocket,
            rate: Mutex::new(AcceptRate {
                tokens: f64::from(config.max_new_connections_per_s),
                refilled: Instant::now(),
            }),
        }
    }

    /// How long the next connection has to wait, if the rate is used up.
    pub(super) fn rate_delay(&self) -> Option<Duration> {
        let per_s = f64::from(self.config.max_new_connections_per_s);
        if per_s == 0.0 {
            return None;
        }
        let mut rate = self.lock_rate();
        let now = Instant::now();
        let elapsed = now.duration_since(rate.refilled).as_secs_f64();
        rate.refilled = now;
        rate.tokens = (rate.tokens + elapsed * per_s).min(per_s);
        (rate.tokens < 1.0).then(|| Duration::from_secs_f64((1.0 - rate.tokens) / per_s))
    }

    /// Counts an accepted connection.
    pub(super) fn count_accepted(&self) {
        if self.config.max_new_connections_per_s > 0 {
            self.lock_rate().tokens -= 1.0;
        }
    }

    fn lock_rate(&self) -> std::sync::MutexGuard<'_, AcceptRate> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the sockets of one listener for `shards` shards. With port 0 all get the port that the first one was assigned.
pub(crate) fn open_sockets(config: &ListenerConfig, shards: usize) -> io::Result<Vec<Socket>> {
    match &config.bind {
        BindAddress::Unix(path) => Ok(vec![open_unix(path, config.backlog)?]),
        BindAddress::Tcp(address) => {
            // Detects another process on the address, which sockets that share a port would not.
            let probe = tcp_socket(*address, false)?;
            drop(probe);
            let first = tcp_socket(*address, true)?;
            let address = first.local_addr()?.as_socket().unwrap_or(*address);
            let mut sockets = vec![first];
            for _ in 1..shards {
                sockets.push(tcp_socket(address, true)?);
            }
            for socket in &sockets {
                socket.listen(config.backlog.min(i32::MAX as u32) as i32)?;
            }
            Ok(sockets)
        }
    }
}

/// Opens the UDP socket of a QUIC listener.
pub(crate) fn open_udp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // IPv4 has its own listeners, so that exactly the configured addresses are open.
        socket.set_only_v6(true)?;
    }
    // The system may grant less.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(UDP_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket)
}

fn tcp_socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        // IPv4 has its own listeners, so that exactly the configured addresses are open.
        socket.set_only_v6(true)?;
    }
    // Accepted connections inherit the option, which saves a system call for each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Rejects a listener without sockets whose clients would expect more than plain MQTT.
pub(crate) fn check_in_memory(config: &ListenerConfig) -> io::Result<()> {
    let is_plain = config.tls.is_none()
        && config.websocket_path.is_none()
        && !(config.quic || config.link || config.proxy_protocol);
    match is_plain {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "connections in memory are without TLS, WebSocket, QUIC, links and PROXY protocol; leave these out",
        )),
    }
}

/// Opens a non-blocking Unix socket. A socket file left by a killed process is replaced. A socket with a listener is an
/// error, and so is a file that is not a socket.
pub fn open_unix(path: &std::path::Path, backlog: u32) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            let why = "the path exists and is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        // A socket that nobody listens on was left by a process that was killed.
        let other = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        match other.connect(&address) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address)?;
    disk::apply_original_umask(path)?;
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    Ok(socket)
}

/// The configured address as text.
pub(crate) fn listener_address(listener: &ListenerConfig) -> String {
    if listener.in_memory {
        return "memory".to_owned();
    }
    match &listener.bind {
        BindAddress::Tcp(address) => address.to_string(),
        BindAddress::Unix(path) => path.display().to_string(),
    }
}

/// Describes a listener that has just opened this socket; `None`: it needs none.
pub(crate) fn listener_info(listener: &ListenerConfig, socket: Option<&Socket>) -> ListenerInfo {
    let protocol = match (&listener.bind, &listener.tls, &listener.websocket_path) {
        _ if listener.in_memory => "memory",
        _ if listener.quic => "quic",
        (_, None, _) if listener.link => "link",
        (_, Some(_), _) if listener.link => "links",
        (BindAddress::Unix(_), _, None) => "unix",
        (_, None, None) => "mqtt",
        (_, Some(_), None) => "mqtts",
        (_, None, Some(_)) => "ws",
        (_, Some(_), Some(_)) => "wss",
    };
    let bound = socket.and_then(|socket| socket.local_addr().ok());
    let bound = bound.and_then(|address| address.as_socket());
    ListenerInfo {
        name: listener.name.clone(),
        protocol,
        address: bound.map_or_else(|| listener_address(listener), |address| address.to_string()),
        running: true,
        connections: 0,
        max_connections: listener.max_connections,
        allows_anonymous: listener.allows_anonymous(),
        certificate: None,
    }
}
