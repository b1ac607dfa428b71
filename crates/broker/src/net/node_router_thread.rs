//! The thread of the node router: it takes what shards and other nodes send, and passes on what the router returns.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OnceCell, watch};

use super::clock::NodeClock;
use super::inbox::{Inbox, InboxEntry, InboxItem, ShardInbox};
use super::peer_node_transport::{PeerNodeConnection, PeerNodeTransport};
use super::tunnel_exits::TunnelExits;
use crate::config::MAX_PEER_NODES;
use crate::core::node::NodeState;
use crate::core::node_router::NodeRouter;
use crate::core::peer_loss::PeerLoss;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::shard_messages::ShardMessage;
use crate::core::succession::SessionHold;
use crate::core::tables::TableIx as _;

/// Time between two examinations of claims that wait for other nodes, and of nodes that cannot be reached.
const TICK: Duration = Duration::from_millis(100);
/// Messages to a node that the transport gets at once. It gives up nodes for which far more wait.
const MAX_TRANSPORT_BYTES: usize = 64 << 20;
/// Messages to a node that wait for that; it is given up when there are more.
const MAX_WAITING_BYTES: usize = 1 << 30;
/// Messages above QoS 0 that a node has not logged; publishers pause when there are more.
const MAX_UNLOGGED_BYTES: usize = 64 << 20;

/// How a broker takes part in a cluster.
#[derive(Clone)]
pub struct ClusterAttachment {
    /// The name of this node in the cluster.
    pub node_name: Box<str>,
    pub transport: Arc<dyn PeerNodeTransport>,
    /// Where the transport reports what it receives.
    pub inbox: PeerNodeInbox,
    /// Time to wait for the other nodes before listeners open at the start.
    pub start_timeout: Duration,
    /// Time for which messages above QoS 0 to a node that cannot be reached wait for its return.
    pub away_timeout: Duration,
}

pub(crate) enum RouterItem {
    ShardMessages {
        from: u16,
        messages: Vec<ShardMessage>,
        bytes: usize,
    },
    NodeUp {
        peer: PeerNodeConnection,
        name: Box<str>,
        protocol: u32,
    },
    NodeDown {
        peer: PeerNodeIx,
        loss: PeerLoss,
    },
    NodeMessage(PeerNodeIx, Bytes),
    /// All members of the cluster that can be reached are reported.
    MembersKnown,
    Standby {
        node: Box<str>,
        is_standby: bool,
    },
    SuccessionBegun(Box<str>),
    SuccessionEnded {
        node: Box<str>,
        is_adopted: bool,
    },
    SuccessionConfirmed(Box<str>),
    HoldSessions(SessionHold),
    Stop,
}

impl InboxEntry for RouterItem {
    fn size_bytes(&self) -> usize {
        match self {
            RouterItem::ShardMessages { bytes, .. } => *bytes,
            RouterItem::NodeMessage(_, message) => message.len(),
            _ => 0,
        }
    }
}

pub(crate) type RouterInbox = Inbox<RouterItem>;

/// Where a [`PeerNodeTransport`] reports what happens at other nodes.
#[derive(Clone)]
pub struct PeerNodeInbox {
    inbox: Arc<RouterInbox>,
    shared: Arc<RouterShared>,
}

/// What other threads see of the router.
struct RouterShared {
    is_ready: watch::Sender<bool>,
    /// The wait at the start, which all listeners share.
    start_wait: OnceCell<()>,
    counters: ClusterCounters,
    /// Of the node that has logged the least of its messages.
    unlogged_bytes: AtomicUsize,
}

/// Messages between this node and the others.
#[derive(Debug, Default)]
pub struct ClusterCounters {
    pub messages_sent: AtomicU64,
    pub messages_received: AtomicU64,
    /// QoS 0 messages that were dropped because a node or a shard was behind.
    pub dropped_behind: AtomicU64,
    /// Messages for a shared subscription without members.
    pub dropped_no_member: AtomicU64,
    /// Messages of other nodes that could not be read.
    pub invalid: AtomicU64,
}

impl Default for PeerNodeInbox {
    fn default() -> Self {
        Self {
            inbox: Arc::new(RouterInbox::new(0)),
            shared: Arc::new(RouterShared {
                is_ready: watch::Sender::new(false),
                start_wait: OnceCell::new(),
                counters: ClusterCounters::default(),
                unlogged_bytes: AtomicUsize::new(0),
            }),
        }
    }
}

impl PeerNodeInbox {
    /// The node with this name can be reached from now on. `protocol`: the latest version of the messages between nodes that
    /// both nodes speak.
    pub fn peer_up(&self, peer: PeerNodeConnection, name: &str, protocol: u32) {
        self.inbox.push(RouterItem::NodeUp {
            peer,
            name: name.into(),
            protocol,
        });
    }

