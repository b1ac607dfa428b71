//! Many endpoints with many connections for half a minute, or on request for five minutes, without loss.

use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::report_skipped;

use super::{RelayClient, ask, statistics};
use crate::api::own_node;
use crate::floods::{allow_open_files, alone};
use crate::support::Node;

const ENDPOINTS: usize = 100;
const CONNECTIONS: usize = 50;
/// Messages that one connection sends at once.
const BATCH: usize = 4;
/// All connections of one endpoint.
struct Room {
    id: String,
    clients: Vec<RelayClient>,
    sent: usize,
    /// Time from the first message of a batch until all others have received it, in microseconds.
    batch_us: Vec<u64>,
}

impl Room {
    fn connect(node: &Node, at: usize) -> Self {
        let id = format!("soak-{at}");
        let (status, answer) = ask(
            node,
            "PUT",
            &format!("endpoints/{id}"),
            json!({"mode": "direct"}),
        );
        assert_eq!(status, 201, "{answer}");
        let clients = (0..CONNECTIONS).map(|_| RelayClient::connect(node, &id));
        Self {
            clients: clients.collect(),
            id,
            sent: 0,
            batch_us: Vec::new(),
        }
    }

    /// The connections send in turn; all others receive each message once and in order.
    fn exchange(&mut self) {
        let started = Instant::now();
        let sender = (self.sent / BATCH) % CONNECTIONS;
        let texts: Vec<String> = (self.sent..self.sent + BATCH)
            .map(|n| format!("{} {n}", self.id))
            .collect();
        for text in &texts {
            self.clients[sender].send_text(text);
        }
        for (at, client) in self.clients.iter_mut().enumerate() {
            if at != sender {
                for text in &texts {
                    assert_eq!(&client.expect_text(), text, "connection {at}");
                }
            }
        }
        self.sent += BATCH;
        self.batch_us.push(started.elapsed().as_micros() as u64);
    }

    /// Sends a batch at each interval; a machine that is too slow for that sends fewer.
    fn run(mut self, until: Instant, interval: Duration) -> Self {
        let mut next = Instant::now();
        while next < until {
            self.exchange();
            next = Instant::now().max(next + interval);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self
    }
}

#[test]
fn nothing_is_lost_at_a_hundred_endpoints_with_fifty_connections() {
    soak(Duration::from_secs(20), Duration::from_secs(2));
}

#[test]
#[ignore = "takes five minutes; TIDEGATE_TEST_SOAK_S sets another time"]
fn nothing_is_lost_in_five_minutes() {
    let seconds = std::env::var("TIDEGATE_TEST_SOAK_S");
    let seconds = seconds.map_or(300, |text| text.parse().unwrap());
    soak(Duration::from_secs(seconds), Duration::from_millis(500));
}

/// `interval` is the time between two batches of an endpoint.
fn soak(length: Duration, interval: Duration) {
    if !own_node() {
        return;
    }
    let _alone = alone();
    let connections = ENDPOINTS * CONNECTIONS;
    if !allow_open_files(connections as u64 + 1000) {
        return report_skipped("needs 6,000 open files (ulimit -n)");
    }
    let node = Node::start(&[]);
    let started = Instant::now();
    let rooms: Vec<Room> = (0..ENDPOINTS).map(|at| Room::connect(&node, at)).collect();
    let connected_s = started.elapsed().as_secs_f64();
    let until = Instant::now() + length;
    let run = |room: Room| {
        let thread = Builder::new().stack_size(256 << 10);
        thread.spawn(move || room.run(until, interval)).unwrap()
    };
    let running: Vec<JoinHandle<Room>> = rooms.into_iter().map(run).collect();
    let rooms: Vec<Room> = running.into_iter().map(|it| it.join().unwrap()).collect();
    let sent: usize = rooms.iter().map(|room| room.sent).sum();
    let mut batch_us: Vec<u64> = (rooms.iter())
        .flat_map(|room| room.batch_us.iter().copied())
        .collect();
    batch_us.sort_unstable();
    let at = |part: usize| batch_us[(batch_us.len() - 1) * part / 1000] as f64 / 1000.0;
    println!(
        "{connections} connections in {connected_s:.1} s; {sent} messages, {} deliveries in {} s; \
         batches of {BATCH} to {} receivers took {:.1} ms (median), {:.1} ms (99 %), {:.1} ms (most)",
        sent * (CONNECTIONS - 1),
        length.as_secs(),
        CONNECTIONS - 1,
        at(500),
        at(990),
        at(1000),
    );
    for room in rooms {
        let counted = statistics(&node, &room.id);
        assert_eq!(counted["total_messages"], room.sent, "{counted}");
        assert_eq!(counted["dropped_messages"], 0, "{counted}");
        assert_eq!(counted["current_connections"], CONNECTIONS, "{counted}");
    }
}
