//! A node in the process of the simulator, for `target.broker = "memory:"`: its devices connect without sockets, so that their
//! number is not limited by the open files of a process. The program provides it, because the simulator does not know nodes.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use memory_pipe::PipeEnd;

use crate::definition::{DefinitionError, FleetTransport, SimulationDefinition, TargetDefinition};
use crate::plan::SimulationPlan;

/// What a node in this process is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InProcessNodeOptions {
    /// Where its data stays; `None`: in a temporary directory, which is removed with the node.
    pub data_dir: Option<PathBuf>,
    /// 0: one for each core.
    pub shards: u16,
    /// Connections that it must accept.
    pub connections: u64,
}

/// Starts nodes in this process.
pub trait InProcessNodeLauncher {
    /// Starts a node, and returns when it accepts connections.
    ///
    /// # Errors
    /// If it cannot start, for example because another one uses its data.
    fn start(&self, options: &InProcessNodeOptions) -> anyhow::Result<Arc<dyn InProcessNode>>;
}

/// A node in this process. It stops when the last reference to it is dropped.
pub trait InProcessNode: fmt::Debug + Send + Sync {
    /// Opens a connection of MQTT, and returns the end of the client.
    ///
    /// # Errors
    /// If the node refuses it.
    fn connect(&self) -> io::Result<PipeEnd>;

    /// URL of its HTTP API.
    fn api_url(&self) -> String;

    /// File with a token for the API.
    fn token_file(&self) -> PathBuf;
}

/// Options of the command that concern the node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryTargetUse {
    pub(crate) has_machines: bool,
    pub(crate) keeps: bool,
    pub(crate) cleans: bool,
}

/// What makes no sense together with a node in this process, or without one.
pub(crate) fn check_memory_target(
    definition: &SimulationDefinition,
    plan: &SimulationPlan,
    usage: MemoryTargetUse,
) -> Vec<DefinitionError> {
    let target = &definition.target;
    if !target.is_in_memory() {
        let needs_node = (target.node != Default::default()).then(|| {
            let remedy =
                "is for a node in this process; set target.broker = \"memory:\", or leave it out";
            DefinitionError::new("target.node", remedy)
        });
        return needs_node.into_iter().collect();
    }
    let mut errors: Vec<DefinitionError> = socket_fields(target)
        .into_iter()
        .filter(|(_, is_set, _)| *is_set)
        .map(|(field, _, remedy)| DefinitionError::new(format!("target.{field}"), remedy))
        .collect();
    let fleets = plan.fleets.iter();
    errors.extend(
        fleets
            .filter(|fleet| fleet.transport != FleetTransport::Mqtt)
            .map(|fleet| {
                let remedy = "connections in memory are of MQTT; leave the transport out, or give the addresses of a running node";
                DefinitionError::new(format!("fleet.{}.transport", fleet.name), remedy)
            }),
    );
    let broker = |message: &str| DefinitionError::new("target.broker", message);
    if usage.has_machines {
        errors.push(broker(
            "with --machines, all machines need the same node, and \"memory:\" starts one in each process; leave --machines out, or give the address of a running node",
        ));
    }
    if usage.keeps && target.node.data_dir.is_none() {
        errors.push(broker(
            "with --keep, the node in this process needs a data directory that stays; set target.node.data_dir",
        ));
    }
    if usage.cleans && target.node.data_dir.is_none() {
        errors.push(broker(
            "the node in this process is new, and there is nothing to remove; set target.node.data_dir to that of an earlier run",
        ));
    }
    errors
}

/// Fields that concern sockets or another node: whether they are set, and what to do.
fn socket_fields(target: &TargetDefinition) -> [(&'static str, bool, &'static str); 8] {
    const NO_TLS: &str = "connections in memory are without TLS; leave it out, or give the address of a running node as target.broker";
    const OWN_API: &str =
        "the node in this process has an address and a token of its own; leave it out";
    const NO_SOCKETS: &str = "connections in memory have no addresses; leave it out";
    [
        ("ca_file", target.ca_file.is_some(), NO_TLS),
        ("certificate", target.certificate.is_some(), NO_TLS),
        ("private_key", target.private_key.is_some(), NO_TLS),
        ("insecure", target.insecure, NO_TLS),
        ("server_name", target.server_name.is_some(), NO_TLS),
        (
            "source_addresses",
            target.source_addresses.is_some(),
            NO_SOCKETS,
        ),
        ("token_file", target.token_file.is_some(), OWN_API),
        (
            "api",
            target.api != TargetDefinition::default().api,
            OWN_API,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::definition::SourceDocument;

    /// Fields with errors, of a file with these lines of `[target]` and of the fleet.
    fn wrong_fields(target: &str, fleet: &str, usage: MemoryTargetUse) -> Vec<String> {
        let text = format!(
            "[target]\n{target}\n[product.p]\nprotocol = \"thingsboard\"\n[fleet.f]\nproduct = \"p\"\ncount = 3\n{fleet}\n\
             [[phase]]\nname = \"a\"\nduration = \"1s\"\n"
        );
        let document = SourceDocument::parse(Path::new("a.toml"), &text).expect("TOML");
        let (definition, plan) =
            crate::plan_compiler::compile(&document, Path::new(""), Default::default())
                .expect("well-formed");
        let errors = check_memory_target(&definition, &plan, usage);
        errors.into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn what_needs_sockets_or_another_node_is_an_error() {
        let none = MemoryTargetUse::default();
        let memory = "broker = \"memory:\"";
        let with = |line: &str| format!("{memory}\n{line}");
        assert!(wrong_fields(memory, "", none).is_empty());
        assert!(wrong_fields(&with("node.data_dir = \"d\""), "", none).is_empty());
        for (line, field) in [
            ("ca_file = \"a.pem\"", "target.ca_file"),
            ("insecure = true", "target.insecure"),
            (
                "source_addresses = \"127.0.0.2\"",
                "target.source_addresses",
            ),
            ("api = \"http://127.0.0.1:1\"", "target.api"),
            ("token_file = \"t\"", "target.token_file"),
        ] {
            assert_eq!(wrong_fields(&with(line), "", none), [field]);
        }
        let transport = wrong_fields(memory, "transport = \"http\"", none);
        assert_eq!(transport, ["fleet.f.transport"]);
        let sockets = wrong_fields("broker = \"mqtt://a\"\nnode.shards = 1", "", none);
        assert_eq!(sockets, ["target.node"]);
    }

    #[test]
    fn what_needs_data_that_stays_is_an_error_without_a_directory() {
        let memory = "broker = \"memory:\"";
        let stays = "broker = \"memory:\"\nnode.data_dir = \"d\"";
        for usage in [
            MemoryTargetUse {
                keeps: true,
                ..Default::default()
            },
            MemoryTargetUse {
                cleans: true,
                ..Default::default()
            },
        ] {
            assert_eq!(wrong_fields(memory, "", usage), ["target.broker"]);
            assert!(wrong_fields(stays, "", usage).is_empty());
        }
        let machines = MemoryTargetUse {
            has_machines: true,
            ..Default::default()
        };
        assert_eq!(wrong_fields(stays, "", machines), ["target.broker"]);
    }
}
