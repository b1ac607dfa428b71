//! Options of the TCP sockets of links.

use std::io;

#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::TcpStream;

/// Bytes that a socket takes beyond what it may transmit now: one chunk of a stream. Without the limit these are up to
/// 4 MiB, which an urgent message has to wait for. What the network transmits at a time is not limited.
#[cfg(target_os = "linux")]
const MAX_UNSENT_BYTES: u32 = 256 * 1024;

/// Prepares a connected socket for a link.
///
/// # Errors
/// If the system does not accept an option.
pub fn configure_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // On the same machine everything can be transmitted at once, and the limit would only divide it.
    #[cfg(target_os = "linux")]
    if !stream.peer_addr()?.ip().is_loopback() {
        SockRef::from(stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
    }
    Ok(())
}
