//! Runs the membership of a node: renews its entry, receives frames, and keeps the times of its channels.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::fabric::{MemberChange, MemberEntries, NodeLinks};
use crate::member::{Member, NodeName};
use crate::membership::{
    ClusterMembership, DownReason, MembershipConfig, MembershipEvent, PeerNodeId, PeerNodeInfo,
};

/// Time between two renewals of the entry of this node.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the list of members counts as read, if it cannot be read.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which messages to the others are to arrive before this node leaves.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest and shortest time between two looks at the clock.
const MAX_SLEEP_MS: u64 = 1000;
const MIN_SLEEP_MS: u64 = 2;

/// Is told what happens at the other nodes, in order. Calls must not block and must not call the [`ClusterNode`].
pub trait PeerNodeObserver: Send + Sync + 'static {
    /// `protocol`: the latest version of the messages between nodes that both speak.
    fn peer_up(&self, peer: PeerNodeId, node: &NodeName, protocol: u32);

    fn peer_down(&self, peer: PeerNodeId, reason: DownReason);

    fn message(&self, peer: PeerNodeId, message: Bytes);

    /// The members that can be reached at the start are known.
    fn members_known(&self);

    /// Whether so many messages wait that no further ones are to be received now.
    fn is_full(&self) -> bool;

    /// What this node tells the others about itself.
    fn load(&self) -> NodeLoad;
}

/// The load of a node, for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeLoad {
    pub connections: u64,
    pub sessions: u64,
    /// Whether the node refers its clients to others.
    pub is_draining: bool,
    /// The number of connections down to which it disconnects clients, if it does.
    pub rebalance_target: Option<u64>,
}

/// This node as a member of a cluster.
pub struct ClusterNode {
    membership: Mutex<ClusterMembership>,
    links: Arc<dyn NodeLinks>,
    members: Arc<dyn MemberEntries>,
    observer: Arc<dyn PeerNodeObserver>,
    started: Instant,
    /// Wakes the task that keeps the times.
    wake: Notify,
    state: Mutex<NodeState>,
}

/// What is known of the connection to the list of members.
#[derive(Debug, Clone, Default)]
struct NodeState {
    /// Why the last renewal failed.
    renewal_error: Option<String>,
    name_in_use: Option<Member>,
}

impl ClusterNode {
    /// `random` returns unpredictable numbers.
    pub fn new(
        local: Member,
        config: MembershipConfig,
        random: impl FnMut() -> u64 + Send + 'static,
        members: Arc<dyn MemberEntries>,
        links: Arc<dyn NodeLinks>,
        observer: Arc<dyn PeerNodeObserver>,
    ) -> Arc<Self> {
        Arc::new(Self {
            membership: Mutex::new(ClusterMembership::new(local, config, random)),
            links,
            members,
            observer,
            started: Instant::now(),
            wake: Notify::new(),
            state: Mutex::default(),
        })
    }

    /// Starts to take part in the cluster. The tasks end when they are aborted.
    pub fn start(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        vec![
            tokio::spawn(self.clone().receive_frames()),
            tokio::spawn(self.clone().follow_members()),
            tokio::spawn(self.clone().renew_entry()),
            tokio::spawn(self.clone().keep_times()),
        ]
    }

