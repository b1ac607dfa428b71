//! The running node: the broker's shards, the platform services and the HTTP listener. The order of
//! start and stop is [`Node::start`] and [`Node::stop`].

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::{
    ApiParts, CommandService, DeviceService, FirstOperator, FirstOperatorError, SharedHttpConfig,
};
use broker::info::ListenerInfo;
use broker::{Broker, BrokerHandle, MemoryListener};
use devices::pull::{self, PullScheduler, ReadingIntake};
use firmware::FirmwareHooks;
use hooks::{HookChain, MessageView};
use link_gateway::{GatewayParts, LinkGateway};
use store::{ObjectError, Store, StoreError};
use tokio::runtime::Handle;
use transfer::FileHooks;

use super::added_listeners::AddedListeners;
use super::blocking_stage::run_blocking;
use super::data_dir::{DataDir, OpenListener};
use super::device_http::DeviceHttpService;
use super::embedded_console::EmbeddedConsole;
use super::fleet_service::FleetService;
use super::http_task::{BoundHttp, HttpTask};
use super::node_cluster::NodeCluster;
use super::node_connectors::BridgeMessageHandler;
use super::node_sampler::NodeSampler;
use super::node_services::NodeServices;
use super::node_simulations::NodeSimulations;
use super::object_service::ObjectService;
use super::program_service::{ProgramParts, ProgramService};
use super::relay_endpoints::RelayHooks;
use super::settings_service::{NodeSettingsService, SettingsTargets};
use super::{
    allocator, ban_enforcement, file_exports, namespace_enforcement, node_files, start_error,
};
use crate::area_record::AreaRecord;
use crate::config::Config;
use crate::logging::LogLevels;
use crate::quarantine::Quarantine;

