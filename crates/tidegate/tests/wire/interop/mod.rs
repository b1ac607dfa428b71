//! Clients of other people must work with a node: mosquitto_pub and mosquitto_sub, paho-mqtt, mqtt.js, rumqttc.
//!
//! A test whose client is not installed prints a line that starts with `SKIPPED`; `cargo xtask test` installs them
//! and counts what was skipped.

pub(crate) mod browser;
pub(crate) mod client;
mod mosquitto;
pub(crate) mod mqtt_js;
mod paho;
mod rumqttc;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) use testkit::{find_program, report_skipped};

use crate::certificates::{Authority, TlsIdentity};
use crate::support::{Node, external, temporary_directory};

/// One node with every kind of listener, for all clients.
pub(crate) struct SharedNode {
    pub(crate) node: &'static Node,
    pub(crate) authority: &'static Authority,
    /// A client the listener `mutual` lets in, as the user `device-1`.
    pub(crate) client: TlsIdentity,
}

/// How a client reaches the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Tls,
    WebSocket,
    SecureWebSocket,
}

impl Transport {
    /// The name of the listener.
    pub(crate) fn listener(self) -> &'static str {
        match self {
            Transport::Tcp => "mqtt",
            Transport::Tls => "mqtts",
            Transport::WebSocket => "ws",
            Transport::SecureWebSocket => "wss",
        }
    }
}

impl SharedNode {
    pub(crate) fn get() -> &'static SharedNode {
        static SHARED_NODE: OnceLock<SharedNode> = OnceLock::new();
        SHARED_NODE.get_or_init(|| {
            let dir = temporary_directory();
            let authority: &'static Authority = Box::leak(Box::new(Authority::new(&dir)));
            let server = authority.issue_server("server");
            let client = authority.issue_client("device-1");
            let node = Node::shared_with_config(&[], &config(&dir, authority, &server));
            SharedNode {
                node,
                authority,
                client,
            }
        })
    }

    /// Host and port of a listener.
    pub(crate) fn host_and_port(&self, transport: Transport) -> (&str, u16) {
        let address = self.node.address(transport.listener());
        let (host, port) = address.rsplit_once(':').unwrap();
        (host, port.parse().unwrap())
    }
}

fn config(dir: &Path, authority: &Authority, server: &TlsIdentity) -> String {
    let certificate = server.certificate.display();
    let key = server.key.display();
    let client_ca = authority.certificate_path();
    let client_ca = client_ca.display();
    let socket = dir.join("mqtt.sock");
    let socket = socket.display();
    format!(
        r#"
[[listener]]
name = "mqtts"
protocol = "mqtts"
bind = "127.0.0.1:0"
tls = {{ certificate = "{certificate}", private_key = "{key}" }}

[[listener]]
name = "mutual"
protocol = "mqtts"
bind = "127.0.0.1:0"
tls = {{ certificate = "{certificate}", private_key = "{key}", client_ca = "{client_ca}", require_client_certificate = true, common_name_as_username = true }}

[[listener]]
name = "wss"
protocol = "wss"
bind = "127.0.0.1:0"
tls = {{ certificate = "{certificate}", private_key = "{key}" }}

[[listener]]
name = "unix"
protocol = "unix"
bind = "{socket}"
"#
    )
}

/// Whether there is a node with all listeners, not just another broker's plain ones.
fn own_node() -> bool {
    if external().is_some() {
        report_skipped("needs a node of its own");
    }
    external().is_none()
}

/// What xtask installs, unless a variable names another place: `target/tools/NAME`.
pub(crate) fn installed(variable: &str, below_target: &str) -> Option<PathBuf> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()?
            .join("tools")
            .join(below_target),
    };
    path.exists().then_some(path)
}
