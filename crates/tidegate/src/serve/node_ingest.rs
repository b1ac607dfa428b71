//! The telemetry path of the node: the pipeline, the time series, and the platform that connects
//! them with the registry.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use broker::BrokerHandle;
use broker::control::PublishRequest;
use devices::chain::{self, Chains};
use devices::command::EncodedDownlink;
use devices::device_hooks::{DeviceClients as _, DeviceHooks, DownTopicPolicy};
use devices::ingest::Pipeline;
use devices::live::LiveTelemetry;
use devices::platform::{ClientMessenger, Platform, PlatformParts, ProductFactory};
use devices::retention::Retention;
use devices::telemetry_usage::TelemetryUsage;
use devices::{DeviceChange, ProductId};
use hooks::relay::RELAY_TOPIC_PREFIX;
use hooks::{BrokerPort as _, HooksFactory};
use relay::RelayService;
use series::Series;
use store::{ExpectedVersion, Store, WeakObjects};
use telemetry_copy::{CopiedSeries, TelemetryCopies};

use super::client_subscription::subscribe_for_client;
use super::damage::DamageHandling;
use super::node_devices::NodeDevices;
use super::pipeline_outputs::NodePipelineOutputs;
use super::registration_audit::RegistrationAudit;
use super::telemetry::TelemetryService;
use crate::config::IngestSettings;

#[derive(Clone)]
pub(super) struct NodeIngest {
    pub(super) series: Series,
    /// The same, for writing.
    pub(super) stored: CopiedSeries,
    /// Copies of telemetry between nodes of a cluster; empty without one.
    pub(super) copies: Arc<OnceLock<TelemetryCopies>>,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) platform: Platform,
    pub(super) outputs: Arc<NodePipelineOutputs>,
    pub(super) retention: Retention,
    /// What namespaces have stored.
    pub(super) usage: TelemetryUsage,
    messenger: Arc<DeviceClientMessenger>,
    down_topics: Arc<DownTopicPolicy>,
}

/// Sends messages to clients of devices; available once the broker runs.
struct DeviceClientMessenger {
    broker: OnceLock<(BrokerHandle, tokio::runtime::Handle)>,
    outputs: Arc<NodePipelineOutputs>,
    relay: RelayService,
}

impl ClientMessenger for DeviceClientMessenger {
    fn send(&self, client_id: &str, downlink: EncodedDownlink) {
        let Some((handle, runtime)) = self.broker.get() else {
            return;
        };
        let log = self.outputs.pending_log_entry(&downlink);
        let publication = PublishRequest {
            topic: downlink.topic,
            payload: downlink.payload.into(),
            qos: 1,
            ..PublishRequest::default()
        };
        let again = downlink.needs_subscription.then(|| UnsubscribedReply {
            broker: handle.clone(),
            client_id: client_id.to_owned(),
            publication: publication.clone(),
        });
        let runtime = runtime.clone();
        let report = move |outcome| match (outcome, again) {
            (Ok(false), Some(resend)) => {
                runtime.spawn(async move {
                    if resend.subscribe_and_send().await {
                        log.write();
                    }
                });
            }
            (Ok(true), _) => log.write(),
            (Ok(false), None) => {}
            (Err(error), _) => tracing::debug!(%error, "sending a message to a device failed"),
        };
        handle.send_to_client_then(client_id, publication, report);
    }

    fn disconnect(&self, client_ids: &[Box<str>]) {
        let (at_endpoints, client_ids): (Vec<_>, Vec<_>) = client_ids
            .iter()
            .partition(|id| id.starts_with(RELAY_TOPIC_PREFIX));
        for client_id in at_endpoints {
            self.relay.disconnect_device(client_id);
        }
        let (Some((handle, runtime)), false) = (self.broker.get(), client_ids.is_empty()) else {
            return;
        };
        let client_ids: Vec<Box<str>> = client_ids.into_iter().cloned().collect();
        let handle = handle.clone();
        runtime.spawn(async move {
            for client_id in client_ids {
                handle.terminate_client(&client_id).await;
            }
        });
    }
}

/// A reply to a client that has not subscribed to it.
struct UnsubscribedReply {
    broker: BrokerHandle,
    client_id: String,
    publication: PublishRequest,
}

impl UnsubscribedReply {
    /// Subscribes the client, with its own permissions, and sends the reply. Returns whether it was sent.
    async fn subscribe_and_send(self) -> bool {
        let filter = reply_filter(&self.publication.topic);
        let subscribed = subscribe_for_client(&self.broker, &self.client_id, filter, 1).await;
        if !matches!(subscribed, Some(Ok(_))) {
            return false;
        }
        let sent = self
            .broker
            .send_to_client(&self.client_id, self.publication);
        sent.await.is_ok_and(|is_sent| is_sent)
    }
}

