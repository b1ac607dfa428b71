//! Clients that connect to any node, publish, and remember what they have sent and received.

use std::collections::{BTreeMap, BTreeSet};

use hooks::PeerAddress;
use mqtt::{
    Ack, Connect, Direction, Disconnect, Packet, PropertiesBuf, Property, Publish, QoS, ReasonCode,
    SubscribeBuf, SubscriptionOptions, Version, Will,
};

use super::FaultSim;
use crate::core::tests::sim::SimConnection;

/// Time until a client gives up a connection whose CONNECT is not answered.
const CONNECT_TIMEOUT_MS: u64 = 6000;

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A durable session with subscriptions.
    Subscriber,
    /// A durable session with a member of the shared subscription `g`.
    Member,
    /// A session without expiry.
    Transient,
    /// A durable session that publishes one message after the other.
    Publisher,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Offline,
    Connecting { since_ms: u64 },
    Connected,
}

/// A message that is not complete.
#[derive(Debug, Clone)]
struct OpenMessage {
    payload: String,
    topic: String,
    qos: QoS,
    retain: bool,
    packet_id: u16,
    /// PUBREC has arrived.
    is_received: bool,
}

pub(super) struct Client {
    pub(super) id: String,
    pub(super) role: Role,
    filters: Vec<(&'static str, QoS)>,
    state: ClientState,
    /// The node of the connection.
    pub(super) node: usize,
    connection: Option<SimConnection>,
    next_connect_ms: u64,
    /// The client wants a new session with this connection.
    is_clean: bool,
    /// SUBACK has arrived in the session.
    pub(super) is_subscribed: bool,
    /// The node that has the session.
    pub(super) home: usize,
    /// When its present node has adopted the session.
    pub(super) adopted_in: u64,
    /// The nodes that have not got the filters of the session from its node yet: they were separated when the client subscribed
    /// or when the session was adopted, or have started since.
    pub(super) unaware: BTreeSet<usize>,
    /// When its session was created, which tells it from others that the client has had.
    session_created_ms: u64,
    /// When those sessions were created, since the last Clean Start, in which it had not subscribed before it got another one instead.
    unused_sessions: BTreeSet<u64>,
    /// Number of the session, and of the connection; expectations hold for one of them.
    pub(super) session_number: u64,
    pub(super) connection_number: u64,
    open: Option<OpenMessage>,
    next_packet_id: u16,
    published: u32,
    /// Packet ids of received messages that are not released.
    received_ids: BTreeSet<u16>,
    /// How often each message has arrived in this session.
    pub(super) got: BTreeMap<String, u32>,
    /// Answers that say that there is no session, although there should be one.
    pub(super) foreign_sessions: u32,
}

impl Client {
    pub(super) fn new(n: usize, role: Role, nodes: usize) -> Self {
        let (prefix, filters): (&str, Vec<(&str, QoS)>) = match role {
            Role::Subscriber if n.is_multiple_of(2) => (
                "sub",
                vec![("t/#", QoS::ExactlyOnce), ("w/+", QoS::AtLeastOnce)],
            ),
            Role::Subscriber => (
                "sub",
                vec![("t/1", QoS::ExactlyOnce), ("r/+", QoS::AtLeastOnce)],
            ),
            Role::Member => ("member", vec![("$share/g/t/+", QoS::ExactlyOnce)]),
            Role::Transient => ("transient", vec![("t/+", QoS::AtMostOnce)]),
            // By its subscription, a publisher knows whether a session is the one that it had.
            Role::Publisher => ("publisher", vec![("own/+", QoS::AtLeastOnce)]),
        };
        Self {
            id: format!("{prefix}-{n}"),
            role,
            filters,
            state: ClientState::Offline,
            node: n % nodes,
            connection: None,
            next_connect_ms: 0,
            is_clean: false,
            is_subscribed: false,
            home: 0,
            adopted_in: 0,
            unaware: BTreeSet::new(),
            session_created_ms: 0,
            unused_sessions: BTreeSet::new(),
            session_number: 0,
            connection_number: 0,
            open: None,
            next_packet_id: 1,
            published: 0,
            received_ids: BTreeSet::new(),
            got: BTreeMap::new(),
            foreign_sessions: 0,
        }
    }

