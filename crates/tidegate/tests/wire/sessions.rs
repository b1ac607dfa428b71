//! Random clients with stored sessions connect, disconnect, take over, subscribe and publish at QoS 1 and 2 on a
//! node of two shards. In the end every message that was published while a subscription stood must have arrived:
//! at QoS 1 at least once, at QoS 2 exactly once, in the order of each publisher, topic and QoS.
//!
//! Each client below is a small but correct MQTT client: it repeats what is not acknowledged on a new connection,
//! and remembers the QoS 2 identifiers it has received. So whatever is lost, repeated or out of order is the node's.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::support::{
    Connect, Node, Packet, Props, Publish, Random, Raw, Subscribe, Unsubscribe, ack, kind, unique,
};

const CLIENTS: usize = 12;
const TOPICS: usize = 5;
const STEPS: usize = 400;
/// QoS 1 and 2 messages a client has in flight to the node at most.
const WINDOW: usize = 8;
/// How long the last messages may take.
const SETTLE: Duration = Duration::from_secs(15);

/// A point in the test's own time: every event has another one, later events have larger ones.
fn now() -> u64 {
    static CLOCK: AtomicU64 = AtomicU64::new(1);
    CLOCK.fetch_add(1, Ordering::SeqCst)
}

/// One message, as its payload says: `publisher number`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    publisher: usize,
    number: usize,
}

/// What is known of a published message.
#[derive(Debug, Clone)]
struct PublishedMessage {
    message: Message,
    topic: usize,
    qos: u8,
    /// When it was about to be sent for the first time.
    begun: u64,
    /// When the node had accepted it.
    accepted: u64,
}

/// While a subscription surely stood.
#[derive(Debug, Clone)]
struct SubscriptionPeriod {
    topic: usize,
    from: u64,
    until: u64,
    /// If the client has unsubscribed: the last message it had got by then, for each publisher and QoS. What a
    /// publisher sent later may have met the UNSUBSCRIBE on its way from shard to shard.
    got: Option<HashMap<(usize, u8), usize>>,
}

impl SubscriptionPeriod {
    /// Whether the subscription stood all the time from the first sending of the message to its acceptance.
    fn spans(&self, published: &PublishedMessage) -> bool {
        self.topic == published.topic
            && self.from < published.begun
            && published.accepted < self.until
    }

    fn must_deliver(&self, published: &PublishedMessage) -> bool {
        let key = (published.message.publisher, published.qos);
        self.spans(published)
            && self.got.as_ref().is_none_or(|got| {
                got.get(&key)
                    .is_some_and(|last| published.message.number < *last)
            })
    }
}

/// A message on its way to the node.
struct OutgoingMessage {
    packet_id: u16,
    published: PublishedMessage,
    /// QoS 2: PUBREC has come, PUBREL is sent.
    released: bool,
}

struct Client {
    index: usize,
    connect: Connect,
    topics: Arc<Vec<String>>,
    random: Random,
    raw: Raw,
    outgoing: VecDeque<OutgoingMessage>,
    next_id: u16,
    next_number: usize,
    /// QoS 2 identifiers from the node whose PUBREL has not come.
    incoming: HashSet<u16>,
    /// Acknowledgements held back.
    due: VecDeque<Vec<u8>>,
    received: Vec<(usize, u8, Message)>,
    published: Vec<PublishedMessage>,
    periods: Vec<SubscriptionPeriod>,
    /// Since when, per topic; 0: not subscribed.
    subscribed: [u64; TOPICS],
}

impl Client {
    fn new(node: &Node, index: usize, topics: Arc<Vec<String>>, random: Random) -> Client {
        // All versions take part. In 5.0 a session needs an expiry interval to stay.
        let version = [4, 5, 4, 3][index % 4];
        let mut connect = Connect::new(version, unique("s")).persistent();
        if version == 5 {
            connect = connect.properties(Props::new().u32(0x11, 3600));
        }
        let (raw, connack) = Raw::connect_for_connack(node, &connect);
        assert!(!connack.session_present);
        Client {
            index,
            connect,
            topics,
            random,
            raw,
            outgoing: VecDeque::new(),
            next_id: 1,
            next_number: 0,
            incoming: HashSet::new(),
            due: VecDeque::new(),
            received: Vec::new(),
            published: Vec::new(),
            periods: Vec::new(),
            subscribed: [0; TOPICS],
        }
    }

