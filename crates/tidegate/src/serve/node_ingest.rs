//! The telemetry path of the node: the pipeline, the time series, and the platform that connects
//! them with the registry.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use broker::BrokerHandle;
use broker::control::PublishRequest;
use broker::hooks::HooksFactory;
use devices::chain::{self, Chains};
use devices::command::EncodedDownlink;
use devices::hooks::{DeviceClients as _, DeviceHooks, DownTopicPolicy};
use devices::ingest::Pipeline;
use devices::live::LiveTelemetry;
use devices::platform::{ClientMessenger, Platform, PlatformParts, ProductFactory};
use devices::retention::Retention;
use devices::{DeviceChange, ProductId};
use series::{PolicyAssignment, Series};
use store::{ExpectedVersion, Store, WeakObjects};

use super::node_devices::NodeDevices;
use super::pipeline_outputs::NodePipelineOutputs;
use super::registration_audit::RegistrationAudit;
use super::telemetry::TelemetryService;

/// Telemetry settings of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct IngestSettings {
    /// Directory of the time series; `None`: `telemetry` in the node's data directory.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) fsync: series::Fsync,
    /// Retention in days; 0: unlimited.
    pub(crate) retention_d: u32,
    pub(crate) memory_bytes: usize,
    pub(crate) flush_after_s: u32,
    pub(crate) max_wal_bytes: u64,
    pub(crate) min_free_bytes: u64,
    pub(crate) max_keys: u32,
    pub(crate) max_future_s: u32,
    pub(crate) latest_cache_bytes: usize,
    pub(crate) verify_bytes_per_s: u64,
    /// Number of mailboxes; 0: one per core.
    pub(crate) mailboxes: usize,
    pub(crate) mailbox_bytes: usize,
    pub(crate) max_batch: usize,
    pub(crate) gateways_register: bool,
    pub(crate) max_gateway_products: usize,
    /// User names, separated by commas.
    pub(crate) down_topic_publishers: Option<String>,
}

impl Default for IngestSettings {
    fn default() -> Self {
        let series = series::SeriesConfig::default();
        let ingest = devices::ingest::PipelineConfig::default();
        Self {
            directory: None,
            fsync: series.fsync,
            retention_d: 90,
            memory_bytes: series.memory_bytes,
            flush_after_s: series.flush_after.as_secs() as u32,
            max_wal_bytes: series.max_wal_bytes,
            min_free_bytes: series.min_free_bytes,
            max_keys: series.max_keys,
            max_future_s: (series.max_future_ms / 1000) as u32,
            latest_cache_bytes: series.latest_cache_bytes,
            verify_bytes_per_s: series.verify_bytes_per_s,
            mailboxes: 0,
            mailbox_bytes: ingest.mailbox_bytes,
            max_batch: ingest.max_batch,
            gateways_register: true,
            max_gateway_products: 100,
            down_topic_publishers: None,
        }
    }
}

impl IngestSettings {
    fn series(&self, assignment: PolicyAssignment) -> series::SeriesConfig {
        series::SeriesConfig {
            fsync: self.fsync,
            memory_bytes: self.memory_bytes,
            flush_after: Duration::from_secs(self.flush_after_s.into()),
            max_wal_bytes: self.max_wal_bytes,
            min_free_bytes: self.min_free_bytes,
            max_keys: self.max_keys,
            max_future_ms: i64::from(self.max_future_s) * 1000,
            latest_cache_bytes: self.latest_cache_bytes,
            verify_bytes_per_s: self.verify_bytes_per_s,
            assignment,
            ..series::SeriesConfig::default()
        }
    }

    fn ingest(&self, directory: PathBuf) -> devices::ingest::PipelineConfig {
        let default = devices::ingest::PipelineConfig::default();
        devices::ingest::PipelineConfig {
            directory: Some(directory),
            mailboxes: match self.mailboxes {
                0 => default.mailboxes,
                count => count,
            },
            mailbox_bytes: self.mailbox_bytes,
            max_batch: self.max_batch,
        }
    }
}