    pub(super) fn is_durable(&self) -> bool {
        self.role != Role::Transient
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state == ClientState::Connected
    }

    /// Nothing that was for the earlier session is expected any more.
    fn begin_session(&mut self) {
        self.is_subscribed = false;
        self.open = None;
        self.got.clear();
    }

    /// Whether everything that it wanted is done.
    pub(super) fn is_settled(&self) -> bool {
        self.is_connected()
            && self.open.is_none()
            && self.is_subscribed
            && self.received_ids.is_empty()
    }

    pub(super) fn wants(&self, topic: &str) -> bool {
        self.filters.iter().any(|(filter, _)| {
            let filter = filter.strip_prefix("$share/g/").unwrap_or(filter);
            match filter.strip_suffix(['#', '+']) {
                Some(start) => topic.starts_with(start),
                None => topic == filter,
            }
        })
    }

    pub(super) fn progress(&self) -> String {
        format!(
            "{}: {:?} at {}, home {}, subscribed {}, unreleased {:?}, open {:?}",
            self.id,
            self.state,
            self.node,
            self.home,
            self.is_subscribed,
            self.received_ids,
            self.open.as_ref().map(|open| &open.payload)
        )
    }
}

fn encode(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    bytes
}

fn ack(packet_id: u16) -> Ack<'static> {
    Ack {
        packet_id,
        reason: ReasonCode::SUCCESS,
        properties: mqtt::Properties::EMPTY,
    }
}

/// The session of a connection.
struct ConnectedSession {
    node: usize,
    has_subscriptions: bool,
    created_ms: u64,
}

/// What a client has received.
enum Received {
    ConnAck {
        code: ReasonCode,
        present: bool,
    },
    SubAck,
    Publish {
        payload: String,
        qos: QoS,
        packet_id: u16,
    },
    PubAck {
        is_accepted: bool,
    },
    PubRec {
        is_accepted: bool,
    },
    PubRel(u16),
    PubComp,
    Other,
}

fn read(bytes: &[u8]) -> Vec<Received> {
    let mut received = Vec::new();
    let mut rest = bytes;
    while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
        rest = &rest[frame.len..];
        let packet = Packet::decode(frame, Version::V5, Direction::FromServer).unwrap();
        received.push(match packet {
            Packet::ConnAck(connack) => Received::ConnAck {
                code: connack.code,
                present: connack.session_present,
            },
            Packet::SubAck(_) => Received::SubAck,
            Packet::Publish(publish) => Received::Publish {
                payload: String::from_utf8(publish.payload.to_vec()).unwrap(),
                qos: publish.qos,
                packet_id: publish.packet_id,
            },
            Packet::PubAck(ack) => Received::PubAck {
                is_accepted: !ack.reason.is_error(),
            },
            Packet::PubRec(ack) => Received::PubRec {
                is_accepted: !ack.reason.is_error(),
            },
            Packet::PubRel(rel) => Received::PubRel(rel.packet_id),
            Packet::PubComp(_) => Received::PubComp,
            _ => Received::Other,
        });
    }
    received
}