    /// A node cannot be reached any more.
    pub fn peer_down(&self, peer: PeerNodeIx, loss: PeerLoss) {
        self.inbox.push(RouterItem::NodeDown { peer, loss });
    }

    /// A message of a node has arrived.
    pub fn message(&self, peer: PeerNodeIx, message: Bytes) {
        self.inbox.push(RouterItem::NodeMessage(peer, message));
    }

    /// All members of the cluster that can be reached at the start are reported.
    pub fn members_known(&self) {
        self.inbox.push(RouterItem::MembersKnown);
    }

    /// This node is, or is no longer, the standby of another one. When that one cannot be reached any more, clients wait
    /// for their sessions until [`end_succession`](Self::end_succession) is called.
    pub fn set_standby_for(&self, node: &str, is_standby: bool) {
        let node = node.into();
        self.inbox.push(RouterItem::Standby { node, is_standby });
    }

    /// This node begins to adopt the sessions of another one that has failed earlier.
    pub fn begin_succession(&self, node: &str) {
        self.inbox.push(RouterItem::SuccessionBegun(node.into()));
    }

    /// This node has adopted the sessions of another one, or will not do so.
    pub fn end_succession(&self, node: &str, is_adopted: bool) {
        let node = node.into();
        self.inbox
            .push(RouterItem::SuccessionEnded { node, is_adopted });
    }

    /// An earlier run of this node has adopted the sessions of another one.
    pub fn confirm_succession(&self, node: &str) {
        self.inbox
            .push(RouterItem::SuccessionConfirmed(node.into()));
    }

    /// The sessions that this node has stored may be at another one, or are not.
    pub fn hold_sessions(&self, hold: SessionHold) {
        self.inbox.push(RouterItem::HoldSessions(hold));
    }

    /// Bytes of messages that wait here. The transport stops receiving while there are too many.
    pub fn queued_bytes(&self) -> usize {
        self.inbox.queued_bytes()
    }

    /// Whether the subscriptions of all members that could be reached at the start are known here.
    pub fn is_ready(&self) -> bool {
        *self.shared.is_ready.borrow()
    }

    pub fn counters(&self) -> &ClusterCounters {
        &self.shared.counters
    }

    /// Whether so many messages wait for other nodes, or for their logs, that publishers have to wait, too. `limit`: of
    /// bytes that wait for the router.
    pub(crate) fn is_congested(&self, limit: usize) -> bool {
        self.inbox.queued_bytes() > limit
            || self.shared.unlogged_bytes.load(Relaxed) > MAX_UNLOGGED_BYTES
    }

    pub(crate) fn router_inbox(&self) -> &RouterInbox {
        &self.inbox
    }

    pub(crate) fn stop(&self) {
        self.inbox.push(RouterItem::Stop);
    }

    /// Waits until the subscriptions of the other nodes are known, or the time of the first call has passed.
    pub(crate) async fn wait_until_ready(&self, timeout: Duration) {
        let wait = async {
            let mut ready = self.shared.is_ready.subscribe();
            let is_ready = tokio::time::timeout(timeout, ready.wait_for(|ready| *ready)).await;
            if is_ready.is_err() {
                tracing::warn!(
                    seconds = timeout.as_secs(),
                    "the other nodes of the cluster did not answer in time; this node accepts clients without knowing \
                     their subscriptions"
                );
            }
        };
        self.shared.start_wait.get_or_init(|| wait).await;
    }
}

pub(crate) struct RouterSetup {
    pub(crate) attachment: ClusterAttachment,
    pub(crate) inboxes: Arc<[ShardInbox]>,
    pub(crate) is_durable: bool,
    pub(crate) node: Arc<NodeState>,
    pub(crate) clock: NodeClock,
    /// A node or shard for which more bytes wait gets no QoS 0 messages.
    pub(crate) max_queued_bytes: usize,
}

/// Runs the router until it is stopped.
pub(crate) fn run_node_router(setup: &RouterSetup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut thread = RouterThread {
        router: NodeRouter::new(
            &setup.attachment.node_name,
            setup.inboxes.len() as u16,
            setup.is_durable,
            &setup.node,
            setup.attachment.away_timeout.as_millis() as u64,
        ),
        setup,
        tunnel_exits: TunnelExits::new(
            setup.node.clone(),
            setup.inboxes.clone(),
            setup.attachment.transport.clone(),
        ),
        members_known: false,
        needs_tick: false,
        connections: [None; MAX_PEER_NODES],
        waiting: (0..MAX_PEER_NODES)
            .map(|_| WaitingMessages::default())
            .collect(),
    };
    // The exits of tunnels have tasks of their own.
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let inbox = &setup.attachment.inbox.inbox;
        let mut needs_tick = false;
        loop {
            tokio::select! {
                () = inbox.wait() => {}
                () = thread.tunnel_exits.remove_next_ended() => {}
                // The time may have passed without an item.
                () = tokio::time::sleep(TICK), if needs_tick => {}
            }
            let items = inbox.take_all();
            if !thread.handle_items(items) {
                break;
            }
            needs_tick = thread.needs_tick;
        }
    });
    Ok(())
}