/// Time for simulations to remove their devices when the node stops.
const SIMULATIONS_STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for sinks to write their queues when the node stops.
const SINKS_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for rules to process device events when the node stops.
const EVENTS_STOP_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Node {
    services: NodeServices,
    cluster: Option<NodeCluster>,
    broker: Broker,
    pulls: PullScheduler,
    links: LinkGateway,
    added_listeners: AddedListeners,
    simulations: NodeSimulations,
    settings: Arc<NodeSettingsService>,
    http: Option<HttpTask>,
    listeners: Vec<OpenListener>,
    first_operator: Option<FirstOperator>,
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
        // Bound first: if the HTTP port is in use, no client has connected yet.
        let bound_http = BoundHttp::bind(config).await?;
        let areas = AreaRecord::new(data_dir.path(), config.telemetry.directory.as_deref());
        // Checked before missing files are created.
        areas.verify()?;
        let services = NodeServices::open(config, data_dir).await?;
        areas.update()?;

        let cluster = NodeCluster::open(config, &services.store).await?;
        if let Some(cluster) = &cluster {
            share_devices(cluster, &services).await?;
            start_telemetry_copies(cluster, &services, config, data_dir).await?;
        }
        // From here on clients connect.
        let broker = start_broker(config, &services, cluster.as_ref()).await?;
        let handle = broker.handle();
        if let Some(cluster) = &cluster {
            cluster.set_broker(handle.clone(), services.relay.service.clone());
            services.notification_transport.set_cluster(cluster.clone());
        }
        start_publishers(&services, &handle);
        start_exports(&services).await?;
        node_files::forward_to_rules(services.files.service(), services.engine.clone());
        let files = services.files.start(Arc::new(handle.clone()));
        files.context("cannot start the threads for files")?;
        start_alarm_events(config, data_dir, &services);
        let pulls = start_pulls(&services, cluster.as_ref()).await?;
        start_commands(&services, &handle);
        let firmware = &services.firmware;
        firmware.start(&services.devices, &services.commands, handle.clone())?;
        let parts = GatewayParts {
            broker: handle.clone(),
            files: services.files.clone(),
            firmware: services.firmware.service.clone(),
            registry: services.devices.registry.clone(),
        };
        let links = LinkGateway::start(config.link.clone(), parts);
        let links = links.context("cannot start the threads for links")?;

        let added_listeners = restore_listeners(config, data_dir, &services, &handle).await?;
        let listeners = handle.listeners().into_iter();
        let http = bound_http.as_ref();
        let live_http = http.map(|http| SharedHttpConfig::new(http.config.clone()));
        let targets = SettingsTargets {
            log_levels,
            handle: handle.clone(),
            auth: services.auth.clone(),
            http: live_http.clone(),
        };
        let mut node = Self {
            settings: Arc::new(NodeSettingsService::new(targets, config)),
            listeners: listeners.map(to_open_listener).collect(),
            services,
            cluster,
            broker,
            pulls,
            links,
            added_listeners,
            simulations: NodeSimulations::new(handle, config.simulations),
            http: None,
            first_operator: None,
        };
        if let Some(cluster) = &node.cluster {
            // Otherwise each new node would create its own first operator.
            cluster.wait_for_objects().await;
        }
        if let Some((http, live)) = bound_http.zip(live_http) {
            node.start_http(http, live, config, data_dir).await?;
        }
        Ok(node)
    }

    /// Disconnects the clients, then stops HTTP, which meanwhile reports that the node is stopping.
    pub(super) async fn stop(self) {
        let services = self.services;
        // First, because they remove their devices over the API.
        let simulations = self.simulations;
        run_stop_step("stopping the simulations", move || {
            simulations.stop(SIMULATIONS_STOP_TIMEOUT);
        })
        .await;
        services.alarms.begin_shutdown();
        let broker = self.broker;
        run_stop_step("stopping the shards", move || broker.stop()).await;
        let links = self.links;
        run_stop_step("stopping the links", move || links.stop()).await;
        if let Some(http) = self.http {
            http.stop().await;
        }
        // After HTTP, which changes objects of the cluster.
        if let Some(cluster) = &self.cluster {
            cluster.stop().await;
        }
        let firmware = services.firmware;
        run_stop_step("stopping the firmware", move || firmware.service.stop()).await;
        let files = services.files;
        run_stop_step("closing the files", move || files.stop()).await;
        self.pulls.stop().await;
        // Stopped before the components it forwards to.
        let (ingest, relay_devices) = (services.ingest.clone(), services.relay_devices);
        run_stop_step("processing the remaining device messages", move || {
            relay_devices.stop();
            ingest.stop();
        })
        .await;
        let events = services.alarms.events.clone();
        events.finish(EVENTS_STOP_TIMEOUT).await;
        let (port, alarms) = (services.rule_device_port, services.alarms);
        run_stop_step("stopping the alarms", move || {
            port.stop();
            alarms.stop();
        })
        .await;
        // The alarms have emitted further events.
        events.finish(EVENTS_STOP_TIMEOUT).await;
        let engine = services.engine;
        run_stop_step("stopping the rules", move || engine.stop()).await;
        services.connectors.stop(SINKS_STOP_TIMEOUT).await;
        let (store, series) = (services.store, services.ingest.series);
        let (states, commands) = (services.devices.states, services.commands.commands);
        let (relay, history) = (services.relay, services.history);
        run_stop_step("closing the store", move || {
            history.close();
            relay.store_statistics();
            commands.close();
            if let Err(error) = states.flush() {
                tracing::error!(%error, "writing the last-seen times of devices failed");
            }
            series.close();
            store.close();
        })
        .await;
    }

    /// The operator created by this start, shown once.
    pub(super) fn first_operator(&self) -> Option<&FirstOperator> {
        self.first_operator.as_ref()
    }

    /// The listener with this name, if its clients are in this process.
    pub(super) fn memory_listener(&self, name: &str) -> Option<Arc<MemoryListener>> {
        let handle = self.broker.handle();
        let mut listeners = handle.memory_listeners().iter();
        listeners.find(|listener| listener.name() == name).cloned()
    }

    pub(super) fn listeners(&self) -> &[OpenListener] {
        &self.listeners
    }

    pub(super) fn settings(&self) -> &NodeSettingsService {
        &self.settings
    }

    pub(super) fn reload_certificates(&self) {
        self.broker.handle().reload_certificates();
    }

    /// Serves the HTTP API.
    async fn start_http(
        &mut self,
        http: BoundHttp,
        live: SharedHttpConfig,
        config: &Config,
        data_dir: &DataDir,
    ) -> anyhow::Result<()> {
        let handle = self.broker.handle();
        self.listeners.push(http.open_listener()?);
        if let Some(tls) = &http.tls {
            let watched = handle.watch_certificates(tls.clone());
            watched.context("cannot watch the certificate of HTTP")?;
        }
        self.services.registration_audit.set_http(live.clone());
        let program = ProgramParts {
            settings: self.settings.clone(),
            store: self.services.store.clone(),
            auth: self.services.auth.clone(),
            engine: self.services.engine.clone(),
            connectors: self.services.connectors.clone(),
            ingest: self.services.ingest.clone(),
            alarms: self.services.alarms.clone(),
            rule_device_port: self.services.rule_device_port.clone(),
            pulls: self.pulls.clone(),
            commands: self.services.commands.clone(),
            relay_events: self.services.relay.events.clone(),
            files: self.services.files.clone(),
            firmware: self.services.firmware.clone(),
            links: self.links.clone(),
            quarantine: Quarantine::new(data_dir.path()),
            backups: self.services.backups(config, data_dir),
            job_directory: data_dir.create_job_directory()?,
            added_listeners: self.added_listeners.clone(),
            cluster: self.cluster.clone(),
            simulations: self.simulations.clone(),
        };
        let program = ProgramService::new(program);
        let parts = self.api_parts(program, &http, data_dir.write_token_file()?);
        self.first_operator = create_first_operator(&self.services.store).await?;
        self.http = Some(http.serve(live, parts));
        Ok(())
    }

    fn api_parts(&self, program: ProgramService, http: &BoundHttp, token: String) -> ApiParts {
        let services = &self.services;
        let fleet = FleetService {
            objects: services.store.objects().clone(),
            retention: services.ingest.retention.clone(),
        };
        let registry = services.devices.registry.clone();
        let devices = DeviceService::new(registry, services.devices.states.clone());
        let device_http = DeviceHttpService::new(
            services.ingest.platform.clone(),
            services.devices.directory.clone(),
            services.commands.commands.clone(),
            services.store.objects(),
            services.ingest.outputs.clone(),
        );
        ApiParts {
            node: Arc::new(self.broker.handle()),
            program: Arc::new(program),
            objects: services.store.objects().clone(),
            namespaces: services.namespaces.clone(),
            object_backend: Arc::new(ObjectService {
                auth: services.auth.clone(),
                engine: services.engine.clone(),
                connectors: services.connectors.clone(),
                devices: services.devices.clone(),
                fleet,
                firmware: services.firmware.clone(),
                uses: services.references.clone(),
            }),
            auth: services.auth.clone(),
            tls: http.tls.clone(),
            engine: services.engine.clone(),
            connectors: services.connectors.service().clone(),
            commands: CommandService::new(services.commands.commands.clone(), devices.clone()),
            devices,
            telemetry_backend: Arc::new(
                services
                    .ingest
                    .telemetry(&services.devices, &services.relay.service),
            ),
            alarms: services.alarms.api_service(),
            device_http_backend: Arc::new(device_http),
            pulls: self.pulls.clone(),
            relay: services.relay.service.clone(),
            files: services.files.service().clone(),
            firmware: services.firmware.service.clone(),
            observer: services.observer.clone(),
            history: services.history.clone(),
            console: Arc::new(EmbeddedConsole),
            local_token: Some(token),
        }
    }
}