/// A filter for all replies of this kind, so that a client has one subscription and not one per request.
fn reply_filter(topic: &str) -> String {
    match topic.rsplit_once('/') {
        Some((kind, id)) if kind.ends_with("/response") && !id.is_empty() => format!("{kind}/+"),
        _ => topic.to_owned(),
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
        damage: &DamageHandling,
    ) -> anyhow::Result<Series> {
        let directory = settings.directory.clone();
        let directory = directory.unwrap_or_else(|| data_dir.join("telemetry"));
        let config = || settings.series(retention.assignment());
        let opened = damage.open_series(&directory, config);
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
        (chains, retention, usage, others): (
            Chains,
            Retention,
            TelemetryUsage,
            NodePipelineOutputs,
        ),
        (registration_log, relay): (Arc<RegistrationAudit>, RelayService),
    ) -> anyhow::Result<Self> {
        others.sinks().set_series(series.clone());
        let others = Arc::new(others);
        let messenger = Arc::new(DeviceClientMessenger {
            broker: OnceLock::new(),
            outputs: others.clone(),
            relay,
        });
        let platform = Platform::start(PlatformParts {
            registry: devices.registry.clone(),
            directory: devices.directory.clone(),
            states: devices.states.clone(),
            live: Arc::<LiveTelemetry>::default(),
            chains,
            outputs: others.clone(),
            messenger: messenger.clone(),
            registration_log,
            may_gateways_register: settings.allow_registration_by_gateways,
            product_factory: Arc::new(StoreProductFactory(store.objects().downgrade())),
            max_gateway_products: settings.max_gateway_products,
        })
        .context("cannot start the thread for device messages")?;
        let stored = CopiedSeries::new(series.clone());
        let pipeline = Pipeline::open(
            &settings.ingest(data_dir.join("mailboxes")),
            platform.profiles(),
            Arc::new(stored.clone()),
            Arc::new(platform.clone()),
            Arc::new(platform.clone()),
        )?;
        platform.attach_pipeline(pipeline.clone());
        let ingest = Self {
            series,
            stored,
            copies: Arc::default(),
            pipeline,
            platform,
            outputs: others,
            retention,
            usage,
            messenger,
            down_topics: Arc::new(DownTopicPolicy::parse(
                settings
                    .downlink_topic_publishers
                    .as_deref()
                    .unwrap_or_default(),
            )),
        };
        ingest.watch_changes(devices, store);
        Ok(ingest)
    }

    /// Observes changes of products, chains and devices.
    fn watch_changes(&self, devices: &NodeDevices, store: &Store) {
        let (platform, messenger) = (self.platform.clone(), self.messenger.clone());
        let was_in_use = AtomicBool::new(platform.is_in_use());
        let (others, retention, stored, copies) = (
            self.outputs.clone(),
            self.retention.clone(),
            self.series.clone(),
            self.copies.clone(),
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
                messenger.disconnect(&platform.connections_to_close_for_product(&id));
            }
            others.wake_command_pollers(None);
            others.sinks().refresh_references();
            if let Err(error) = stored.set_policies(retention.assignment()) {
                tracing::error!(%error, "updating the telemetry retention failed; the previous retention stays in effect");
            }
            if let Some(copies) = copies.get() {
                copies.set_policies(&retention.assignment());
            }
            let is_in_use = platform.is_in_use();
            if was_in_use.swap(is_in_use, Relaxed) != is_in_use
                && let Some((handle, _)) = messenger.broker.get()
            {
                handle.refresh_hook_interest();
            }
        }));
        let (series, pipeline) = (self.series.clone(), self.pipeline.clone());
        let copies = self.copies.clone();
        devices
            .registry
            .add_device_observer(Box::new(move |change| {
                if let DeviceChange::Removed(device) = change {
                    pipeline.forget_device(device.no);
                    if let Err(error) = series.delete_device(device.no) {
                        let device = device.id.as_str();
                        tracing::error!(device, %error, "deleting the telemetry of a removed device failed; it stays on disk");
                    }
                    // Each node does so itself.
                    if let Some(copies) = copies.get() {
                        copies.delete_device(device.no);
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
        let (platform, messenger) = (self.platform.clone(), self.messenger.clone());
        let others = self.outputs.clone();
        devices
            .registry
            .add_device_observer(Box::new(move |change| {
                messenger.disconnect(&platform.connections_to_close(change));
                let (DeviceChange::Created(device)
                | DeviceChange::Removed(device)
                | DeviceChange::Updated(device)) = change;
                others.wake_command_pollers(Some(device.no));
            }));
    }

    pub(super) fn telemetry(
        &self,
        devices: &NodeDevices,
        relay: &RelayService,
    ) -> TelemetryService {
        TelemetryService {
            registry: devices.registry.clone(),
            series: self.series.clone(),
            stored: self.stored.clone(),
            copies: self.copies.clone(),
            pipeline: self.pipeline.clone(),
            live: self.platform.live().clone(),
            usage: self.usage.clone(),
            relay: relay.clone(),
        }
    }

    /// Processes the remaining messages. May block; no messages may arrive any more.
    pub(super) fn stop(&self) {
        self.pipeline.stop();
        self.platform.stop();
    }
}