#[derive(Clone)]
pub(super) struct NodeIngest {
    pub(super) series: Series,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) platform: Platform,
    pub(super) outputs: Arc<NodePipelineOutputs>,
    pub(super) retention: Retention,
    messenger: Arc<DeviceClientMessenger>,
    down_topics: Arc<DownTopicPolicy>,
}

/// Sends messages to clients of devices; available once the broker runs.
struct DeviceClientMessenger {
    broker: OnceLock<(BrokerHandle, tokio::runtime::Handle)>,
    outputs: Arc<NodePipelineOutputs>,
}

impl ClientMessenger for DeviceClientMessenger {
    fn send(&self, client_id: &str, letter: EncodedDownlink) {
        let Some((handle, _)) = self.broker.get() else {
            return;
        };
        let log = self.outputs.pending_log_entry(&letter);
        let publication = PublishRequest {
            topic: letter.topic,
            payload: letter.payload.into(),
            qos: 1,
            ..PublishRequest::default()
        };
        let told = |outcome: Result<bool, broker::control::ControlError>| match outcome {
            Ok(true) => log.write(),
            Ok(false) => {}
            Err(refusal) => tracing::debug!(%refusal, "sending a message to a device failed"),
        };
        handle.send_to_client_then(client_id, publication, told);
    }

    fn disconnect(&self, client_ids: &[Box<str>]) {
        let (Some((handle, runtime)), false) = (self.broker.get(), client_ids.is_empty()) else {
            return;
        };
        let (handle, client_ids) = (handle.clone(), client_ids.to_vec());
        runtime.spawn(async move {
            for client_id in client_ids {
                handle.terminate_client(&client_id).await;
            }
        });
    }
}

/// Creates products for devices behind gateways.
struct StoreProductFactory(WeakObjects);

impl ProductFactory for StoreProductFactory {
    fn create(&self, id: &str, product: &serde_json::Value) -> bool {
        let Some(objects) = self.0.upgrade() else {
            return false;
        };
        let put = objects.put(
            devices::PRODUCT_KIND,
            id,
            product.clone(),
            ExpectedVersion::Absent,
        );
        if let Err(error) = &put {
            tracing::warn!(id, %error, "creating a product for devices behind a gateway failed");
        }
        put.is_ok()
    }
}

impl NodeIngest {
    /// Opens the time series. May block.
    pub(super) fn open_series(
        data_dir: &Path,
        settings: &IngestSettings,
        retention: &Retention,
    ) -> anyhow::Result<Series> {
        let directory = settings.directory.clone();
        let directory = directory.unwrap_or_else(|| data_dir.join("telemetry"));
        let opened = Series::open(&directory, settings.series(retention.assignment()));
        let (series, report) = opened.context("cannot open the telemetry of devices")?;
        for cut in &report.truncations {
            tracing::warn!(
                ?cut,
                "the end of the telemetry log was incomplete, as after a crash; truncated"
            );
        }
        for problem in &report.problems {
            tracing::error!(
                problem,
                "the high-water mark of the telemetry log is damaged; run `tidegate store check` on the stopped node"
            );
        }
        Ok(series)
    }

    /// Opens the pipeline and processes messages that an earlier process left in mailboxes. May
    /// block.
    pub(super) fn open(
        data_dir: &Path,
        settings: &IngestSettings,
        series: Series,
        devices: &NodeDevices,
        store: &Store,
        (chains, retention, others): (Chains, Retention, NodePipelineOutputs),
        registration_log: Arc<RegistrationAudit>,
    ) -> anyhow::Result<Self> {
        others.sinks().set_series(series.clone());
        let others = Arc::new(others);
        let teller = Arc::new(DeviceClientMessenger {
            broker: OnceLock::new(),
            outputs: others.clone(),
        });
        let platform = Platform::start(PlatformParts {
            registry: devices.registry.clone(),
            directory: devices.directory.clone(),
            states: devices.states.clone(),
            live: Arc::<LiveTelemetry>::default(),
            chains,
            outputs: others.clone(),
            messenger: teller.clone(),
            registration_log,
            may_gateways_register: settings.gateways_register,
            product_factory: Arc::new(StoreProductFactory(store.objects().downgrade())),
            max_gateway_products: settings.max_gateway_products,
        })
        .context("cannot start the thread for device messages")?;
        let pipeline = Pipeline::open(
            &settings.ingest(data_dir.join("mailboxes")),
            platform.profiles(),
            Arc::new(series.clone()),
            Arc::new(platform.clone()),
            Arc::new(platform.clone()),
        )?;
        platform.attach_pipeline(pipeline.clone());
        let ingest = Self {
            series,
            pipeline,
            platform,
            outputs: others,
            retention,
            messenger: teller,
            down_topics: Arc::new(DownTopicPolicy::parse(
                settings
                    .down_topic_publishers
                    .as_deref()
                    .unwrap_or_default(),
            )),
        };
        ingest.watch_changes(devices, store);
        Ok(ingest)
    }

