//! `tidegate cluster`: a cluster of several nodes on this machine, to try it out; a witness; the recovery of a node.

mod local_cluster;
mod node_processes;
mod recover;
mod witness;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use cluster_nats::ManagedNatsError;

use crate::exit_status::ExitStatus;
use crate::serve::program_name;
pub(crate) use local_cluster::ClusterUsageError;
use local_cluster::{LocalCluster, LocalClusterSize, MAX_NODES};
use node_processes::{ClusterEnd, NodeProcesses};
use recover::RecoverArgs;
use witness::WitnessArgs;

#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Start several nodes on this machine that act as one broker; Ctrl-C ends them
    Up(ClusterUpArgs),
    /// Run a NATS server without a node, on a small machine, so that one of two nodes may fail
    Witness(WitnessArgs),
    /// Let a stopped node begin a new cluster after more than half of the NATS servers were lost for good
    Recover(RecoverArgs),
}

#[derive(Args)]
#[command(
    after_help = "Starts the program nats-server for each node. The data and settings of the nodes stay in the directory when the command ends."
)]
pub(crate) struct ClusterUpArgs {
    /// Number of nodes; an odd number, so that a majority remains when nodes fail
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_NODES)))]
    nodes: u16,
    /// Start a witness, too: a NATS server without a node, with which one of two nodes may fail
    #[arg(long)]
    witness: bool,
    /// Directory for the data and settings of the nodes
    #[arg(long, value_name = "DIR", default_value = "tidegate-cluster")]
    directory: PathBuf,
    /// Number that is added to all ports: with 1000, MQTT listens on 2883, 2884 and so on
    #[arg(long, value_name = "N", default_value_t = 0)]
    port_offset: u16,
    /// The program nats-server [default: beside this program, or on PATH]
    #[arg(long, value_name = "FILE")]
    nats_server: Option<PathBuf>,
    /// Set a key of all nodes, as `tidegate serve --set` does
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl ClusterCommand {
    /// Returns the text for standard output, and the exit status.
    pub(crate) fn run(self) -> anyhow::Result<(String, ExitCode)> {
        disk::restrict_umask();
        match self {
            Self::Up(arguments) => Ok((String::new(), arguments.run()?)),
            Self::Witness(arguments) => {
                arguments.run()?;
                Ok((String::new(), ExitCode::SUCCESS))
            }
            Self::Recover(arguments) => Ok((arguments.run()?, ExitCode::SUCCESS)),
        }
    }
}

impl ClusterUpArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let nats_server = match self.nats_server {
            Some(program) => Some(std::path::absolute(program)?),
            None => require_nats_server()?,
        };
        let cluster = LocalCluster::prepare(
            &self.directory,
            LocalClusterSize {
                nodes: self.nodes,
                has_witness: self.witness,
            },
            self.port_offset,
            nats_server.as_deref(),
        )?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let end = runtime.block_on(async {
            let mut processes = NodeProcesses::start(cluster.processes(), &self.sets)?;
            processes
                .run(|| eprint!("{}", start_message(&cluster)))
                .await
        })?;
        Ok(match end {
            ClusterEnd::Requested => ExitCode::SUCCESS,
            ClusterEnd::AllNodesEnded => ExitStatus::Failure.into(),
        })
    }
}

/// Fails at once if no node would find its server. The version is checked by the nodes.
fn require_nats_server() -> anyhow::Result<Option<PathBuf>> {
    let name = "nats-server";
    let beside = std::env::current_exe()?.with_file_name(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::iter::once(beside.clone())
        .chain(std::env::split_paths(&path).map(|dir| dir.join(name)));
    if candidates.any(|candidate| candidate.is_file()) {
        return Ok(None);
    }
    let searched = format!("as {}", beside.display());
    let error = ManagedNatsError::NotFound { searched };
    Err(ClusterUsageError(error.to_string().replace(
        "name the program in the settings",
        "name the program with --nats-server FILE",
    ))
    .into())
}

fn start_message(cluster: &LocalCluster) -> String {
    let program = program_name();
    let mut text = format!(
        "\nA cluster of {} nodes is ready.\n\n  NODE    {:<17}{:<29}CONSOLE AND API\n",
        cluster.nodes.len(),
        "MQTT",
        "WEBSOCKET"
    );
    for node in &cluster.nodes {
        let _ = writeln!(
            text,
            "  {:<8}{:<17}{:<29}{}/",
            node.process.name,
            node.mqtt.to_string(),
            format!("ws://{}/mqtt", node.ws),
            node.api_url()
        );
    }
    if let Some(witness) = &cluster.witness {
        let _ = writeln!(
            text,
            "  {}  a NATS server without a node",
            witness.process.name
        );
    }
    let (Some(first), Some(last)) = (cluster.nodes.first(), cluster.nodes.last()) else {
        return text;
    };
    let directory = cluster.directory.display();
    let _ = write!(
        text,
        "\nTry it, in other terminals:\n  \
           {program} sub -p {last_port} -t 'demo/#' -v\n  \
           {program} pub -p {first_port} -t demo/hello -m 'Hello, tide'\n  \
           {program} ctl --data-dir {first_dir} cluster status\n\
         Kill a node, and start it again:\n  \
           kill -9 {pid_hint}\n  \
           {program} serve --config {last_config}\n\
         Data and settings are in {directory}. Ctrl-C ends all nodes.\n\n",
        last_port = last.mqtt.port(),
        first_port = first.mqtt.port(),
        first_dir = first.process.data_dir.display(),
        pid_hint = format_args!("$(jq .pid {}/node.json)", last.process.data_dir.display()),
        last_config = last.process.config_file.display(),
    );
    text
}
