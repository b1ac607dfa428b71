//! Both peers: messages with numbers in them, their sender, and their receiver.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use link::config::LinkConfig;
use link::error_code::ErrorCode;
use link::message::MessageBatch;
use link::net::{ConnectOptions, Link, LinkDecision, LinkError, LinkListener, connect};
use link::priority::Priority;
use link::size_class::{SizeClass, SizeClassTable};
use link::wire::handshake::LinkId;
use link_carriers::configure_tcp;
use tokio::net::{TcpListener, TcpStream};

/// Messages are numbered modulo this; a loss of exactly so many in a row would not be noticed.
const NUMBERS: u64 = 1024;
/// Bytes of the numbered messages that are prepared before a measurement.
const PREPARED_BYTES: usize = 16 * 1024 * 1024;
/// Messages that are passed to the link at a time.
const HANDOVER_BYTES: usize = 256 * 1024;
/// Small messages that plain TCP writes at a time, as links do.
pub(super) const BURST_BYTES: usize = 64 * 1024;

/// The runtime of one thread.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Ok(builder.enable_all().build()?)
}

/// What one receiver has counted.
#[derive(Debug, Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct ReceiverTotals {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// From the first to the last.
    pub(super) seconds: f64,
    /// Messages with a wrong number: something was lost, repeated or exchanged.
    pub(super) faults: u64,
}

impl ReceiverTotals {
    /// Adds what another receiver has counted at the same time.
    pub(super) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.faults += other.faults;
        self.seconds = self.seconds.max(other.seconds);
    }
}

/// Messages of one size, each with its number in the first bytes. Clones share them, and begin with the first.
pub(super) struct NumberedMessages {
    payloads: Arc<[Bytes]>,
    next: usize,
    is_tiny: bool,
}

/// How many different messages of a size there are.
fn number_count(size: usize) -> u64 {
    ((PREPARED_BYTES / size.max(1)) as u64).clamp(1, NUMBERS)
}

impl Clone for NumberedMessages {
    fn clone(&self) -> Self {
        Self {
            payloads: self.payloads.clone(),
            next: 0,
            is_tiny: self.is_tiny,
        }
    }
}

impl NumberedMessages {
    pub(super) fn new(size: usize) -> Self {
        let payload = |number: u64| {
            let mut payload = vec![0x5a; size];
            let number = number.to_le_bytes();
            let len = number.len().min(size);
            payload[..len].copy_from_slice(&number[..len]);
            Bytes::from(payload)
        };
        Self {
            payloads: (0..number_count(size)).map(payload).collect(),
            next: 0,
            is_tiny: SizeClassTable::default().classify(size) == SizeClass::Tiny,
        }
    }

    /// The next messages, at least one and at most `count`.
    fn peek(&self, count: usize) -> &[Bytes] {
        let end = (self.next + count.max(1)).min(self.payloads.len());
        &self.payloads[self.next..end]
    }

    fn advance(&mut self, count: usize) {
        self.next = (self.next + count) % self.payloads.len();
    }

    fn size(&self) -> usize {
        self.payloads[0].len()
    }

    pub(super) fn next(&mut self) -> Bytes {
        let payload = self.payloads[self.next].clone();
        self.next = (self.next + 1) % self.payloads.len();
        payload
    }
}

/// Checks the numbers of received messages.
struct NumberCheck {
    size: usize,
    expected: u64,
    count: u64,
}

impl NumberCheck {
    fn new(size: usize) -> Self {
        Self {
            size,
            expected: 0,
            count: number_count(size),
        }
    }

    /// Whether the message with these first bytes is the next one.
    fn is_next(&mut self, first: &[u8], len: usize) -> bool {
        let mut number = [0; 8];
        let numbered = 8.min(self.size).min(first.len());
        number[..numbered].copy_from_slice(&first[..numbered]);
        let mask = u64::MAX.checked_shr(64 - 8 * numbered as u32).unwrap_or(0);
        let number = u64::from_le_bytes(number);
        let is_next = number == self.expected & mask && len == self.size;
        // After a fault, the check continues with the number that has come.
        self.expected = (if is_next { self.expected } else { number } + 1) % self.count;
        is_next
    }
}

/// An id that no link of this process has had.
pub(super) fn new_link_id() -> LinkId {
    static LINKS: AtomicU64 = AtomicU64::new(1);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&LINKS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    id[8..].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    LinkId(id)
}

