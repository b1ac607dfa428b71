//! Disconnecting clients, so that they connect to other nodes of the cluster.

use std::sync::atomic::Ordering::Relaxed;

use super::BrokerHandle;
use crate::core::client_disconnects::{DisconnectCause, DisconnectScan, DisconnectableCount};

/// Disconnects clients of all shards, some at a time. It continues behind the last one, so that clients that stay are not
/// examined each time.
pub struct ClientDisconnects {
    broker: BrokerHandle,
    cause: DisconnectCause,
    shard: u16,
    position: usize,
}

impl BrokerHandle {
    pub fn client_disconnects(&self, cause: DisconnectCause) -> ClientDisconnects {
        ClientDisconnects {
            broker: self.clone(),
            cause,
            shard: 0,
            position: 0,
        }
    }

    /// Connections without those that are closed and wait until their client has read the last bytes.
    pub fn open_connections(&self) -> u64 {
        let directory = &self.shared.node.directory;
        let closing = directory.closing_connections.load(Relaxed);
        let connections = directory.connections.load(Relaxed);
        connections.saturating_sub(closing).into()
    }

    /// Number of connections that [`ClientDisconnects`] would close. `None`: a shard does not answer.
    pub async fn disconnectable(&self, cause: DisconnectCause) -> Option<u64> {
        let mut count = 0;
        for shard in 0..self.shard_count() as u16 {
            count += self
                .scan_shard(shard, DisconnectableCount::new(cause))
                .await?;
        }
        Some(count as u64)
    }
}

impl ClientDisconnects {
    /// Disconnects up to `most` clients and returns their number. 0: there are none, or the cause does not exist any more.
    pub async fn disconnect(&mut self, most: usize) -> usize {
        let mut count = 0;
        let shards = self.broker.shard_count() as u16;
        // The first shard once more at the end, for the clients before the position.
        for _ in 0..=shards {
            if count >= most {
                break;
            }
            let scan = DisconnectScan::new(self.cause, most - count, self.position);
            let done = self.broker.scan_shard(self.shard, scan).await;
            count += done.map_or(0, |done| done.count);
            match done.and_then(|done| done.next) {
                Some(next) => self.position = next,
                None => {
                    self.position = 0;
                    self.shard = (self.shard + 1) % shards;
                }
            }
        }
        count
    }
}
