//! The node as the program sees it: the broker's shards and the HTTP listener beside them.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use broker::hooks::NoHooks;
use broker::info::{ListenerInfo, MetricFamily};
use broker::{Broker, Handle};
use store::Store;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::data_dir::OpenListener;
use super::{allocator, start_error, store_watch};
use crate::config::Config;
use crate::logging::LogLevels;

pub(super) struct Node {
    broker: Broker,
    handle: Handle,
    store: Option<Store>,
    http: Option<Http>,
    listeners: Vec<OpenListener>,
}

struct Http {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), api::Error>>,
}

impl Node {
    /// Opens every listener and starts the shards. The errors name the setting to change.
    pub(super) async fn start(
        config: &Config,
        data_dir: &Path,
        log_levels: LogLevels,
    ) -> anyhow::Result<Self> {
        // First, because a port of HTTP that is taken shall not cost clients a connection.
        let http_listener = match &config.http {
            Some(http) => {
                let bound = api::bind(http).await;
                Some((
                    http.clone(),
                    bound.map_err(|error| start_error::of_http(&error, config))?,
                ))
            }
            None => None,
        };
        let store = config
            .store
            .as_ref()
            .map(|store| open_store(&data_dir.join("store"), store))
            .transpose()?;
        if let Some(store) = &store {
            // Ends with the runtime.
            tokio::spawn(store_watch::watch(store.clone()));
        }
        let broker = Broker::start(config.broker.clone(), Arc::new(NoHooks), store.clone())
            .map_err(|error| start_error::of_broker(&error, config))?;
        let handle = broker.handle();
        let mut listeners: Vec<_> = handle.listeners().into_iter().map(open_listener).collect();
        let http = match http_listener {
            Some((http, listener)) => {
                listeners.push(OpenListener {
                    name: "http".into(),
                    protocol: "http".into(),
                    address: listener.local_addr()?.to_string(),
                });
                let (stop, stopped) = oneshot::channel();
                let node = handle.clone();
                let program = Arc::new(Program {
                    log_levels,
                    store: store.clone(),
                });
                let task = tokio::spawn(async move {
                    let shutdown = async {
                        // Dropping the sender asks for the same.
                        let _ = stopped.await;
                    };
                    api::serve(listener, &http, node, program, shutdown).await
                });
                Some(Http { stop, task })
            }
            None => None,
        };
        Ok(Self {
            broker,
            handle,
            store,
            http,
            listeners,
        })
    }

    pub(super) fn listeners(&self) -> &[OpenListener] {
        &self.listeners
    }

    pub(super) fn reload_certificates(&self) {
        self.handle.reload_certificates();
    }

    /// Sends the clients away, then ends HTTP, which until then tells that the node is stopping.
    pub(super) async fn stop(self) {
        let broker = self.broker;
        if tokio::task::spawn_blocking(|| broker.stop()).await.is_err() {
            tracing::error!("stopping the shards ended by a panic; this is a bug");
        }
        if let Some(store) = self.store {
            let closed = tokio::task::spawn_blocking(move || store.close()).await;
            if closed.is_err() {
                tracing::error!("closing the store ended by a panic; this is a bug");
            }
        }
        let Some(http) = self.http else { return };
        // If it has ended already, its error is what the next line tells.
        let _ = http.stop.send(());
        match http.task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("the HTTP listener ended early: {error}"),
            Err(_) => tracing::error!("the HTTP listener ended by a panic; this is a bug"),
        }
    }
}

/// Opens what outlives the node, and tells what was not as it should be.
fn open_store(path: &Path, config: &store::Config) -> anyhow::Result<Store> {
    let (store, report) = Store::open(path, config.clone())
        .with_context(|| format!("cannot open the store in {}", path.display()))?;
    if report.cut_bytes > 0 {
        tracing::warn!(
            bytes = report.cut_bytes,
            "the end of the store's log was not whole, as after a crash; it was cut off. Nothing acknowledged was in it"
        );
    }
    Ok(store)
}

fn open_listener(listener: ListenerInfo) -> OpenListener {
    OpenListener {
        name: listener.name,
        protocol: listener.protocol.to_owned(),
        address: listener.address,
    }
}

/// What of the program the API shows and steers.
struct Program {
    log_levels: LogLevels,
    store: Option<Store>,
}

impl api::Program for Program {
    fn log_level(&self) -> String {
        self.log_levels.current()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        self.log_levels.set(level)
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        let mut metrics = allocator::metrics();
        metrics.extend(self.store.iter().flat_map(store_watch::metrics));
        metrics
    }
}
