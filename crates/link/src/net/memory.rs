//! Carriers in memory, over a network that can be delayed, slowed down and cut: for tests and demonstrations.
//!
//! Time is tokio's, so that a paused clock makes it deterministic and fast.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::net::carrier::Carrier;
use crate::net::carrier_task::lock;

const BUFFER_BYTES: usize = 64 * 1024;
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces on their way in one direction; a sender waits when there are more.
const MAX_PIECES: usize = 1024;

/// How the network behaves. Changes concern bytes that are sent afterwards.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkConditions {
    /// In one direction.
    pub delay: Duration,
    /// In one direction and on one carrier.
    pub bytes_per_second: Option<u64>,
    /// No carrier can be opened.
    pub is_down: bool,
}

/// A network in memory.
#[derive(Debug, Clone)]
pub struct MemoryNetwork {
    conditions: Arc<Mutex<NetworkConditions>>,
    cuts: Arc<watch::Sender<u64>>,
}

impl Default for MemoryNetwork {
    fn default() -> Self {
        Self {
            conditions: Arc::default(),
            cuts: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl MemoryNetwork {
    pub fn set_conditions(&self, conditions: NetworkConditions) {
        *lock(&self.conditions) = conditions;
    }

    pub fn is_down(&self) -> bool {
        lock(&self.conditions).is_down
    }

    /// Breaks all carriers; what is under way is lost.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Opens a carrier and returns both ends.
    ///
    /// # Errors
    /// If the network is down.
    pub fn open(&self) -> io::Result<(DuplexStream, DuplexStream)> {
        if self.is_down() {
            return Err(io::Error::new(
                io::ErrorKind::NetworkUnreachable,
                "the network is down",
            ));
        }
        let (near, near_network) = tokio::io::duplex(BUFFER_BYTES);
        let (far_network, far) = tokio::io::duplex(BUFFER_BYTES);
        self.join(near_network, far_network);
        Ok((near, far))
    }

    /// Puts the network between two byte streams, such as both connections of a proxy.
    pub fn join(&self, near: impl Carrier, far: impl Carrier) {
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = tokio::io::split(far);
        self.spawn(near_read, far_write);
        self.spawn(far_read, near_write);
    }

    fn spawn(
        &self,
        from: impl AsyncRead + Send + Unpin + 'static,
        to: impl AsyncWrite + Send + Unpin + 'static,
    ) {
        let conditions = self.conditions.clone();
        let mut cuts = self.cuts.subscribe();
        cuts.mark_unchanged();
        tokio::spawn(async move {
            let (pieces, arrivals) = mpsc::channel(MAX_PIECES);
            tokio::select! {
                _ = cuts.changed() => {}
                _ = async { tokio::join!(depart(from, conditions, pieces), arrive(to, arrivals)) } => {}
            }
        });
    }
}

/// Gives each piece its time of arrival.
async fn depart(
    mut from: impl AsyncRead + Unpin,
    conditions: Arc<Mutex<NetworkConditions>>,
    pieces: mpsc::Sender<(Instant, Vec<u8>)>,
) {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut departure = Instant::now();
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        let NetworkConditions {
            delay,
            bytes_per_second,
            ..
        } = *lock(&conditions);
        departure = departure.max(Instant::now());
        if let Some(rate) = bytes_per_second {
            departure += Duration::from_secs_f64(len as f64 / rate.max(1) as f64);
            tokio::time::sleep_until(departure).await;
        }
        let piece = (departure + delay, buffer[..len].to_vec());
        if pieces.send(piece).await.is_err() {
            return;
        }
    }
}

async fn arrive(mut to: impl AsyncWrite + Unpin, mut pieces: mpsc::Receiver<(Instant, Vec<u8>)>) {
    while let Some((arrival, piece)) = pieces.recv().await {
        tokio::time::sleep_until(arrival).await;
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