impl FaultSim {
    /// A client connects to a node that accepts clients.
    pub(super) fn connect_client(&mut self, at: usize, node: usize, is_clean: bool) {
        let now_ms = self.now_ms;
        let number = self.next_number();
        let client = &mut self.clients[at];
        client.connection_number = number;
        client.is_clean = is_clean || !client.is_durable();
        if client.is_clean {
            // Whatever comes of it, nothing that was for the earlier session is expected any more.
            client.session_number = number;
            client.begin_session();
            client.session_created_ms = 0;
            client.unused_sessions.clear();
        }
        client.node = node;
        client.state = ClientState::Connecting { since_ms: now_ms };
        let mut properties = PropertiesBuf::new();
        let expiry_s = if client.is_durable() { 3600 } else { 0 };
        properties.push(Property::SessionExpiryInterval(expiry_s));
        let will_topic = format!("w/{}", client.id);
        let payload = format!("will-{}-{number}", client.id);
        let will = Will {
            topic: &will_topic,
            payload: payload.as_bytes(),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: mqtt::Properties::EMPTY,
        };
        let connect = Connect {
            version: Version::V5,
            clean_start: client.is_clean,
            keep_alive_s: 0,
            client_id: &client.id,
            username: None,
            password: None,
            will: (client.role == Role::Publisher).then_some(will),
            properties: properties.as_properties(),
            is_bridge: false,
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes);
        let shown = format!(
            "{} connects to {node}, clean: {}",
            client.id, client.is_clean
        );
        self.note(shown);
        let sim = &mut self.cluster.nodes[node];
        let shard = sim.random(sim.shards.len());
        let opened = sim.shards[shard].open_connection(0, PeerAddress::Unix);
        let mut connection = SimConnection { shard, at: opened };
        sim.send(&mut connection, &bytes);
        self.clients[at].connection = Some(connection);
    }

    fn send_from(&mut self, at: usize, bytes: &[u8]) {
        let client = &mut self.clients[at];
        if let Some(connection) = &mut client.connection {
            self.cluster.nodes[client.node].send(connection, bytes);
        }
    }

    /// The connection of a client is lost.
    pub(super) fn drop_client(&mut self, at: usize, wait_ms: u64) {
        let client = &mut self.clients[at];
        client.state = ClientState::Offline;
        client.next_connect_ms = self.now_ms + wait_ms;
        if let Some(connection) = client.connection.take() {
            self.cluster.nodes[client.node].drop_connection(connection);
        }
    }

    /// The client says that it leaves.
    pub(super) fn disconnect_client(&mut self, at: usize, wait_ms: u64) {
        let packet = Packet::Disconnect(Disconnect {
            reason: ReasonCode::SUCCESS,
            properties: mqtt::Properties::EMPTY,
        });
        self.send_from(at, &encode(&packet));
        self.drop_client(at, wait_ms);
    }

    /// The node of a client has ended.
    pub(super) fn forget_connections(&mut self, node: usize) {
        for at in 0..self.clients.len() {
            if self.clients[at].node == node && self.clients[at].connection.take().is_some() {
                let wait_ms = self.random(800) as u64;
                self.clients[at].state = ClientState::Offline;
                self.clients[at].next_connect_ms = self.now_ms + wait_ms;
            }
        }
    }

    /// The adopting node has the sessions of another one.
    pub(super) fn move_homes(&mut self, from: usize, to: usize) {
        let number = self.next_number();
        for at in 0..self.clients.len() {
            // The failed node may have been adopting the sessions of a third one.
            let home = self.clients[at].home;
            let is_from = home == from || home != to && self.is_adopting(from, home);
            let client = &mut self.clients[at];
            if is_from && self.cluster.nodes[to].has_session(&client.id) {
                client.home = to;
                client.adopted_in = number;
                self.note_unaware(at);
            }
        }
    }

    /// The filters of a session are known from now on to the nodes that its node can reach.
    fn note_unaware(&mut self, at: usize) {
        let home = self.clients[at].home;
        self.clients[at].unaware = (0..self.nodes.len())
            .filter(|&node| node != home && !self.has_filters(node, home))
            .collect();
    }

