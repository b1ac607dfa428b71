//! Floods: whatever a client throws at the node, its memory stays bounded and other clients do not notice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{
    Connect, Node, Publish, Random, Raw, Subscribe, Will, eventually, external, frame, kind, unique,
};

const MIB: u64 = 1 << 20;

/// Floods run one after the other: each is meant to have the machine to itself.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A node under attack, with a client that keeps publishing to itself and a measure of memory.
struct FloodedNode {
    node: Node,
    resident_before: u64,
    probe: Probe,
}

impl FloodedNode {
    fn start(arguments: &[&str], config: &str) -> FloodedNode {
        let node = Node::start_with_config(&[&["--shards", "2"], arguments].concat(), config);
        // A first few clients, so that what any node allocates once is there.
        for _ in 0..4 {
            Raw::client(&node, 4).disconnect();
        }
        let probe = Probe::start(&node);
        eventually("the probe's first round trips", || probe.round_trips() > 10);
        FloodedNode {
            resident_before: node.resident_bytes(),
            node,
            probe,
        }
    }

    /// Bytes of resident memory more than before the flood.
    fn growth(&self) -> u64 {
        self.node
            .resident_bytes()
            .saturating_sub(self.resident_before)
    }

    /// The node must live, have grown by less than `limit` bytes, and have served the probe throughout.
    fn expect_unharmed(self, limit: u64) {
        assert!(
            self.node.is_running(),
            "the node has ended:\n{}",
            self.node.log()
        );
        let growth = self.growth();
        let before = self.probe.round_trips();
        eventually("round trips of the probe after the flood", || {
            self.probe.round_trips() > before + 10
        });
        self.probe.stop();
        assert!(growth < limit, "the node has grown by {} MiB", growth / MIB);
        let log = self.node.log();
        assert!(!log.contains("panicked"), "a panic:\n{log}");
    }
}

