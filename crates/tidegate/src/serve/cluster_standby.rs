//! The sessions of the broker, for the copies at other nodes and for those of other nodes at this one.

use std::sync::OnceLock;
use std::time::Duration;

use api::{ClusterAdoption, ClusterSessionCopy, ClusterStandby, StandbyState};
use broker::{BrokerHandle, PeerNodeInbox};
use cluster::NodeName;
use hooks::MetricFamily;
use standby::{AdoptionProgress, CopyPhase, SessionHold, SessionOwner, StandbyStatus};
use store::Store;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Time for which messages for adopted sessions may arrive from nodes that had kept them for the failed one.
const LATE_MESSAGES: Duration = Duration::from_secs(120);

pub(super) struct BrokerSessions {
    inbox: PeerNodeInbox,
    runtime: Handle,
    broker: OnceLock<BrokerHandle>,
    /// Ends the adoptions.
    is_stopping: watch::Sender<bool>,
}

impl BrokerSessions {
    pub(super) fn new(inbox: PeerNodeInbox, runtime: Handle) -> Self {
        Self {
            inbox,
            runtime,
            broker: OnceLock::new(),
            is_stopping: watch::Sender::new(false),
        }
    }

    /// The shards answer no more.
    pub(super) fn stop(&self) {
        self.is_stopping.send_replace(true);
    }

    /// To be called once the broker runs.
    pub(super) fn set_broker(&self, broker: BrokerHandle) {
        // Set once.
        let _ = self.broker.set(broker);
    }
}

/// What the API shows of the copies of sessions.
pub(super) fn standby_status(status: StandbyStatus) -> ClusterStandby {
    let own = status.own;
    ClusterStandby {
        state: match own.phase {
            CopyPhase::NoStandby => StandbyState::NoStandby,
            CopyPhase::Copying => StandbyState::Copying,
            CopyPhase::Current => StandbyState::Current,
            CopyPhase::RemovingStandby => StandbyState::RemovingStandby,
            CopyPhase::Examining => StandbyState::Examining,
            CopyPhase::Adopted => StandbyState::Adopted,
        },
        node: own.node.map(|node| node.to_string()),
        unconfirmed_bytes: own.unconfirmed_bytes,
        sent_bytes: own.sent_bytes,
        last_error: own.last_error,
        copies: (status.kept.into_iter())
            .map(|kept| ClusterSessionCopy {
                node: kept.node.to_string(),
                is_standby: kept.is_standby,
                adoption: kept.adoption.map(|(processed, all)| ClusterAdoption {
                    processed_sessions: processed,
                    sessions: all,
                }),
                received_bytes: kept.received_bytes,
            })
            .collect(),
        adoptions: status.adoptions,
        adopted_sessions: status.adopted_sessions,
    }
}

pub(super) fn standby_metrics(status: &StandbyStatus) -> Vec<MetricFamily> {
    let is_current = status.own.phase == CopyPhase::Current;
    vec![
        MetricFamily::gauge(
            "cluster_standby_current",
            "1 while another node has everything that this one has acknowledged for its durable sessions.",
            f64::from(u8::from(is_current)),
        ),
        MetricFamily::gauge(
            "cluster_standby_unconfirmed_bytes",
            "Bytes of the message log that were sent to the standby and are not confirmed yet.",
            status.own.unconfirmed_bytes as f64,
        ),
        MetricFamily::counter(
            "cluster_standby_sent_bytes_total",
            "Bytes sent to standbys since the start: sessions, and the message log.",
            status.own.sent_bytes,
        ),
        MetricFamily::counter(
            "cluster_adoptions_total",
            "Failed nodes whose sessions this node has adopted since its start.",
            status.adoptions,
        ),
        MetricFamily::counter(
            "cluster_adopted_sessions_total",
            "Sessions of failed nodes that this node has adopted since its start.",
            status.adopted_sessions,
        ),
    ]
}

impl SessionOwner for BrokerSessions {
    fn set_standby_for(&self, node: &NodeName, is_standby: bool) {
        self.inbox.set_standby_for(node.as_str(), is_standby);
    }

    fn begin_succession(&self, node: &NodeName) {
        self.inbox.begin_succession(node.as_str());
    }

    fn end_succession(&self, node: &NodeName, is_adopted: bool) {
        self.inbox.end_succession(node.as_str(), is_adopted);
        if is_adopted && let Some(broker) = self.broker.get().cloned() {
            let node = node.clone();
            self.runtime.spawn(async move {
                tokio::time::sleep(LATE_MESSAGES).await;
                broker.forget_adoption(node.as_str()).await;
            });
        }
    }

    fn confirm_succession(&self, node: &NodeName) {
        self.inbox.confirm_succession(node.as_str());
    }

    fn adopt_sessions(
        &self,
        node: &NodeName,
        copy: &Store,
        since_ms: u64,
        progress: &AdoptionProgress,
    ) -> Result<u64, String> {
        let broker = self.broker.get().ok_or("this node is starting")?;
        let adoption = broker.adopt_sessions(node.as_str(), copy, since_ms, |done, all| {
            progress.set(done, all);
        });
        let mut is_stopping = self.is_stopping.subscribe();
        let adoption = async {
            tokio::select! {
                report = adoption => report.map_err(|error| error.to_string()),
                _ = is_stopping.wait_for(|is_stopping| *is_stopping) => {
                    Err("this node stops".to_owned())
                }
            }
        };
        let report = self.runtime.block_on(adoption)?;
        tracing::info!(
            node = %node,
            sessions = report.sessions,
            skipped = report.skipped,
            queued_messages = report.messages,
            delayed_messages = report.delayed,
            "sessions of another node are stored here"
        );
        Ok(report.sessions)
    }

    fn hold_sessions(&self, hold: SessionHold) {
        self.inbox.hold_sessions(match hold {
            SessionHold::Released => broker::SessionHold::Released,
            SessionHold::Withheld => broker::SessionHold::Withheld,
            SessionHold::Held => broker::SessionHold::Held,
        });
    }

    fn abandon_sessions(&self) -> bool {
        let Some(broker) = self.broker.get() else {
            return false;
        };
        match self.runtime.block_on(broker.abandon_sessions()) {
            Some(sessions) => {
                tracing::info!(
                    sessions,
                    "sessions that another node has adopted are removed"
                );
                true
            }
            None => false,
        }
    }
}
