//! `tidegate cluster witness`: a NATS server without a node, so that two nodes have a majority when one of them fails.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use cluster_nats::{NatsServer, NatsServerMonitor};

use super::local_cluster::ClusterUsageError;
use crate::config::{self, ClusterServers, Config, ConfigSources, FlagValue};
use crate::logging::{self, LogFormat};
use crate::managed_server::{server_directory, start_server};
use crate::serve::{SignalListener, SignalRequest, data_dir::DataDir};

/// How often the servers of the cluster are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Questions without an answer before that is logged: a leader may just be elected.
const MAX_SILENT_LOOKS: u32 = 3;

#[derive(Args)]
#[command(
    after_help = "The witness stores the configuration of the cluster and counts for the majority. It has no clients, messages, API or console. \
                  Its settings are those of a node in the section [cluster], also in a file or in TIDEGATE_CLUSTER__ variables."
)]
pub(crate) struct WitnessArgs {
    /// Configuration file with a section [cluster] [default: the one `tidegate serve` would read]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory, which belongs to the witness alone
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Name of the witness, different from those of all nodes (cluster.node)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where the servers of the nodes connect to the witness (cluster.listen)
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Where they reach the witness, if that differs from --listen (cluster.advertise)
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Servers of all nodes and the witness, separated by commas; the same list as that of the nodes (cluster.peers)
    #[arg(long, value_name = "LIST")]
    peers: Option<String>,
    /// File with the secret of all servers (cluster.secret_file)
    #[arg(long, value_name = "FILE")]
    secret_file: Option<String>,
    /// Name of the cluster, if the nodes have changed it (cluster.name) [default: tidegate]
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Certificate for TLS between the servers, in PEM (cluster.certificate)
    #[arg(long, value_name = "FILE")]
    certificate: Option<String>,
    /// Key of the certificate, in PEM (cluster.private_key)
    #[arg(long, value_name = "FILE")]
    private_key: Option<String>,
    /// Authorities that sign the certificates of the servers, in PEM (cluster.authorities)
    #[arg(long, value_name = "FILE")]
    authorities: Option<String>,
    /// Memory of the server, such as 256MiB (cluster.max_memory) [default: 512MiB]
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<String>,
    /// The program nats-server (cluster.program) [default: beside this program, or on PATH]
    #[arg(long, value_name = "FILE")]
    nats_server: Option<String>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Log filter, such as debug or info,cluster_nats=debug [default: info]
    #[arg(long, value_name = "LEVELS")]
    log_level: Option<String>,
    /// Set any key of `tidegate config reference`, such as cluster.max_disk=4GiB
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl WitnessArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let config = config::load(&self.into_sources())?;
        logging::start(&config.log_level, config.log_format).map_err(anyhow::Error::msg)?;
        if config.data_dir.join("store").exists() {
            let dir = config.data_dir.display();
            return Err(ClusterUsageError(format!(
                "{dir} is the data directory of a node; give the witness a directory of its own with --data-dir"
            ))
            .into());
        }
        let data_dir = DataDir::open(&config.data_dir)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(run_witness(&config, &data_dir))
    }

    fn into_sources(self) -> ConfigSources {
        let format = self.log_format.map(|format| format.name().to_owned());
        let flags = [
            ("--data-dir", "node.data_dir", self.data_dir),
            ("--name", "cluster.node", self.name),
            ("--listen", "cluster.listen", self.listen),
            ("--advertise", "cluster.advertise", self.advertise),
            ("--peers", "cluster.peers", self.peers),
            ("--secret-file", "cluster.secret_file", self.secret_file),
            ("--cluster-name", "cluster.name", self.cluster_name),
            ("--certificate", "cluster.certificate", self.certificate),
            ("--private-key", "cluster.private_key", self.private_key),
            ("--authorities", "cluster.authorities", self.authorities),
            ("--max-memory", "cluster.max_memory", self.max_memory),
            ("--nats-server", "cluster.program", self.nats_server),
            ("--log-format", "log.format", format),
            ("--log-level", "log.level", self.log_level),
            // A witness is nothing but such a server.
            (
                "cluster witness",
                "cluster.managed",
                Some("true".to_owned()),
            ),
        ];
        let mut sources = ConfigSources::from_process(self.config);
        sources.sets = self.sets;
        let flags = flags.into_iter().filter_map(|(flag, key, value)| {
            let value = value?;
            Some(FlagValue { flag, key, value })
        });
        sources.flags = flags.collect();
        sources
    }
}

