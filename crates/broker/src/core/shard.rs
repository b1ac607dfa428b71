//! One shard. Input: bytes from its connections, messages from the other shards, and the time. Output: bytes, shard
//! messages, and connections to close. The shard owns all its state exclusively; only its own thread touches it.
//!
//! The path of a PUBLISH: `packet_input.rs` parses the packet, `publish.rs` checks it, `routing.rs` finds its
//! subscribers, `delivery.rs` writes it to outboxes.

use hashbrown::HashMap;
use hooks::{Authentication, CertificateNames, Client, Hooks, Interest, PeerAddress};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::hash_state::RandomState;
use mqtt::ReasonCode;

use super::connection::{
    AddressSource, ClientRateLimiter, CloseReason, Connection, ConnectionPhase,
};
use super::connection_deadlines::{DeadlineCheck, DeadlineLimits, MIN_PACKET_BYTES_PER_S};
use super::delivery::Delivery;
use super::derived_queue::DerivedMessages;
use super::node::NodeState;
use super::node_adoption::NodeAdoption;
use super::node_link::RestoredEntry;
use super::partial_packet_budget::PartialPacketBudget;
use super::pending_claims::PendingClaims;
use super::pending_exclusives::PendingExclusives;
use super::pending_responses::PendingResponses;
use super::pending_suback::PendingSubAcks;
use super::received_numbers::ReceivedNumbers;
use super::remote_interest::RouterFilters;
use super::session::PublicationNumber;
use super::shard_messages::{ExclusiveOutcome, ShardMessageQueues};
use super::shared_backlog::SharedBacklogs;
use super::subscription_tree::SubscriptionTree;
use super::tables::{ConnectionIx, NO_SESSION, SessionIx};
use super::timers::{ShardTimers, Timer};
use super::tunnel::Tunnels;
use crate::config::BrokerLimits;
use crate::metrics::{Metric, ShardMetrics};
use scram::ScramCredential;
use store::QueuePage;

/// Checks a password against a credential outside the shard's thread, because the check takes milliseconds by design.
pub(crate) type PasswordChecker = Box<dyn Fn(ScramCredential, Vec<u8>) -> Authentication>;

/// What the owner of a connection's socket does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionAction {
    /// Continue reading.
    Continue,
    /// Stop reading for this number of milliseconds, then call [`Shard::resume`].
    Pause(u64),
    /// Stop reading until [`Shard::resume`] is called for the connection (an authentication is in progress).
    AwaitResume,
    /// Move the connection to another shard with [`Shard::hand_over`].
    HandOver(u16),
    /// Write the rest of the outbox, then close.
    Close,
}

