//! The relays to measure: a node of the benchmark's own or one that runs, and another relay to compare it with.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use serde_json::{Value, json};

use crate::broker_access::random_u32;
use crate::endpoint::{Endpoint, SourceAddresses};
use crate::node_api::NodeApi;
use crate::own_node::{OwnNode, OwnNodeOptions};

/// Path of relay endpoints where an address has none.
const DEFAULT_PATH: &str = "/ws";

/// The address of a relay: `ws://HOST:PORT/PATH`, to which the id of an endpoint is appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelayAddress {
    endpoint: Endpoint,
    /// Without a slash at its end.
    path: String,
}

impl FromStr for RelayAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("ws://").ok_or_else(|| {
            format!("`{text}` is not an address such as ws://127.0.0.1:8083/ws; TLS is not measured here")
        })?;
        let path = rest.find('/').map_or(DEFAULT_PATH, |at| &rest[at..]);
        Ok(Self {
            endpoint: text.parse()?,
            path: path.trim_end_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for RelayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ws://{}{}", self.endpoint.authority(), self.path)
    }
}

/// A relay to compare with: `URL[,PID]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ComparisonRelay {
    address: RelayAddress,
    pid: Option<u32>,
}

impl FromStr for ComparisonRelay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, pid) = match text.rsplit_once(',') {
            Some((address, pid)) => {
                let number = pid.trim().parse();
                let number =
                    number.map_err(|_| format!("`{pid}` in `{text}` is not a process id"))?;
                (address, Some(number))
            }
            None => (text, None),
        };
        Ok(Self {
            address: address.parse()?,
            pid,
        })
    }
}

/// Which relays to measure.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Relay")]
pub(super) struct RelayServerArgs {
    /// Where a relay listens, ws://HOST:PORT/PATH without the id of an endpoint; default: a node that is started for the
    /// benchmark
    #[arg(long, value_name = "URL")]
    broker: Option<RelayAddress>,
    /// The relay's process on this machine: measures its processor time and memory
    #[arg(long, value_name = "PID", requires = "broker")]
    broker_pid: Option<u32>,
    /// HTTP API of the node at --broker, to create endpoints; without it, the relay must accept any id
    #[arg(long, value_name = "URL", requires = "broker")]
    api: Option<String>,
    /// File with a token for --api, such as `api.token` in the node's data directory
    #[arg(long, value_name = "FILE", requires = "api")]
    token_file: Option<PathBuf>,
    /// Program to start as the node [default: this program]
    #[arg(long, value_name = "FILE", conflicts_with = "broker")]
    program: Option<PathBuf>,
    /// Local addresses to connect from in turn, e.g. 127.0.0.1-127.0.0.50 (one address has some 28,000 ports)
    #[arg(long, value_name = "ADDRESSES")]
    source_addresses: Option<SourceAddresses>,
    /// Another relay to measure in turn, which has a room for each path
    #[arg(long, value_name = "URL[,PID]")]
    versus: Option<ComparisonRelay>,
}

/// A relay to measure.
pub(super) struct RelayServer {
    pub(super) label: String,
    pub(super) target: SocketAddr,
    /// Where to connect from; `None`: chosen by the number of connections.
    sources: Option<SourceAddresses>,
    /// For the field `Host`.
    pub(super) host: String,
    path: String,
    pub(super) pid: Option<u32>,
    api: Option<NodeApi>,
    /// Stopped when the server is dropped.
    _node: Option<OwnNode>,
}

impl RelayServerArgs {
    /// The first relay, and the one to compare it with if there is one.
    pub(super) fn servers(&self) -> anyhow::Result<Vec<RelayServer>> {
        let mut servers = vec![self.first_server()?];
        if let Some(rival) = &self.versus {
            servers.push(self.server(&rival.address, rival.pid, None)?);
        }
        Ok(servers)
    }

    /// The first relay.
    pub(super) fn first_server(&self) -> anyhow::Result<RelayServer> {
        if let Some(address) = &self.broker {
            let api = self.api.as_deref();
            let api = api.map(|url| NodeApi::new(url, self.token_file.as_deref()));
            return self.server(address, self.broker_pid, api.transpose()?);
        }
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("cannot find this program")?,
        };
        let options = OwnNodeOptions {
            benchmark: "relay",
            parent: None,
            arguments: &["--mqtt", "off", "--ws", "127.0.0.1:0"],
            configuration: "",
            is_pinned: true,
        };
        let node = OwnNode::start(&program, &options)?;
        let address = format!("ws://{}", node.address("ws")?).parse();
        let address: RelayAddress = address.map_err(anyhow::Error::msg)?;
        let url = format!("http://{}", node.address("http")?);
        let api = NodeApi::new(&url, Some(&node.token_file()))?;
        let mut server = self.server(&address, Some(node.pid()), Some(api))?;
        "tidegate".clone_into(&mut server.label);
        server._node = Some(node);
        Ok(server)
    }

    fn server(
        &self,
        address: &RelayAddress,
        pid: Option<u32>,
        api: Option<NodeApi>,
    ) -> anyhow::Result<RelayServer> {
        let sources = self.source_addresses.clone();
        let reachable = sources.clone().unwrap_or_default();
        Ok(RelayServer {
            label: address.to_string(),
            target: address.endpoint.resolve(&reachable)?,
            sources,
            host: address.endpoint.authority(),
            path: address.path.clone(),
            pid,
            api,
            _node: None,
        })
    }
}