async fn run_witness(config: &Config, data_dir: &DataDir) -> anyhow::Result<()> {
    let Some(settings) = &config.cluster else {
        anyhow::bail!("cluster.managed: the witness has no settings; this is a bug");
    };
    let ClusterServers::Managed(server) = &settings.servers else {
        anyhow::bail!("cluster.urls: a witness starts a server of its own; remove it");
    };
    if server.peers.iter().all(|peer| *peer == server.listen) {
        return Err(ClusterUsageError(
            "cluster.peers names no other server; list those of the nodes and of the witness, as at the nodes".to_owned(),
        )
        .into());
    }
    let mut signals = SignalListener::listen().context("cannot listen for signals")?;
    let managed = start_server(settings, server, server_directory(data_dir.path())).await?;
    tracing::info!(
        witness = %settings.node,
        cluster = settings.name,
        listen = server.listen,
        peers = %server.peers.join(", "),
        data_dir = %data_dir.path().display(),
        "the witness is started"
    );
    let monitor = managed.monitor().await?;
    let mut log = ServerLog::default();
    let signal = loop {
        tokio::select! {
            request = signals.next() => match request {
                SignalRequest::Stop(signal) => break signal,
                SignalRequest::Reload => tracing::warn!(
                    "SIGHUP: a witness does not read its settings and certificates again; restart it"
                ),
            },
            // Never ends.
            () = log.follow(&monitor) => {}
        }
    };
    tracing::info!("{signal}: stopping");
    tokio::select! {
        () = managed.stop() => {}
        () = signals.next_interrupt() => anyhow::bail!("interrupted: stopped without waiting for the NATS server"),
    }
    tracing::info!("stopped");
    Ok(())
}

/// Logs which servers of the cluster run, whenever that changes.
#[derive(Default)]
struct ServerLog {
    /// What was logged last.
    logged: Option<ServerView>,
    silent_looks: u32,
}

/// What is known of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ServerView {
    NoLeader,
    Led {
        leader: String,
        running: Vec<String>,
        missing: Vec<String>,
    },
}

impl ServerView {
    fn new(servers: Vec<NatsServer>) -> Self {
        let leader = servers.iter().find(|server| server.is_leader);
        let Some(leader) = leader.map(|server| server.node.clone()) else {
            return Self::NoLeader;
        };
        let (running, missing) = servers
            .into_iter()
            .partition::<Vec<_>, _>(NatsServer::is_connected);
        let names = |servers: Vec<NatsServer>| servers.into_iter().map(|s| s.node).collect();
        Self::Led {
            leader,
            running: names(running),
            missing: names(missing),
        }
    }
}

impl ServerLog {
    async fn follow(&mut self, monitor: &NatsServerMonitor) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let view = match monitor.servers().await {
                Ok(servers) => ServerView::new(servers),
                Err(error) => {
                    tracing::debug!(%error, "the servers of the cluster cannot be listed");
                    ServerView::NoLeader
                }
            };
            if let Some(view) = self.changed(view) {
                view.log();
            }
        }
    }

    /// What is to be logged.
    fn changed(&mut self, view: ServerView) -> Option<&ServerView> {
        self.silent_looks = match view {
            ServerView::NoLeader => self.silent_looks.saturating_add(1),
            ServerView::Led { .. } => 0,
        };
        let is_certain = view != ServerView::NoLeader || self.silent_looks >= MAX_SILENT_LOOKS;
        if !is_certain || self.logged.as_ref() == Some(&view) {
            return None;
        }
        Some(self.logged.insert(view))
    }
}

impl ServerView {
    fn log(&self) {
        match self {
            Self::NoLeader => tracing::warn!(
                "the NATS servers have no majority: more than half of cluster.peers must run and reach each other; waiting"
            ),
            Self::Led {
                leader,
                running,
                missing,
            } if missing.is_empty() => tracing::info!(
                leader,
                running = %running.join(", "),
                "all NATS servers of the cluster are connected"
            ),
            Self::Led {
                leader,
                running,
                missing,
            } => tracing::warn!(
                leader,
                running = %running.join(", "),
                missing = %missing.join(", "),
                "the NATS servers have a majority, and some are missing"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, is_leader: bool, silent_s: u64) -> NatsServer {
        NatsServer {
            node: name.to_owned(),
            is_leader,
            is_current: true,
            // NATS says so only much later.
            is_offline: false,
            silent: Duration::from_secs(silent_s),
            lag: 0,
        }
    }

    #[test]
    fn changes_of_the_servers_are_logged_once_and_an_election_is_not() {
        let all = || ServerView::new(vec![server("a", true, 0), server("b", false, 1)]);
        let one = || ServerView::new(vec![server("a", true, 0), server("b", false, 6)]);
        let mut log = ServerLog::default();
        assert_eq!(log.changed(ServerView::NoLeader), None);
        assert_eq!(log.changed(all()), Some(&all()));
        assert_eq!(log.changed(all()), None);
        assert_eq!(log.changed(ServerView::NoLeader), None, "an election");
        assert_eq!(log.changed(one()), Some(&one()));
        assert_eq!(log.changed(ServerView::NoLeader), None);
        assert_eq!(log.changed(ServerView::NoLeader), None);
        assert_eq!(
            log.changed(ServerView::NoLeader),
            Some(&ServerView::NoLeader)
        );
        assert_eq!(log.changed(ServerView::NoLeader), None);
        assert_eq!(log.changed(one()), Some(&one()));
        assert_eq!(ServerView::new(Vec::new()), ServerView::NoLeader);
    }
}
