//! Clients of a cluster that exchange messages while something happens to it: what was acknowledged is counted, and what
//! arrived.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use testkit::NetworkMachine;

use super::support::{Cluster, durable};
use crate::support::{Connect, Node, Packet, Publish, Random, Raw, Subscribe, ack, kind, unique};

const SUBSCRIBERS: usize = 6;
const PUBLISHERS: usize = 4;
/// Time for a client to be connected again, or to get an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Trials take the time of both cores, and would disturb each other.
pub(super) fn run_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What clients share: where the nodes are, and what was acknowledged and received.
pub(super) struct Trial {
    /// Where the nodes are, if not on this machine.
    machines: Vec<Option<NetworkMachine>>,
    /// They change when a node is started again.
    addresses: Mutex<Vec<String>>,
    topic: String,
    is_publishing: AtomicBool,
    is_over: AtomicBool,
    /// Number of messages for each publisher that were acknowledged.
    acknowledged: Vec<AtomicU32>,
    /// For each subscriber, how often it has got each message.
    received: Vec<Mutex<BTreeMap<String, u32>>>,
    /// Clients whose session was not there, with the node and the time.
    lost_sessions: Mutex<Vec<String>>,
    /// Which client has connected to which node, and when; for failures.
    connections: Mutex<Vec<String>>,
}

/// Ends the clients, also if the test fails.
struct EndTrial<'a>(&'a Trial);

impl Drop for EndTrial<'_> {
    fn drop(&mut self) {
        self.0.is_publishing.store(false, Ordering::SeqCst);
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

/// A client with a durable session that connects to one node after the other.
struct DurableClient<'a> {
    trial: &'a Trial,
    connect: Connect,
    random: Random,
    raw: Option<Raw>,
    had_session: bool,
}

impl<'a> DurableClient<'a> {
    fn new(trial: &'a Trial, name: &str, seed: u64) -> Self {
        Self {
            trial,
            connect: durable(&unique(name)),
            random: Random::new(seed),
            raw: None,
            had_session: false,
        }
    }

