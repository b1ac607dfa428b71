//! The link listeners of a node and their threads.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use broker::{BrokerHandle, GatewayListener};
use devices::Registry;
use firmware::FirmwareService;
use hooks::MetricFamily;
use tokio::runtime::{Builder, Runtime};
use transfer::FileWorkers;

use crate::carriers::LinkCarriers;
use crate::metrics::LinkMetrics;
use crate::settings::LinkSettings;
use crate::shared::GatewayShared;

/// How long a stopping node waits for tasks of links.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// What a gateway connects.
pub struct GatewayParts {
    pub broker: BrokerHandle,
    pub files: FileWorkers,
    pub firmware: FirmwareService,
    pub registry: Registry,
}

/// The link listeners of a node. Clones share them.
#[derive(Clone)]
pub struct LinkGateway {
    shared: Arc<GatewayShared>,
    runtime: Arc<Mutex<Option<Runtime>>>,
}

impl LinkGateway {
    /// Serves the link listeners of the broker. Without any there are no threads.
    ///
    /// # Errors
    /// If the system creates no threads.
    pub fn start(settings: LinkSettings, parts: GatewayParts) -> io::Result<Self> {
        let listeners = parts.broker.gateway_listeners().to_vec();
        let threads = settings.threads as usize;
        let shared = Arc::new(GatewayShared {
            settings,
            files: parts.files.service().clone(),
            workers: parts.files,
            broker: parts.broker,
            firmware: parts.firmware,
            registry: parts.registry,
            metrics: LinkMetrics::default(),
            mailboxes: Default::default(),
            logins: Default::default(),
        });
        let runtime = match listeners.is_empty() {
            true => None,
            false => Some(start_threads(&shared, listeners, threads)?),
        };
        Ok(Self {
            shared,
            runtime: Arc::new(Mutex::new(runtime)),
        })
    }

    #[must_use]
    pub fn metrics(&self) -> Vec<MetricFamily> {
        self.shared.metrics.families()
    }

    /// Ends all links. What is not acknowledged is sent again by the peers when the node runs again. Blocks.
    pub fn stop(&self) {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.take() {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
    }
}

fn start_threads(
    shared: &Arc<GatewayShared>,
    listeners: Vec<Arc<GatewayListener>>,
    threads: usize,
) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.thread_name("link").enable_all();
    if threads > 0 {
        builder.worker_threads(threads);
    }
    let runtime = builder.build()?;
    for listener in listeners {
        runtime.spawn(LinkCarriers::new(shared.clone(), listener).run());
    }
    Ok(runtime)
}
