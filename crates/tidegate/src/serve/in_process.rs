//! A node in the process of `tidegate simulate`, whose devices connect in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
use broker::MemoryListener;
use broker::config::ListenerConfig;
use memory_pipe::PipeEnd;
use simulate::{InProcessNode, InProcessNodeLauncher, InProcessNodeOptions};
use tokio::sync::oneshot;

use super::data_dir::{DataDir, TOKEN_FILE};
use super::node::Node;
use super::{FIRST_PASSWORD_FILE, allocator, control_runtime, open_file_limit};
use crate::config::{self, Config, ConfigSources, FlagValue};
use crate::logging::{self, LogLevels};

/// Name of the listener in lists and metrics.
const LISTENER: &str = "memory";
/// Connections besides those of devices, such as of rules that are tested.
const SPARE_CONNECTIONS: u64 = 1000;
/// The screen of the simulator shows the run, so that the node reports only what it cannot do.
const LOG_LEVEL: &str = "error";

/// Starts nodes in this process.
pub(crate) struct InProcessNodes;

impl InProcessNodeLauncher for InProcessNodes {
    fn start(&self, options: &InProcessNodeOptions) -> anyhow::Result<Arc<dyn InProcessNode>> {
        let directory = NodeDirectory::new(options.data_dir.as_ref())?;
        let config = node_config(options, &directory.path)?;
        let log_levels =
            logging::start(&config.log_level, config.log_format).map_err(anyhow::Error::msg)?;
        disk::restrict_umask();
        open_file_limit::raise_limit();
        let (started, start) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("node".to_owned());
        let run = move || run_node(&config, log_levels, &started, stopped);
        let thread = thread.spawn(run).context("cannot start a thread")?;
        let running = start
            .recv()
            .map_err(|_| anyhow!("the thread of the node has ended; this is a bug"))??;
        Ok(Arc::new(RunningNode {
            running,
            stop: Some(stop),
            thread: Some(thread),
            _directory: directory,
        }))
    }
}

/// The configuration of the node. Files and variables of the environment are for nodes that others use.
fn node_config(options: &InProcessNodeOptions, data_dir: &Path) -> anyhow::Result<Config> {
    let limit = |default: u32| {
        let needed = options.connections.saturating_add(SPARE_CONNECTIONS);
        needed.max(default.into()).to_string()
    };
    let defaults = broker::config::BrokerLimits::default();
    let data_dir = data_dir
        .to_str()
        .context("target.node.data_dir: expected a path of UTF-8")?;
    let mut flags = vec![
        ("target.node.data_dir", "node.data_dir", data_dir.to_owned()),
        // A configuration needs a listener; the one in memory replaces it below.
        (
            "target.broker",
            "listener.mqtt.bind",
            "127.0.0.1:0".to_owned(),
        ),
        ("target.broker", "listener.ws.bind", "off".to_owned()),
        ("target.broker", "http.bind", "127.0.0.1:0".to_owned()),
        ("target.broker", "log.level", LOG_LEVEL.to_owned()),
        (
            "fleets",
            "limits.max_connections",
            limit(defaults.max_connections),
        ),
        (
            "fleets",
            "limits.max_sessions",
            limit(defaults.max_sessions),
        ),
    ];
    if options.shards > 0 {
        flags.push((
            "target.node.shards",
            "node.shards",
            options.shards.to_string(),
        ));
    }
    let flags = flags.into_iter();
    let sources = ConfigSources {
        flags: flags
            .map(|(flag, key, value)| FlagValue { flag, key, value })
            .collect(),
        ..ConfigSources::default()
    };
    let mut config = config::load(&sources)?;
    let mut listener = ListenerConfig::in_memory(LISTENER);
    listener.max_connections = config.broker.limits.max_connections;
    config.broker.listeners = vec![listener];
    Ok(config)
}

/// Runs a node until `stopped`. `started` gets what the simulator needs of it, or why it did not start.
fn run_node(
    config: &Config,
    log_levels: LogLevels,
    started: &mpsc::Sender<anyhow::Result<NodeAccess>>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = match control_runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            // The receiver waits for it.
            let _ = started.send(Err(error));
            return;
        }
    };
    runtime.block_on(async {
        let (node, data_dir) = match start_node(config, log_levels).await {
            Ok((node, data_dir, access)) => {
                let _ = started.send(Ok(access));
                (node, data_dir)
            }
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        // Dropping the sender has the same effect.
        let _ = stopped.await;
        if let Err(error) = data_dir.remove_node_file() {
            tracing::error!("{error:#}");
        }
        node.stop().await;
    });
}