/// The state of one shard, without sockets and without a clock. Its owner is `net`, or a test.
///
/// The owner calls [`set_now`](Shard::set_now) before anything else in a turn, then any of these:
/// - [`open_connection`](Shard::open_connection) registers an accepted socket and returns its index.
///   [`receive`](Shard::receive) takes the bytes of that socket and returns what its owner does next: see
///   [`ConnectionAction`]. [`connection_lost`](Shard::connection_lost) reports a socket that has ended, and
///   [`remove_connection`](Shard::remove_connection) releases the index when nothing uses it any more.
/// - [`handle_shard_messages`](Shard::handle_shard_messages) takes the messages of another shard.
/// - `handle_turn_logged`, `handle_turn_settled` and `handle_fetched_page` report the progress of the store.
/// - [`tick`](Shard::tick) runs the timers; it is due every `TICK_MS`.
///
/// After each call the owner calls [`close_pending_connections`](Shard::close_pending_connections) and
/// [`poll_hooks`](Shard::poll_hooks), and starts `started_authentications`. Once a turn it ends the turn with
/// `end_turn` and sends `shard_queues` to the other shards. Then it writes the outboxes of the connections in
/// `delivery.dirty`, and calls [`resume`](Shard::resume) for those in `to_wake`.
pub(crate) struct Shard {
    pub(crate) id: u16,
    pub(crate) shards: u16,
    /// The number of the node router among the shards; `None` outside a cluster.
    pub(crate) node_router: Option<u16>,
    pub(crate) node: Arc<NodeState>,
    /// The current limits.
    pub(crate) limits: Arc<BrokerLimits>,
    pub(crate) tree: SubscriptionTree<RouterFilters>,
    pub(crate) delivery: Delivery,
    pub(crate) shard_queues: ShardMessageQueues,
    /// Pages of the durable shard links that were pending when the node died; read at start.
    pub(crate) link_pages: Vec<QueuePage>,
    /// Messages of ended sessions, to be redistributed to other members of their groups.
    pub(crate) shared_backlogs: SharedBacklogs,
    pub(crate) timers: ShardTimers,
    /// Session indices of this shard by client id.
    pub(crate) by_client_id: HashMap<Arc<str>, SessionIx, RandomState>,
    pub(crate) pending_claims: PendingClaims,
    pub(crate) tunnels: Tunnels,
    /// Subscriptions that wait for the answers to claims of exclusive topics.
    pub(crate) pending_exclusives: Vec<PendingExclusives<Shard>>,
    /// The answers for the request that is being processed.
    pub(crate) exclusive_answers: Vec<(Box<str>, ExclusiveOutcome)>,
    pub(crate) pending_subacks: PendingSubAcks,
    pub(crate) pending_responses: PendingResponses,
    /// Responses that do not wait for the data of hooks.
    pub(crate) stored_responses: PendingResponses,
    /// Responses that do not wait for other nodes either.
    pub(crate) logged_responses: PendingResponses,
    pub(crate) check_password: PasswordChecker,
    /// Authentications started during the current call; the owner of the sockets awaits them.
    pub(crate) started_authentications: Vec<(ConnectionIx, u32, Authentication)>,
    /// Connections that the owner examines again: closed, or no longer held.
    pub(crate) to_wake: Vec<ConnectionIx>,
    /// Whether the store of another node rejects writes.
    pub(crate) has_rejecting_node: bool,
    /// Set by the owner while too many bytes wait for another shard.
    pub(crate) is_congested: bool,
    /// Messages requested by hooks that are not published yet.
    pub(crate) derived_messages: DerivedMessages,
    /// Whether hooks rejected the message that is being published.
    pub(crate) rejected_by_hooks: bool,
    /// The number of the message that is being published, if a gateway has given it one.
    pub(crate) publication_number: Option<PublicationNumber>,
    /// Whether messages that are published now result from one that must arrive exactly once.
    pub(crate) is_publishing_exactly_once: bool,
    /// Sessions with accepted numbers that are not in their records yet.
    pub(crate) sessions_with_new_numbers: Vec<SessionIx>,
    /// Whether a hook will acknowledge the message being handled later.
    pub(crate) deferred_by_hooks: bool,
    pub(crate) is_stopping: bool,
    /// The sessions that were adopted from other nodes, by the names of these nodes, while messages for them arrive.
    pub(crate) adopted: HashMap<Box<str>, NodeAdoption, RandomState>,
    /// The messages of other nodes that were delivered.
    pub(crate) received: ReceivedNumbers,
    /// Messages for other nodes that were in the link when the node died, until they are forwarded.
    pub(crate) restored_for_nodes: Vec<RestoredEntry>,
    /// Origins and numbers of messages that were delivered while a node was being succeeded, by this one or by another, and the number
    /// of the next session then.
    pub(super) delivered_during_successions: HashMap<(u64, u64), u64, RandomState>,
    /// Whether another node has adopted what this one had for others.
    pub(crate) has_abandoned_for_nodes: bool,
    /// Whether the sessions that end now live on at another node.
    pub(crate) is_abandoning_sessions: bool,
    pub(crate) packet_budget: PartialPacketBudget,
    /// When the last warning about a client with another protocol was logged.
    pub(crate) last_foreign_warning_ms: u64,
    pub(crate) scratch: Vec<u8>,
    /// Reusable buffer for a packet that goes to many sessions.
    pub(crate) packet_buffer: Vec<u8>,
    serial: u32,
    random: u64,
}

