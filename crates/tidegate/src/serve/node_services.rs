//! The services of a node, and the stages that open them before the first client can connect. The
//! order of the stages is [`NodeServices::open`].

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use auth::AuthService;
use connect::{ConnectorService, ConnectorServiceOptions};
use devices::Registry;
use devices::chain::{self, Chains};
use devices::retention::Retention;
use devices::telemetry_usage::TelemetryUsage;
use engine::Engine;
use namespaces::Namespaces;
use observe::{NodeHistory, Observer};
use relay::RelayService;
use serde_json::Value;
use store::Store;
use tokio::runtime::Handle;
use transfer::FileWorkers;

use super::alarms::AlarmInputs;
use super::blocking_stage::run_blocking;
use super::damage::DamageHandling;
use super::data_dir::DataDir;
use super::device_events::DeviceEventQueue;
use super::device_port::{RuleDevicePort, RuleDevicePortParts};
use super::device_sinks::DeviceSinks;
use super::firmware_reports::FirmwareReports;
use super::node_commands::NodeCommands;
use super::node_connectors::NodeConnectors;
use super::node_devices::NodeDevices;
use super::node_firmware::NodeFirmware;
use super::node_ingest::NodeIngest;
use super::notification_transport::NodeNotificationTransport;
use super::object_references::ObjectReferences;
use super::pipeline_outputs::NodePipelineOutputs;
use super::registration_audit::RegistrationAudit;
use super::relay_devices::NodeRelayDevices;
use super::relay_endpoints::NodeRelay;
use super::relay_events::RelayEventQueue;
use super::relay_requests::RelayRequestHandler;
use super::sink_port::NodeSinkPort;
use super::{
    ban_enforcement, fallback_actions, node_files, start_error, store_health, telemetry_quota,
};
use crate::backup::{BackupLimits, BackupSources, Backups};
use crate::config::Config;

/// Directory of the disk queues and dead letters of sinks, in the data directory.
const SINKS_DIRECTORY: &str = "sinks";
const HISTORY_DIRECTORY: &str = "history";

/// The opened services of a node.
pub(super) struct NodeServices {
    pub(super) store: Store,
    pub(super) namespaces: Namespaces,
    pub(super) auth: AuthService,
    pub(super) engine: Engine,
    pub(super) rule_device_port: RuleDevicePort,
    pub(super) devices: NodeDevices,
    pub(super) commands: NodeCommands,
    pub(super) connectors: NodeConnectors,
    pub(super) references: ObjectReferences,
    pub(super) files: FileWorkers,
    pub(super) firmware: NodeFirmware,
    pub(super) observer: Observer,
    pub(super) history: NodeHistory,
    pub(super) relay: NodeRelay,
    pub(super) relay_devices: NodeRelayDevices,
    pub(super) notification_transport: Arc<NodeNotificationTransport>,
    pub(super) registration_audit: Arc<RegistrationAudit>,
    pub(super) alarms: AlarmInputs,
    pub(super) ingest: NodeIngest,
}

