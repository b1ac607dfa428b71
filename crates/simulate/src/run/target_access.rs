//! How all connections of a run reach the broker.

use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use load_client::endpoint::{Endpoint, SourceAddresses};
use load_client::transport::{BrokerDialer, TlsFiles, TransportError, client_config};
use memory_pipe::PipeEnd;
use mqtt::Version;
use rustls::pki_types::ServerName;

use crate::definition::{FleetTransport, TargetDefinition};
use crate::in_process_node::InProcessNode;
use crate::plan::SimulationPlan;
use crate::translation::Translators;

const MAX_THREADS: u16 = 64;
const QUIC_PORT: u16 = 14567;

/// How devices reach the broker.
#[derive(Clone, Debug)]
enum BrokerAccess {
    Network(BrokerDialer),
    /// A node in this process; `None`: it is not started yet.
    Memory(Option<Arc<dyn InProcessNode>>),
}

#[derive(Clone, Debug)]
pub(crate) struct TargetAccess {
    access: BrokerAccess,
    /// The servers that the devices use, for reports.
    pub(crate) broker: String,
    /// The servers of devices that do not speak MQTT over TCP.
    pub(crate) translators: Translators,
    pub(crate) version: Version,
    /// Of connections to the broker.
    pub(crate) sources: SourceAddresses,
    /// Of connections with other transports, each to its server.
    translated_sources: Vec<(FleetTransport, SourceAddresses)>,
    pub(crate) connect_timeout_ns: u64,
    pub(crate) threads: usize,
}

impl TargetAccess {
    /// Resolves the servers of a file in `folder` that the plan uses.
    pub(crate) fn new(
        target: &TargetDefinition,
        folder: &Path,
        plan: &SimulationPlan,
    ) -> anyhow::Result<Self> {
        check_numbers(target)?;
        if target.is_in_memory() {
            return Self::in_memory(target, folder);
        }
        let field_error =
            |field: &str, message: String| anyhow::anyhow!("target.{field}: {message}");
        // QUIC is always inside TLS.
        let quic = target.broker.strip_prefix("quic://");
        let endpoint: Endpoint = quic
            .map_or_else(|| target.broker.clone(), quic_endpoint)
            .parse()
            .map_err(|message| field_error("broker", message))?;
        let mut sources = match &target.source_addresses {
            Some(text) => text
                .parse()
                .map_err(|message| field_error("source_addresses", message))?,
            None => SourceAddresses::default(),
        };
        let address = endpoint.resolve(&sources).context("target.broker")?;
        let devices = usize::try_from(plan.devices()).unwrap_or(usize::MAX);
        if sources.count() == 0 {
            sources = SourceAddresses::for_connections(address.ip(), devices);
        }
        let transports = plan.transports();
        let quic = quic.map(|_| (address, endpoint.host.clone()));
        let broker = match quic {
            Some(_) => format!("quic://{}", endpoint.authority()),
            None => endpoint.to_string(),
        };
        let mut servers: Vec<&str> = Vec::new();
        for transport in &transports {
            servers.push(match transport {
                FleetTransport::Mqtt => &broker,
                FleetTransport::Http => &target.http,
                FleetTransport::Relay => &target.relay,
                FleetTransport::Link => &target.link,
            });
        }
        let servers = servers.join(", ");
        let translators = Translators::new(target, folder, &transports, quic)?;
        let translated_sources = transports.iter().filter_map(|transport| {
            let sources = translators.sources_for(*transport, devices)?;
            Some((*transport, sources))
        });
        Ok(Self {
            translated_sources: translated_sources.collect(),
            translators,
            access: BrokerAccess::Network(BrokerDialer {
                target: address,
                tls: tls(target, &endpoint, folder)?,
                websocket: endpoint
                    .websocket_path
                    .clone()
                    .map(|path| (endpoint.authority(), path)),
            }),
            broker: servers,
            version: target.version.into(),
            sources,
            connect_timeout_ns: target.connect_timeout.ns,
            threads: usize::from(target.threads),
        })
    }