/// A client that publishes QoS 1 messages to itself, one after the other; each must come back in time.
struct Probe {
    stop: Arc<AtomicBool>,
    round_trips: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Probe {
    fn start(node: &Node) -> Probe {
        let stop = Arc::new(AtomicBool::new(false));
        let round_trips = Arc::new(AtomicU64::new(0));
        let mut raw = Raw::connect(node, &Connect::new(4, unique("probe")).keep_alive(10));
        let topic = unique("probe");
        raw.subscribe(&topic, 1);
        let thread = {
            let (stop, round_trips) = (stop.clone(), round_trips.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let number = round_trips.load(Ordering::Relaxed).to_string();
                    raw.send_publish(&Publish::new(&topic, &number).qos(1, 1));
                    let mut packets = [raw.recv_packet(), raw.recv_packet()];
                    packets.sort_by_key(|packet| packet.kind);
                    assert_eq!(packets[0].payload, number.as_bytes());
                    assert_eq!(packets[1].kind, kind::PUBACK);
                    raw.acknowledge(&packets[0]);
                    round_trips.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        Probe {
            stop,
            round_trips,
            thread,
        }
    }

    fn round_trips(&self) -> u64 {
        assert!(
            !self.thread.is_finished(),
            "the probe's connection has suffered"
        );
        self.round_trips.load(Ordering::Relaxed)
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .expect("the probe's connection has suffered");
    }
}

/// Lets this process (and the nodes it starts) open `wanted` files, if the system allows it.
pub(crate) fn allow_open_files(wanted: u64) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a valid pointer to a rlimit that lives on this stack frame.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        if limit.rlim_cur < wanted {
            limit.rlim_cur = wanted.min(limit.rlim_max);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
    }
    limit.rlim_cur >= wanted
}

/// What an attacker might send: noise, or something that begins well.
fn garbage(random: &mut Random, chunk: &mut [u8]) {
    random.fill(chunk);
    let beginning: Vec<u8> = match random.below(8) {
        0 | 1 => return,
        2 => Connect::new(4, unique("g")).bytes(),
        3 => [
            Connect::new(5, unique("g")).bytes(),
            vec![0x30, 0xff, 0xff, 0x03],
        ]
        .concat(),
        // A CONNECT whose fields are noise.
        4 => frame(0x10, &chunk[..200]),
        // As large as a packet may be, never finished.
        5 => vec![
            0x10, 0xff, 0xff, 0x3f, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0,
        ],
        // Valid packets with noise in them, then noise.
        6 => {
            let noise: String = chunk[..500]
                .iter()
                .map(|byte| char::from(byte % 26 + 97))
                .collect();
            let will = Will::new(&noise, &chunk[..5000]).retain();
            let subscribe = (0..50).fold(Subscribe::new(7), |all, n| {
                all.filter(format!("{noise}/{n}/+/#"), n % 3)
            });
            let connect = Connect::new(4, unique("g")).will(will);
            [
                connect.bytes(),
                subscribe.bytes(4),
                Publish::new(&noise, &noise).qos(2, 9).bytes(4),
            ]
            .concat()
        }
        _ => b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
    };
    chunk[..beginning.len()].copy_from_slice(&beginning);
}

#[test]
fn garbage_at_ten_megabytes_per_second_harms_nobody() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    let node = FloodedNode::start(&[], "");
    let seed = Random::seed();
    const THREADS: u64 = 4;
    const TOTAL: u64 = 40_000_000;
    let start = Instant::now();
    let address = node.node.address("mqtt").to_owned();
    let senders: Vec<_> = (0..THREADS)
        .map(|thread| {
            let address = address.clone();
            std::thread::spawn(move || {
                let mut random = Random::new(seed + thread);
                let mut chunk = vec![0; 65_536];
                let mut sent = 0;
                while sent < TOTAL / THREADS {
                    let mut stream = TcpStream::connect(&address).unwrap();
                    stream
                        .set_write_timeout(Some(Duration::from_secs(5)))
                        .unwrap();
                    garbage(&mut random, &mut chunk);
                    // Up to a few chunks on one connection; the node will mostly close before.
                    for _ in 0..1 + random.below(8) {
                        sent += chunk.len() as u64;
                        if stream.write_all(&chunk).is_err() {
                            break;
                        }
                        random.fill(&mut chunk);
                    }
                    // At ten megabytes per second, not more.
                    let due = Duration::from_secs_f64(sent as f64 * THREADS as f64 / 10e6);
                    std::thread::sleep(due.saturating_sub(start.elapsed()));
                }
            })
        })
        .collect();
    for sender in senders {
        sender.join().unwrap();
    }
    node.expect_unharmed(64 * MIB);
}

#[test]
fn five_thousand_half_open_connections_harm_nobody_and_are_closed() {
    const COUNT: usize = 5000;
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    assert!(
        allow_open_files(COUNT as u64 + 1000),
        "this test needs {} open files (ulimit -n)",
        COUNT + 1000
    );
    let config = "[[listener]]\nname = \"mqtt\"\nprotocol = \"mqtt\"\nbind = \"127.0.0.1:0\"\nconnect_timeout_s = 3\n";
    let node = FloodedNode::start(&[], config);
    let beginnings: [&[u8]; 4] = [
        b"",
        &[0x10],
        &[0x10, 0x20, 0, 4, b'M', b'Q'],
        &[0x10, 0xff, 0xff, 0x03],
    ];
    let mut streams: Vec<TcpStream> = (0..COUNT)
        .map(|index| {
            let mut stream = TcpStream::connect(node.node.address("mqtt")).unwrap();
            // The node may have timed out the first ones already; that is what it shall do.
            let _ = stream.write_all(beginnings[index % beginnings.len()]);
            stream
        })
        .collect();
    assert!(
        node.growth() < 100 * MIB,
        "{} MiB for {COUNT} half-open connections",
        node.growth() / MIB
    );
    // New clients still get in, at once.
    for _ in 0..20 {
        Raw::client(&node.node, 4).disconnect();
    }
    // After the connect time-out they are closed, though nobody has read or written.
    let deadline = Instant::now() + Duration::from_secs(10);
    for stream in &mut streams {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).unwrap();
        let result = stream.read(&mut [0; 16]);
        let closed = match &result {
            Ok(count) => *count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(closed, "still open after the connect time-out: {result:?}");
    }
    node.expect_unharmed(64 * MIB);
}

#[test]
fn a_client_that_opens_and_closes_five_thousand_times_leaves_nothing_behind() {
    const COUNT: usize = 5000;
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    let node = FloodedNode::start(&[], "");
    let id = unique("c");
    let persistent = unique("p");
    for round in 0..COUNT {
        let mut raw = Raw::open(&node.node, 4);
        match round % 5 {
            0 => {}
            1 => raw.send(&Connect::new(4, &id).bytes()),
            2 => raw.send(
                &Connect::new(4, unique("c"))
                    .will(Will::new("gone", "x"))
                    .keep_alive(60)
                    .bytes(),
            ),
            3 => {
                let subscribe = Subscribe::new(1)
                    .filter(unique("f"), 1)
                    .filter("some/+/#", 2);
                raw.send(
                    &[
                        Connect::new(4, unique("c")).bytes(),
                        subscribe.bytes(4),
                        vec![0xe0, 0],
                    ]
                    .concat(),
                );
            }
            _ => {
                raw.hand_shake(&Connect::new(4, &persistent).persistent());
                raw.subscribe("always/the/same", 1);
            }
        }
        raw.cut();
    }
    node.expect_unharmed(48 * MIB);
}

#[test]
fn a_subscriber_that_never_reads_does_not_hold_up_the_others() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    let node = FloodedNode::start(&[], "");
    let topic = unique("t");
    let mut sleeper = Raw::client(&node.node, 4);
    sleeper.subscribe(&topic, 0);
    // 200 MB to the sleeper, and to a client that reads: it must get everything, in order.
    let mut reader = Raw::client(&node.node, 4);
    reader.subscribe(&topic, 0);
    let mut publisher = Raw::client(&node.node, 4);
    const BATCH: usize = 50;
    let filling = "x".repeat(10_000);
    let mut peak = 0;
    for batch in 0..400 {
        let numbers = batch * BATCH..(batch + 1) * BATCH;
        let bytes: Vec<u8> = numbers
            .clone()
            .flat_map(|n| Publish::new(&topic, format!("{n:06}{filling}")).bytes(4))
            .collect();
        publisher.send(&bytes);
        for number in numbers {
            let message = reader.recv(kind::PUBLISH);
            assert_eq!(&message.text()[..6], format!("{number:06}"));
        }
        peak = peak.max(node.growth());
    }
    assert!(
        peak < 48 * MIB,
        "the node has grown by {} MiB for one subscriber that does not read",
        peak / MIB
    );
    // When it wakes up: some messages, never one twice or out of order, and then the live ones. Or it was closed.
    let mut last = -1;
    while let Some(packet) = sleeper.try_recv_unless_closed(Duration::from_millis(500)) {
        let number: i64 = packet.text()[..6].parse().unwrap();
        assert!(number > last, "{number} after {last}");
        last = number;
    }
    assert!(last > 0, "what fitted into the buffers must arrive");
    node.expect_unharmed(48 * MIB);
}

