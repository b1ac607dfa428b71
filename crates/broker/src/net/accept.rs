//! Accepts connections from the listening sockets of a shard, bounded in number and rate.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hooks::PeerAddress;
use socket2::{SockAddr, Socket};

use super::byte_stream::{ByteStream, register_socket};
use super::layers::TransportLayers;
use super::listener::{ListenerContext, ListenerSocket};
use super::reserved_connection::ReservedConnection;
use super::shard_io::ShardIo;
use crate::metrics::Metric;

/// Connections accepted at once before other tasks run.
const ACCEPT_BATCH: usize = 64;

/// Accepts connections until it is aborted.
pub(crate) async fn run_accept_loop(shard: Rc<ShardIo>, listener: ListenerSocket) {
    let ListenerSocket { context, socket } = listener;
    // The local address is read only once if it is the same for all connections.
    let local = socket.local_addr().ok().and_then(|it| it.as_socket());
    let local = local.filter(|address| !address.ip().is_unspecified());
    let socket = match register_socket(socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(listener = context.config.name, %error, "cannot listen");
            return;
        }
    };
    let last_warning = Cell::new(None);
    loop {
        let Ok(mut ready) = socket.readable().await else {
            return;
        };
        for _ in 0..ACCEPT_BATCH {
            if let Some(wait) = context.rate_delay() {
                tokio::time::sleep(wait).await;
                break;
            }
            match accept_one(socket.get_ref()) {
                Ok((accepted, address)) => {
                    context.count_accepted();
                    admit_connection(&shard, &context, accepted, &address, local);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    warn_rate_limited(&last_warning, &context, &error);
                    // Most likely the process has no free file descriptors; the only remedy is to wait until some are
                    // closed.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Accepts the next connection as a non-blocking socket; with a single system call where the platform supports it.
fn accept_one(listener: &Socket) -> io::Result<(Socket, SockAddr)> {
    #[cfg(target_os = "linux")]
    return listener.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    #[cfg(not(target_os = "linux"))]
    {
        let (accepted, address) = listener.accept()?;
        accepted.set_nonblocking(true)?;
        Ok((accepted, address))
    }
}

fn warn_rate_limited(last: &Cell<Option<Instant>>, context: &ListenerContext, error: &io::Error) {
    if last
        .get()
        .is_none_or(|at| at.elapsed() > Duration::from_secs(10))
    {
        last.set(Some(Instant::now()));
        tracing::warn!(
            listener = context.config.name,
            %error,
            "cannot accept connections; for the error \"too many open files\" raise the limit (ulimit -n)"
        );
    }
}

fn admit_connection(
    shard: &Rc<ShardIo>,
    context: &ListenerContext,
    socket: Socket,
    address: &SockAddr,
    local: Option<SocketAddr>,
) {
    let node = shard.core.borrow().node.clone();
    let Some(reserved) = ReservedConnection::reserve(&node, context) else {
        shard
            .core
            .borrow()
            .metrics()
            .inc(Metric::ConnectionsRejectedLimit);
        return;
    };
    let peer = address
        .as_socket()
        .map_or(PeerAddress::Unix, PeerAddress::Tcp);
    let tls = context.tls.as_ref().map(|tls| tls.server_config());
    match TransportLayers::new(
        context.config.proxy_protocol,
        tls,
        context.websocket.clone(),
    ) {
        Ok(layers) => {
            let own = || socket.local_addr().ok().and_then(|it| it.as_socket());
            let local = match peer {
                PeerAddress::Tcp(_) => local.or_else(own),
                PeerAddress::Unix | PeerAddress::Memory => None,
            };
            let stream = ByteStream::Socket(socket);
            shard.open_connection(reserved.keep(), stream, (peer, local), layers);
        }
        Err(error) => {
            tracing::warn!(%error, "cannot start TLS on a connection; connection closed");
        }
    }
}