impl Shard {
    pub(crate) fn new(
        id: u16,
        shards: u16,
        node: Arc<NodeState>,
        hooks: Box<dyn Hooks>,
        check_password: PasswordChecker,
        now_ms: u64,
    ) -> Self {
        let metrics = node.metrics[usize::from(id)].clone();
        let mut delivery =
            Delivery::new(metrics, node.limits.clone(), node.retained.clone(), hooks);
        delivery.now_ms = now_ms;
        delivery.set_message_number_shard(id);
        Self {
            id,
            shards,
            node_router: node.is_clustered.then_some(shards),
            tree: SubscriptionTree::default(),
            delivery,
            limits: node.limits.clone(),
            shard_queues: ShardMessageQueues::new(id, shards + u16::from(node.is_clustered)),
            link_pages: Vec::new(),
            shared_backlogs: SharedBacklogs::default(),
            timers: ShardTimers::new(now_ms),
            by_client_id: HashMap::default(),
            pending_claims: PendingClaims::default(),
            tunnels: Tunnels::default(),
            pending_exclusives: Vec::new(),
            exclusive_answers: Vec::new(),
            pending_subacks: PendingSubAcks::default(),
            pending_responses: PendingResponses::default(),
            stored_responses: PendingResponses::default(),
            logged_responses: PendingResponses::default(),
            check_password,
            started_authentications: Vec::new(),
            to_wake: Vec::new(),
            has_rejecting_node: false,
            is_congested: false,
            derived_messages: DerivedMessages::default(),
            rejected_by_hooks: false,
            publication_number: None,
            is_publishing_exactly_once: false,
            sessions_with_new_numbers: Vec::new(),
            deferred_by_hooks: false,
            is_stopping: false,
            adopted: HashMap::default(),
            delivered_during_successions: HashMap::default(),
            received: ReceivedNumbers::default(),
            restored_for_nodes: Vec::new(),
            has_abandoned_for_nodes: false,
            is_abandoning_sessions: false,
            packet_budget: PartialPacketBudget::new(node.listeners.len()),
            last_foreign_warning_ms: 0,
            scratch: Vec::new(),
            packet_buffer: Vec::new(),
            serial: 0,
            // Any odd seed is fine: it only spreads messages over the members of a group.
            random: 0x9e37_79b9_7f4a_7c15 ^ (u64::from(id) << 32) ^ now_ms | 1,
            node,
        }
    }

    /// Reads the hook points that the hooks want again.
    pub(crate) fn refresh_hook_interest(&mut self) {
        self.delivery.interest = self.delivery.hooks.interest();
    }

    /// Replaces the limits. Limits that were announced to connected clients in CONNACK must not change.
    pub(crate) fn set_limits(&mut self, limits: Arc<BrokerLimits>) {
        self.delivery.limits = limits.clone();
        self.limits = limits;
    }

    /// Publishes messages that hooks requested, if any hook is registered. `at`: the connection that caused them.
    #[inline]
    pub(crate) fn poll_hooks(&mut self, at: Option<ConnectionIx>) {
        if self.delivery.interest != Interest::NONE {
            self.publish_derived(None);
            self.wait_for_hooks(at);
        }
    }

    /// A panic has interrupted the handling of a message.
    pub(crate) fn reset_after_panic(&mut self) {
        self.derived_messages.reset_after_panic();
        self.publication_number = None;
        self.is_publishing_exactly_once = false;
        self.exclusive_answers.clear();
    }

    pub(crate) fn limits(&self) -> &BrokerLimits {
        &self.limits
    }

    pub(crate) fn metrics(&self) -> &ShardMetrics {
        &self.delivery.metrics
    }

