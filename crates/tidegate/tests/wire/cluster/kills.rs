//! Nodes are killed and frozen, and the NATS server is killed, again and again while clients exchange messages: nothing that
//! was acknowledged is lost.
//!
//! `TIDEGATE_TEST_KILLS=200` sets the number of disturbances; the test takes about 12 s for each.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::support::{Cluster, status};
use crate::support::{
    Connect, Node, Packet, Props, Publish, Random, Raw, Subscribe, ack, kind, unique,
};

const SUBSCRIBERS: usize = 6;
const PUBLISHERS: usize = 4;
/// Time for a client to be connected again, or to get an answer.
const PATIENCE: Duration = Duration::from_secs(60);
const SESSION_EXPIRY: u8 = 0x11;

/// What clients share: where the nodes are, and what was acknowledged and received.
struct Trial {
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
    fn new(trial: &'a Trial, seed: u64) -> Self {
        Self {
            trial,
            connect: Connect::new(5, unique("k"))
                .persistent()
                .properties(Props::new().u32(SESSION_EXPIRY, 3600)),
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
            let index = self.random.below(3);
            let address = self.trial.addresses.lock().unwrap()[index].clone();
            let connack = Raw::try_open_address(&address, 5).and_then(|mut raw| {
                raw.send(&self.connect.bytes());
                let packet = raw.try_recv_unless_closed(Duration::from_secs(5))?;
                Some((raw, packet))
            });
            match connack {
                Some((raw, packet)) if packet.kind == kind::CONNACK && packet.reason == 0 => {
                    if self.had_session && !packet.session_present {
                        let id = String::from_utf8_lossy(&self.connect.client_id);
                        self.trial.lost_sessions.lock().unwrap().push(format!(
                            "{id} at node-{} at {:?}",
                            index + 1,
                            std::time::SystemTime::now()
                                .duration_since(std::time::UNIX_EPOCH)
                                .unwrap()
                        ));
                    }
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

/// What happens to the cluster.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    /// A node is killed, and starts again before anybody has noticed.
    ShortKill,
    /// A node is killed, and starts again when its sessions are adopted.
    LongKill,
    /// A node is stopped by a signal, and continues when its sessions are adopted: it does not know that it was away.
    Freeze,
    /// The NATS server is killed, and starts again.
    NatsKill,
}

impl Disturbance {
    fn choose(random: &mut Random) -> Self {
        match random.below(6) {
            0 | 1 => Self::ShortKill,
            2 | 3 => Self::LongKill,
            4 => Self::Freeze,
            _ => Self::NatsKill,
        }
    }

    fn apply(self, cluster: &mut Cluster, trial: &Trial, index: usize) {
        let node = &mut cluster.nodes[index];
        match self {
            Self::ShortKill | Self::LongKill => {
                node.signal(libc::SIGKILL);
                assert!(node.wait(Duration::from_secs(10)).is_some());
                let pause_ms = if matches!(self, Self::ShortKill) {
                    1000
                } else {
                    7000
                };
                std::thread::sleep(Duration::from_millis(pause_ms));
                node.start_again();
                trial.addresses.lock().unwrap()[index] = node.address("mqtt").to_owned();
            }
            Self::Freeze => {
                node.signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_secs(7));
                node.signal(libc::SIGCONT);
            }
            Self::NatsKill => {
                cluster.nats.kill();
                std::thread::sleep(Duration::from_secs(1));
                cluster.nats.start();
            }
        }
    }
}

fn wait_for_standbys(cluster: &Cluster) {
    let until = Instant::now() + PATIENCE;
    for node in &cluster.nodes {
        while status(node)["standby"]["state"] != "current" {
            let seen = status(node)["standby"].clone();
            assert!(Instant::now() < until, "no standby: {seen}\n{}", node.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_nodes_and_nats_fail() {
    let kills = std::env::var("TIDEGATE_TEST_KILLS").ok();
    let kills: usize = kills.map_or(2, |kills| kills.parse().expect("a number of kills"));
    let Some(mut cluster) = Cluster::start_with_standbys_or_skip(3) else {
        return;
    };
    wait_for_standbys(&cluster);
    let address = |node: &Node| node.address("mqtt").to_owned();
    let trial = Trial {
        addresses: Mutex::new(cluster.nodes.iter().map(address).collect()),
        topic: unique("kills/"),
        is_publishing: AtomicBool::new(true),
        is_over: AtomicBool::new(false),
        acknowledged: (0..PUBLISHERS).map(|_| AtomicU32::new(0)).collect(),
        received: (0..SUBSCRIBERS).map(|_| Mutex::default()).collect(),
        lost_sessions: Mutex::default(),
    };
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let subscribed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (trial, subscribed) = (&trial, &subscribed);
        let end = EndTrial(trial);
        for number in 0..SUBSCRIBERS {
            let client = DurableClient::new(trial, seed + 100 + number as u64);
            scope.spawn(move || client.subscribe(number, subscribed));
        }
        while subscribed.load(Ordering::SeqCst) < SUBSCRIBERS as u32 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|number| {
                let client = DurableClient::new(trial, seed + 200 + number as u64);
                scope.spawn(move || client.publish(number))
            })
            .collect();
        for _ in 0..kills {
            if !trial.lost_sessions.lock().unwrap().is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(500 + random.below(1500) as u64));
            let index = random.below(3);
            let disturbance = Disturbance::choose(&mut random);
            eprintln!("{disturbance:?} of node-{}", index + 1);
            disturbance.apply(&mut cluster, trial, index);
            cluster.wait_until_connected();
            wait_for_standbys(&cluster);
        }
        trial.is_publishing.store(false, Ordering::SeqCst);
        for publisher in publishers {
            publisher.join().expect("the publisher");
        }
        drop(end);
    });
    let (mut missing, mut twice, mut qos2_twice, mut total) = (Vec::new(), 0, Vec::new(), 0);
    for (subscriber, received) in trial.received.iter().enumerate() {
        let received = received.lock().unwrap();
        for (publisher, count) in trial.acknowledged.iter().enumerate() {
            for number in 0..count.load(Ordering::SeqCst) {
                let payload = format!("{publisher}-{number}");
                total += 1;
                match received.get(&payload).copied().unwrap_or(0) {
                    0 => missing.push(format!("{subscriber}:{payload}")),
                    1 => {}
                    _ if publisher % 2 == 1 => qos2_twice.push(format!("{subscriber}:{payload}")),
                    _ => twice += 1,
                }
            }
        }
    }
    eprintln!(
        "{kills} disturbances: {total} messages, {} missing, QoS 1 twice {twice}, QoS 2 twice {}, sessions lost {}",
        missing.len(),
        qos2_twice.len(),
        trial.lost_sessions.lock().unwrap().len()
    );
    let seen = |list: &[String]| list.iter().take(20).cloned().collect::<Vec<_>>();
    let lost = trial.lost_sessions.lock().unwrap();
    if !lost.is_empty() || !missing.is_empty() {
        for node in &cluster.nodes {
            eprintln!("{}", node.log());
        }
    }
    assert!(lost.is_empty(), "seed {seed}: {lost:?}");
    assert!(missing.is_empty(), "seed {seed}: {:?}", seen(&missing));
    if !qos2_twice.is_empty() {
        eprintln!("QoS 2 twice: {:?}", seen(&qos2_twice));
    }
}