async fn start_node(
    config: &Config,
    log_levels: LogLevels,
) -> anyhow::Result<(Node, DataDir, NodeAccess)> {
    allocator::release_memory_at_once();
    let data_dir = DataDir::open(&config.data_dir)?;
    let node = Node::start(config, &data_dir, log_levels).await?;
    if let Some(first) = node.first_operator() {
        data_dir.write_secret(FIRST_PASSWORD_FILE, &format!("{}\n", first.password))?;
    }
    data_dir.write_node_file(node.listeners())?;
    allocator::keep_memory_for_reuse();
    let mut listeners = node.listeners().iter();
    let http = listeners.find(|listener| listener.name == "http");
    let access = NodeAccess {
        listener: node
            .memory_listener(LISTENER)
            .context("no listener in memory")?,
        api_url: format!("http://{}", http.context("no HTTP listener")?.address),
        token_file: data_dir.path().join(TOKEN_FILE),
    };
    Ok((node, data_dir, access))
}

/// What the simulator needs of a node.
struct NodeAccess {
    listener: Arc<MemoryListener>,
    api_url: String,
    token_file: PathBuf,
}

/// A node, which stops when this is dropped.
struct RunningNode {
    running: NodeAccess,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Dropped after the node has stopped.
    _directory: NodeDirectory,
}

impl std::fmt::Debug for RunningNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("RunningNode");
        fields.field("api_url", &self.running.api_url);
        fields.finish_non_exhaustive()
    }
}

impl InProcessNode for RunningNode {
    fn connect(&self) -> io::Result<PipeEnd> {
        self.running.listener.connect()
    }

    fn api_url(&self) -> String {
        self.running.api_url.clone()
    }

    fn token_file(&self) -> PathBuf {
        self.running.token_file.clone()
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the node panicked; this is a bug");
        }
    }
}

/// The data directory of a node. A temporary one is removed with this value.
struct NodeDirectory {
    path: PathBuf,
    is_temporary: bool,
}

impl NodeDirectory {
    fn new(given: Option<&PathBuf>) -> anyhow::Result<Self> {
        if let Some(given) = given {
            return Ok(Self {
                path: given.clone(),
                is_temporary: false,
            });
        }
        let (process, now_ms) = (std::process::id(), wall_clock::now_ms());
        let path = std::env::temp_dir().join(format!("tidegate-simulate-{process}-{now_ms}"));
        std::fs::create_dir(&path).with_context(|| {
            format!(
                "cannot create {}; target.node.data_dir names another place",
                path.display()
            )
        })?;
        Ok(Self {
            path,
            is_temporary: true,
        })
    }
}

impl Drop for NodeDirectory {
    fn drop(&mut self) {
        if self.is_temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(connections: u64) -> InProcessNodeOptions {
        InProcessNodeOptions {
            connections,
            shards: 3,
            ..InProcessNodeOptions::default()
        }
    }

    #[test]
    fn the_node_has_one_listener_in_memory_with_room_for_all_devices() {
        let config = node_config(&options(5_000_000), Path::new("/data")).unwrap();
        let [listener] = &config.broker.listeners[..] else {
            panic!("{:?}", config.broker.listeners);
        };
        assert!(listener.in_memory);
        assert_eq!(listener.max_connections, 5_001_000);
        let limits = &config.broker.limits;
        assert_eq!(
            (limits.max_connections, limits.max_sessions),
            (5_001_000, 5_001_000)
        );
        assert_eq!(config.broker.shards, 3);
        assert_eq!(config.data_dir, Path::new("/data"));
        assert!(config.http.is_some());
    }

    #[test]
    fn few_devices_leave_the_limits_as_they_are() {
        let config = node_config(&options(10), Path::new("/data")).unwrap();
        let defaults = broker::config::BrokerLimits::default();
        let limits = &config.broker.limits;
        assert_eq!(limits.max_connections, defaults.max_connections);
        assert_eq!(limits.max_sessions, defaults.max_sessions);
    }
}