    /// xorshift64: for load spreading, not for secrets.
    pub(crate) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Sets the time; the owner calls it before anything else in a turn. `us` is a monotonic clock.
    pub(crate) fn set_now(&mut self, now_ms: u64, us: u64) {
        self.delivery.now_ms = now_ms;
        self.delivery.now_us = us;
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.delivery.now_ms
    }

    /// Registers an accepted connection. Its slot stays in use until [`Shard::remove_connection`].
    pub(crate) fn open_connection(&mut self, listener: u16, peer: PeerAddress) -> ConnectionIx {
        self.serial = self.serial.wrapping_add(1);
        let config = self.node.listeners[usize::from(listener)].config();
        let max_packet = match config.max_packet_size {
            0 => self.limits.max_packet_size,
            own => own.min(self.limits.max_packet_size),
        };
        let now_ms = self.now_ms();
        let mut connection = Connection::new(self.serial, listener, peer, max_packet, now_ms);
        if let Some(rate) = ClientRateLimiter::new(
            config.max_client_messages_per_s,
            config.max_client_bytes_per_s,
            now_ms,
        ) {
            connection.extra().rate = Some(rate);
        }
        let deadline = now_ms + u64::from(config.connect_timeout_s) * 1000;
        let at = self.delivery.connections.insert(connection);
        self.schedule_check(at, deadline);
        self.metrics().inc(Metric::Connections);
        at
    }

    /// Sets the names in the client's certificate, which are known only after the TLS handshake.
    pub(crate) fn set_certificate(&mut self, at: ConnectionIx, names: CertificateNames) {
        self.delivery.connections[at].extra().certificate = Some(Box::new(names));
    }

    pub(crate) fn set_local_address(&mut self, at: ConnectionIx, local: Option<SocketAddr>) {
        self.delivery.connections[at].local_address = local;
    }

    pub(crate) fn set_address_source(&mut self, at: ConnectionIx, source: AddressSource) {
        self.delivery.connections[at].extra().address_source = Some(source);
    }

    /// Marks a connection that comes from another node of the cluster.
    pub(crate) fn mark_tunnel_exit(&mut self, at: ConnectionIx) {
        self.delivery.connections[at].extra().is_tunnel_exit = true;
    }

    /// Sets the client's real address, as reported by a proxy in front of it.
    pub(crate) fn set_peer(&mut self, at: ConnectionIx, peer: PeerAddress) {
        self.delivery.connections[at].peer = peer;
    }

    /// The session of a connection in phase `Connected`.
    #[inline]
    pub(crate) fn session_of_connection(&self, at: ConnectionIx) -> SessionIx {
        let session = self.delivery.connections[at].session;
        debug_assert_ne!(session, NO_SESSION);
        session
    }