/// Opens a link to this address.
pub(super) fn connect_link(address: SocketAddr) -> Link {
    connect(
        new_link_id(),
        ConnectOptions::default(),
        move || async move {
            let stream = TcpStream::connect(address).await?;
            configure_tcp(&stream)?;
            Ok(stream)
        },
    )
}

/// Accepts links at a socket until the runtime ends; returns the next links.
pub(super) fn accept_links(
    socket: TcpListener,
) -> tokio::sync::mpsc::Receiver<link::net::AcceptedLink> {
    let config = LinkConfig::default();
    let (listener, links) = LinkListener::new(config, 10_000, Duration::from_secs(600));
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let listener = listener.clone();
            tokio::spawn(async move {
                let _ = configure_tcp(&stream);
                let decide = |_: &_| LinkDecision::Accept {
                    principal: String::new(),
                };
                // A broken connection is replaced by the peer.
                let _ = listener.serve(stream, decide).await;
            });
        }
    });
    links
}

/// Sends messages of one size until `end`, and waits for their acknowledgement.
pub(super) async fn send_messages(
    link: &Link,
    messages: &mut NumberedMessages,
    priority: Priority,
    end: Instant,
) -> Result<(), LinkError> {
    let burst = (HANDOVER_BYTES / messages.size().max(1)).max(1);
    let mut waiting = VecDeque::new();
    while Instant::now() < end {
        if messages.is_tiny {
            let sent = link.send_copies(priority, messages.peek(burst)).await?;
            messages.advance(sent);
            continue;
        }
        waiting.extend((0..burst).map(|_| messages.next()));
        link.send_all(priority, &mut waiting).await?;
        tokio::task::yield_now().await;
    }
    link.flush().await
}

/// Receives messages of one size until the link ends.
pub(super) async fn receive_messages(link: Link, size: usize) -> ReceiverTotals {
    let mut received = ReceiverTotals::default();
    let mut check = NumberCheck::new(size);
    let mut start = None;
    let is_huge = SizeClassTable::default().classify(size) == SizeClass::Huge;
    let mut batches: Vec<MessageBatch> = Vec::new();
    loop {
        let result = match is_huge {
            true => receive_stream(&link, &mut check, &mut received).await,
            false => {
                let result = link.receive_batches(&mut batches).await;
                for batch in batches.drain(..) {
                    batch.for_each(|_, message| {
                        let len = message.len();
                        received.messages += 1;
                        received.bytes += len as u64;
                        received.faults += u64::from(!check.is_next(message.first(), len));
                    });
                }
                result
            }
        };
        if result.is_err() {
            return received;
        }
        let start = *start.get_or_insert_with(Instant::now);
        received.seconds = start.elapsed().as_secs_f64();
    }
}

async fn receive_stream(
    link: &Link,
    check: &mut NumberCheck,
    received: &mut ReceiverTotals,
) -> Result<(), LinkError> {
    let mut stream = link.receive_stream().await?;
    stream.accept(&Default::default());
    let mut first = [0; 8];
    let mut len = 0_u64;
    while let Ok(chunk) = stream.read().await? {
        if chunk.offset == 0 && chunk.bytes.len() >= first.len() {
            first.copy_from_slice(&chunk.bytes[..8]);
        }
        if chunk.offset != len {
            received.faults += 1;
        }
        len = chunk.range().end;
        received.bytes += chunk.bytes.len() as u64;
        stream.acknowledge(chunk.range());
    }
    received.messages += 1;
    received.faults += u64::from(!check.is_next(&first, len as usize));
    stream.complete();
    Ok(())
}

/// Ends a link after a measurement.
pub(super) async fn end(link: &Link) {
    link.shut_down(ErrorCode::NONE, "").await;
}

/// A socket at a free port of the loopback interface, and its address.
pub(super) async fn loopback_socket() -> anyhow::Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind("127.0.0.1:0").await?;
    let address = socket.local_addr()?;
    ensure!(address.port() != 0, "the system assigned no port");
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_repeated_and_exchanged_messages_are_noticed() {
        for size in [1, 8, 100] {
            let mut messages = NumberedMessages::new(size);
            let mut check = NumberCheck::new(size);
            let mut next = || messages.next();
            for _ in 0..3000 {
                assert!(check.is_next(&next(), size), "{size}");
            }
            next();
            let after_gap = next();
            assert!(!check.is_next(&after_gap, size));
            assert!(!check.is_next(&after_gap, size), "repeated");
            assert!(check.is_next(&next(), size), "continues");
            assert!(!check.is_next(&next(), size + 1), "another length");
        }
    }
}
