//! Options of the TCP sockets of links.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};

/// Bytes that a socket takes beyond what it may transmit now: one chunk of a stream. Without the limit these are up to
/// 4 MiB, which an urgent message has to wait for. What the network transmits at a time is not limited.
#[cfg(target_os = "linux")]
const MAX_UNSENT_BYTES: u32 = 256 * 1024;

/// Send buffer of a connection within the machine, of which the system reserves twice as much. Its default of up to 4 MiB
/// does not fit into the cache of a processor. Both ends then copy from and to the main memory. That took a quarter
/// more processor time for messages of 50 kB over three connections, and with 5 MB messages half as much again.
const LOCAL_SEND_BUFFER_BYTES: usize = 160 * 1024;

/// Connects from a local address, whose port the system chooses. Tries the addresses of the host one after the other.
///
/// # Errors
/// If none of them can be reached from `source`.
pub(crate) async fn connect_from(source: IpAddr, host: &str, port: u16) -> io::Result<TcpStream> {
    let mut result = Err(unreachable_from(source, host));
    for server in tokio::net::lookup_host((host, port)).await? {
        let socket = match (server, source) {
            (SocketAddr::V4(_), IpAddr::V4(_)) => TcpSocket::new_v4()?,
            (SocketAddr::V6(_), IpAddr::V6(_)) => TcpSocket::new_v6()?,
            _ => continue,
        };
        socket.bind(SocketAddr::new(source, 0))?;
        result = socket.connect(server).await;
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The host has no address of the family of `source`.
pub(crate) fn unreachable_from(source: IpAddr, host: &str) -> io::Error {
    let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let text = format!("{host} has no {family} address, which the source address {source} needs");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Prepares a connected socket for a link.
///
/// # Errors
/// If the system does not accept an option.
pub fn configure_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if stream.peer_addr()?.ip().is_loopback() {
        return SockRef::from(stream).set_send_buffer_size(LOCAL_SEND_BUFFER_BYTES);
    }
    // On the same machine everything can be transmitted at once, and this limit would only divide it.
    #[cfg(target_os = "linux")]
    SockRef::from(stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_local_connection_has_a_small_send_buffer() -> io::Result<()> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let stream = TcpStream::connect(listener.local_addr()?).await?;
        configure_tcp(&stream)?;
        let size = SockRef::from(&stream).send_buffer_size()?;
        // Linux reports what it reserves.
        assert!(
            (LOCAL_SEND_BUFFER_BYTES..=2 * LOCAL_SEND_BUFFER_BYTES).contains(&size),
            "{size}"
        );
        Ok(())
    }
}
