//! Nodes that form a cluster: over one NATS server, or on several machines, each with a server of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{NetworkMachine, PASSWORD, ServerKind, SplitNetwork, TestServer, USER};

use crate::api::{ApiResponse, own_node, send};
use crate::support::{Connect, Node, Props, eventually, temporary_directory};

pub(super) struct Cluster {
    /// `node-1` and so on.
    pub(super) nodes: Vec<Node>,
    nats: Option<Arc<TestServer>>,
    network: Option<SplitNetwork>,
}

/// A NATS server for the cluster, or says that the test is skipped.
pub(super) fn nats_or_skip() -> Option<Arc<TestServer>> {
    if !own_node() {
        return None;
    }
    TestServer::start_or_skip(ServerKind::ClusterNats).map(Arc::new)
}

impl Cluster {
    /// The cluster that tests share which neither stop nodes nor NATS.
    pub(super) fn shared() -> Option<&'static Cluster> {
        static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start_or_skip(3)).as_ref()
    }

    pub(super) fn start_or_skip(count: usize) -> Option<Cluster> {
        Some(Self::start(nats_or_skip()?, "tidegate", count))
    }

    /// Nodes with standbys, although there is one NATS server only.
    pub(super) fn start_with_standbys_or_skip(count: usize) -> Option<Cluster> {
        let sets = ["cluster.standby=always"];
        Some(Self::start_with(nats_or_skip()?, "tidegate", count, &sets))
    }

    /// Starts the nodes at the same time and waits until each reaches all others.
    pub(super) fn start(nats: Arc<TestServer>, name: &str, count: usize) -> Cluster {
        Self::start_with(nats, name, count, &[])
    }

    pub(super) fn start_with(
        nats: Arc<TestServer>,
        name: &str,
        count: usize,
        sets: &[&str],
    ) -> Cluster {
        let spawn = |number| spawn_node(&nats, name, number, sets);
        let cluster = Cluster {
            nodes: (1..=count).map(spawn).collect(),
            nats: Some(nats),
            network: None,
        };
        cluster.wait_until_started()
    }

    /// Nodes with a NATS server each, on machines that can be cut off from the others.
    pub(super) fn start_on_machines_or_skip(count: usize) -> Option<Cluster> {
        if !own_node() {
            return None;
        }
        let program = ServerKind::ClusterNats.program_or_skip()?;
        let network = SplitNetwork::start_or_skip(count)?;
        let address = |index: usize| format!("{}:6222", network.machine(index).address());
        let peers: Vec<String> = (0..count).map(address).collect();
        let spawn = |index: usize| {
            let folder = temporary_directory();
            let secret = folder.join("cluster.secret");
            std::fs::write(&secret, "secret of the machines").unwrap();
            std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
            let sets = [
                format!("cluster.node=node-{}", index + 1),
                "cluster.managed=true".to_owned(),
                // Clients of a trial may be away for half a minute.
                "limits.max_queued_messages=1000000".to_owned(),
                format!("cluster.program={}", program.display()),
                format!("cluster.listen={}", peers[index]),
                format!("cluster.peers={}", peers.join(",")),
                format!("cluster.secret_file={}", secret.display()),
                "node.shards=2".to_owned(),
            ];
            let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
            Node::spawn_on(Some(network.machine(index)), folder, &arguments, "")
        };
        let cluster = Cluster {
            nodes: (0..count).map(spawn).collect(),
            nats: None,
            network: Some(network),
        };
        Some(cluster.wait_until_started())
    }

    fn wait_until_started(mut self) -> Cluster {
        for node in &mut self.nodes {
            node.wait_until_it_listens()
                .unwrap_or_else(|why| panic!("{why}"));
        }
        self.wait_until_connected();
        self
    }

    /// The NATS server of all nodes.
    pub(super) fn nats(&self) -> &TestServer {
        self.nats.as_ref().expect("nodes without own servers")
    }

    /// The network of nodes on machines of their own.
    pub(super) fn network(&self) -> &SplitNetwork {
        self.network.as_ref().expect("nodes on machines")
    }

    /// Where a node runs, if not on this machine.
    pub(super) fn machine(&self, index: usize) -> Option<&NetworkMachine> {
        Some(self.network.as_ref()?.machine(index))
    }

    /// Waits until the durable sessions of each node have a current copy.
    pub(super) fn wait_for_standbys(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        for node in &self.nodes {
            while status(node)["standby"]["state"] != "current" {
                let seen = status(node)["standby"].clone();
                assert!(Instant::now() < until, "no standby: {seen}\n{}", node.log());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    pub(super) fn wait_until_connected(&self) {
        let count = self.nodes.len();
        for (index, node) in self.nodes.iter().enumerate() {
            eventually(&format!("node {} reaches all others", index + 1), || {
                let status = status(node);
                status["is_complete"] == true && reachable(&status).len() == count
            });
        }
    }
}

fn spawn_node(nats: &TestServer, name: &str, number: usize, more: &[&str]) -> Node {
    let folder = temporary_directory();
    let password: PathBuf = folder.join("nats.password");
    std::fs::write(&password, PASSWORD).unwrap();
    let sets = [
        format!("cluster.node=node-{number}"),
        format!("cluster.name={name}"),
        format!("cluster.urls=nats://{}", nats.address()),
        format!("cluster.user={USER}"),
        format!("cluster.password_file={}", password.display()),
        // Messages cross shards and nodes, without a thread per core in each node.
        "node.shards=2".to_owned(),
    ];
    let sets = sets.iter().map(String::as_str).chain(more.iter().copied());
    let arguments: Vec<&str> = sets.flat_map(|set| ["--set", set]).collect();
    Node::spawn(folder, &arguments, "")
}

/// A client whose session outlives its connections.
pub(super) fn durable(id: &str) -> Connect {
    const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
    Connect::new(5, id)
        .persistent()
        .properties(Props::new().u32(SESSION_EXPIRY_INTERVAL, 3600))
}

pub(super) fn get(node: &Node, path: &str) -> ApiResponse {
    send(node, "", "GET", path, &Value::Null)
}

/// What the node says of its cluster.
pub(super) fn status(node: &Node) -> Value {
    let answer = get(node, "/api/v1/cluster");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// The NATS servers: names, whether they have a node, and whether they are connected; none while they have no leader.
pub(super) fn servers(node: &Node) -> Vec<(String, bool, bool)> {
    let answer = get(node, "/api/v1/cluster/servers");
    let rows = answer.body["data"].as_array().into_iter().flatten();
    let rows = rows.map(|row| {
        let name = row["name"].as_str().expect("a name").to_owned();
        let is = |field: &str| row[field].as_bool().expect("a boolean");
        (name, is("has_node"), is("is_connected"))
    });
    rows.collect()
}

/// Names of the members that can be reached, the node itself included.
pub(super) fn reachable(status: &Value) -> Vec<String> {
    let members = status["members"].as_array().expect("members");
    let members = members
        .iter()
        .filter(|member| member["is_reachable"] == true);
    let names = members.map(|member| member["node"].as_str().expect("a name").to_owned());
    names.collect()
}

pub(super) fn member_count(status: &Value) -> usize {
    status["members"].as_array().expect("members").len()
}

/// Begins (`POST`) or cancels (`DELETE`) the drain of a member.
pub(super) fn change_drain(node: &Node, method: &str, name: &str) -> ApiResponse {
    let path = format!("/api/v1/cluster/members/{name}/drain");
    send(node, "", method, &path, &Value::Null)
}

pub(super) fn evict(node: &Node, name: &str) -> ApiResponse {
    let path = format!("/api/v1/cluster/members/{name}");
    send(node, "", "DELETE", &path, &Value::Null)
}