/// Shares the devices, their firmware and their alarms with the other nodes of the cluster, and gives numbers to alarms and commands that no other node gives.
async fn share_devices(cluster: &NodeCluster, services: &NodeServices) -> anyhow::Result<()> {
    let first = cluster.name().first_number();
    services.alarms.alarms.number_from(first);
    services.commands.commands.number_from(first);
    cluster.start_moving_commands(
        services.commands.commands.clone(),
        services.devices.states.clone(),
    );
    let (cluster, registry) = (cluster.clone(), services.devices.registry.clone());
    let (firmware, files) = (
        services.firmware.service.clone(),
        services.files.service().clone(),
    );
    let states = services.devices.states.clone();
    let alarms = services.alarms.alarms.clone();
    let shared = run_blocking("reading the versions of the devices", move || {
        cluster.share_devices(&registry)?;
        cluster.share_alarms(&alarms, &registry, &states)?;
        cluster.share_firmware(&firmware, &files, states)
    });
    shared.await?
}

/// Copies telemetry to another node, and opens the copies of that of other nodes.
async fn start_telemetry_copies(
    cluster: &NodeCluster,
    services: &NodeServices,
    config: &Config,
    data_dir: &DataDir,
) -> anyhow::Result<()> {
    let directory = data_dir.path().join("telemetry-copies");
    let (cluster, settings) = (cluster.clone(), config.telemetry.clone());
    let (ingest, registry) = (services.ingest.clone(), services.devices.registry.clone());
    let started = run_blocking("opening the copies of telemetry", move || {
        let telemetry = (ingest.stored.clone(), ingest.retention.clone());
        let copies = cluster.start_telemetry_copies(telemetry, &registry, (directory, settings))?;
        if let Some(copies) = copies {
            // Set once.
            let _ = ingest.copies.set(copies);
        }
        Ok(())
    });
    started.await?
}