    pub(crate) fn call_hook<R>(
        &mut self,
        session: SessionIx,
        call: impl FnOnce(&mut dyn Hooks, &Client<'_>) -> R,
    ) -> R {
        let delivery = &mut self.delivery;
        let session = &delivery.sessions[session];
        let client = super::delivery::hook_client(session, &delivery.connections);
        call(&mut *delivery.hooks, &client)
    }

    /// Runs timers after time has passed, and returns how many connections are to be checked by
    /// [`check_connections`](Self::check_connections).
    pub(crate) fn tick(&mut self) -> usize {
        let now_ms = self.now_ms();
        let partial = self.packet_budget.publish() as u64;
        self.metrics().set(Metric::PartialPacketBytes, partial);
        self.delivery.pool.trim();
        self.close_unanswered_connections();
        let are_sessions_held = self.node.are_sessions_held.load(Relaxed);
        while let Some(timer) = self.timers.poll(now_ms, are_sessions_held) {
            match timer {
                Timer::SessionExpiry(session) => self.end_session(session),
                Timer::WillDelay(session) => self.publish_will(session),
                Timer::GrantExpiry(at, serial) => self.close_on_grant_expiry(at, serial),
                Timer::DelayedMessage {
                    message,
                    bytes,
                    number,
                } => {
                    self.node.directory.release_delayed(bytes);
                    self.delivery.metrics.sub(Metric::DelayedMessages, 1);
                    self.publish_due_delayed(&message, number);
                }
            }
        }
        self.close_pending_connections();
        self.timers.collect_due_checks(now_ms)
    }

    /// Checks the deadlines of at most so many connections that are due.
    pub(crate) fn check_connections(&mut self, most: usize) {
        for _ in 0..most {
            let Some((at, serial)) = self.timers.next_check() else {
                break;
            };
            self.check_deadlines(at, serial);
        }
        self.close_pending_connections();
    }

    /// Schedules the next check of a connection's deadlines.
    pub(crate) fn schedule_check(&mut self, at: ConnectionIx, when_ms: u64) {
        let now_ms = self.now_ms();
        let connection = &mut self.delivery.connections[at];
        let check_ms = (self.timers).schedule_check(at, connection.serial, when_ms, now_ms);
        connection.deadlines.set_next_check(check_ms);
    }

    fn check_deadlines(&mut self, at: ConnectionIx, serial: u32) {
        let now_ms = self.now_ms();
        let Some(connection) = self.delivery.connections.get(at) else {
            return;
        };
        // A check may belong to an earlier connection in this slot, or to an earlier schedule of this one.
        if connection.serial != serial || !connection.deadlines.is_check_due(now_ms) {
            return;
        }
        let limits = match connection.phase {
            // The node with the session checks those of a tunnel.
            ConnectionPhase::Closing | ConnectionPhase::Tunnelled => return,
            ConnectionPhase::AwaitConnect | ConnectionPhase::Authenticating => {
                let listener = self.node.listeners[usize::from(connection.listener)].config();
                DeadlineLimits::Connect {
                    timeout_s: listener.connect_timeout_s,
                }
            }
            ConnectionPhase::Connected => DeadlineLimits::Connected {
                // A relay connection has pings of its own.
                keep_alive_s: match connection.is_relay() {
                    true => 0,
                    false => connection.keep_alive_s,
                },
                packet_timeout_s: self.limits.packet_timeout_s,
                fragment_bytes: connection.fragment_bytes(),
            },
        };
        let is_relay = connection.is_relay() && connection.phase == ConnectionPhase::Connected;
        match connection.deadlines.poll(now_ms, limits) {
            check @ (DeadlineCheck::Unlimited | DeadlineCheck::CheckAt(_)) if is_relay => {
                let of_packet = match check {
                    DeadlineCheck::CheckAt(deadline) => Some(deadline),
                    _ => None,
                };
                let next = self.check_relay(at);
                if let Some(next) = next.into_iter().chain(of_packet).min() {
                    self.schedule_check(at, next);
                }
            }
            DeadlineCheck::Unlimited => {}
            DeadlineCheck::CheckAt(deadline) => self.schedule_check(at, deadline),
            DeadlineCheck::ConnectOverdue => {
                self.metrics().inc(Metric::ConnectionsRejectedTimeout);
                // The client has got nothing that it must be able to read first.
                self.delivery.connections[at].lingers = false;
                self.close(at, CloseReason::without_code("connect_timeout"));
            }
            DeadlineCheck::PacketOverdue => {
                self.metrics().inc(Metric::PacketTimeouts);
                let detail = format!(
                    "a packet was not completed within {} s (limits.packet_timeout_s), and its bytes arrived at less than \
                     {MIN_PACKET_BYTES_PER_S} per second",
                    self.limits.packet_timeout_s
                );
                let why = CloseReason::new(ReasonCode::UNSPECIFIED_ERROR, "packet_timeout");
                self.close(at, why.with_detail(detail));
            }
            DeadlineCheck::KeepAliveOverdue => {
                self.metrics().inc(Metric::KeepAliveTimeouts);
                let why = CloseReason::new(ReasonCode::KEEP_ALIVE_TIMEOUT, "keep_alive_timeout");
                self.close(at, why);
            }
        }
    }
}
