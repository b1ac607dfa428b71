//! The running node: the broker's shards, the platform services and the HTTP listener.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::{FirstOperator, SharedHttpConfig};
use auth::AuthService;
use broker::hooks::HookChain;
use broker::info::ListenerInfo;
use broker::{Broker, BrokerHandle, ListenerTls};
use devices::chain::{self, Chains};
use devices::pull::{self, PullScheduler};
use devices::retention::Retention;
use engine::Engine;
use store::Store;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::alarms::AlarmService;
use super::data_dir::{DataDir, OpenListener};
use super::device_events::DeviceEventQueue;
use super::device_http::DeviceHttpService;
use super::device_port::RuleDevicePort;
use super::device_sinks::DeviceSinks;
use super::fleet_service::FleetService;
use super::node_commands::NodeCommands;
use super::node_connectors::{BridgeMessageHandler, NodeConnectors};
use super::node_devices::NodeDevices;
use super::node_ingest::NodeIngest;
use super::notification_transport::NodeNotificationTransport;
use super::object_references::ObjectReferences;
use super::object_service::{EngineRuleBackend, ObjectService};
use super::pipeline_outputs::NodePipelineOutputs;
use super::platform_sampler::PlatformSampler;
use super::program_service::{self, ProgramService};
use super::registration_audit::RegistrationAudit;
use super::sink_port::NodeSinkPort;
use super::{allocator, ban_enforcement, device_port, fallback_actions, start_error, store_health};
use crate::area_record::AreaRecord;
use crate::config::Config;
use crate::logging::LogLevels;

/// Time for sinks to write their queues when the node stops.
const SINKS_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for rules to process device events when the node stops.
const EVENTS_STOP_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Node {
    broker: Broker,
    handle: BrokerHandle,
    engine: Engine,
    connectors: NodeConnectors,
    devices: NodeDevices,
    ingest: NodeIngest,
    alarms: AlarmService,
    rule_device_port: RuleDevicePort,
    pulls: PullScheduler,
    commands: NodeCommands,
    store: Store,
    http: Option<HttpTask>,
    listeners: Vec<OpenListener>,
    first_operator: Option<FirstOperator>,
}

struct HttpTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), api::HttpServerError>>,
}

