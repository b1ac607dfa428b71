//! What must hold, whatever fails.

use mqtt::QoS;

use super::clients::Role;
use super::{FaultSim, name};

/// A message of a publisher.
pub(super) struct Published {
    payload: String,
    qos: QoS,
    /// QoS 2 for publisher and subscribers.
    is_exactly_once: bool,
    is_acknowledged: bool,
    publisher: usize,
    /// Clients with a confirmed subscription when it was published, and the number of their sessions.
    expected: Vec<ExpectedDelivery>,
    /// Clients without durable sessions, whose connections must not have been interrupted.
    live: Vec<LiveDelivery>,
    has_members: bool,
    /// The node of the publisher knew no node with a member when it sent the message.
    are_members_excused: bool,
}

struct ExpectedDelivery {
    client: usize,
    session_number: u64,
    /// The node of the publisher did not know that of the session, or had given it up.
    is_excused: bool,
}

struct LiveDelivery {
    client: usize,
    connection_number: u64,
    /// The nodes of publisher and subscriber, and their connection.
    nodes: (usize, usize),
    channel: Option<u64>,
    runs: (u64, u64),
}

impl FaultSim {
    /// The node that has the session of a client that is connected.
    fn session_node(&self, at: usize) -> usize {
        let id = &self.clients[at].id;
        let near = self.clients[at].node;
        match self.cluster.nodes[near].has_session(id) {
            true => near,
            false => self.clients[at].home,
        }
    }

    fn knows(&self, node: usize, other: usize) -> bool {
        let router = self.cluster.nodes[node].router.as_ref();
        node == other || router.is_some_and(|router| router.knows_node(&name(other)))
    }

    pub(super) fn record_published(&mut self, at: usize, payload: &str, topic: &str, qos: QoS) {
        let publisher_node = self.session_node(at);
        let is_direct = publisher_node == self.clients[at].node;
        let mut published = Published {
            payload: payload.to_owned(),
            qos,
            is_exactly_once: qos == QoS::ExactlyOnce && topic.starts_with("t/"),
            is_acknowledged: false,
            publisher: at,
            expected: Vec::new(),
            live: Vec::new(),
            has_members: false,
            are_members_excused: false,
        };
        for (client, subscriber) in self.clients.iter().enumerate() {
            if !subscriber.is_subscribed || !subscriber.wants(topic) {
                continue;
            }
            let home = subscriber.home;
            match subscriber.role {
                Role::Subscriber => published.expected.push(ExpectedDelivery {
                    client,
                    session_number: subscriber.session_number,
                    is_excused: !self.knows(publisher_node, home),
                }),
                Role::Member => published.has_members |= self.knows(publisher_node, home),
                Role::Transient if is_direct && subscriber.is_connected() => {
                    let nodes = (publisher_node, subscriber.node);
                    let channel = self.channels[nodes.0][nodes.1];
                    let is_reachable = nodes.0 == nodes.1
                        || channel.is_some_and(|channel| self.is_agreed(nodes, channel));
                    if is_reachable {
                        published.live.push(LiveDelivery {
                            client,
                            connection_number: subscriber.connection_number,
                            nodes,
                            channel,
                            runs: (self.nodes[nodes.0].run, self.nodes[nodes.1].run),
                        });
                    }
                }
                Role::Transient | Role::Publisher => {}
            }
        }
        let shown = format!("{payload} to {topic} with {qos:?} at {publisher_node}");
        self.note(shown);
        self.published.push(published);
    }

    /// A client publishes a message again that was not acknowledged.
    pub(super) fn record_published_again(&mut self, at: usize, payload: &str) {
        let node = self.session_node(at);
        self.record_sent_again(node, None, &[payload.to_owned()]);
    }

