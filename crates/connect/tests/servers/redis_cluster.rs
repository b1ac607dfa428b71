//! Redis cluster: servers are killed, slots move and a replica takes over while rows are written.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use crate::node::{ConnectorNode, Load, assert_all_in_order};

const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    masters: Vec<TestServer>,
    replica: Option<TestServer>,
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Cluster {
    /// Three masters, and a replica of the first.
    fn start(with_replica: bool) -> Option<Self> {
        let ports: Vec<String> = (0..4).map(|_| free_port().to_string()).collect();
        let start = |at: usize| {
            // By default the cluster bus uses a port that is 10,000 higher, which may not exist.
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &ports[at],
                "--cluster-node-timeout",
                "1000",
                "--cluster-require-full-coverage",
                "no",
            ];
            TestServer::start_with_or_skip(ServerKind::Redis, &arguments)
        };
        let masters: Vec<TestServer> = (0..3).map(start).collect::<Option<_>>()?;
        let replica = with_replica.then(|| start(3)).flatten();
        let cluster = Self { masters, replica };
        for (at, range) in [
            (0, ["0", "5460"]),
            (1, ["5461", "10922"]),
            (2, ["10923", "16383"]),
        ] {
            let server = &cluster.masters[at];
            server.redis(&["CLUSTER", "ADDSLOTSRANGE", range[0], range[1]]);
            server.redis(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        let first = &cluster.masters[0];
        for (server, bus) in cluster.all().zip(&ports).skip(1) {
            let port = server.port().to_string();
            first.redis(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
        let count = cluster.all().count();
        until("they know each other", || {
            cluster.all().all(|server| {
                let info = info(server, &["CLUSTER", "INFO"]);
                info.contains(&format!("cluster_known_nodes:{count}"))
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains("cluster_state:ok")
            })
        });
        if let Some(replica) = &cluster.replica {
            let id = id_of(first);
            replica.redis(&["CLUSTER", "REPLICATE", &id]);
            until("the replica follows", || {
                info(replica, &["INFO", "replication"]).contains("master_link_status:up")
            });
        }
        Some(cluster)
    }

    fn all(&self) -> impl Iterator<Item = &TestServer> {
        self.masters.iter().chain(&self.replica)
    }

    fn connector(&self) -> Value {
        // The other servers are discovered from the last one.
        let node = self.masters[2].address().to_string();
        json!({
            "type": "redis", "nodes": ["127.0.0.1:1", node], "username": testkit::USER,
            "password": testkit::PASSWORD
        })
    }

    /// Sends a command to the server that has the key.
    fn ask(&self, words: &[&str]) -> Vec<Option<String>> {
        let mut errors = Vec::new();
        for server in self.all() {
            match server.try_redis(words) {
                Ok(values) => return values,
                Err(why) => errors.push(why),
            }
        }
        panic!("{words:?}: {errors:?}");
    }

    /// The stored rows of all devices.
    fn rows(&self) -> Vec<i64> {
        let lists = (0..10).flat_map(|device| {
            let key = format!("list:{device}");
            self.ask(&["LRANGE", &key, "0", "-1"])
        });
        let rows = lists.flatten();
        rows.map(|n| n.parse().unwrap()).collect()
    }

    /// Index of the master that has the slot of a key.
    fn owner_of(&self, key: &str) -> usize {
        let is_owner = |server: &TestServer| server.try_redis(&["TYPE", key]).is_ok();
        self.masters.iter().position(is_owner).unwrap()
    }
}

fn info(server: &TestServer, words: &[&str]) -> String {
    let answer = server.try_redis(words).unwrap_or_default();
    answer.into_iter().flatten().collect()
}

fn id_of(server: &TestServer) -> String {
    info(server, &["CLUSTER", "MYID"])
}

fn sink() -> Value {
    json!({
        "connector": "c", "command": "RPUSH list:${device} ${n}", "order": {"by": "${device}"},
        "retry": {"initial_delay_ms": 10, "max_delay_ms": 200}, "batch": {"max_rows": 40}
    })
}

#[test]
fn rows_go_to_the_servers_that_have_their_keys() {
    let Some(cluster) = Cluster::start(false) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(
        &cluster.connector(),
        &json!({
            "connector": "c", "order": "all", "transaction": true,
            "command": "RPUSH list:${device} ${n} && SET {list:${device}}:last ${n}"
        }),
    );
    let tested = node.test().unwrap();
    assert!(tested.ends_with("a cluster of 3 masters"), "{tested}");
    node.push(sink, 0..300);
    node.until("they are written", |status| status.metrics.sent == 300);
    assert_all_in_order(&cluster.rows(), 300);
    assert_eq!(cluster.ask(&["GET", "{list:7}:last"]), [Some("297".into())]);
    let owners: std::collections::BTreeSet<_> = (0..10)
        .map(|device| cluster.owner_of(&format!("list:{device}")))
        .collect();
    assert_eq!(owners.len(), 3, "the test has keys everywhere");
    // Keys in different slots cannot be written together.
    let apart = json!({"connector": "c", "command": "SET a:${n} 1 && SET b:${n} 1"});
    let sink = node.service.set_sink("s", &apart).unwrap();
    node.push(sink, 0..1);
    node.until("it fails", |status| status.metrics.failed == 1);
    let letters = node.service.dead_letters("s", 0, 1).unwrap();
    assert!(letters[0].error.contains("braces"), "{}", letters[0].error);
    let wrong = json!({"type": "redis", "server": "h", "nodes": ["h"]});
    let error = node.service.set_connector("d", &wrong).unwrap_err();
    assert_eq!(error.field, "nodes");
}

#[test]
fn a_killed_server_of_a_cluster_costs_no_row_and_no_order() {
    let Some(cluster) = Cluster::start(false) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(&cluster.connector(), &sink());
    let load = Load::start(&node, sink);
    for at in [1, 2] {
        load.go_on(500);
        let retried = node.status().metrics.retried;
        cluster.masters[at].kill();
        node.until("it notices", |status| status.metrics.retried > retried);
        load.go_on(200);
        cluster.masters[at].start();
    }
    load.go_on(200);
    let pushed = load.end();
    node.until("all are written", |status| {
        status.metrics.sent == pushed as u64
    });
    assert_all_in_order(&cluster.rows(), pushed);
    assert_eq!(node.status().metrics.failed, 0);
}

#[test]
fn slots_that_move_are_followed() {
    let Some(cluster) = Cluster::start(false) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(&cluster.connector(), &sink());
    let key = "list:3";
    let from = cluster.owner_of(key);
    let to = (from + 1) % 3;
    let (source, target) = (&cluster.masters[from], &cluster.masters[to]);
    let slot = info(source, &["CLUSTER", "KEYSLOT", key]);
    let (source_id, target_id) = (id_of(source), id_of(target));
    let step = |server: &TestServer, what: &str, id: &str| {
        server.redis(&["CLUSTER", "SETSLOT", &slot, what, id]);
    };
    // Nothing is stored yet: every command must be sent to the new place with ASKING.
    step(target, "IMPORTING", &source_id);
    step(source, "MIGRATING", &target_id);
    let load = Load::start(&node, sink);
    load.go_on(500);
    step(target, "NODE", &target_id);
    step(source, "NODE", &target_id);
    load.go_on(500);
    // Moves the slot back with its content.
    step(source, "IMPORTING", &target_id);
    step(target, "MIGRATING", &source_id);
    load.go_on(200);
    let port = source.port().to_string();
    target.redis(&["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]);
    load.go_on(200);
    step(source, "NODE", &source_id);
    step(target, "NODE", &source_id);
    load.go_on(500);
    let pushed = load.end();
    node.until("all are written", |status| {
        status.metrics.sent == pushed as u64
    });
    let rows = cluster.rows();
    assert_all_in_order(&rows, pushed);
    // No result was unknown, so there are no duplicates.
    assert_eq!(rows.len() as i64, pushed);
}

#[test]
fn a_replica_takes_over() {
    let Some(cluster) = Cluster::start(true) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(&cluster.connector(), &sink());
    node.push(sink, 0..300);
    node.until("they are written", |status| status.metrics.sent == 300);
    let (master, replica) = (&cluster.masters[0], cluster.replica.as_ref().unwrap());
    let offset = |server: &TestServer, field: &str| {
        let info = info(server, &["INFO", "replication"]);
        let line = info.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap_or_default().trim().to_owned()
    };
    until("the replica has what its master has", || {
        offset(master, "master_repl_offset:") == offset(replica, "slave_repl_offset:")
    });
    master.kill();
    node.push(sink, 300..600);
    node.until("all are written", |status| status.metrics.sent == 600);
    assert!(info(replica, &["INFO", "replication"]).contains("role:master"));
    assert_all_in_order(&cluster.rows(), 600);
}
