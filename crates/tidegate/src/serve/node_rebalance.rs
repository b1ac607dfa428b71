//! The part of this node in a rebalancing: it disconnects clients at a limited rate until it has as many connections as it
//! should have.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use api::{RebalanceRun, RebalanceState};
use broker::{BrokerHandle, DisconnectCause};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::disconnect_turns::DisconnectTurns;

/// Time for which a node that has reached its target waits for clients that return to it.
const RETURN_TIME: Duration = Duration::from_secs(5);
/// Clients that a node disconnects at most, for each connection that it had too many. Of two nodes behind a balancer, half of
/// the clients return to the same one each time: twice as many would just suffice.
const MAX_DISCONNECTS_PER_EXCESS: u64 = 3;

pub(super) struct NodeRebalance {
    /// Clients to disconnect per second.
    rate: u32,
    runtime: Handle,
    broker: OnceLock<BrokerHandle>,
    last: Mutex<Option<StartedRun>>,
}

struct StartedRun {
    since_ms: u64,
    target: u64,
    progress: Arc<RunProgress>,
    task: AbortHandle,
}

#[derive(Default)]
struct RunProgress {
    disconnected: AtomicU64,
    /// `None`: it is running.
    end: OnceLock<RebalanceState>,
}

impl RunProgress {
    /// The first end counts.
    fn end(&self, state: RebalanceState) {
        if self.end.set(state).is_err() {
            return;
        }
        let disconnected = self.disconnected.load(Relaxed);
        match state {
            RebalanceState::ClientsReturned => tracing::warn!(
                disconnected,
                "the rebalancing of this node ends before its target: clients return to it; check that the balancer or the clients know the other nodes"
            ),
            state => tracing::info!(
                disconnected,
                outcome = ?state,
                "the rebalancing of this node has ended"
            ),
        }
    }
}

impl StartedRun {
    fn is_running(&self) -> bool {
        self.progress.end.get().is_none()
    }
}

impl NodeRebalance {
    /// Clients are disconnected on `runtime`.
    pub(super) fn new(rate: u32, runtime: Handle) -> Self {
        Self {
            rate,
            runtime,
            broker: OnceLock::new(),
            last: Mutex::default(),
        }
    }

    /// To be called once.
    pub(super) fn set_broker(&self, broker: BrokerHandle) {
        let _ = self.broker.set(broker);
    }

    /// Disconnects clients until there are `target` connections.
    ///
    /// # Errors
    /// If the node cannot do so now; contains the reason.
    pub(super) fn start(&self, target: u64) -> Result<(), String> {
        let broker = self.broker.get().ok_or("it is starting")?;
        if broker.is_draining() {
            return Err("it is being drained".to_owned());
        }
        let mut last = self.last();
        if last.as_ref().is_some_and(StartedRun::is_running) {
            return Err("it is disconnecting clients already".to_owned());
        }
        let progress = Arc::<RunProgress>::default();
        let rebalancing = disconnect_clients(broker.clone(), self.rate, target, progress.clone());
        *last = Some(StartedRun {
            since_ms: wall_clock::now_ms(),
            target,
            progress,
            task: self.runtime.spawn(rebalancing).abort_handle(),
        });
        tracing::info!(
            connections = broker.open_connections(),
            target,
            clients_per_second = self.rate,
            "this node has more connections than others: it disconnects clients, so that they connect to others"
        );
        Ok(())
    }

    /// Nothing changes if no rebalancing is running.
    pub(super) fn cancel(&self) {
        if let Some(run) = self.last().as_ref().filter(|run| run.is_running()) {
            run.task.abort();
            run.progress.end(RebalanceState::Cancelled);
        }
    }

    /// The number of connections that is to be reached; `None`: no rebalancing is running.
    pub(super) fn target(&self) -> Option<u64> {
        let last = self.last();
        let run = last.as_ref().filter(|run| run.is_running())?;
        Some(run.target)
    }

    /// `None`: there was none since the start of the node.
    pub(super) fn last_run(&self) -> Option<RebalanceRun> {
        self.last().as_ref().map(|run| RebalanceRun {
            since_ms: run.since_ms,
            target: run.target,
            disconnected: run.progress.disconnected.load(Relaxed),
            state: *run.progress.end.get().unwrap_or(&RebalanceState::Running),
        })
    }

    /// Open connections, and those of them that a rebalancing would leave.
    ///
    /// # Errors
    /// If the node cannot say; contains the reason.
    pub(super) async fn connections(&self) -> Result<(u64, u64), String> {
        let broker = self.broker.get().ok_or("it is starting")?;
        let movable = broker.disconnectable(DisconnectCause::Rebalance).await;
        let movable = movable.ok_or("a shard does not answer")?;
        let connections = broker.open_connections();
        Ok((connections, connections.saturating_sub(movable)))
    }

    fn last(&self) -> MutexGuard<'_, Option<StartedRun>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn disconnect_clients(
    broker: BrokerHandle,
    rate: u32,
    target: u64,
    progress: Arc<RunProgress>,
) {
    let excess = || broker.open_connections().saturating_sub(target);
    let mut left = excess() * MAX_DISCONNECTS_PER_EXCESS;
    let mut turns = DisconnectTurns::new(rate);
    let mut clients = broker.client_disconnects(DisconnectCause::Rebalance);
    let mut reached_at = None;
    let end = loop {
        let allowed = turns.next().await as u64;
        if broker.is_draining() {
            break RebalanceState::Drained;
        }
        let most = allowed.min(excess());
        if most == 0 {
            let reached_at: &mut Instant = reached_at.get_or_insert_with(Instant::now);
            if reached_at.elapsed() >= RETURN_TIME {
                break RebalanceState::Reached;
            }
            continue;
        }
        reached_at = None;
        if left == 0 {
            break RebalanceState::ClientsReturned;
        }
        let closed = clients.disconnect(most.min(left) as usize).await as u64;
        progress.disconnected.fetch_add(closed, Relaxed);
        left -= closed;
        if closed == 0 && !broker.is_draining() {
            break RebalanceState::OnlyBound;
        }
    };
    progress.end(end);
}
