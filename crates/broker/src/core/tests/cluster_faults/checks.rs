//! What must hold, whatever fails.

use mqtt::QoS;

use super::clients::{Client, Role};
use super::{FaultSim, name};
use crate::core::node_router::NodeRouter;

/// A message of a publisher.
pub(super) struct Published {
    payload: String,
    qos: QoS,
    /// QoS 2 for publisher and subscribers.
    is_exactly_once: bool,
    is_acknowledged: bool,
    number: u64,
    publisher: usize,
    /// The runs of nodes that have published it. They do not publish it again when its client repeats it.
    published_in: Vec<(usize, u64)>,
    /// Clients with a confirmed subscription when it was published, and the number of their sessions.
    expected: Vec<ExpectedDelivery>,
    /// Clients without durable sessions, whose connections must not have been interrupted.
    live: Vec<LiveDelivery>,
    /// The runs of nodes that have adopted it in the link of another node.
    adopted_in: Vec<(usize, u64)>,
    /// A node that has adopted sessions was killed before all nodes had logged it. It does not remember which of its sessions it has
    /// adopted, and that these, or the other ones, had got it.
    may_arrive_twice: bool,
    has_members: bool,
    /// The node of the publisher knew no node with a member when it sent the message.
    are_members_excused: bool,
}

struct ExpectedDelivery {
    client: usize,
    session_number: u64,
    /// The node of the publisher did not know that of the session, had given it up, or had not got its filters yet.
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

    /// Whether a node has, from another one that it can reach, all filters of that.
    pub(super) fn has_filters(&self, node: usize, other: usize) -> bool {
        let channel = self.channels[node][other];
        let router = self.cluster.nodes[node].router.as_ref();
        channel.is_some_and(|channel| self.is_agreed((node, other), channel))
            && router.is_some_and(|router| router.has_filters_of(&name(other)))
    }

    /// Nodes that reach each other again get the filters that they have missed.
    /// All their shards have to know these.
    pub(super) fn update_unaware(&mut self) {
        let routers = self.cluster.nodes.iter().map(|node| node.router.as_ref());
        let is_known = |router: &NodeRouter| router.queues.is_all_applied();
        let knowing: Vec<bool> = routers.map(|router| router.is_some_and(is_known)).collect();
        for at in 0..self.clients.len() {
            let mut unaware = std::mem::take(&mut self.clients[at].unaware);
            let home = self.clients[at].home;
            unaware.retain(|&node| !(self.has_filters(node, home) && knowing[node]));
            self.clients[at].unaware = unaware;
        }
    }

    /// Whether what a node publishes is to reach a session: it keeps the node of the session, and has got the filters of the session
    /// since it has started. It has no others: nobody can tell a node that cannot be reached.
    fn addresses(&self, node: usize, client: &Client) -> bool {
        self.knows(node, client.home) && !client.unaware.contains(&node)
    }

    /// The same for a message that the node may have sent before, when it had other filters.
    fn may_address(&self, node: usize, client: &Client, is_sent: bool) -> bool {
        match is_sent {
            true => self.knows(node, client.home),
            false => self.addresses(node, client),
        }
    }