/// Opens the listeners of clients and starts the shards.
async fn start_broker(
    config: &Config,
    services: &NodeServices,
    cluster: Option<&NodeCluster>,
) -> anyhow::Result<Broker> {
    let hooks = HookChain::default()
        .with(Arc::new(services.auth.clone()))
        // Before the rules and the observer, because segments of files are no messages for them.
        .with(Arc::new(FileHooks(services.files.clone())))
        .with(Arc::new(FirmwareHooks(services.firmware.service.clone())))
        .with(Arc::new(services.observer.clone()))
        .with(services.engine.hooks_factory())
        // After authentication, because the device hooks record which clients were accepted.
        .with(services.ingest.hooks())
        .with(Arc::new(RelayHooks(services.relay.service.clone())))
        .with(Arc::new(allocator::MemoryReleaseHooks));
    let store = config.store.is_some().then(|| services.store.clone());
    let settings = config.broker.clone();
    let attachment = cluster.map(NodeCluster::start).transpose()?;
    // Waits for the other nodes.
    let started = run_blocking("starting the shards", move || {
        Broker::start_in_cluster(settings, hooks, store, attachment)
    });
    started
        .await?
        .map_err(|error| start_error::broker_error(&error, config))
}

/// Starts everything that publishes messages or disconnects clients.
fn start_publishers(services: &NodeServices, handle: &BrokerHandle) {
    services.engine.start(Arc::new(handle.clone()));
    let engine = services.engine.clone();
    let rules = move |message: &MessageView<'_>, limit| engine.rules_for_message(message, limit);
    services.observer.set_rule_lookup(Arc::new(rules));
    services.observer.start(Arc::new(handle.clone()));
    let sources = BridgeMessageHandler {
        engine: services.engine.clone(),
        handle: handle.clone(),
    };
    services
        .connectors
        .service()
        .set_source_handler(Arc::new(sources));
    ban_enforcement::disconnect_banned(&services.auth, handle);
    let registry = &services.devices.registry;
    let relay = &services.relay.service;
    namespace_enforcement::disconnect_disabled(&services.namespaces, registry, relay, handle);
    services.ingest.start(&services.devices, handle);
    services.notification_transport.start(handle.clone());
}