    /// The connection; `true`: it is new. `None`: there is none within the time.
    fn connection(&mut self) -> Option<(&mut Raw, bool)> {
        let is_new = self.raw.is_none();
        let until = Instant::now() + PATIENCE;
        while self.raw.is_none() {
            if Instant::now() > until {
                return None;
            }
            let index = self.random.below(self.trial.machines.len());
            let address = self.trial.addresses.lock().unwrap()[index].clone();
            let machine = self.trial.machines[index]
                .as_ref()
                .map(NetworkMachine::enter);
            let opened = Raw::try_open_address(&address, 5);
            drop(machine);
            let connack = opened.and_then(|mut raw| {
                raw.send(&self.connect.bytes());
                let packet = raw.try_recv_unless_closed(Duration::from_secs(5))?;
                Some((raw, packet))
            });
            match connack {
                Some((raw, packet)) if packet.kind == kind::CONNACK && packet.reason == 0 => {
                    let id = String::from_utf8_lossy(&self.connect.client_id);
                    let time = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
                    let connection = format!("{id} at node-{} at {time:.3}", index + 1);
                    if self.had_session && !packet.session_present {
                        let mut lost = self.trial.lost_sessions.lock().unwrap();
                        lost.push(connection.clone());
                    }
                    self.trial.connections.lock().unwrap().push(connection);
                    self.had_session = true;
                    self.raw = Some(raw);
                }
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        self.raw.as_mut().map(|raw| (raw, is_new))
    }

    /// The next packet; `None`: there was none, or the connection has ended.
    fn next(&mut self, limit: Duration) -> Option<Packet> {
        let raw = self.raw.as_mut()?;
        let began = Instant::now();
        let packet = raw.try_recv_unless_closed(limit);
        let is_closed = packet.is_none() && began.elapsed() < limit;
        let is_rejected = packet
            .as_ref()
            .is_some_and(|packet| packet.kind == kind::DISCONNECT);
        if is_closed || is_rejected {
            self.raw = None;
            return None;
        }
        packet
    }

    fn send(&mut self, bytes: &[u8]) {
        if let Some(raw) = &mut self.raw
            && !raw.try_send(bytes)
        {
            self.raw = None;
        }
    }

    /// Receives until the trial is over and nothing has come for a while.
    fn subscribe(mut self, number: usize, subscribed: &AtomicU32) {
        let trial = self.trial;
        if let Some((raw, _)) = self.connection() {
            let filter = format!("{}/#", trial.topic);
            raw.subscribe_for_codes(&Subscribe::new(1).filter(&filter, 2));
        }
        subscribed.fetch_add(1, Ordering::SeqCst);
        let mut last = Instant::now();
        let mut open_ids = Vec::new();
        loop {
            let is_quiet = last.elapsed() > Duration::from_secs(3);
            if trial.is_over.load(Ordering::SeqCst) && is_quiet && self.raw.is_some() {
                return;
            }
            if self.connection().is_none() {
                return;
            }
            let Some(packet) = self.next(Duration::from_millis(500)) else {
                continue;
            };
            last = Instant::now();
            let id = packet.packet_id.unwrap_or_default();
            match packet.kind {
                kind::PUBLISH => {
                    // A QoS 2 message that is sent again before it was released is the same one [MQTT-4.3.3-10].
                    let is_known = packet.qos() == 2 && open_ids.contains(&id);
                    if !is_known {
                        let mut received = trial.received[number].lock().unwrap();
                        *received.entry(packet.text().to_owned()).or_default() += 1;
                    }
                    if packet.qos() == 1 {
                        self.send(&ack(kind::PUBACK, id));
                    } else {
                        if !is_known {
                            open_ids.push(id);
                        }
                        self.send(&ack(kind::PUBREC, id));
                    }
                }
                kind::PUBREL => {
                    open_ids.retain(|open| *open != id);
                    self.send(&ack(kind::PUBCOMP, id));
                }
                _ => {}
            }
        }
    }

    /// Publishes one message after the other, as often as necessary, until it is told to stop.
    fn publish(mut self, number: usize) {
        let trial = self.trial;
        let qos = 1 + number as u8 % 2;
        let mut count = 0_u32;
        while trial.is_publishing.load(Ordering::SeqCst) {
            let id = 1 + (count % 60_000) as u16;
            let topic = format!("{}/{number}", trial.topic);
            let message = Publish::new(topic, format!("{number}-{count}")).qos(qos, id);
            let (mut is_sent, mut is_released) = (false, false);
            let until = Instant::now() + 2 * PATIENCE;
            loop {
                if Instant::now() > until {
                    panic!("message {number}-{count} is not acknowledged in time");
                }
                let Some((_, is_new)) = self.connection() else {
                    panic!("publisher {number} cannot connect");
                };
                if is_released && is_new {
                    self.send(&ack(kind::PUBREL, id));
                } else if is_new || !is_sent {
                    let again = if is_sent {
                        message.clone().dup()
                    } else {
                        message.clone()
                    };
                    self.send(&again.bytes(5));
                    is_sent = true;
                }
                let Some(packet) = self.next(Duration::from_secs(1)) else {
                    continue;
                };
                match packet.kind {
                    kind::PUBACK | kind::PUBCOMP => break,
                    kind::PUBREC => {
                        is_released = true;
                        self.send(&ack(kind::PUBREL, id));
                    }
                    _ => {}
                }
            }
            count += 1;
            trial.acknowledged[number].store(count, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Trial {
    /// Lets clients exchange messages at the nodes of a cluster while `disturb` runs, and checks that nothing acknowledged is
    /// lost. Returns a summary.
    pub(super) fn run(
        cluster: &mut Cluster,
        seed: u64,
        disturb: impl FnOnce(&mut Cluster, &Trial),
    ) -> String {
        let address = |node: &Node| node.address("mqtt").to_owned();
        let machine = |index| cluster.machine(index).cloned();
        let trial = Trial {
            machines: (0..cluster.nodes.len()).map(machine).collect(),
            addresses: Mutex::new(cluster.nodes.iter().map(address).collect()),
            topic: unique("trial/"),
            is_publishing: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            acknowledged: (0..PUBLISHERS).map(|_| AtomicU32::new(0)).collect(),
            received: (0..SUBSCRIBERS).map(|_| Mutex::default()).collect(),
            lost_sessions: Mutex::default(),
            connections: Mutex::default(),
        };
        let subscribed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let (trial, subscribed) = (&trial, &subscribed);
            let end = EndTrial(trial);
            for number in 0..SUBSCRIBERS {
                let client =
                    DurableClient::new(trial, &format!("s{number}-"), seed + 100 + number as u64);
                scope.spawn(move || client.subscribe(number, subscribed));
            }
            let until = Instant::now() + PATIENCE;
            while subscribed.load(Ordering::SeqCst) < SUBSCRIBERS as u32 {
                assert!(Instant::now() < until, "a client cannot subscribe");
                std::thread::sleep(Duration::from_millis(10));
            }
            let publishers: Vec<_> = (0..PUBLISHERS)
                .map(|number| {
                    let client = DurableClient::new(
                        trial,
                        &format!("p{number}-"),
                        seed + 200 + number as u64,
                    );
                    scope.spawn(move || client.publish(number))
                })
                .collect();
            disturb(cluster, trial);
            trial.is_publishing.store(false, Ordering::SeqCst);
            for publisher in publishers {
                publisher.join().expect("the publisher");
            }
            drop(end);
        });
        trial.check(cluster, seed)
    }

    pub(super) fn has_lost_sessions(&self) -> bool {
        !self.lost_sessions.lock().unwrap().is_empty()
    }

    /// A node was started again.
    pub(super) fn set_address(&self, index: usize, node: &Node) {
        self.addresses.lock().unwrap()[index] = node.address("mqtt").to_owned();
    }

    fn check(&self, cluster: &Cluster, seed: u64) -> String {
        // By subscriber and publisher.
        let mut missing: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        let (mut twice, mut qos2_twice, mut total) = (0, Vec::new(), 0);
        for (subscriber, received) in self.received.iter().enumerate() {
            let received = received.lock().unwrap();
            for (publisher, count) in self.acknowledged.iter().enumerate() {
                for number in 0..count.load(Ordering::SeqCst) {
                    let payload = format!("{publisher}-{number}");
                    total += 1;
                    match received.get(&payload).copied().unwrap_or(0) {
                        0 => {
                            let missing = missing.entry((subscriber, publisher));
                            missing.or_default().push(number);
                        }
                        1 => {}
                        _ if publisher % 2 == 1 => {
                            qos2_twice.push(format!("{subscriber}:{payload}"))
                        }
                        _ => twice += 1,
                    }
                }
            }
        }
        let lost = self.lost_sessions.lock().unwrap();
        let seen = |list: &[String]| list.iter().take(20).cloned().collect::<Vec<_>>();
        if !lost.is_empty() || !missing.is_empty() {
            for node in &cluster.nodes {
                eprintln!("{}", node.log());
            }
            let connections = self.connections.lock().unwrap();
            eprintln!("{}", connections.join("\n"));
        }
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
        assert!(missing.is_empty(), "seed {seed}: {missing:?}");
        if !qos2_twice.is_empty() {
            eprintln!("QoS 2 twice: {:?}", seen(&qos2_twice));
        }
        format!(
            "{total} messages, 0 missing, QoS 1 twice {twice}, QoS 2 twice {}, sessions lost 0",
            qos2_twice.len()
        )
    }
}