    /// A node sends messages once more that were on their way: it has started again, has adopted them from another one, or
    /// their publishers repeat them. Nodes that it does not know do not get them.
    pub(super) fn record_sent_again(
        &mut self,
        node: usize,
        adopted_from: Option<usize>,
        payloads: &[String],
    ) {
        let knows: Vec<bool> = (0..self.nodes.len())
            .map(|other| Some(other) == adopted_from || self.knows(node, other))
            .collect();
        let clients = &self.clients;
        let has_members = (clients.iter()).any(|client| {
            client.role == Role::Member && client.is_subscribed && knows[client.home]
        });
        let of_payloads = |message: &&mut Published| payloads.contains(&message.payload);
        for message in self.published.iter_mut().filter(of_payloads) {
            for expected in &mut message.expected {
                expected.is_excused |= !knows[clients[expected.client].home];
            }
            message.are_members_excused |= !has_members;
        }
    }

    pub(super) fn record_acknowledged(&mut self, at: usize, payload: &str) {
        let node = self.session_node(at);
        let excused: Vec<bool> = (0..self.nodes.len())
            .map(|other| !self.knows(node, other))
            .collect();
        let homes: Vec<usize> = self.clients.iter().map(|client| client.home).collect();
        let message = (self.published.iter_mut().rev()).find(|known| known.payload == payload);
        if let Some(message) = message
            && !message.is_acknowledged
        {
            message.is_acknowledged = true;
            for expected in &mut message.expected {
                expected.is_excused |= excused[homes[expected.client]];
            }
            self.note(format!("{payload} is acknowledged"));
        }
    }

    /// What does not hold when everything is well again.
    pub(super) fn violations(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        self.check_sessions(&mut found);
        self.check_messages(&mut found);
        self.check_live_messages(&mut found);
        let digests = self.cluster.nodes.iter().map(|node| {
            let retained = &node.shards[0].node.retained;
            retained.digests().expect("a cluster")
        });
        let digests: Vec<_> = digests.collect();
        if digests.iter().any(|of_node| *of_node != digests[0]) {
            found.push("the nodes have different retained messages".to_owned());
        }
        found
    }

    fn check_sessions(&self, found: &mut Vec<String>) {
        for client in &self.clients {
            let holders: Vec<usize> = (0..self.nodes.len())
                .filter(|&node| self.cluster.nodes[node].has_session(&client.id))
                .collect();
            if holders.len() != 1 {
                found.push(format!("{} has sessions at {holders:?}", client.id));
            }
        }
    }

    fn check_messages(&mut self, found: &mut Vec<String>) {
        for message in &self.published {
            let payload = &message.payload;
            for expected in &message.expected {
                let client = &self.clients[expected.client];
                let count = client.got.get(payload).copied().unwrap_or(0);
                if client.session_number != expected.session_number {
                    continue;
                }
                let is_due = message.is_acknowledged && message.qos != QoS::AtMostOnce;
                if is_due && count == 0 {
                    match expected.is_excused {
                        true => self.excused += 1,
                        false => found.push(format!("{payload} is lost for {}", client.id)),
                    }
                }
                if message.is_exactly_once && count > 1 {
                    found.push(format!("{payload} has reached {} {count} times", client.id));
                }
            }
            let members = self
                .clients
                .iter()
                .filter(|client| client.role == Role::Member);
            let by_members: u32 = members
                .map(|client| client.got.get(payload).unwrap_or(&0))
                .sum();
            let is_due = message.is_acknowledged && message.qos != QoS::AtMostOnce;
            if message.has_members && is_due && by_members == 0 {
                match message.are_members_excused {
                    true => self.excused += 1,
                    false => found.push(format!("{payload} has reached no member of the group")),
                }
            }
        }
    }

    /// No message was routed without the interest of a node that could be reached.
    fn check_live_messages(&self, found: &mut Vec<String>) {
        for message in &self.published {
            if message.qos != QoS::AtMostOnce && !message.is_acknowledged {
                continue;
            }
            for live in &message.live {
                let client = &self.clients[live.client];
                let (a, b) = live.nodes;
                let is_uninterrupted = client.connection_number == live.connection_number
                    && client.is_connected()
                    && self.channels[a][b] == live.channel
                    && (self.nodes[a].run, self.nodes[b].run) == live.runs;
                let publisher = &self.clients[message.publisher].id;
                if is_uninterrupted && !client.got.contains_key(&message.payload) {
                    found.push(format!(
                        "{} of {publisher} at {a} has not reached {} at {b}",
                        message.payload, client.id
                    ));
                }
            }
        }
    }
}