    /// Everything that the clients do without being asked to. False if nothing has happened.
    pub(super) fn run_clients(&mut self) -> bool {
        let mut has_acted = false;
        for at in 0..self.clients.len() {
            let node = self.clients[at].node;
            if self.nodes[node].frozen_until_ms.is_some() {
                continue;
            }
            let Some(connection) = self.clients[at].connection else {
                let client = &self.clients[at];
                let is_due =
                    client.state == ClientState::Offline && self.now_ms >= client.next_connect_ms;
                if is_due && let Some(node) = self.any_listening_node() {
                    let client = &self.clients[at];
                    // A client that has asked for a new session asks until it gets an answer. It may have the new one already, and
                    // would lose what it does in the earlier one.
                    let is_unanswered = client.is_clean && !client.is_subscribed;
                    let wants_new = is_unanswered
                        || self.is_faulty
                            && self.clients[at].role == Role::Subscriber
                            && self.clients[at].is_subscribed
                            && self.random(25) == 0;
                    self.connect_client(at, node, wants_new);
                    has_acted = true;
                }
                continue;
            };
            let bytes = self.cluster.nodes[node].take_bytes(connection);
            for received in read(&bytes) {
                has_acted = true;
                if self.clients[at].connection.is_some() {
                    self.handle_received(at, received);
                }
            }
            let Some(connection) = self.clients[at].connection else {
                continue;
            };
            if self.cluster.nodes[node].is_closing(connection) {
                has_acted = true;
                let wait_ms = 100 + self.random(900) as u64;
                self.drop_client(at, wait_ms);
                continue;
            }
            if let ClientState::Connecting { since_ms } = self.clients[at].state
                && self.now_ms > since_ms + CONNECT_TIMEOUT_MS
            {
                has_acted = true;
                self.drop_client(at, 100);
            }
        }
        has_acted
    }