struct RouterThread<'a> {
    setup: &'a RouterSetup,
    router: NodeRouter,
    tunnel_exits: TunnelExits,
    members_known: bool,
    /// Whether something happens when time passes.
    needs_tick: bool,
    /// The nodes that can be reached, by their index.
    connections: [Option<PeerNodeConnection>; MAX_PEER_NODES],
    /// What the transport does not take yet, by the index of the node.
    waiting: Vec<WaitingMessages>,
}

/// Messages to a node that wait because many are on their way: the announcements and sessions of a large node when it meets
/// another one. Messages of clients are limited by their publishers, which pause, and by what is dropped.
#[derive(Default)]
struct WaitingMessages {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl WaitingMessages {
    fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.messages.push_back(message);
    }

    /// The next message, if it may follow so many bytes that are on their way.
    fn pop_for(&mut self, queued_bytes: usize) -> Option<Bytes> {
        let has_room = |message: &mut Bytes| {
            queued_bytes == 0 || queued_bytes + message.len() <= MAX_TRANSPORT_BYTES
        };
        let message = self.messages.pop_front_if(has_room)?;
        self.bytes -= message.len();
        Some(message)
    }
}

impl RouterThread<'_> {
    /// One turn; false when the router is to stop.
    fn handle_items(&mut self, items: VecDeque<RouterItem>) -> bool {
        self.update_behind();
        self.router.set_now(self.setup.clock.now_ms());
        let mut is_stopping = false;
        for item in items {
            match item {
                RouterItem::Stop => {
                    is_stopping = true;
                    break;
                }
                RouterItem::ShardMessages { from, messages, .. } => {
                    // One by one, so that a panic in one message does not lose the others.
                    for message in messages {
                        self.catch_panic("handling messages of a shard", |thread| {
                            thread.router.handle_shard_messages(from, vec![message]);
                        });
                    }
                }
                RouterItem::NodeMessage(peer, message) => {
                    let is_handled = self.catch_panic("handling a message of a node", |thread| {
                        thread.handle_peer_message(peer, &message);
                    });
                    if !is_handled {
                        self.reconnect(peer);
                    }
                }
                item => {
                    self.catch_panic("handling a change of the nodes", |thread| {
                        thread.handle_change(item);
                    });
                }
            }
        }
        self.end_turn();
        !is_stopping
    }

    fn end_turn(&mut self) {
        let is_ended = self.catch_panic("ending a turn of the node router", |thread| {
            thread.needs_tick = thread.router.tick();
            thread.router.end_turn();
        });
        if !is_ended {
            // What was to be sent may be lost, so that the nodes no longer agree.
            for peer in self.connections.iter().flatten() {
                self.setup.attachment.transport.reconnect(*peer);
            }
        }
        for (peer, message) in std::mem::take(&mut self.router.outgoing) {
            if self.connections[peer.position()].is_some() {
                self.waiting[peer.position()].push(message);
            }
        }
        self.send_to_nodes();
        self.send_to_shards();
        for (peer, tunnel, message) in std::mem::take(&mut self.router.to_tunnel_exits) {
            let Some(peer) = self.connections[peer.position()] else {
                continue;
            };
            self.catch_panic("handling a message of a tunnel", |thread| {
                thread.tunnel_exits.handle(peer, tunnel, message);
            });
        }
        self.publish_state();
    }

    /// Logs a panic; the router continues. Returns whether there was none.
    fn catch_panic(&mut self, what: &'static str, call: impl FnOnce(&mut Self)) -> bool {
        let result = catch_unwind(AssertUnwindSafe(|| call(self)));
        if result.is_err() {
            tracing::error!("panic while {what}; this is a bug");
        }
        result.is_ok()
    }

    fn handle_peer_message(&mut self, peer: PeerNodeIx, message: &[u8]) {
        if let Err(error) = self.router.handle_node_message(peer, message) {
            let counters = &self.setup.attachment.inbox.shared.counters;
            counters.invalid.fetch_add(1, Relaxed);
            tracing::error!(
                %error,
                "a message of another node is invalid; connecting to that node again"
            );
            self.reconnect(peer);
        }
    }

    fn handle_change(&mut self, item: RouterItem) {
        match item {
            RouterItem::NodeUp {
                peer,
                name,
                protocol,
            } => {
                self.connections[peer.index.position()] = Some(peer);
                self.router.add_peer(peer.index, &name, protocol);
            }
            RouterItem::NodeDown { peer, loss } => {
                self.connections[peer.position()] = None;
                self.waiting[peer.position()] = WaitingMessages::default();
                self.router.remove_peer(peer, loss);
                self.tunnel_exits.remove_peer(peer);
            }
            RouterItem::MembersKnown => self.members_known = true,
            RouterItem::Standby { node, is_standby } => {
                self.router.set_standby_for(&node, is_standby);
            }
            RouterItem::SuccessionBegun(node) => self.router.begin_succession(&node),
            RouterItem::SuccessionEnded { node, is_adopted } => {
                self.router.end_succession(&node, is_adopted);
            }
            RouterItem::SuccessionConfirmed(node) => self.router.confirm_succession(&node),
            RouterItem::HoldSessions(hold) => self.router.hold_sessions(hold),
            RouterItem::ShardMessages { .. } | RouterItem::NodeMessage(..) | RouterItem::Stop => {}
        }
    }

    /// Gives up a node, and reaches it anew.
    fn reconnect(&self, peer: PeerNodeIx) {
        if let Some(peer) = self.connections[peer.position()] {
            self.setup.attachment.transport.reconnect(peer);
        }
    }

    fn update_behind(&mut self) {
        let most = self.setup.max_queued_bytes;
        let transport = &self.setup.attachment.transport;
        let connected = self.connections.iter().flatten();
        let queued_bytes = |peer: PeerNodeConnection| {
            transport.queued_bytes(peer) + self.waiting[peer.index.position()].bytes
        };
        self.router.peers_behind = connected
            .filter(|&&peer| queued_bytes(peer) > most)
            .fold(0, |bits, peer| bits | peer.index.bit());
        let inboxes = self.setup.inboxes.iter().enumerate();
        self.router.shards_behind = inboxes
            .filter(|(_, inbox)| inbox.queued_bytes() > most)
            .fold(0, |bits, (shard, _)| bits | 1 << shard);
    }

    /// Passes messages to the transport, which gives up a node for which too many wait.
    fn send_to_nodes(&mut self) {
        let transport = &self.setup.attachment.transport;
        for (waiting, peer) in self.waiting.iter_mut().zip(&self.connections) {
            if waiting.messages.is_empty() {
                continue;
            }
            let Some(peer) = *peer else { continue };
            let mut queued = transport.queued_bytes(peer);
            while let Some(message) = waiting.pop_for(queued) {
                queued += message.len();
                transport.send(peer, message);
            }
            if waiting.bytes > MAX_WAITING_BYTES {
                tracing::error!(
                    waiting_bytes = waiting.bytes,
                    "another node takes messages too slowly; it is reached anew"
                );
                *waiting = WaitingMessages::default();
                transport.reconnect(peer);
            }
            self.needs_tick |= !waiting.messages.is_empty();
        }
    }

    fn send_to_shards(&mut self) {
        let from = self.router.shards();
        let mut waiting = self.router.queues.waiting_shards;
        while waiting != 0 {
            let shard = waiting.trailing_zeros() as u16;
            waiting &= waiting - 1;
            let messages = self.router.queues.take_ready(shard);
            let bytes = messages.iter().map(ShardMessage::size_bytes).sum();
            self.setup.inboxes[usize::from(shard)].push(InboxItem::ShardMessages {
                from,
                messages,
                bytes,
            });
        }
    }

    fn publish_state(&self) {
        let shared = &self.setup.attachment.inbox.shared;
        if self.members_known && !*shared.is_ready.borrow() && self.router.is_complete() {
            shared.is_ready.send_replace(true);
        }
        let unlogged = self.router.unlogged_bytes();
        shared.unlogged_bytes.store(unlogged, Relaxed);
        let counts = self.router.counts;
        let counters = &shared.counters;
        counters.messages_sent.store(counts.messages_sent, Relaxed);
        counters
            .messages_received
            .store(counts.messages_received, Relaxed);
        counters
            .dropped_behind
            .store(counts.dropped_behind, Relaxed);
        counters
            .dropped_no_member
            .store(counts.dropped_no_member, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_while_many_are_on_their_way() {
        let mut waiting = WaitingMessages::default();
        let large = Bytes::from(vec![0; MAX_TRANSPORT_BYTES + 1]);
        waiting.push(Bytes::from_static(b"first"));
        waiting.push(large);
        assert_eq!(waiting.pop_for(MAX_TRANSPORT_BYTES), None);
        assert_eq!(waiting.pop_for(100).as_deref(), Some(&b"first"[..]));
        // A message above the limit goes alone.
        assert_eq!(waiting.pop_for(1), None);
        assert!(waiting.pop_for(0).is_some());
        assert_eq!(waiting.bytes, 0);
    }
}
