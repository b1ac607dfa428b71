//! Plain TCP: the most that a link could reach. The same messages are written in pieces of the same size.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::peers::{BURST_BYTES, NumberedMessages, ReceiverTotals};

/// Largest write and read.
const PIECE_BYTES: usize = 256 * 1024;

/// Writes messages of one size for some time. Small messages are written together, as links do.
pub(super) async fn send(
    mut stream: TcpStream,
    messages: &mut NumberedMessages,
    duration: Duration,
) -> std::io::Result<()> {
    let start = Instant::now();
    let first = messages.next();
    let burst = first.repeat((BURST_BYTES / first.len().max(1)).max(1));
    let is_small = 2 * first.len() <= BURST_BYTES;
    while start.elapsed() < duration {
        if is_small {
            stream.write_all(&burst).await?;
            continue;
        }
        for piece in messages.next().chunks(PIECE_BYTES) {
            stream.write_all(piece).await?;
        }
    }
    stream.shutdown().await
}

/// Reads until the end.
pub(super) async fn receive(mut stream: TcpStream, size: usize) -> ReceiverTotals {
    let mut buffer = vec![0; PIECE_BYTES];
    let (mut start, mut bytes, mut seconds) = (None, 0, 0.0);
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        bytes += len as u64;
        seconds = start
            .get_or_insert_with(Instant::now)
            .elapsed()
            .as_secs_f64();
    }
    ReceiverTotals {
        messages: bytes / size.max(1) as u64,
        bytes,
        seconds,
        faults: 0,
    }
}