#[test]
fn a_client_that_asks_and_never_reads_the_answers_is_not_read_either() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    let node = FloodedNode::start(&[], "");
    let mut asker = TcpStream::connect(node.node.address("mqtt")).unwrap();
    asker
        .write_all(&Connect::new(4, unique("c")).bytes())
        .unwrap();
    // The node takes pings as long as their answers go somewhere; then its window closes and writing gets no further.
    asker
        .set_write_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let pings = [0xc0, 0].repeat(500_000);
    let mut taken = 0;
    while taken < 200 * MIB {
        match asker.write(&pings) {
            Ok(written) => taken += written as u64,
            Err(_) => break,
        }
    }
    assert!(
        taken < 200 * MIB,
        "the node read on while its answers went nowhere"
    );
    node.expect_unharmed(16 * MIB);
}

#[test]
fn a_subscriber_that_never_acknowledges_is_bounded_too() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    let node = FloodedNode::start(&[], "");
    let topic = unique("t");
    let mut sleeper = Raw::client(&node.node, 4);
    sleeper.subscribe(&topic, 1);
    let mut publisher = Raw::client(&node.node, 4);
    let payload = "x".repeat(2000);
    const BATCH: u16 = 500;
    let mut peak = 0;
    // 100 MB at QoS 1; every one is acknowledged to its publisher.
    for _ in 0..100 {
        let bytes: Vec<u8> = (1..=BATCH)
            .flat_map(|id| Publish::new(&topic, &payload).qos(1, id).bytes(4))
            .collect();
        publisher.send(&bytes);
        for id in 1..=BATCH {
            assert_eq!(publisher.recv(kind::PUBACK).id(), id);
        }
        peak = peak.max(node.growth());
    }
    assert!(
        peak < 96 * MIB,
        "the node has grown by {} MiB for one subscriber",
        peak / MIB
    );
    node.expect_unharmed(96 * MIB);
}