impl Node {
    /// Opens every listener and starts the shards. Errors name the setting to change.
    pub(super) async fn start(
        config: &Config,
        data_dir: &DataDir,
        log_levels: LogLevels,
    ) -> anyhow::Result<Self> {
        // Set before any component opens outgoing connections.
        outbound::target_policy::set_policy(config.targets.clone());
        // Opened first: if the HTTP port is in use, no client has connected yet.
        let http_listener = match &config.http {
            Some(http) => {
                let bound = api::bind(http).await;
                Some((
                    http.clone(),
                    bound.map_err(|error| start_error::http_error(&error, config))?,
                ))
            }
            None => None,
        };
        let http_tls = match &config.http_tls {
            Some(files) => {
                let loaded = ListenerTls::load(files);
                Some(Arc::new(
                    loaded.map_err(|error| start_error::http_tls_error(&error))?,
                ))
            }
            None => None,
        };
        // Configuration objects are stored even if sessions and messages are not.
        let store_config = config.store.clone().unwrap_or_default();
        let path = data_dir.path().join("store");
        let areas = AreaRecord::new(data_dir.path(), config.telemetry.directory.as_deref());
        // Checked before missing files are created.
        areas.verify()?;
        let queue = config.queue.clone();
        // Opening may wait for a queue server, which must not block the runtime.
        let opened = tokio::task::spawn_blocking(move || open_store(&path, &store_config, queue));
        let store = opened
            .await
            .context("opening the store ended by a panic")??;
        // Ends with the runtime.
        tokio::spawn(store_health::log_health_changes(store.clone()));
        let for_sessions = config.store.is_some().then(|| store.clone());
        let auth = AuthService::new(&config.auth, tokio::runtime::Handle::current())
            .map_err(|errors| start_error::auth_error(&errors))?;
        auth.watch_objects(store.objects())
            .context("cannot read the access rules from the store")?;
        let engine = Engine::new(config.rules.clone(), config.broker.shard_count());
        // Created before the rules are compiled, because the compiler checks whether devices exist.
        let of_rules = RuleDevicePort::default();
        engine.set_device_port(Arc::new(of_rules.clone()));
        engine
            .declare(&config.declared_rules)
            .map_err(|problems| start_error::rules_error(&problems))?;
        // Created before the registry, so that chains are updated before the registry is notified.
        let chains = Chains::open(store.objects());
        let chains = chains.context("cannot read the rule chains of the store")?;
        let declared = config.declared_others.iter();
        for (_, id, chain) in declared.filter(|(kind, _, _)| *kind == chain::KIND) {
            if let Err(error) = chains.declare(id, chain) {
                tracing::error!(id, %error, "declared rule chain is invalid; ignored");
            }
        }
        let opening = (store.clone(), config.devices.clone());
        let declared = config.declared_products.clone();
        let opened = tokio::task::spawn_blocking(move || {
            NodeDevices::open(&opening.0, opening.1, &declared.0)
        });
        let devices = opened
            .await
            .context("opening the devices ended by a panic")?
            .context("cannot open the devices of the store")?;
        auth.set_devices(Arc::new(devices.clone()));
        let opening = (store.clone(), devices.clone(), config.commands.clone());
        let runtime = tokio::runtime::Handle::current();
        let opened = tokio::task::spawn_blocking(move || {
            NodeCommands::open(&opening.0, &opening.1, opening.2, runtime)
        });
        let commands = opened
            .await
            .context("opening the commands ended by a panic")?
            .context("cannot open the commands of the store")?;
        // Ends with the runtime.
        tokio::spawn(devices.clone().run_maintenance());
        let connectors = connect::ConnectorService::new(
            tokio::runtime::Handle::current(),
            connect::ConnectorServiceOptions {
                directory: Some(data_dir.path().join("sinks")),
                // Lanes after the shards: windows, bridges, alarms, and then the telemetry workers.
                shards: config.broker.shard_count() * 2 + 3,
            },
        );
        engine.set_sink_port(Arc::new(NodeSinkPort(connectors.clone())));
        connectors.set_dead_letter_observer(fallback_actions::start(engine.clone()));
        let connectors = NodeConnectors::new(connectors, &config.declared_connectors);
        let following = (connectors.clone(), store.objects().clone());
        // Reads files of dead letters.
        let followed = tokio::task::spawn_blocking(move || following.0.watch_objects(&following.1));
        followed
            .await
            .context("reading the connectors ended by a panic")?
            .context("cannot read the connectors from the store")?;
        let following = (engine.clone(), store.objects().clone());
        // Compiling very many rules takes seconds.
        let followed = tokio::task::spawn_blocking(move || following.0.watch_objects(&following.1));
        followed
            .await
            .context("reading the rules ended by a panic")?
            .context("cannot read the rules from the store")?;
        let uses = ObjectReferences::new(
            store.objects().clone(),
            devices.registry.clone(),
            config.declared_objects(),
        );
        // Registered after the components it forwards to.
        let hearing = commands.commands.clone();
        let shards = config.broker.shard_count() as u16;
        let post = Arc::new(NodeNotificationTransport::new(
            connectors.service().clone(),
            shards + 2,
        ));
        let device_sinks = DeviceSinks::new(
            connectors.service().clone(),
            devices.registry.clone(),
            chains.clone(),
            (shards + 3, shards),
        );
        let retention = Retention::new(devices.registry.clone(), config.telemetry.retention_d);
        let of_products = (chains.clone(), retention);
        let opening = (devices.clone(), store.clone(), engine.clone());
        let of_alarms = (post.clone(), uses.clone());
        let settings = (config.telemetry.clone(), config.alarms.clone());
        let data_path = data_dir.path().to_owned();
        let uses_of_start = uses.clone();
        let registration_audit = RegistrationAudit::new(store.objects().clone());
        let audit_of_start = registration_audit.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let (devices, store, engine) = opening;
            uses_of_start.warn_of_missing_references()?;
            uses_of_start.warn_of_collisions()?;
            let (telemetry, alarms) = settings;
            let (chains, retention) = of_products;
            let series = NodeIngest::open_series(&data_path, &telemetry, &retention)?;
            let events = DeviceEventQueue::new(engine, series.clone());
            let alarming =
                AlarmService::open(&alarms, &store, &devices, &series, events, of_alarms)
                    .context("cannot open the alarms of the store")?;
            let others = NodePipelineOutputs::new(alarming.clone(), device_sinks, hearing);
            let others = (chains, retention, others);
            let ingest = NodeIngest::open(
                &data_path,
                &telemetry,
                series,
                &devices,
                &store,
                others,
                audit_of_start,
            )?;
            anyhow::Ok((alarming, ingest))
        });
        let (alarming, ingest) = opened
            .await
            .context("opening the telemetry ended by a panic")??;
        let sinks = data_dir.path().join("sinks");
        disk::create_private_dir(&sinks)
            .with_context(|| format!("cannot create {}", sinks.display()))?;
        areas.update()?;
        let reporter = ingest.platform.reporter();
        of_rules
            .start(device_port::RuleDevicePortParts {
                registry: devices.registry.clone(),
                reporter: reporter.context("there is no pipeline for devices")?,
                alarms: alarming.alarms.clone(),
            })
            .context("cannot start the thread for device writes of rules")?;
        // Last, because the device hooks record which clients were accepted.
        let hooks = HookChain::default()
            .with(Arc::new(auth.clone()))
            .with(engine.hooks_factory())
            .with(ingest.hooks())
            .with(Arc::new(allocator::MemoryReleaseHooks));
        let broker = Broker::start(config.broker.clone(), Arc::new(hooks), for_sessions)
            .map_err(|error| start_error::broker_error(&error, config))?;
        let handle = broker.handle();
        engine.start(handle.clone());
        // Only now may messages of sources be published.
        connectors
            .service()
            .set_source_handler(Arc::new(BridgeMessageHandler {
                engine: engine.clone(),
                handle: handle.clone(),
            }));
        ban_enforcement::disconnect_banned(&auth, &handle);
        ingest.start(&devices, &handle);
        post.start(handle.clone());
        // Both end with the runtime.
        tokio::spawn(alarming.events.clone().run());
        let sampler = PlatformSampler {
            alarms: alarming.clone(),
            pipeline: ingest.pipeline.clone(),
            engine: engine.clone(),
            sinks: connectors.service().clone(),
        };
        let every = Duration::from_secs(config.alarms.platform_interval_s.into());
        tokio::spawn(sampler.run(every));
        let pulls = PullScheduler::new(tokio::runtime::Handle::current(), &Default::default());
        let following = (pulls.clone(), store.objects().clone());
        let declared = uses.all_declared(pull::KIND);
        // Reads files of secrets and certificates.
        let followed = tokio::task::spawn_blocking(move || {
            following.0.declare(&declared);
            following.0.watch_objects(&following.1)
        });
        followed
            .await
            .context("reading the pull sources ended by a panic")?
            .context("cannot read the pull sources from the store")?;
        if let Some(reporter) = ingest.platform.reporter() {
            pulls.start(Arc::new(reporter));
        }
        let (platform, others) = (ingest.platform.clone(), ingest.outputs.clone());
        commands.start(handle.clone(), platform, others);
        commands.forward_to_rules(engine.clone());
        let mut listeners: Vec<_> = handle
            .listeners()
            .into_iter()
            .map(to_open_listener)
            .collect();
        let mut first_operator = None;
        let http = match http_listener {
            Some((http, listener)) => {
                listeners.push(OpenListener {
                    name: "http".into(),
                    protocol: if http_tls.is_some() { "https" } else { "http" }.into(),
                    address: listener.local_address()?.to_string(),
                });
                if let Some(tls) = &http_tls {
                    let watched = handle.watch_certificates(tls.clone());
                    watched.context("cannot watch the certificate of HTTP")?;
                }
                let fleet = FleetService {
                    objects: store.objects().clone(),
                    devices: devices.clone(),
                    retention: ingest.retention.clone(),
                    pulls: pulls.clone(),
                    uses: uses.clone(),
                };
                let live = SharedHttpConfig::new(http);
                registration_audit.set_http(live.clone());
                let parts = api::ApiParts {
                    node: Arc::new(handle.clone()),
                    program: Arc::new(ProgramService::new(
                        program_service::ProgramParts {
                            log_levels,
                            handle: handle.clone(),
                            store: store.clone(),
                            auth: auth.clone(),
                            engine: engine.clone(),
                            connectors: connectors.clone(),
                            ingest: ingest.clone(),
                            alarms: alarming.clone(),
                            rule_device_port: of_rules.clone(),
                            pulls: pulls.clone(),
                            commands: commands.clone(),
                            http: live.clone(),
                        },
                        config,
                    )),
                    objects: store.objects().clone(),
                    rules: Arc::new(ObjectService {
                        auth: auth.clone(),
                        engine: engine.clone(),
                        connectors: connectors.clone(),
                        devices: devices.clone(),
                        fleet: fleet.clone(),
                        uses,
                    }),
                    tls: http_tls,
                    rule_backend: Arc::new(EngineRuleBackend(engine.clone())),
                    connector_backend: Arc::new(connectors.clone()),
                    device_backend: Arc::new(devices.clone()),
                    telemetry_backend: Arc::new(ingest.telemetry(&devices)),
                    alarm_backend: Arc::new(alarming.clone()),
                    device_http_backend: Arc::new(DeviceHttpService::new(
                        ingest.platform.clone(),
                        devices.directory.clone(),
                        commands.commands.clone(),
                        ingest.outputs.clone(),
                    )),
                    fleet_backend: Arc::new(fleet),
                    command_backend: Arc::new(commands.clone()),
                    local_token: Some(data_dir.write_token_file()?),
                };
                first_operator = make_first_operator(&store).await?;
                let (stop, stopped) = oneshot::channel();
                let task = tokio::spawn(async move {
                    let shutdown = async {
                        // Dropping the sender has the same effect.
                        let _ = stopped.await;
                    };
                    api::serve(listener, &live, parts, shutdown).await
                });
                Some(HttpTask { stop, task })
            }
            None => None,
        };
        Ok(Self {
            broker,
            handle,
            engine,
            connectors,
            devices,
            ingest,
            alarms: alarming,
            rule_device_port: of_rules,
            pulls,
            commands,
            store,
            http,
            listeners,
            first_operator,
        })
    }

    /// The operator created by this start, shown once.
    pub(super) fn first_operator(&self) -> Option<&FirstOperator> {
        self.first_operator.as_ref()
    }

    pub(super) fn listeners(&self) -> &[OpenListener] {
        &self.listeners
    }

    pub(super) fn reload_certificates(&self) {
        self.handle.reload_certificates();
    }

    /// Disconnects the clients, then stops HTTP, which meanwhile reports that the node is stopping.
    pub(super) async fn stop(self) {
        self.alarms.begin_shutdown();
        let broker = self.broker;
        if tokio::task::spawn_blocking(|| broker.stop()).await.is_err() {
            tracing::error!("stopping the shards panicked; this is a bug");
        }
        if let Some(http) = self.http {
            // If HTTP has already ended, the next line reports its error.
            let _ = http.stop.send(());
            match http.task.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!("HTTP listener ended early: {error}"),
                Err(_) => tracing::error!("HTTP listener panicked; this is a bug"),
            }
        }
        self.pulls.stop().await;
        // Stopped before the components it forwards to.
        let ingest = self.ingest.clone();
        if tokio::task::spawn_blocking(move || ingest.stop())
            .await
            .is_err()
        {
            tracing::error!("processing the remaining device messages panicked; this is a bug");
        }
        let (alarming, of_rules) = (self.alarms.clone(), self.rule_device_port.clone());
        alarming.events.finish(EVENTS_STOP_TIMEOUT).await;
        let stopping = move || {
            of_rules.stop();
            alarming.stop();
        };
        if tokio::task::spawn_blocking(stopping).await.is_err() {
            tracing::error!("stopping the alarms panicked; this is a bug");
        }
        self.alarms.events.finish(EVENTS_STOP_TIMEOUT).await;
        let engine = self.engine;
        if tokio::task::spawn_blocking(move || engine.stop())
            .await
            .is_err()
        {
            tracing::error!("stopping the rules panicked; this is a bug");
        }
        self.connectors.stop(SINKS_STOP_TIMEOUT).await;
        let store = self.store;
        let (states, series) = (self.devices.states, self.ingest.series);
        let commands = self.commands.commands;
        let closed = tokio::task::spawn_blocking(move || {
            commands.close();
            if let Err(error) = states.flush() {
                tracing::error!(%error, "writing the last-seen times of devices failed");
            }
            series.close();
            store.close();
        });
        let closed = closed.await;
        if closed.is_err() {
            tracing::error!("closing the store panicked; this is a bug");
        }
    }
}