impl NodeServices {
    /// Opens all services. Errors name the setting to change.
    pub(super) async fn open(config: &Config, data_dir: &DataDir) -> anyhow::Result<Self> {
        let store = open_store(config, data_dir).await?;
        let auth = open_auth(config, &store)?;
        let (engine, rule_device_port) = create_engine(config)?;
        // Created before the registry, so that chains are updated before the registry is notified.
        let chains = open_chains(config, &store)?;
        let namespaces = open_namespaces(config, &store).await?;
        let devices = open_devices(config, &store).await?;
        devices.registry.set_namespaces(namespaces.clone());
        auth.set_devices(Arc::new(devices.clone()));
        let commands = open_commands(config, &store, &devices).await?;
        // Ends with the runtime.
        tokio::spawn(devices.clone().run_maintenance());
        let connectors = open_connectors(config, data_dir, &store, &engine).await?;
        watch_rules(&engine, &store).await?;
        let references = ObjectReferences::new(
            store.objects().clone(),
            devices.registry.clone(),
            config.declared_objects(),
        );
        let files = open_files(config, data_dir, &devices, &namespaces).await?;
        let firmware = open_firmware(config, &store, &devices, &files).await?;
        let relay = open_relay(config, &store, &engine).await?;
        relay.service.set_namespaces(namespaces.clone());
        let alert_targets = (relay.service.clone(), devices.registry.clone());
        let notification_transport =
            create_notification_transport(config, &connectors, alert_targets);
        let registration_audit = RegistrationAudit::new(store.objects().clone());
        // Last, because telemetry is forwarded to all others.
        let targets = TelemetryTargets {
            store: store.clone(),
            engine: engine.clone(),
            chains,
            namespaces: namespaces.clone(),
            devices: devices.clone(),
            commands: commands.clone(),
            connectors: connectors.clone(),
            references: references.clone(),
            notification_transport: notification_transport.clone(),
            registration_audit: registration_audit.clone(),
            relay: relay.service.clone(),
            firmware: firmware.clone(),
        };
        let (alarms, ingest) = open_telemetry(config, data_dir, targets).await?;
        telemetry_quota::start(&ingest.usage, &namespaces, &ingest.platform).await;
        let relay_devices = start_relay_devices(&relay.service, &devices, &ingest)?;
        create_sinks_directory(data_dir)?;
        quarantine_copies(config, data_dir).await?;
        let services = Self {
            store,
            namespaces,
            auth,
            engine,
            rule_device_port,
            devices,
            commands,
            connectors,
            references,
            files,
            firmware,
            observer: Observer::default(),
            history: open_history(config, data_dir).await?,
            relay,
            relay_devices,
            notification_transport,
            registration_audit,
            alarms,
            ingest,
        };
        services.start_rule_device_port()?;
        Ok(services)
    }

    /// The backups of the node. Removes incomplete ones.
    pub(super) fn backups(&self, config: &Config, data_dir: &DataDir) -> Backups {
        let store = config.store.clone().unwrap_or_default();
        let limits = BackupLimits {
            max_bytes_per_s: config.backup.max_bytes_per_s,
            min_free_bytes: store.min_free_bytes,
        };
        let sources = BackupSources {
            objects: self.store.objects().clone(),
            series: self.ingest.series.clone(),
            files: self.files.service().clone(),
        };
        Backups::open(
            data_dir.path(),
            config.backup.directory.clone(),
            limits,
            sources,
        )
    }

    /// Executes what rules write to devices.
    fn start_rule_device_port(&self) -> anyhow::Result<()> {
        let reporter = self.ingest.platform.reporter();
        let parts = RuleDevicePortParts {
            registry: self.devices.registry.clone(),
            reporter: reporter.context("there is no pipeline for devices")?,
            alarms: self.alarms.alarms.clone(),
        };
        self.rule_device_port
            .start(parts)
            .context("cannot start the thread for device writes of rules")
    }
}

/// The producers of rows for sinks: first one for each shard, then these.
struct RowProducers {
    shards: u16,
}

impl RowProducers {
    fn new(config: &Config) -> Self {
        Self {
            shards: config.broker.shard_count() as u16,
        }
    }

    /// Windows and bridges use the first two producers after the shards.
    fn alarms(&self) -> u16 {
        self.shards + 2
    }

    /// The first producer of the telemetry workers, and their number.
    fn telemetry(&self) -> (u16, u16) {
        (self.shards + 3, self.shards)
    }

    fn count(&self) -> usize {
        usize::from(self.shards) * 2 + 3
    }
}

/// Opens the store, which contains configuration objects even if sessions and messages are not
/// stored.
async fn open_store(config: &Config, data_dir: &DataDir) -> anyhow::Result<Store> {
    let store_config = config.store.clone().unwrap_or_default();
    let path = data_dir.path().join("store");
    let damage = DamageHandling::new(config.on_damage, data_dir.path());
    let queue = config.queue.clone();
    // Opening may wait for a queue server.
    let store = run_blocking("opening the store", move || {
        open_store_files(&path, &store_config, queue, &damage)
    })
    .await??;
    // Ends with the runtime.
    tokio::spawn(store_health::log_health_changes(store.clone()));
    Ok(store)
}