    /// Waits until the others have received all messages, for a limited time. Then it removes the entry of this node, so
    /// that they notice at once that it has ended.
    pub async fn leave(&self) {
        let drained = async {
            while self.has_queued_messages() {
                tokio::time::sleep(Duration::from_millis(MIN_SLEEP_MS)).await;
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!(
                "the last messages to other nodes did not arrive in time; they are lost"
            );
        }
        let node = self.membership().local().node.clone();
        let removal = tokio::time::timeout(RENEW_INTERVAL, self.members.remove(&node)).await;
        if !matches!(removal, Ok(Ok(()))) {
            tracing::debug!("the entry of this node could not be removed; it expires");
        }
    }

    fn has_queued_messages(&self) -> bool {
        let members = self.members();
        let mut reachable = members.iter().filter(|member| member.is_reachable);
        reachable.any(|member| member.queued_bytes > 0)
    }

    /// Removes the entry of another node, which has ended without removing it.
    pub async fn evict(&self, node: &NodeName) -> Result<(), crate::error::ClusterError> {
        self.members.remove(node).await?;
        self.membership().forget(node);
        Ok(())
    }

    /// Sends a message to a node, without waiting.
    pub fn send(&self, peer: PeerNodeId, message: Bytes) {
        let now_ms = self.now_ms();
        let mut membership = self.membership();
        let was_idle = membership.queued_bytes(peer) == 0;
        membership.send(peer, message, now_ms);
        self.finish(&mut membership, now_ms);
        if was_idle {
            // The time after which the message is sent again has to be kept.
            self.wake.notify_one();
        }
    }

    /// Bytes of messages to a node that wait or are not acknowledged.
    pub fn queued_bytes(&self, peer: PeerNodeId) -> usize {
        self.membership().queued_bytes(peer)
    }

    /// Closes the channel to a node and opens another one.
    pub fn reconnect(&self, peer: PeerNodeId) {
        let now_ms = self.now_ms();
        let mut membership = self.membership();
        membership.reconnect(peer, now_ms);
        self.finish(&mut membership, now_ms);
        self.wake.notify_one();
    }

    /// This node.
    pub fn local(&self) -> Member {
        self.membership().local().clone()
    }

    /// All other members.
    pub fn members(&self) -> Vec<PeerNodeInfo> {
        let now_ms = self.now_ms();
        self.membership().members(now_ms)
    }

    /// Why the entry of this node could not be renewed; `None` if it was.
    pub fn renewal_error(&self) -> Option<String> {
        self.state().renewal_error.clone()
    }

    /// Another running node with the name of this one.
    pub fn name_in_use(&self) -> Option<Member> {
        self.state().name_in_use.clone()
    }

    fn membership(&self) -> MutexGuard<'_, ClusterMembership> {
        self.membership
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds of a clock that never jumps.
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Sends the frames and reports the events that a call has caused. The lock is held, so that their order is kept.
    fn finish(&self, membership: &mut ClusterMembership, now_ms: u64) {
        while let Some(event) = membership.poll_event() {
            self.report(event);
        }
        while let Some((node, frame)) = membership.poll_frame(now_ms) {
            // A frame that is not sent is lost; the channel sends it again.
            if self.links.send(&node, frame).is_err() {
                break;
            }
        }
    }

    fn report(&self, event: MembershipEvent) {
        match event {
            MembershipEvent::Up {
                peer,
                node,
                protocol,
            } => {
                tracing::info!(node = %node, protocol, "node of the cluster is reachable");
                self.observer.peer_up(peer, &node, protocol);
            }
            MembershipEvent::Down { peer, node, reason } => {
                match reason {
                    DownReason::Left | DownReason::Drained => {
                        tracing::info!(node = %node, "node has left the cluster");
                    }
                    reason => tracing::warn!(
                        node = %node,
                        reason = reason.as_str(),
                        "node of the cluster is not reachable"
                    ),
                }
                self.observer.peer_down(peer, reason);
            }
            MembershipEvent::Message { peer, message } => self.observer.message(peer, message),
            MembershipEvent::NameInUse { member } => {
                let mut state = self.state();
                if state.name_in_use.is_none() {
                    tracing::error!(
                        node = %member.node,
                        other_started_ms = member.started_ms,
                        "another running node has the name of this one; give each node its own cluster.node"
                    );
                }
                state.name_in_use = Some(member);
            }
            MembershipEvent::Incompatible { member } => tracing::warn!(
                node = %member.node,
                version = member.version,
                protocol = member.protocol,
                oldest_protocol = member.oldest_protocol,
                "node speaks no version of the messages between nodes that this node speaks; no messages are exchanged with it: upgrade the older one"
            ),
            MembershipEvent::TooManyMembers { node } => tracing::error!(
                node = %node,
                most = crate::membership::MAX_PEER_NODES + 1,
                "the cluster has too many nodes; no messages are exchanged with this one"
            ),
        }
    }

    async fn receive_frames(self: Arc<Self>) {
        let mut frames = self.links.receive();
        while let Some(frame) = frames.recv().await {
            while self.observer.is_full() {
                tokio::time::sleep(Duration::from_millis(MIN_SLEEP_MS)).await;
            }
            let now_ms = self.now_ms();
            let mut membership = self.membership();
            membership.handle_frame(&frame, now_ms);
            // All that has arrived meanwhile is acknowledged together.
            for _ in 0..64 {
                let Ok(frame) = frames.try_recv() else { break };
                membership.handle_frame(&frame, now_ms);
            }
            self.finish(&mut membership, now_ms);
            drop(membership);
            self.wake.notify_one();
        }
    }

    async fn follow_members(self: Arc<Self>) {
        let mut changes: mpsc::Receiver<MemberChange> = self.members.watch();
        let mut known = false;
        let timeout = tokio::time::sleep(LIST_TIMEOUT);
        tokio::pin!(timeout);
        loop {
            tokio::select! {
                change = changes.recv() => {
                    let Some(change) = change else { return };
                    let now_ms = self.now_ms();
                    let mut membership = self.membership();
                    membership.handle_change(change, now_ms);
                    self.finish(&mut membership, now_ms);
                    drop(membership);
                    self.wake.notify_one();
                }
                () = &mut timeout, if !known => {
                    tracing::warn!(
                        "the list of the members of the cluster could not be read in time; this node starts without \
                         knowing the others"
                    );
                    known = true;
                    self.observer.members_known();
                }
                () = tokio::time::sleep(Duration::from_millis(20)), if !known => {}
            }
            if !known && self.membership().is_settled() {
                known = true;
                self.observer.members_known();
            }
        }
    }

    async fn renew_entry(self: Arc<Self>) {
        let mut interval = tokio::time::interval(RENEW_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let load = self.observer.load();
            let member = Member {
                connections: load.connections,
                sessions: load.sessions,
                is_draining: load.is_draining,
                rebalance_target: load.rebalance_target,
                ..self.local()
            };
            let error = match self.members.renew(&member).await {
                Ok(()) => None,
                Err(error) => Some(error.to_string()),
            };
            let mut state = self.state();
            if error.is_some() != state.renewal_error.is_some() {
                match &error {
                    Some(error) => {
                        tracing::warn!(%error, "this node cannot renew its entry in the cluster")
                    }
                    None => tracing::info!("this node is a member of the cluster"),
                }
            }
            state.renewal_error = error;
        }
    }

    async fn keep_times(self: Arc<Self>) {
        loop {
            let now_ms = self.now_ms();
            let next_ms = {
                let mut membership = self.membership();
                membership.tick(now_ms);
                self.finish(&mut membership, now_ms);
                membership.next_timeout_ms()
            };
            let sleep_ms = next_ms
                .saturating_sub(now_ms)
                .clamp(MIN_SLEEP_MS, MAX_SLEEP_MS);
            let sleep = tokio::time::sleep(Duration::from_millis(sleep_ms));
            tokio::select! {
                () = sleep => {}
                () = self.wake.notified() => {}
            }
        }
    }
}
