//! Pairs of sockets between a shard and a part of the program that serves a connection for it.

use std::io;

use tokio::net::UnixStream;

use super::byte_stream::ByteStream;

/// Returns both ends: the own one, and that of the shard. It must be called within a tokio runtime.
///
/// # Errors
/// If too many files are open.
pub(super) fn open_socket_pair() -> io::Result<(UnixStream, ByteStream)> {
    let (own, of_shard) = std::os::unix::net::UnixStream::pair()?;
    own.set_nonblocking(true)?;
    of_shard.set_nonblocking(true)?;
    let of_shard = ByteStream::Socket(of_shard.into());
    Ok((UnixStream::from_std(own)?, of_shard))
}