    fn any_listening_node(&mut self) -> Option<usize> {
        let listening: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].is_listening && !self.nodes[node].is_draining)
            .collect();
        (!listening.is_empty()).then(|| listening[self.random(listening.len())])
    }

    fn handle_received(&mut self, at: usize, received: Received) {
        match received {
            Received::ConnAck { code, present } => self.handle_connack(at, code, present),
            Received::SubAck => {
                self.clients[at].is_subscribed = true;
                self.note_unaware(at);
                let shown = format!("{} is subscribed", self.clients[at].id);
                self.note(shown);
            }
            Received::Publish {
                payload,
                qos,
                packet_id,
            } => {
                let client = &mut self.clients[at];
                if qos != QoS::ExactlyOnce || client.received_ids.insert(packet_id) {
                    *client.got.entry(payload).or_default() += 1;
                }
                match qos {
                    QoS::AtMostOnce => {}
                    QoS::AtLeastOnce => {
                        self.send_from(at, &encode(&Packet::PubAck(ack(packet_id))))
                    }
                    QoS::ExactlyOnce => {
                        self.send_from(at, &encode(&Packet::PubRec(ack(packet_id))))
                    }
                }
            }
            Received::PubAck { is_accepted: false } | Received::PubRec { is_accepted: false } => {
                self.clients[at].open = None;
            }
            Received::PubAck { .. } | Received::PubComp => {
                if let Some(open) = self.clients[at].open.take() {
                    self.record_acknowledged(at, &open.payload);
                }
            }
            Received::PubRec { .. } => {
                if let Some(open) = &mut self.clients[at].open {
                    open.is_received = true;
                    let (packet_id, payload) = (open.packet_id, open.payload.clone());
                    self.record_acknowledged(at, &payload);
                    self.send_from(at, &encode(&Packet::PubRel(ack(packet_id))));
                }
            }
            Received::PubRel(packet_id) => {
                self.clients[at].received_ids.remove(&packet_id);
                self.send_from(at, &encode(&Packet::PubComp(ack(packet_id))));
            }
            Received::Other => {}
        }
    }

    fn handle_connack(&mut self, at: usize, code: ReasonCode, present: bool) {
        let mut shown = format!(
            "{}: {code:?}, session present: {present}",
            self.clients[at].id
        );
        if code != ReasonCode::SUCCESS {
            return self.note(shown);
        }
        let connected = self.connected_session(at);
        let (home, created_ms) = (connected.node, connected.created_ms);
        shown.push_str(&format!(", at {home}, created at {created_ms}"));
        self.note(shown);
        let number = self.next_number();
        let client = &mut self.clients[at];
        let is_known = created_ms == client.session_created_ms;
        let is_returned = present && client.unused_sessions.remove(&created_ms);
        if is_returned && client.is_subscribed {
            // The node of a session was down, in which the client had not subscribed. What it got meanwhile has given way to that.
            client.begin_session();
            client.received_ids.clear();
            client.session_number = number;
        }
        if client.is_subscribed && !(present && connected.has_subscriptions && is_known) {
            // A node that did not reach the others has given it a new session, which must not replace the earlier one, or one from before
            // it wanted a new one.
            client.foreign_sessions += 1;
            let wait_ms = 1000 + self.random(2000) as u64;
            return self.drop_client(at, wait_ms);
        }
        client.state = ClientState::Connected;
        client.is_clean = false;
        if !client.is_subscribed && !is_known && client.session_created_ms != 0 {
            client.unused_sessions.insert(client.session_created_ms);
        }
        client.session_created_ms = created_ms;
        let has_moved = std::mem::replace(&mut client.home, home) != home;
        if !present {
            client.received_ids.clear();
        }
        if has_moved {
            self.note_unaware(at);
        }
        let client = &mut self.clients[at];
        if !client.is_subscribed {
            let mut subscribe = SubscribeBuf::new(1);
            for &(filter, qos) in &client.filters {
                subscribe.push(filter, SubscriptionOptions::new(qos));
            }
            let mut bytes = Vec::new();
            subscribe.encode(mqtt::Properties::EMPTY, Version::V5, &mut bytes);
            self.send_from(at, &bytes);
        }
        if let Some(open) = self.clients[at].open.clone() {
            match open.is_received {
                true => self.send_from(at, &encode(&Packet::PubRel(ack(open.packet_id)))),
                false => self.send_open(at, true),
            }
        }
    }

    /// The session of a client that has just connected.
    fn connected_session(&self, at: usize) -> ConnectedSession {
        let client = &self.clients[at];
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        nodes.sort_by_key(|&node| node != client.node);
        for node in nodes {
            for shard in &self.cluster.nodes[node].shards {
                let session = shard.by_client_id.get(&*client.id);
                let session = session.map(|&session| &shard.delivery.sessions[session]);
                if let Some(session) = session.filter(|session| session.connection.is_some()) {
                    return ConnectedSession {
                        node,
                        has_subscriptions: !session.subscriptions.is_empty(),
                        created_ms: session.created_ms,
                    };
                }
            }
        }
        ConnectedSession {
            node: client.node,
            has_subscriptions: false,
            created_ms: 0,
        }
    }

    fn send_open(&mut self, at: usize, dup: bool) {
        let Some(open) = self.clients[at].open.clone() else {
            return;
        };
        let bytes = encode(&Packet::Publish(Publish {
            dup: dup && open.qos != QoS::AtMostOnce,
            qos: open.qos,
            retain: open.retain,
            topic: &open.topic,
            packet_id: open.packet_id,
            properties: mqtt::Properties::EMPTY,
            payload: open.payload.as_bytes(),
        }));
        if dup {
            self.record_published_again(at, &open.payload);
        }
        if open.qos == QoS::AtMostOnce {
            self.clients[at].open = None;
        }
        self.send_from(at, &bytes);
    }

    /// A publisher that has no open message publishes one.
    pub(super) fn publish_from(&mut self, at: usize) {
        if !self.clients[at].is_connected() || self.clients[at].open.is_some() {
            return;
        }
        let is_retained = self.random(5) == 0;
        let qos = [
            QoS::AtMostOnce,
            QoS::AtLeastOnce,
            QoS::ExactlyOnce,
            QoS::ExactlyOnce,
        ][self.random(4)];
        let topic = match is_retained {
            true => format!("r/{}", self.random(3)),
            false => format!("t/{}", self.random(3)),
        };
        let client = &mut self.clients[at];
        client.published += 1;
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => client.next_packet_id,
        };
        client.next_packet_id = client.next_packet_id % 60_000 + 1;
        let payload = format!("{}-{:03}", client.id, client.published);
        client.open = Some(OpenMessage {
            payload: payload.clone(),
            topic: topic.clone(),
            qos,
            retain: is_retained,
            packet_id,
            is_received: false,
        });
        self.record_published(at, &payload, &topic, qos);
        self.send_open(at, false);
    }
}