#[test]
fn the_longest_and_deepest_topics_work_if_they_are_allowed() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    let limits = [
        "--set",
        "limits.max_topic_bytes=65535",
        "--set",
        "limits.max_topic_levels=200",
    ];
    let node = FloodedNode::start(&limits, "");
    let level = "x".repeat(65_535 / 200 - 1);
    let mut deep = vec![level.as_str(); 200].join("/");
    deep += &"y".repeat(65_535 - deep.len());
    let mut raw = Raw::client(&node.node, 4);
    let half = deep[..deep.len() / 2]
        .rsplit_once('/')
        .expect("many levels")
        .0;
    for filter in [deep.clone(), "+/".repeat(199) + "+", format!("{half}/#")] {
        raw.subscribe(&filter, 1);
        raw.send_publish(&Publish::new(&deep, "x").qos(1, 1).retain());
        let mut packets = [raw.recv_packet(), raw.recv_packet()];
        packets.sort_by_key(|packet| packet.kind);
        assert_eq!(packets[0].topic, deep);
        raw.acknowledge(&packets[0]);
        raw.unsubscribe(&filter);
        // Delete the retained message again.
        raw.send_publish(&Publish::new(&deep, "").qos(1, 1).retain());
        raw.recv(kind::PUBACK);
    }
    // One level more than allowed.
    let mut raw = Raw::client(&node.node, 4);
    raw.publish(&("a/".repeat(200) + "a"), "x");
    raw.expect_closed();
    node.expect_unharmed(48 * MIB);
}

#[test]
fn a_thousand_filters_of_two_hundred_levels_cost_no_more_than_they_are() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let _alone = alone();
    let limits = [
        "--set",
        "limits.max_topic_bytes=65535",
        "--set",
        "limits.max_topic_levels=200",
    ];
    let node = FloodedNode::start(&limits, "");
    let mut random = Random::new(Random::seed());
    let mut raw = Raw::client(&node.node, 4);
    // Filters that branch at every level, so that a matcher that tries all ways would never come to an end.
    for _ in 0..1000 {
        let levels: Vec<&str> = (0..200).map(|_| ["a", "+"][random.below(2)]).collect();
        raw.subscribe(&levels.join("/"), 0);
    }
    let name = vec!["a"; 200].join("/");
    let start = Instant::now();
    let mut publisher = Raw::client(&node.node, 4);
    for _ in 0..20 {
        publisher.publish_qos1(&name, "x", 1);
    }
    let elapsed = start.elapsed();
    assert!(
        elapsed < Duration::from_secs(20),
        "20 messages took {elapsed:?}"
    );
    for _ in 0..20 {
        raw.recv_message(&name, "x");
    }
    raw.ping();
    // A level of a filter may be a node of a tree, on each shard: 400,000 of them.
    node.expect_unharmed(160 * MIB);
}

#[test]
fn topics_over_the_limits_are_rejected() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared();
    let long = "x".repeat(65_535);
    let deep = "a/".repeat(199) + "a";
    for name in [&long, &deep] {
        for qos in 0..2 {
            let mut raw = Raw::client(node, 4);
            raw.send_publish(&Publish::new(name, "x").qos(qos, 1));
            raw.expect_closed();
        }
        let mut raw = Raw::client(node, 4);
        assert_eq!(
            raw.subscribe_for_codes(&Subscribe::new(1).filter(name, 0)),
            [0x80]
        );
        raw.ping();
        // As a will it never gets in.
        let mut raw = Raw::open(node, 4);
        raw.send(
            &Connect::new(4, unique("c"))
                .will(Will::new(name, "x"))
                .bytes(),
        );
        assert!(
            raw.packets_until_closed()
                .iter()
                .all(|packet| packet.reason != 0)
        );
    }
}
