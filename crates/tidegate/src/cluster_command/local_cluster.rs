//! The files of a local cluster: a configuration file per node, and the secret of their NATS servers.

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

#[derive(Debug)]
pub(super) struct LocalCluster {
    pub(super) directory: PathBuf,
    pub(super) nodes: Vec<LocalNode>,
}

#[derive(Debug)]
pub(super) struct LocalNode {
    pub(super) name: String,
    pub(super) mqtt: SocketAddrV4,
    pub(super) ws: SocketAddrV4,
    pub(super) http: SocketAddrV4,
    nats: SocketAddrV4,
    pub(super) data_dir: PathBuf,
    pub(super) config_file: PathBuf,
}

impl LocalNode {
    /// `index` counts from 0, the name from 1.
    fn new(directory: &Path, index: u16, port_offset: u16) -> Result<Self, ClusterUsageError> {
        let address = |base: u16| {
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
        };
        let name = format!("node-{}", index + 1);
        Ok(Self {
            mqtt: address(MQTT_PORT)?,
            ws: address(WS_PORT)?,
            http: match index < LOW_HTTP_PORTS {
                true => address(HTTP_PORT)?,
                false => address(HIGH_HTTP_PORT)?,
            },
            nats: address(NATS_PORT)?,
            data_dir: directory.join(&name),
            config_file: directory.join(format!("{name}.toml")),
            name,
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
    fn config(&self, peers: &str, secret_file: &Path, nats_server: Option<&Path>) -> String {
        // Strings of JSON are strings of TOML.
        let quoted = |path: &Path| serde_json::Value::from(path.to_string_lossy()).to_string();
        let program = nats_server.map_or_else(String::new, |program| {
            format!("program = {}\n", quoted(program))
        });
        format!(
            "# Written by `tidegate cluster up` at each start; changes are lost.\n\
             \n[node]\ndata_dir = {}\n\
             \n[[listener]]\nname = \"mqtt\"\nbind = \"{}\"\n\
             \n[[listener]]\nname = \"ws\"\nbind = \"{}\"\n\
             \n[http]\nbind = \"{}\"\n\
             \n[cluster]\nnode = \"{}\"\nmanaged = true\n{program}listen = \"{}\"\npeers = \"{peers}\"\n\
             secret_file = {}\napi_url = \"{}\"\n",
            quoted(&self.data_dir),
            self.mqtt,
            self.ws,
            self.http,
            self.name,
            self.nats,
            quoted(secret_file),
            self.api_url(),
        )
    }
}

impl LocalCluster {
    /// Checks that the ports are free, and writes the files.
    pub(super) fn prepare(
        directory: &Path,
        count: u16,
        port_offset: u16,
        nats_server: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let directory = std::path::absolute(directory)?;
        let nodes = (0..count).map(|index| LocalNode::new(&directory, index, port_offset));
        let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
        check_node_count(&directory, count)?;
        check_ports(&nodes)?;
        disk::create_private_dir(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let secret_file = directory.join(SECRET_FILE);
        create_secret(&secret_file)
            .with_context(|| format!("cannot write {}", secret_file.display()))?;
        let peers: Vec<_> = nodes.iter().map(|node| node.nats.to_string()).collect();
        let peers = peers.join(",");
        for node in &nodes {
            let text = node.config(&peers, &secret_file, nats_server);
            fs::write(&node.config_file, text)
                .with_context(|| format!("cannot write {}", node.config_file.display()))?;
        }
        Ok(Self { directory, nodes })
    }
}

/// The NATS servers of a cluster count each other, so their number does not change by another argument.
fn check_node_count(directory: &Path, count: u16) -> Result<(), ClusterUsageError> {
    let exists = |number: u16| directory.join(format!("node-{number}.toml")).is_file();
    let existing = (1..=MAX_NODES).take_while(|number| exists(*number)).count();
    if existing == 0 || existing == usize::from(count) {
        return Ok(());
    }
    Err(ClusterUsageError(format!(
        "{} contains a cluster of {existing} nodes: use --nodes {existing}, or choose another directory with --directory DIR",
        directory.display()
    )))
}

fn check_ports(nodes: &[LocalNode]) -> Result<(), ClusterUsageError> {
    let mut used = String::new();
    for node in nodes {
        for (protocol, address) in node.ports() {
            if let Err(error) = TcpListener::bind(address) {
                let _ = write!(used, "\n  {address} ({protocol} of {}): {error}", node.name);
            }
        }
    }
    if used.is_empty() {
        return Ok(());
    }
    Err(ClusterUsageError(format!(
        "these addresses cannot be used:{used}\nEnd the programs that use them, or add a number to all ports, such as with --port-offset 1000."
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
            let cluster = LocalCluster::prepare(&directory, 3, offset, None);
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
                file: Some(node.config_file.clone()),
                ..ConfigSources::default()
            };
            let config = config::load(&sources).unwrap();
            let settings = config.cluster.unwrap();
            assert_eq!(settings.node.as_str(), format!("node-{}", index + 1));
            assert_eq!(config.data_dir, node.data_dir);
            assert_eq!(node.mqtt.port(), 1883 + offset + index as u16);
        }
        // A second start continues with the same secret, and with the same number of nodes only.
        LocalCluster::prepare(&directory, 3, offset, None).unwrap();
        assert_eq!(fs::read(directory.join(SECRET_FILE)).unwrap(), secret);
        let error = LocalCluster::prepare(&directory, 5, offset, None).unwrap_err();
        assert!(error.to_string().contains("use --nodes 3"), "{error}");
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
        let error = LocalCluster::prepare(&directory, 2, offset, None).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("{used} (MQTT of node-2)")), "{text}");
        assert!(text.contains("--port-offset"), "{text}");
        assert!(!directory.exists(), "nothing is written before the check");
    }
}