    /// Observes changes of products, chains and devices.
    fn watch_changes(&self, devices: &NodeDevices, store: &Store) {
        let (platform, teller) = (self.platform.clone(), self.messenger.clone());
        let was_in_use = AtomicBool::new(platform.is_in_use());
        let (others, retention, stored) = (
            self.outputs.clone(),
            self.retention.clone(),
            self.series.clone(),
        );
        // Registered after the registry and the chains, so that both are already up to date.
        store.objects().observe_changes(Box::new(move |change| {
            if change.kind == chain::KIND {
                platform.refresh_chain(&change.id);
                others.sinks().refresh_references();
            }
            if change.kind != devices::PRODUCT_KIND {
                return;
            }
            platform.refresh_product(&change.id);
            if let Ok(id) = ProductId::new(&change.id) {
                teller.disconnect(&platform.connections_to_close_for_product(&id));
            }
            others.wake_command_pollers(None);
            others.sinks().refresh_references();
            if let Err(error) = stored.set_policies(retention.assignment()) {
                tracing::error!(%error, "updating the telemetry retention failed; the previous retention stays in effect");
            }
            let is_in_use = platform.is_in_use();
            if was_in_use.swap(is_in_use, Relaxed) != is_in_use
                && let Some((handle, _)) = teller.broker.get()
            {
                handle.refresh_hook_interest();
            }
        }));
        let (series, pipeline) = (self.series.clone(), self.pipeline.clone());
        devices
            .registry
            .add_device_observer(Box::new(move |change| {
                if let DeviceChange::Removed(device) = change {
                    pipeline.forget_device(device.no);
                    if let Err(error) = series.delete_device(device.no) {
                        let device = device.id.as_str();
                        tracing::error!(device, %error, "deleting the telemetry of a removed device failed; it stays on disk");
                    }
                }
            }));
    }

    pub(super) fn hooks(&self) -> Arc<dyn HooksFactory> {
        Arc::new(DeviceHooks {
            pipeline: self.pipeline.clone(),
            clients: Arc::new(self.platform.clone()),
            down_topics: self.down_topics.clone(),
        })
    }

    /// Connects the pipeline to the running broker. Must be called within the runtime.
    pub(super) fn start(&self, devices: &NodeDevices, handle: &BrokerHandle) {
        // `start` is called once.
        let runtime = tokio::runtime::Handle::current();
        let _ = self.messenger.broker.set((handle.clone(), runtime));
        // A product may have been created meanwhile.
        handle.refresh_hook_interest();
        self.outputs.start(handle.clone());
        let (platform, teller) = (self.platform.clone(), self.messenger.clone());
        let others = self.outputs.clone();
        devices
            .registry
            .add_device_observer(Box::new(move |change| {
                teller.disconnect(&platform.connections_to_close(change));
                let (DeviceChange::Created(device)
                | DeviceChange::Removed(device)
                | DeviceChange::Updated(device)) = change;
                others.wake_command_pollers(Some(device.no));
            }));
    }

    pub(super) fn telemetry(&self, devices: &NodeDevices) -> TelemetryService {
        TelemetryService {
            registry: devices.registry.clone(),
            series: self.series.clone(),
            pipeline: self.pipeline.clone(),
            live: self.platform.live().clone(),
        }
    }

    /// Processes the remaining messages. May block; no messages may arrive any more.
    pub(super) fn stop(&self) {
        self.pipeline.stop();
        self.platform.stop();
    }
}