    fn step(&mut self, node: &Node) {
        match self.random.below(100) {
            0..50 => self.publish(),
            50..75 => self.read_for(Duration::from_millis(2)),
            75..82 => self.acknowledge_all(),
            82..86 => self.subscribe(),
            86..88 => self.unsubscribe(),
            88..92 => self.reconnect(node, DisconnectMode::Cut),
            92..96 => self.reconnect(node, DisconnectMode::Disconnect),
            _ => self.reconnect(node, DisconnectMode::Stay),
        }
    }

    fn publish(&mut self) {
        if self.outgoing.len() >= WINDOW {
            return self.read_for(Duration::from_millis(5));
        }
        while self
            .outgoing
            .iter()
            .any(|out| out.packet_id == self.next_id)
            || self.next_id == 0
        {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let published = PublishedMessage {
            message: Message {
                publisher: self.index,
                number: self.next_number,
            },
            topic: self.random.below(TOPICS),
            qos: 1 + self.random.below(2) as u8,
            begun: now(),
            accepted: 0,
        };
        let out = OutgoingMessage {
            packet_id: self.next_id,
            published,
            released: false,
        };
        self.next_number += 1;
        self.next_id = self.next_id.wrapping_add(1);
        let packet = self.packet_of(&out, false);
        self.raw.send(&packet);
        self.outgoing.push_back(out);
    }

    fn packet_of(&self, out: &OutgoingMessage, again: bool) -> Vec<u8> {
        if out.released {
            return ack(kind::PUBREL, out.packet_id);
        }
        let PublishedMessage {
            message,
            topic,
            qos,
            ..
        } = &out.published;
        let payload = format!("{} {}", message.publisher, message.number);
        let mut publish = Publish::new(&self.topics[*topic], payload).qos(*qos, out.packet_id);
        publish.dup = again;
        publish.bytes(self.connect.version)
    }

    fn subscribe(&mut self) {
        let topic = self.random.below(TOPICS);
        let name = self.topics[topic].clone();
        self.raw.send(
            &Subscribe::new(60_001)
                .filter(name, 2)
                .bytes(self.connect.version),
        );
        let suback = self.read_until(kind::SUBACK);
        assert_eq!(suback.payload, [2]);
        if self.subscribed[topic] == 0 {
            self.subscribed[topic] = now();
        }
    }

    fn unsubscribe(&mut self) {
        let topic = self.random.below(TOPICS);
        self.note_end(topic, true);
        let name = self.topics[topic].clone();
        self.raw.send(
            &Unsubscribe::new(60_002)
                .filter(name)
                .bytes(self.connect.version),
        );
        self.read_until(kind::UNSUBACK);
    }

    /// The subscription ends by an UNSUBSCRIBE that is about to be sent, or with the test.
    fn note_end(&mut self, topic: usize, unsubscribes: bool) {
        let from = std::mem::take(&mut self.subscribed[topic]);
        if from == 0 {
            return;
        }
        let until = now();
        let got = unsubscribes.then(|| {
            let mut got = HashMap::new();
            for (_, qos, message) in self.received.iter().filter(|(at, ..)| *at == topic) {
                let last = got.entry((message.publisher, *qos)).or_insert(0);
                *last = message.number.max(*last);
            }
            got
        });
        self.periods.push(SubscriptionPeriod {
            topic,
            from,
            until,
            got,
        });
    }

    fn reconnect(&mut self, node: &Node, leave: DisconnectMode) {
        let away = Duration::from_millis(self.random.below(15) as u64);
        let mut old = None;
        match leave {
            DisconnectMode::Cut => {
                std::mem::replace(&mut self.raw, Raw::open(node, self.connect.version)).cut()
            }
            DisconnectMode::Disconnect => {
                self.raw.send(&[0xe0, 0]);
                self.raw = Raw::open(node, self.connect.version);
                std::thread::sleep(away);
            }
            DisconnectMode::Stay => {
                old = Some(std::mem::replace(
                    &mut self.raw,
                    Raw::open(node, self.connect.version),
                ))
            }
        }
        // What was held back is not sent any more: the node asks again.
        self.due.clear();
        let connack = self.raw.hand_shake(&self.connect);
        assert_eq!(connack.reason, 0, "{connack:?}");
        // 3.1 has no such flag.
        assert!(
            connack.session_present || self.connect.version == 3,
            "the session is lost: {connack:?}"
        );
        let again: Vec<u8> = self
            .outgoing
            .iter()
            .flat_map(|out| self.packet_of(out, true))
            .collect();
        self.raw.send(&again);
        if let Some(mut old) = old {
            old.packets_until_closed();
        }
    }

    /// Takes what comes until nothing has come for `pause`.
    fn read_for(&mut self, pause: Duration) {
        while let Some(packet) = self.raw.try_recv(pause) {
            self.take(packet);
        }
        if self.random.below(2) == 0 {
            self.acknowledge_all();
        }
    }

    fn read_until(&mut self, wanted: u8) -> Packet {
        loop {
            let packet = self.raw.recv_packet();
            if packet.kind == wanted {
                return packet;
            }
            self.take(packet);
        }
    }

    fn acknowledge_all(&mut self) {
        let bytes: Vec<u8> = self.due.drain(..).flatten().collect();
        self.raw.send(&bytes);
    }

    fn take(&mut self, packet: Packet) {
        match packet.kind {
            kind::PUBLISH => self.take_message(&packet),
            kind::PUBREL => {
                self.incoming.remove(&packet.id());
                self.due.push_back(ack(kind::PUBCOMP, packet.id()));
            }
            kind::PUBREC => {
                let out = self
                    .outgoing
                    .iter_mut()
                    .find(|out| out.packet_id == packet.id());
                let out = out.unwrap_or_else(|| panic!("an unknown identifier: {packet:?}"));
                assert_eq!(out.published.qos, 2, "{packet:?}");
                out.released = true;
                self.raw.send(&ack(kind::PUBREL, packet.id()));
            }
            kind::PUBACK | kind::PUBCOMP => {
                // A message that was sent twice is acknowledged twice.
                let Some(position) = self
                    .outgoing
                    .iter()
                    .position(|out| out.packet_id == packet.id())
                else {
                    return;
                };
                let mut published = self.outgoing.remove(position).unwrap().published;
                assert_eq!(
                    published.qos,
                    if packet.kind == kind::PUBACK { 1 } else { 2 },
                    "{packet:?}"
                );
                published.accepted = now();
                self.published.push(published);
            }
            _ => panic!("not expected here: {packet:?}"),
        }
    }

    fn take_message(&mut self, packet: &Packet) {
        let topic = self.topics.iter().position(|name| *name == packet.topic);
        let topic = topic.unwrap_or_else(|| panic!("a topic nobody published to: {packet:?}"));
        let (publisher, number) = packet.text().split_once(' ').unwrap();
        let message = Message {
            publisher: publisher.parse().unwrap(),
            number: number.parse().unwrap(),
        };
        if packet.qos() == 1 {
            self.received.push((topic, 1, message));
            self.due.push_back(ack(kind::PUBACK, packet.id()));
        } else {
            if self.incoming.insert(packet.id()) {
                self.received.push((topic, 2, message));
            } else {
                assert!(
                    packet.dup(),
                    "an identifier in flight is used for another message: {packet:?}"
                );
            }
            self.due.push_back(ack(kind::PUBREC, packet.id()));
        }
    }

    /// Until the node has accepted all of this client's messages.
    fn finish_publishing(&mut self) {
        let deadline = Instant::now() + SETTLE;
        while !self.outgoing.is_empty() {
            assert!(
                Instant::now() < deadline,
                "{} messages are not acknowledged",
                self.outgoing.len()
            );
            self.read_for(Duration::from_millis(10));
        }
    }

    /// Until everything that must arrive has arrived, and nothing more comes.
    fn settle(&mut self, all: &[PublishedMessage]) {
        let must: HashSet<Message> = all
            .iter()
            .filter(|published| {
                let mut periods = self.periods.iter();
                periods.any(|periods| periods.must_deliver(published))
            })
            .map(|published| published.message)
            .collect();
        let deadline = Instant::now() + SETTLE;
        loop {
            self.read_for(Duration::from_millis(50));
            self.acknowledge_all();
            let received: HashSet<Message> = self
                .received
                .iter()
                .map(|(_, _, message)| *message)
                .collect();
            let missing: Vec<&Message> = must.difference(&received).collect();
            if missing.is_empty() {
                break;
            }
            let lacking: Vec<&PublishedMessage> = all
                .iter()
                .filter(|published| missing.contains(&&published.message))
                .collect();
            assert!(
                Instant::now() < deadline,
                "client {} ({}, level {}) lacks {} of {} messages: {:#?}\nsubscribed: {:#?}",
                self.index,
                String::from_utf8_lossy(&self.connect.client_id),
                self.connect.version,
                missing.len(),
                must.len(),
                &lacking[..lacking.len().min(5)],
                self.periods
            );
        }
        // Whatever is still in flight is completed.
        for _ in 0..3 {
            self.read_for(Duration::from_millis(20));
            self.acknowledge_all();
        }
        self.raw.send(&[0xc0, 0]);
        self.read_until(kind::PINGRESP);
    }

    /// Nothing twice at QoS 2, nothing that was not published, everything in order.
    fn check(&self, all: &[PublishedMessage]) {
        let known: HashMap<Message, &PublishedMessage> = all
            .iter()
            .map(|published| (published.message, published))
            .collect();
        let mut seen = HashSet::new();
        let mut last = BTreeMap::new();
        for (topic, qos, message) in &self.received {
            let published = known
                .get(message)
                .unwrap_or_else(|| panic!("never published: {message:?}"));
            assert_eq!(
                (*topic, *qos),
                (published.topic, published.qos),
                "{message:?}"
            );
            if !seen.insert(*message) {
                assert_eq!(
                    *qos, 1,
                    "client {}: a QoS 2 message twice: {message:?}",
                    self.index
                );
                continue;
            }
            // A QoS 1 message that is sent again after the client has subscribed may be the first it gets of it.
            if *qos == 1 && !self.periods.iter().any(|periods| periods.spans(published)) {
                continue;
            }
            let last = last
                .entry((message.publisher, *topic, *qos))
                .or_insert(*message);
            assert!(
                *last <= *message,
                "client {}: {message:?} after {last:?} (topic {topic}, QoS {qos})",
                self.index
            );
            *last = *message;
        }
    }
}

/// How a client leaves its connection before it opens the next.
#[derive(Debug, Clone, Copy)]
enum DisconnectMode {
    /// The socket just closes.
    Cut,
    Disconnect,
    /// Not at all: the new connection takes over.
    Stay,
}

#[test]
fn random_clients_with_stored_sessions_lose_nothing_and_get_nothing_twice() {
    let seed = Random::seed();
    let node = Node::shared_with(&["--shards", "2"]);
    let topics = Arc::new((0..TOPICS).map(|_| unique("t")).collect::<Vec<_>>());
    let all = Arc::new(Mutex::new(Vec::new()));
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| {
            let (topics, all, barrier) = (topics.clone(), all.clone(), barrier.clone());
            std::thread::spawn(move || {
                // A client that panics must not leave the others at the barrier.
                let mut client = std::panic::catch_unwind(|| {
                    let mut client =
                        Client::new(node, index, topics, Random::new(seed + index as u64));
                    for _ in 0..STEPS {
                        client.step(node);
                    }
                    client.finish_publishing();
                    (0..TOPICS).for_each(|topic| client.note_end(topic, false));
                    client
                });
                if let Ok(client) = &mut client {
                    all.lock().unwrap().append(&mut client.published);
                }
                barrier.wait();
                let mut client = client.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let all: Vec<PublishedMessage> = all.lock().unwrap().clone();
                client.settle(&all);
                client.check(&all);
                // DisconnectMode no session behind.
                let (version, id) = (client.connect.version, client.connect.client_id);
                Raw::connect(node, &Connect::new(version, id)).disconnect();
                client.received.len()
            })
        })
        .collect();
    let received: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
    let total: usize = received
        .into_iter()
        .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .sum();
    assert!(
        total > CLIENTS * STEPS / 2,
        "only {total} messages received: the test has tested nothing"
    );
}