    /// The access to a node in this process, which is not started yet.
    fn in_memory(target: &TargetDefinition, folder: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            translated_sources: Vec::new(),
            // Of images that devices download by URL.
            translators: Translators::new(target, folder, &[], None)?,
            access: BrokerAccess::Memory(None),
            broker: target.broker.clone(),
            version: target.version.into(),
            sources: SourceAddresses::default(),
            connect_timeout_ns: target.connect_timeout.ns,
            threads: usize::from(target.threads),
        })
    }

    /// Connects devices to this node from now on.
    pub(crate) fn set_node(&mut self, node: Arc<dyn InProcessNode>) {
        self.access = BrokerAccess::Memory(Some(node));
    }

    /// Whether connections to the broker are in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.access, BrokerAccess::Memory(_))
    }

    /// How sockets reach the broker; `None`: connections are in memory.
    pub(super) fn dialer(&self) -> Option<&BrokerDialer> {
        match &self.access {
            BrokerAccess::Network(dialer) => Some(dialer),
            BrokerAccess::Memory(_) => None,
        }
    }

    /// Opens a connection to the node in this process.
    pub(super) fn connect_in_memory(&self) -> Result<PipeEnd, TransportError> {
        let BrokerAccess::Memory(Some(node)) = &self.access else {
            let message = "there is no node in this process";
            return Err(io::Error::new(io::ErrorKind::NotConnected, message).into());
        };
        let refused = |error: io::Error| TransportError::Rejected(error.to_string());
        node.connect().map_err(refused)
    }

    /// Whether connections with this transport are pipes, which can be written at once.
    pub(super) fn uses_pipe(&self, transport: FleetTransport) -> bool {
        self.is_in_memory() || self.translators.includes(transport)
    }

    /// Where connections with this transport come from.
    pub(crate) fn sources_of(&self, transport: FleetTransport) -> &SourceAddresses {
        let mut translated = self.translated_sources.iter();
        let found = translated.find(|(known, _)| *known == transport);
        found.map_or(&self.sources, |(_, sources)| sources)
    }
}

fn check_numbers(target: &TargetDefinition) -> anyhow::Result<()> {
    if !(1..=MAX_THREADS).contains(&target.threads) {
        bail!(
            "target.threads: expected 1 to {MAX_THREADS}, found {}",
            target.threads
        );
    }
    if target.downloads == 0 {
        bail!("target.downloads: must be at least 1");
    }
    if target.connect_timeout.ns == 0 {
        bail!("target.connect_timeout: must be above 0");
    }
    Ok(())
}

/// The address of a broker that is reached by QUIC, with the default port of QUIC listeners.
fn quic_endpoint(authority: &str) -> String {
    let host_end = authority.rfind(']').unwrap_or(0);
    match authority[host_end..].contains(':') {
        true => format!("mqtts://{authority}"),
        false => format!("mqtts://{authority}:{QUIC_PORT}"),
    }
}

type TlsAccess = (Arc<rustls::ClientConfig>, ServerName<'static>);

fn tls(
    target: &TargetDefinition,
    endpoint: &Endpoint,
    folder: &Path,
) -> anyhow::Result<Option<TlsAccess>> {
    if !endpoint.tls {
        return Ok(None);
    }
    let identity = match (&target.certificate, &target.private_key) {
        (Some(certificate), Some(key)) => Some((folder.join(certificate), folder.join(key))),
        (None, None) => None,
        _ => bail!("target.certificate and target.private_key belong together"),
    };
    let files = TlsFiles {
        authorities: target.ca_file.as_ref().map(|file| folder.join(file)),
        identity,
        insecure: target.insecure,
    };
    let name = target.server_name.as_ref().unwrap_or(&endpoint.host);
    let server = ServerName::try_from(name.clone()).with_context(|| {
        format!("target.server_name: `{name}` cannot be the name in a certificate")
    })?;
    Ok(Some((client_config(&files)?, server)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::SourceDocument;

    #[test]
    fn each_server_gets_source_addresses_that_reach_it() {
        let sources = |target: &str, transport: &str| {
            let text = format!(
                "target.broker = \"mqtt://127.0.0.1:1883\"\n{target}\n[product.p]\nprotocol = \"thingsboard\"\n\
                 [fleet.f]\nproduct = \"p\"\ncount = 30000\ntransport = \"{transport}\"\n\
                 [[phase]]\nname = \"a\"\nduration = \"1s\"\n"
            );
            let document = SourceDocument::parse(Path::new("a.toml"), &text).unwrap();
            let folder = Path::new("");
            let (definition, plan) =
                crate::plan_compiler::compile(&document, folder, Default::default()).unwrap();
            let access = TargetAccess::new(&definition.target, folder, &plan).unwrap();
            access.sources_of(plan.fleets[0].transport).count()
        };
        assert_eq!(sources("", "mqtt"), 2);
        assert_eq!(sources("", "http"), 2);
        // A loopback address does not reach another machine.
        assert_eq!(
            sources("target.http = \"http://192.0.2.1:8080\"", "http"),
            0
        );
        // The system chooses.
        assert_eq!(sources("target.link = \"tcp://127.0.0.1:7600\"", "link"), 0);
        for transport in ["mqtt", "http", "link"] {
            let text = "target.source_addresses = \"127.0.0.7\"";
            assert_eq!(sources(text, transport), 1, "{transport}");
        }
    }
}