    pub(super) fn record_published(&mut self, at: usize, payload: &str, topic: &str, qos: QoS) {
        let publisher_node = self.session_node(at);
        let is_direct = publisher_node == self.clients[at].node;
        let mut published = Published {
            payload: payload.to_owned(),
            qos,
            is_exactly_once: qos == QoS::ExactlyOnce && topic.starts_with("t/"),
            is_acknowledged: false,
            number: self.last_number,
            publisher: at,
            published_in: vec![(publisher_node, self.nodes[publisher_node].run)],
            expected: Vec::new(),
            live: Vec::new(),
            adopted_in: Vec::new(),
            may_arrive_twice: false,
            has_members: false,
            are_members_excused: false,
        };
        for (client, subscriber) in self.clients.iter().enumerate() {
            if !subscriber.is_subscribed || !subscriber.wants(topic) {
                continue;
            }
            match subscriber.role {
                Role::Subscriber => published.expected.push(ExpectedDelivery {
                    client,
                    session_number: subscriber.session_number,
                    is_excused: !self.addresses(publisher_node, subscriber),
                }),
                Role::Member => published.has_members |= self.addresses(publisher_node, subscriber),
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
    /// their publishers repeat them. Nodes that it does not know do not get them, and those whose filters it does not have.
    pub(super) fn record_sent_again(
        &mut self,
        node: usize,
        adopted_from: Option<usize>,
        payloads: &[String],
    ) {
        let run = self.nodes[node].run;
        let mut published = std::mem::take(&mut self.published);
        let of_payloads = |message: &&mut Published| payloads.contains(&message.payload);
        for message in published.iter_mut().filter(of_payloads) {
            let is_sent = message.published_in.contains(&(node, run));
            let is_addressed = |client: &Client| {
                Some(client.home) == adopted_from || self.may_address(node, client, is_sent)
            };
            for at in 0..message.expected.len() {
                let client = &self.clients[message.expected[at].client];
                // The sessions of the node that has failed had the message with the entry in the link, except those that it had
                // adopted since it published it. It had passed the message on to these, and its standby does not have that.
                let is_passed_over = adopted_from
                    .is_some_and(|failed| self.is_adopted_since(client, failed, message));
                let is_ignored = adopted_from.is_some() && self.is_ignored(client, message);
                message.expected[at].is_excused |=
                    is_passed_over || is_ignored || !is_addressed(client);
            }
            let has_members = self.clients.iter().any(|client| {
                client.role == Role::Member && client.is_subscribed && is_addressed(client)
            });
            message.are_members_excused |= !has_members;
            message.published_in.push((node, run));
            if adopted_from.is_some() {
                message.adopted_in.push((node, run));
            }
        }
        self.published = published;
    }

    /// A node ends that has adopted sessions. What others have passed on to it for these is sent again, and it does not remember which ones
    /// they are.
    pub(super) fn record_end_of_adopter(&mut self) {
        let published = self.published.iter_mut();
        for message in published.filter(|message| !message.is_acknowledged) {
            message.may_arrive_twice = true;
        }
    }

    /// Whether a node has adopted the session of a client, or a part of the sessions among which that is, since it has published a
    /// message.
    fn is_adopted_since(&self, client: &Client, node: usize, message: &Published) -> bool {
        let is_adopted = match client.home == node {
            true => message.number < client.adopted_in,
            false => self.is_adopting(node, client.home),
        };
        is_adopted && (message.published_in.iter()).any(|&(at, _)| at == node)
    }

    /// Whether the node of a session may have got a message for its own sessions before it adopted that one, and does not remember that:
    /// it was killed since.
    fn is_ignored(&self, client: &Client, message: &Published) -> bool {
        let run = self.nodes[client.home].run;
        message.number < client.adopted_in && (run == 0 || client.adopted_in < run)
    }

    /// A node has started again, and forwards what is left in its links.
    pub(super) fn record_restored(&mut self, node: usize, payloads: &[String]) {
        let run = self.nodes[node].run;
        let mut published = std::mem::take(&mut self.published);
        let of_payloads = |message: &&mut Published| payloads.contains(&message.payload);
        for message in published.iter_mut().filter(of_payloads) {
            let mut adopted_in = message.adopted_in.iter();
            message.may_arrive_twice |= adopted_in.any(|&(at, in_run)| at == node && in_run != run);
            // It was killed before it had passed the message to the sessions that it has adopted since.
            for at in 0..message.expected.len() {
                let client = &self.clients[message.expected[at].client];
                message.expected[at].is_excused |= self.is_adopted_since(client, node, message)
                    || self.is_ignored(client, message);
            }
        }
        self.published = published;
        self.record_sent_again(node, None, payloads);
    }

    pub(super) fn record_acknowledged(&mut self, at: usize, payload: &str) {
        let node = self.session_node(at);
        let clients = self.clients.iter();
        let excused: Vec<bool> = clients
            .map(|client| !self.knows(node, client.home))
            .collect();
        let message = (self.published.iter_mut().rev()).find(|known| known.payload == payload);
        if let Some(message) = message
            && !message.is_acknowledged
        {
            message.is_acknowledged = true;
            for expected in &mut message.expected {
                expected.is_excused |= excused[expected.client];
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
        let mut excused = Vec::new();
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
                        true => excused.push(format!("{payload} for {}", client.id)),
                        false => found.push(format!("{payload} is lost for {}", client.id)),
                    }
                }
                if message.is_exactly_once && count > 1 {
                    let shown = format!("{payload} has reached {} {count} times", client.id);
                    match message.may_arrive_twice && count == 2 {
                        true => excused.push(shown),
                        false => found.push(shown),
                    }
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
                    true => excused.push(format!("{payload} for the group")),
                    false => found.push(format!("{payload} has reached no member of the group")),
                }
            }
        }
        self.excused += excused.len();
        for shown in excused {
            self.note(format!("excused: {shown}"));
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
