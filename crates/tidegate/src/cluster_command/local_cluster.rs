//! The files of a local cluster: a configuration file for each node and the witness, and the secret of their NATS servers.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use data_encoding::HEXLOWER;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;

/// More nodes need more memory than a machine for trials has.
pub(super) const MAX_NODES: u16 = 9;

const WITNESS_NAME: &str = "witness-1";
const CONFIG_HEADER: &str = "# Written by `tidegate cluster up` at each start; changes are lost.\n";
const SECRET_FILE: &str = "cluster.secret";
const SECRET_BYTES: usize = 32;
/// Ports of the first node, which are those of a node that is alone.
const MQTT_PORT: u16 = 1883;
const WS_PORT: u16 = 8083;
const HTTP_PORT: u16 = 8080;
const NATS_PORT: u16 = 6222;
/// Nodes whose HTTP ports lie below [`WS_PORT`]; those of further nodes begin here.
const LOW_HTTP_PORTS: u16 = WS_PORT - HTTP_PORT;
const HIGH_HTTP_PORT: u16 = 8100;

/// A request that cannot be fulfilled as it is written.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct ClusterUsageError(pub(super) String);

/// What a local cluster consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalClusterSize {
    pub(super) nodes: u16,
    pub(super) has_witness: bool,
}

#[derive(Debug)]
pub(super) struct LocalCluster {
    pub(super) directory: PathBuf,
    pub(super) nodes: Vec<LocalNode>,
    pub(super) witness: Option<LocalWitness>,
}

/// A node or a witness as a process.
#[derive(Debug)]
pub(super) struct LocalProcess {
    pub(super) name: String,
    /// The command of this program that runs it.
    pub(super) command: &'static [&'static str],
    pub(super) data_dir: PathBuf,
    pub(super) config_file: PathBuf,
    /// Whether it writes `node.json` when it accepts clients.
    pub(super) has_clients: bool,
}

#[derive(Debug)]
pub(super) struct LocalNode {
    pub(super) process: LocalProcess,
    pub(super) mqtt: SocketAddrV4,
    pub(super) ws: SocketAddrV4,
    pub(super) http: SocketAddrV4,
    nats: SocketAddrV4,
}

#[derive(Debug)]
pub(super) struct LocalWitness {
    pub(super) process: LocalProcess,
    nats: SocketAddrV4,
}

/// What the servers of all nodes, and the witness, have in common.
struct ServerFiles<'a> {
    peers: &'a str,
    secret_file: &'a Path,
    nats_server: Option<&'a Path>,
}

impl ServerFiles<'_> {
    /// The settings of the section `cluster` for one server.
    fn section(&self, name: &str, listen: SocketAddrV4) -> String {
        let program = self.nats_server.map_or_else(String::new, |program| {
            format!("program = {}\n", quoted(program))
        });
        format!(
            "[cluster]\nnode = \"{name}\"\nmanaged = true\n{program}listen = \"{listen}\"\npeers = \"{}\"\n\
             secret_file = {}\n",
            self.peers,
            quoted(self.secret_file)
        )
    }
}

/// Strings of JSON are strings of TOML.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

