//! The drain of this node: its clients are disconnected at a limited rate, so that they connect to other nodes before it is stopped.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use broker::{BrokerHandle, DisconnectCause};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::disconnect_turns::DisconnectTurns;

/// Time between two looks for clients after all have been disconnected.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct NodeDrain {
    /// Clients to disconnect per second.
    rate: u32,
    runtime: Handle,
    broker: OnceLock<BrokerHandle>,
    running: Mutex<Option<RunningDrain>>,
}

struct RunningDrain {
    since_ms: u64,
    disconnected: Arc<AtomicU64>,
    task: AbortHandle,
}

impl NodeDrain {
    /// Clients are disconnected on `runtime`.
    pub(super) fn new(rate: u32, runtime: Handle) -> Self {
        Self {
            rate,
            runtime,
            broker: OnceLock::new(),
            running: Mutex::default(),
        }
    }

    /// To be called once.
    pub(super) fn set_broker(&self, broker: BrokerHandle) {
        let _ = self.broker.set(broker);
    }

    /// Starts or cancels the drain. Nothing changes if that is done already.
    ///
    /// # Errors
    /// If the node is starting; contains the reason.
    pub(super) fn set_draining(&self, is_draining: bool) -> Result<(), String> {
        let broker = self.broker.get().ok_or("it is starting")?;
        let mut running = self.running();
        if is_draining == running.is_some() {
            return Ok(());
        }
        broker.set_draining(is_draining);
        if let Some(drain) = running.take() {
            drain.task.abort();
            tracing::info!("the drain of this node is cancelled; clients are accepted again");
            return Ok(());
        }
        let disconnected = Arc::<AtomicU64>::default();
        let task = disconnect_clients(broker.clone(), self.rate, disconnected.clone());
        *running = Some(RunningDrain {
            since_ms: wall_clock::now_ms(),
            disconnected,
            task: self.runtime.spawn(task).abort_handle(),
        });
        tracing::info!(
            clients_per_second = self.rate,
            "this node is drained: it accepts no clients, and disconnects those that it has"
        );
        Ok(())
    }

    pub(super) fn is_draining(&self) -> bool {
        self.running().is_some()
    }

    /// `None`: the node is not drained.
    pub(super) fn status(&self) -> Option<api::ClusterDrain> {
        self.running().as_ref().map(|drain| api::ClusterDrain {
            since_ms: drain.since_ms,
            disconnected: drain.disconnected.load(Relaxed),
        })
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningDrain>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until it is aborted: clients whose connection was being established at the beginning are disconnected as well.
async fn disconnect_clients(broker: BrokerHandle, rate: u32, disconnected: Arc<AtomicU64>) {
    let mut turns = DisconnectTurns::new(rate);
    let mut clients = broker.client_disconnects(DisconnectCause::Drain);
    loop {
        let most = turns.next().await;
        let closed = clients.disconnect(most).await;
        disconnected.fetch_add(closed as u64, Relaxed);
        if closed == 0 {
            tokio::time::sleep(IDLE_INTERVAL).await;
        }
    }
}