/// Opens the files of the store, and logs damage found while opening.
fn open_store_files(
    path: &Path,
    config: &store::StoreConfig,
    queue: Option<(offline::QueueBackendKind, offline::QueueBackendOptions)>,
    damage: &DamageHandling,
) -> anyhow::Result<Store> {
    let open = || match &queue {
        None => Ok(Store::open(path, config.clone())?),
        Some((kind, options)) => {
            let queues = offline::create_backend(*kind, options)
                .map_err(|error| anyhow::anyhow!("store.queue_url: {error}"))?;
            Ok(Store::open_with_queues(path, config.clone(), queues)?)
        }
    };
    let opened = damage.open_store(path, open);
    let (store, report) = opened.map_err(|error| match error.downcast_ref() {
        Some(store::StoreOpenError::Queues { .. }) => anyhow::anyhow!(
            "{error}; start that server or correct store.queue_url, or set store.queue_backend to \"embedded\""
        ),
        _ => error.context(format!("cannot open the store in {}", path.display())),
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

/// Creates the authenticators and access rules of the configuration, and reads those of the store.
fn open_auth(config: &Config, store: &Store) -> anyhow::Result<AuthService> {
    let auth = AuthService::new(&config.auth, Handle::current())
        .map_err(|errors| start_error::auth_error(&errors))?;
    auth.watch_objects(store.objects())
        .context("cannot read the access rules from the store")?;
    Ok(auth)
}

/// Creates the rule engine with the rules of the configuration. The device port exists before the
/// rules are compiled, because the compiler checks whether devices exist.
fn create_engine(config: &Config) -> anyhow::Result<(Engine, RuleDevicePort)> {
    let engine = Engine::new(config.rules.clone(), config.broker.shard_count());
    let rule_device_port = RuleDevicePort::default();
    engine.set_device_port(Arc::new(rule_device_port.clone()));
    engine
        .declare(&config.declared_rules)
        .map_err(|problems| start_error::rules_error(&problems))?;
    Ok((engine, rule_device_port))
}

/// Opens the rule chains of the store and of the configuration.
fn open_chains(config: &Config, store: &Store) -> anyhow::Result<Chains> {
    let chains =
        Chains::open(store.objects()).context("cannot read the rule chains of the store")?;
    let declared = config.declared_others.iter();
    for (_, id, chain) in declared.filter(|(kind, _, _)| *kind == chain::KIND) {
        if let Err(error) = chains.declare(id, chain) {
            tracing::error!(id, %error, "declared rule chain is invalid; ignored");
        }
    }
    Ok(chains)
}

/// Opens the relay endpoints, whose events go to the rules.
async fn open_relay(config: &Config, store: &Store, engine: &Engine) -> anyhow::Result<NodeRelay> {
    let (objects, service) = (store.objects().clone(), RelayService::new());
    let events = RelayEventQueue::start(engine.clone());
    service.set_events(Arc::new(events.clone()));
    let declared = declared_of_kind(config, relay::KIND);
    let statistics = run_blocking("opening the relay endpoints", {
        let service = service.clone();
        move || {
            let statistics = relay::open_endpoints(&service, &objects, &declared)?;
            ban_enforcement::close_endpoints_of_banned_owners(&objects, &service)?;
            Ok::<_, store::StoreError>(statistics)
        }
    });
    let statistics = statistics.await?;
    let relay = NodeRelay {
        service,
        statistics: statistics.context("cannot read the relay endpoints of the store")?,
        events,
    };
    tokio::spawn(relay.clone().run());
    Ok(relay)
}

/// Ids and definitions of the objects of a kind that the configuration declares.
fn declared_of_kind(config: &Config, kind: &str) -> Vec<(String, Value)> {
    let declared = config.declared_others.iter();
    declared
        .filter(|(declared, _, _)| *declared == kind)
        .map(|(_, id, value)| (id.clone(), value.clone()))
        .collect()
}

/// Opens the namespaces, and creates the default one.
async fn open_namespaces(config: &Config, store: &Store) -> anyhow::Result<Namespaces> {
    let objects = store.objects().clone();
    let declared = declared_of_kind(config, namespaces::KIND);
    run_blocking("opening the namespaces", move || {
        if declared.iter().all(|(id, _)| id != namespaces::DEFAULT) {
            namespaces::ensure_default_namespace(&objects)?;
        }
        anyhow::Ok(Namespaces::open(&objects, &declared)?)
    })
    .await?
    .context("cannot open the namespaces of the store")
}

/// Opens the products and devices.
async fn open_devices(config: &Config, store: &Store) -> anyhow::Result<NodeDevices> {
    let (store, settings) = (store.clone(), config.devices.clone());
    let declared = config.declared_products.clone();
    run_blocking("opening the devices", move || {
        NodeDevices::open(&store, settings, &declared.0)
    })
    .await?
    .context("cannot open the devices of the store")
}

/// Opens the node's own metrics, which only the HTTP API records and shows. The node runs without them if they are
/// damaged.
async fn open_history(config: &Config, data_dir: &DataDir) -> anyhow::Result<NodeHistory> {
    let days = config.http.as_ref().map_or(0, |http| http.history_days);
    if days == 0 {
        return Ok(NodeHistory::default());
    }
    let path = data_dir.path().join(HISTORY_DIRECTORY);
    let opened = run_blocking("opening the metrics of the node", move || {
        let opened = NodeHistory::open(&path, days);
        opened.map_err(|error| (error, path))
    });
    Ok(opened.await?.unwrap_or_else(|(error, path)| {
        tracing::error!(
            %error, path = %path.display(),
            "the recorded metrics of the node cannot be opened, and none are recorded; delete the directory and restart the node"
        );
        NodeHistory::default()
    }))
}

/// Opens the files of devices and people.
async fn open_files(
    config: &Config,
    data_dir: &DataDir,
    devices: &NodeDevices,
    namespaces: &Namespaces,
) -> anyhow::Result<FileWorkers> {
    let (path, settings) = (data_dir.path().to_owned(), config.files.clone());
    let (registry, namespaces) = (devices.registry.clone(), namespaces.clone());
    run_blocking("opening the files", move || {
        node_files::open_files(&path, settings, registry, namespaces)
    })
    .await?
}

/// Opens the firmware packages, whose images are files.
async fn open_firmware(
    config: &Config,
    store: &Store,
    devices: &NodeDevices,
    files: &FileWorkers,
) -> anyhow::Result<NodeFirmware> {
    let (objects, registry) = (store.objects().clone(), devices.registry.clone());
    let (files, settings) = (files.service().clone(), config.firmware.clone());
    let groups = declared_of_kind(config, devices::group::KIND);
    run_blocking("opening the firmware packages", move || {
        NodeFirmware::open(&objects, registry, files, &settings, &groups)
    })
    .await?
}

/// Opens the commands of devices.
async fn open_commands(
    config: &Config,
    store: &Store,
    devices: &NodeDevices,
) -> anyhow::Result<NodeCommands> {
    let (store, devices, settings) = (store.clone(), devices.clone(), config.commands.clone());
    let runtime = Handle::current();
    run_blocking("opening the commands", move || {
        NodeCommands::open(&store, &devices, settings, runtime)
    })
    .await?
    .context("cannot open the commands of the store")
}

/// Creates the connectors, sinks and sources of the configuration and of the store. Sources publish
/// nothing yet.
async fn open_connectors(
    config: &Config,
    data_dir: &DataDir,
    store: &Store,
    engine: &Engine,
) -> anyhow::Result<NodeConnectors> {
    let options = ConnectorServiceOptions {
        directory: Some(data_dir.path().join(SINKS_DIRECTORY)),
        shards: RowProducers::new(config).count(),
    };
    let service = ConnectorService::new(Handle::current(), options);
    if let Some(cluster) = &config.cluster {
        service.set_node(cluster.node.to_string());
    }
    engine.set_sink_port(Arc::new(NodeSinkPort(service.clone())));
    service.set_dead_letter_observer(fallback_actions::start(engine.clone()));
    let connectors = NodeConnectors::new(service, &config.declared_connectors);
    let (watching, objects) = (connectors.clone(), store.objects().clone());
    // Reads files of dead letters.
    run_blocking("reading the connectors", move || {
        watching.watch_objects(&objects)
    })
    .await?
    .context("cannot read the connectors from the store")?;
    Ok(connectors)
}

/// Compiles the rules of the store, which takes seconds if there are very many.
async fn watch_rules(engine: &Engine, store: &Store) -> anyhow::Result<()> {
    let (engine, objects) = (engine.clone(), store.objects().clone());
    run_blocking("reading the rules", move || engine.watch_objects(&objects))
        .await?
        .context("cannot read the rules from the store")
}

/// The transport of alarm notifications; it has a producer of its own.
fn create_notification_transport(
    config: &Config,
    connectors: &NodeConnectors,
    alert_targets: (RelayService, Registry),
) -> Arc<NodeNotificationTransport> {
    let producer = RowProducers::new(config).alarms();
    let service = connectors.service().clone();
    Arc::new(NodeNotificationTransport::new(
        service,
        producer,
        alert_targets,
    ))
}

/// Starts the threads for messages of devices at relay endpoints.
fn start_relay_devices(
    relay: &RelayService,
    devices: &NodeDevices,
    ingest: &NodeIngest,
) -> anyhow::Result<NodeRelayDevices> {
    let requests = RelayRequestHandler {
        platform: ingest.platform.clone(),
        states: devices.states.clone(),
        telemetry: ingest.telemetry(devices, relay),
    };
    let ingress = ingest.platform.ingress();
    let ingress = ingress.context("there is no pipeline for devices")?;
    let relay_devices = NodeRelayDevices::start(requests, ingress)
        .context("cannot start the threads for devices at relay endpoints")?;
    relay.set_devices(Arc::new(relay_devices.queue.clone()));
    Ok(relay_devices)
}

/// The services that the telemetry path forwards to.
struct TelemetryTargets {
    store: Store,
    engine: Engine,
    chains: Chains,
    namespaces: Namespaces,
    devices: NodeDevices,
    commands: NodeCommands,
    connectors: NodeConnectors,
    references: ObjectReferences,
    notification_transport: Arc<NodeNotificationTransport>,
    registration_audit: Arc<RegistrationAudit>,
    relay: RelayService,
    firmware: NodeFirmware,
}

/// Opens the time series, the alarms, and the pipeline with the messages left in its mailboxes.
async fn open_telemetry(
    config: &Config,
    data_dir: &DataDir,
    targets: TelemetryTargets,
) -> anyhow::Result<(AlarmInputs, NodeIngest)> {
    let (telemetry, alarm_settings) = (config.telemetry.clone(), config.alarms.clone());
    let damage = DamageHandling::new(config.on_damage, data_dir.path());
    let data_path = data_dir.path().to_owned();
    let TelemetryTargets {
        store,
        engine,
        chains,
        namespaces,
        devices,
        commands,
        connectors,
        references,
        notification_transport,
        registration_audit,
        relay,
        firmware,
    } = targets;
    let retention = Retention::new(devices.registry.clone(), telemetry.retention_days);
    let sinks = DeviceSinks::new(
        connectors.service().clone(),
        devices.registry.clone(),
        chains.clone(),
        RowProducers::new(config).telemetry(),
    );
    run_blocking("opening the telemetry", move || {
        references.warn_of_missing_references()?;
        references.warn_of_collisions()?;
        let series = NodeIngest::open_series(&data_path, &telemetry, &retention, &damage)?;
        let events = DeviceEventQueue::new(engine, series.clone());
        let observers = (notification_transport, &references);
        let alarms = AlarmInputs::open(
            &alarm_settings,
            &store,
            &devices,
            &series,
            events,
            observers,
        )
        .context("cannot open the alarms of the store")?;
        let usage = TelemetryUsage::new(series.clone(), retention.clone(), namespaces);
        let reports = FirmwareReports::new(firmware.service, series.clone());
        let outputs =
            NodePipelineOutputs::new(alarms.clone(), sinks, commands.commands.clone(), reports);
        let ingest = NodeIngest::open(
            &data_path,
            &telemetry,
            series,
            &devices,
            &store,
            (chains, retention, usage, outputs),
            (registration_audit, relay),
        )?;
        anyhow::Ok((alarms, ingest))
    })
    .await?
}

/// Moves copies of damaged files into the quarantine, if that is set.
async fn quarantine_copies(config: &Config, data_dir: &DataDir) -> anyhow::Result<()> {
    let damage = DamageHandling::new(config.on_damage, data_dir.path());
    let beside = |name: &str| data_dir.path().join(name);
    let telemetry = config.telemetry.directory.clone();
    let parts = [
        ("store", beside("store")),
        (
            "telemetry",
            telemetry.unwrap_or_else(|| beside("telemetry")),
        ),
        ("mailboxes", beside("mailboxes")),
        ("sinks", beside(SINKS_DIRECTORY)),
    ];
    run_blocking("collecting damaged files", move || {
        damage.collect_copies(&parts)
    })
    .await?
    .context("cannot move damaged files to the quarantine")
}

/// Creates the directory of sinks, so that the record of areas contains it.
fn create_sinks_directory(data_dir: &DataDir) -> anyhow::Result<()> {
    let sinks = data_dir.path().join(SINKS_DIRECTORY);
    disk::create_private_dir(&sinks).with_context(|| format!("cannot create {}", sinks.display()))
}