/// Creates the operator `admin` if there is no operator.
async fn make_first_operator(store: &Store) -> anyhow::Result<Option<FirstOperator>> {
    let objects = store.objects().clone();
    let made = tokio::task::spawn_blocking(move || api::ensure_first_operator(&objects));
    Ok(made
        .await
        .context("making the first operator ended by a panic")??)
}

/// Opens the store, and logs damage found while opening.
fn open_store(
    path: &Path,
    config: &store::StoreConfig,
    queue: Option<(offline::QueueBackendKind, offline::QueueBackendOptions)>,
) -> anyhow::Result<Store> {
    let opened = match queue {
        None => Store::open(path, config.clone()),
        Some((kind, options)) => {
            let queues = offline::create_backend(kind, &options)
                .map_err(|error| anyhow::anyhow!("store.queue_url: {error}"))?;
            Store::open_with_queues(path, config.clone(), queues)
        }
    };
    let (store, report) = opened.map_err(|error| match error {
        store::StoreOpenError::Queues { .. } => anyhow::anyhow!(
            "{error}; start that server or correct store.queue_url, or set store.queue to \"embedded\""
        ),
        error => anyhow::Error::new(error)
            .context(format!("cannot open the store in {}", path.display())),
    })?;
    for problem in &report.warnings {
        tracing::error!(problem, "store is damaged");
    }
    if let Some(cut) = &report.truncation {
        tracing::warn!(
            cut,
            "the end of the message log was incomplete and was truncated, as after a crash; a power failure may take what \
             was acknowledged since the last sync"
        );
    }
    Ok(store)
}

fn to_open_listener(listener: ListenerInfo) -> OpenListener {
    OpenListener {
        name: listener.name,
        protocol: listener.protocol.to_owned(),
        address: listener.address,
    }
}