/// `index` counts from 0.
fn local_address(
    base: u16,
    index: u16,
    port_offset: u16,
) -> Result<SocketAddrV4, ClusterUsageError> {
    let port = base
        .checked_add(index)
        .and_then(|port| port.checked_add(port_offset));
    let port = port.ok_or_else(|| {
        let largest = u16::MAX - HIGH_HTTP_PORT - MAX_NODES;
        ClusterUsageError(format!(
            "--port-offset {port_offset} is too large: expected 0 to {largest}"
        ))
    })?;
    Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

impl LocalNode {
    /// `index` counts from 0, the name from 1.
    fn new(directory: &Path, index: u16, port_offset: u16) -> Result<Self, ClusterUsageError> {
        let address = |base: u16| local_address(base, index, port_offset);
        let name = format!("node-{}", index + 1);
        Ok(Self {
            mqtt: address(MQTT_PORT)?,
            ws: address(WS_PORT)?,
            http: match index < LOW_HTTP_PORTS {
                true => address(HTTP_PORT)?,
                false => address(HIGH_HTTP_PORT)?,
            },
            nats: address(NATS_PORT)?,
            process: LocalProcess {
                data_dir: directory.join(&name),
                config_file: directory.join(format!("{name}.toml")),
                name,
                command: &["serve"],
                has_clients: true,
            },
        })
    }

    pub(super) fn api_url(&self) -> String {
        format!("http://{}", self.http)
    }

    fn ports(&self) -> [(&'static str, SocketAddrV4); 4] {
        [
            ("MQTT", self.mqtt),
            ("WebSocket", self.ws),
            ("HTTP", self.http),
            ("NATS", self.nats),
        ]
    }

    /// `tidegate.toml` of the node.
    fn config(&self, servers: &ServerFiles<'_>) -> String {
        format!(
            "{CONFIG_HEADER}\
             \n[node]\ndata_dir = {}\n\
             \n[[listener]]\nname = \"mqtt\"\nbind = \"{}\"\n\
             \n[[listener]]\nname = \"ws\"\nbind = \"{}\"\n\
             \n[http]\nbind = \"{}\"\n\
             \n{}api_url = \"{}\"\n",
            quoted(&self.process.data_dir),
            self.mqtt,
            self.ws,
            self.http,
            servers.section(&self.process.name, self.nats),
            self.api_url(),
        )
    }
}

impl LocalWitness {
    /// Its server has the port after those of all nodes that are possible.
    fn new(directory: &Path, port_offset: u16) -> Result<Self, ClusterUsageError> {
        Ok(Self {
            nats: local_address(NATS_PORT, MAX_NODES, port_offset)?,
            process: LocalProcess {
                name: WITNESS_NAME.to_owned(),
                command: &["cluster", "witness"],
                data_dir: directory.join(WITNESS_NAME),
                config_file: directory.join(format!("{WITNESS_NAME}.toml")),
                has_clients: false,
            },
        })
    }

    fn config(&self, servers: &ServerFiles<'_>) -> String {
        format!(
            "{CONFIG_HEADER}\n[node]\ndata_dir = {}\n\n{}",
            quoted(&self.process.data_dir),
            servers.section(WITNESS_NAME, self.nats),
        )
    }
}

impl LocalCluster {
    /// Checks that the ports are free, and writes the files.
    pub(super) fn prepare(
        directory: &Path,
        size: LocalClusterSize,
        port_offset: u16,
        nats_server: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let directory = std::path::absolute(directory)?;
        let nodes = (0..size.nodes).map(|index| LocalNode::new(&directory, index, port_offset));
        let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
        let witness = size
            .has_witness
            .then(|| LocalWitness::new(&directory, port_offset));
        let witness = witness.transpose()?;
        check_size(&directory, size)?;
        let cluster = Self {
            directory,
            nodes,
            witness,
        };
        cluster.check_ports()?;
        cluster.write_files(nats_server)?;
        Ok(cluster)
    }

    /// The witness, then the nodes. The last process is ended first, so that the nodes still have a majority then.
    pub(super) fn processes(&self) -> Vec<&LocalProcess> {
        let nodes = self.nodes.iter().map(|node| &node.process);
        let witness = self.witness.iter().map(|witness| &witness.process);
        witness.chain(nodes).collect()
    }

    fn write_files(&self, nats_server: Option<&Path>) -> anyhow::Result<()> {
        let directory = &self.directory;
        disk::create_private_dir(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let secret_file = directory.join(SECRET_FILE);
        create_secret(&secret_file)
            .with_context(|| format!("cannot write {}", secret_file.display()))?;
        let peers = self.nodes.iter().map(|node| node.nats);
        let peers = peers.chain(self.witness.iter().map(|witness| witness.nats));
        let peers: Vec<_> = peers.map(|address| address.to_string()).collect();
        let servers = ServerFiles {
            peers: &peers.join(","),
            secret_file: &secret_file,
            nats_server,
        };
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|node| (&node.process, node.config(&servers)));
        let witness = self.witness.iter();
        let witness = witness.map(|witness| (&witness.process, witness.config(&servers)));
        for (process, text) in nodes.chain(witness) {
            fs::write(&process.config_file, text)
                .with_context(|| format!("cannot write {}", process.config_file.display()))?;
        }
        Ok(())
    }

    fn check_ports(&self) -> Result<(), ClusterUsageError> {
        let nodes = self.nodes.iter();
        let of_nodes = nodes.flat_map(|node| {
            let name = node.process.name.as_str();
            node.ports()
                .map(|(protocol, address)| (protocol, address, name))
        });
        let witness = self.witness.iter();
        let of_witness = witness.map(|witness| ("NATS", witness.nats, WITNESS_NAME));
        let mut used = String::new();
        for (protocol, address, name) in of_nodes.chain(of_witness) {
            if let Err(error) = TcpListener::bind(address) {
                let _ = write!(used, "\n  {address} ({protocol} of {name}): {error}");
            }
        }
        if used.is_empty() {
            return Ok(());
        }
        Err(ClusterUsageError(format!(
            "these addresses cannot be used:{used}\nEnd the programs that use them, or add a number to all ports, such as with --port-offset 1000."
        )))
    }
}

/// The NATS servers of a cluster count each other, so their number does not change by another argument.
fn check_size(directory: &Path, size: LocalClusterSize) -> Result<(), ClusterUsageError> {
    let exists = |name: &str| directory.join(format!("{name}.toml")).is_file();
    let nodes = (1..=MAX_NODES).take_while(|number| exists(&format!("node-{number}")));
    let existing = LocalClusterSize {
        nodes: nodes.count() as u16,
        has_witness: exists(WITNESS_NAME),
    };
    if existing.nodes == 0 || existing == size {
        return Ok(());
    }
    let (witness, argument) = match existing.has_witness {
        true => (" and a witness", " --witness"),
        false => ("", ""),
    };
    let without = match size.has_witness && !existing.has_witness {
        true => " without --witness",
        false => "",
    };
    let count = existing.nodes;
    Err(ClusterUsageError(format!(
        "{} contains a cluster of {count} nodes{witness}: use --nodes {count}{argument}{without}, or choose another directory with --directory DIR",
        directory.display()
    )))
}

/// Keeps a secret that exists.
fn create_secret(path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut bytes = [0; SECRET_BYTES];
    let random = SystemRandom::new().fill(&mut bytes);
    random.map_err(|_| anyhow::anyhow!("the random source of the system does not work"))?;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all((HEXLOWER.encode(&bytes) + "\n").as_bytes())?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::{self, ConfigSources};
    use std::os::unix::fs::PermissionsExt as _;

    fn nodes(nodes: u16) -> LocalClusterSize {
        LocalClusterSize {
            nodes,
            has_witness: false,
        }
    }

    /// Offsets to try, since other programs and tests may use some of the ports.
    fn port_offsets() -> impl Iterator<Item = u16> {
        std::iter::repeat_with(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            20_000 + listener.local_addr().unwrap().port() % 20_000
        })
        .take(20)
    }

    #[test]
    fn nodes_have_valid_settings_and_share_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("a \"cluster\"");
        let prepared = port_offsets().find_map(|offset| {
            let cluster = LocalCluster::prepare(&directory, nodes(3), offset, None);
            cluster.ok().map(|cluster| (cluster, offset))
        });
        let (cluster, offset) = prepared.expect("some ports are free");
        let secret = fs::read(directory.join(SECRET_FILE)).unwrap();
        let mode = fs::metadata(directory.join(SECRET_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        for (index, node) in cluster.nodes.iter().enumerate() {
            let sources = ConfigSources {
                file: Some(node.process.config_file.clone()),
                ..ConfigSources::default()
            };
            let config = config::load(&sources).unwrap();
            let settings = config.cluster.unwrap();
            assert_eq!(settings.node.as_str(), format!("node-{}", index + 1));
            assert_eq!(config.data_dir, node.process.data_dir);
            assert_eq!(node.mqtt.port(), 1883 + offset + index as u16);
        }
        // A second start continues with the same secret, and with the same number of nodes only.
        LocalCluster::prepare(&directory, nodes(3), offset, None).unwrap();
        assert_eq!(fs::read(directory.join(SECRET_FILE)).unwrap(), secret);
        let error = LocalCluster::prepare(&directory, nodes(5), offset, None).unwrap_err();
        assert!(error.to_string().contains("use --nodes 3"), "{error}");
        let with_witness = LocalClusterSize {
            has_witness: true,
            ..nodes(3)
        };
        let error = LocalCluster::prepare(&directory, with_witness, offset, None).unwrap_err();
        let expected = "use --nodes 3 without --witness";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn a_witness_has_valid_settings_and_is_a_server_of_all_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let size = LocalClusterSize {
            nodes: 2,
            has_witness: true,
        };
        let prepared = port_offsets().find_map(|offset| {
            let cluster = LocalCluster::prepare(folder.path(), size, offset, None);
            cluster.ok().map(|cluster| (cluster, offset))
        });
        let (cluster, offset) = prepared.expect("some ports are free");
        let mut lists = Vec::new();
        for process in cluster.processes() {
            let sources = ConfigSources {
                file: Some(process.config_file.clone()),
                ..ConfigSources::default()
            };
            let config = config::load(&sources).unwrap();
            let settings = config.cluster.unwrap();
            assert_eq!(settings.node.as_str(), process.name);
            let config::ClusterServers::Managed(server) = settings.servers else {
                panic!("no managed server");
            };
            lists.push(server.peers);
        }
        assert_eq!(lists.len(), 3);
        assert_eq!(lists[0].len(), 3);
        assert!(lists.iter().all(|list| *list == lists[0]));
        let error = LocalCluster::prepare(folder.path(), nodes(2), offset, None).unwrap_err();
        let expected = "use --nodes 2 --witness";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn the_ports_of_all_nodes_differ() {
        let nodes = (0..MAX_NODES).map(|index| LocalNode::new(Path::new("/x"), index, 0));
        let ports = nodes.flat_map(|node| node.unwrap().ports().map(|(_, address)| address.port()));
        let mut ports: Vec<_> = ports.collect();
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        let error = LocalNode::new(Path::new("/x"), 0, 60_000).unwrap_err();
        assert!(error.to_string().contains("--port-offset 60000"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_named_with_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let taken = port_offsets().find_map(|offset| {
            let used = SocketAddrV4::new(Ipv4Addr::LOCALHOST, MQTT_PORT + 1 + offset);
            let listener = TcpListener::bind(used).ok();
            listener.map(|listener| (listener, used, offset))
        });
        let (_listener, used, offset) = taken.expect("a port is free");
        let directory = folder.path().join("cluster");
        let error = LocalCluster::prepare(&directory, nodes(2), offset, None).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("{used} (MQTT of node-2)")), "{text}");
        assert!(text.contains("--port-offset"), "{text}");
        assert!(!directory.exists(), "nothing is written before the check");
    }
}