impl RelayServer {
    /// Where `connections` come from.
    pub(super) fn sources(&self, connections: usize) -> SourceAddresses {
        let chosen = || SourceAddresses::for_connections(self.target.ip(), connections);
        self.sources.clone().unwrap_or_else(chosen)
    }

    /// The path of an endpoint.
    pub(super) fn path(&self, endpoint: &str) -> String {
        format!("{}/{endpoint}", self.path)
    }

    /// The HTTP API, for what cannot be measured without it.
    pub(super) fn api(&self) -> anyhow::Result<&NodeApi> {
        let remedy = "this needs the HTTP API of the node: give --api, or leave out --broker";
        self.api.as_ref().context(remedy)
    }
}

/// Endpoints of a run. They are created at a node, and removed when this is dropped.
pub(super) struct EndpointSet<'a> {
    server: &'a RelayServer,
    pub(super) ids: Vec<String>,
    /// Devices that have identified themselves at these endpoints.
    pub(super) devices: Vec<String>,
}

impl<'a> EndpointSet<'a> {
    /// Endpoints with these fields.
    pub(super) fn create(
        server: &'a RelayServer,
        count: usize,
        definition: &Value,
    ) -> anyhow::Result<Self> {
        let run = random_u32();
        let mut created = Self {
            server,
            ids: Vec::new(),
            devices: Vec::new(),
        };
        for number in 0..count {
            let id = format!("bench-{run:08x}-{number}");
            if let Some(api) = &server.api {
                let path = format!("/api/v1/endpoints/{id}");
                api.request_json("PUT", &path, Some(definition))?;
            }
            created.ids.push(id);
        }
        Ok(created)
    }

    /// The id in the API of a device of an endpoint.
    pub(super) fn device_id(&self, endpoint: usize, device: &str) -> String {
        format!("{}:{device}", self.ids[endpoint])
    }

    /// Statistics of an endpoint.
    pub(super) fn status(&self, endpoint: usize) -> anyhow::Result<Value> {
        let path = format!("/api/v1/endpoints/{}/status", self.ids[endpoint]);
        self.server.api()?.request_json("GET", &path, None)
    }
}

impl Drop for EndpointSet<'_> {
    fn drop(&mut self) {
        let Some(api) = &self.server.api else {
            return;
        };
        // What the node creates for devices would outlive the endpoint. A failure leaves objects with the name of the
        // benchmark, and must not hide the result.
        let devices = self.devices.iter().map(|id| format!("devices/{id}"));
        let products = self.ids.iter().map(|id| format!("products/relay-{id}"));
        let endpoints = self.ids.iter().map(|id| format!("endpoints/{id}"));
        let has_devices = !self.devices.is_empty();
        for path in endpoints
            .chain(devices)
            .chain(products.filter(|_| has_devices))
        {
            let _ = api.request_json("DELETE", &format!("/api/v1/{path}"), None);
        }
    }
}

/// The fields of an endpoint for `connections` in a mode.
pub(super) fn definition(
    mode: super::message_template::RelayMode,
    connections: usize,
    max_message_bytes: usize,
) -> Value {
    let mut definition = json!({
        "name": "created by tidegate bench relay",
        "mode": mode.name(),
        "max_connections": connections.max(1),
        "max_message_bytes": max_message_bytes.max(1 << 20),
    });
    if mode == super::message_template::RelayMode::CustomHeader {
        definition["header"] = json!(super::message_template::CUSTOM_HEADER);
    }
    definition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses() {
        let show = |text: &str| {
            let address = text.parse::<RelayAddress>();
            address.map(|address| address.to_string())
        };
        assert_eq!(show("ws://a:1").as_deref(), Ok("ws://a:1/ws"));
        assert_eq!(show("ws://a/").as_deref(), Ok("ws://a:80"));
        assert_eq!(show("ws://[::1]:1/r/s/").as_deref(), Ok("ws://[::1]:1/r/s"));
        assert!(show("wss://a").unwrap_err().contains("TLS"));
        assert!(show("a:1").unwrap_err().contains("ws://"));
        let rival: ComparisonRelay = "ws://a:1,42".parse().expect("well-formed");
        assert_eq!(rival.pid, Some(42));
        assert!("ws://a:1,x".parse::<ComparisonRelay>().is_err());
    }
}