/// Passes events of devices to the rules, and samples the node for its own alarms. Both end with
/// the runtime.
fn start_alarm_events(config: &Config, data_dir: &DataDir, services: &NodeServices) {
    tokio::spawn(services.alarms.events.clone().run());
    let sampler = NodeSampler {
        alarms: services.alarms.clone(),
        pipeline: services.ingest.pipeline.clone(),
        engine: services.engine.clone(),
        sinks: services.connectors.service().clone(),
        quarantine: Quarantine::new(data_dir.path()),
        series: services.ingest.series.clone(),
    };
    let every = Duration::from_secs(config.alarms.node_alarm_interval_s.into());
    tokio::spawn(sampler.run(every));
}

/// Starts the pull sources of the configuration and of the store.
async fn start_pulls(
    services: &NodeServices,
    cluster: Option<&NodeCluster>,
) -> anyhow::Result<PullScheduler> {
    let pulls = PullScheduler::new(Handle::current(), &Default::default());
    let (watching, objects) = (pulls.clone(), services.store.objects().clone());
    let declared = services.references.all_declared(pull::KIND);
    // Reads files of secrets and certificates.
    run_blocking("reading the pull sources", move || {
        watching.declare(&declared);
        watching.watch_objects(&objects)
    })
    .await?
    .context("cannot read the pull sources from the store")?;
    if let Some(reporter) = services.ingest.platform.reporter() {
        let intake: Arc<dyn ReadingIntake> = match cluster {
            Some(cluster) => cluster.share_pulls(&pulls, reporter),
            None => Arc::new(reporter),
        };
        pulls.start(intake);
    }
    Ok(pulls)
}

/// Lets sinks export files, and continues the exports that had not ended.
async fn start_exports(services: &NodeServices) -> anyhow::Result<()> {
    let files = services.files.service().clone();
    let connectors = services.connectors.service().clone();
    run_blocking("continuing the exports of files", move || {
        file_exports::start(&files, &connectors);
    })
    .await
}

/// Opens the listeners that were created over the API.
async fn restore_listeners(
    config: &Config,
    data_dir: &DataDir,
    services: &NodeServices,
    handle: &BrokerHandle,
) -> anyhow::Result<AddedListeners> {
    let (handle, objects) = (handle.clone(), services.store.objects().clone());
    let directory = data_dir.path().to_owned();
    let max_packet_size = config.broker.limits.max_packet_size;
    run_blocking(
        "opening the listeners that were created over the API",
        move || AddedListeners::restore(handle, objects, &directory, max_packet_size),
    )
    .await?
}

/// Sends commands to devices, and their results to the rules.
fn start_commands(services: &NodeServices, handle: &BrokerHandle) {
    let ingest = &services.ingest;
    let (platform, outputs) = (ingest.platform.clone(), ingest.outputs.clone());
    let relay = services.relay.service.clone();
    (services.commands).start(handle.clone(), platform, outputs, relay);
    services.commands.forward_to_rules(services.engine.clone());
}

/// Creates the operator `admin` if there is no operator.
async fn create_first_operator(store: &Store) -> anyhow::Result<Option<FirstOperator>> {
    let objects = store.objects().clone();
    let created = run_blocking("creating the first operator", move || {
        api::ensure_first_operator(&objects)
    });
    match created.await? {
        Err(FirstOperatorError::Object(ObjectError::Storage(StoreError::Cluster(reason)))) => {
            tracing::warn!(
                reason,
                "the first operator of the API cannot be created yet; restart this node when it reaches the cluster"
            );
            Ok(None)
        }
        created => Ok(created?),
    }
}

/// Runs a step of the stop on a thread that may block. The stop continues after a panic.
async fn run_stop_step(what: &'static str, step: impl FnOnce() + Send + 'static) {
    if run_blocking(what, step).await.is_err() {
        tracing::error!("{what} panicked; this is a bug");
    }
}

fn to_open_listener(listener: ListenerInfo) -> OpenListener {
    OpenListener {
        name: listener.name,
        protocol: listener.protocol.to_owned(),
        address: listener.address,
    }
}
