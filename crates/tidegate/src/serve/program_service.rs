//! The program as the API shows and controls it: log levels, settings, process metrics.

use std::path::PathBuf;
use std::sync::Arc;

use api::{
    AuthenticatorFailure, AuthenticatorInfo, AuthenticatorState, BackupInfo, ClusterBackend,
    JobProgress, QuarantinedPart, SettingChangeError, SettingInfo,
};
use auth::AuthService;
use devices::pull::PullScheduler;
use engine::Engine;
use hooks::MetricFamily;
use link_gateway::LinkGateway;
use serde_json::{Value, json};
use store::Store;
use transfer::FileWorkers;

use super::added_listeners::AddedListeners;
use super::alarms::AlarmInputs;
use super::device_port::RuleDevicePort;
use super::node_cluster::NodeCluster;
use super::node_commands::NodeCommands;
use super::node_connectors::NodeConnectors;
use super::node_firmware::NodeFirmware;
use super::node_ingest::NodeIngest;
use super::node_simulations::NodeSimulations;
use super::relay_events::RelayEventQueue;
use super::settings_service::NodeSettingsService;
use super::{alarm_metrics, allocator, ingest_metrics, pull_metrics, sink_metrics, store_health};
use crate::backup::Backups;
use crate::quarantine::Quarantine;

const LOG_LEVEL: &str = "log.level";

/// The components of the program that the API shows and controls.
pub(super) struct ProgramParts {
    pub(super) settings: Arc<NodeSettingsService>,
    pub(super) store: Store,
    pub(super) auth: AuthService,
    pub(super) engine: Engine,
    pub(super) connectors: NodeConnectors,
    pub(super) ingest: NodeIngest,
    pub(super) alarms: AlarmInputs,
    pub(super) rule_device_port: RuleDevicePort,
    pub(super) pulls: PullScheduler,
    pub(super) commands: NodeCommands,
    pub(super) relay_events: RelayEventQueue,
    pub(super) files: FileWorkers,
    pub(super) firmware: NodeFirmware,
    pub(super) links: LinkGateway,
    pub(super) quarantine: Quarantine,
    pub(super) backups: Backups,
    pub(super) job_directory: PathBuf,
    pub(super) added_listeners: AddedListeners,
    pub(super) cluster: Option<NodeCluster>,
    pub(super) simulations: NodeSimulations,
}

pub(super) struct ProgramService {
    parts: ProgramParts,
}

impl ProgramService {
    pub(super) fn new(parts: ProgramParts) -> Self {
        Self { parts }
    }
}

impl api::ProgramBackend for ProgramService {
    fn log_level(&self) -> String {
        self.parts.settings.log_level()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        self.set_setting(LOG_LEVEL, &json!(level))
            .map_err(|error| match error {
                SettingChangeError::Invalid(why) => why,
                SettingChangeError::Fixed => "it cannot change at run time".to_owned(),
            })
    }

    fn settings(&self) -> Vec<SettingInfo> {
        self.parts.settings.list()
    }

    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingChangeError> {
        self.parts.settings.set(key, value)
    }

    fn reset_setting(&self, key: &str) -> Result<(), SettingChangeError> {
        self.parts.settings.reset(key)
    }

    fn authenticators(&self) -> Vec<AuthenticatorInfo> {
        let statuses = self.parts.auth.authenticator_statuses().into_iter();
        let shown = statuses.map(|status| AuthenticatorInfo {
            id: status.id,
            r#type: status.kind,
            order: status.order,
            state: match status.is_failing {
                true => AuthenticatorState::Failing,
                false => AuthenticatorState::Ok,
            },
            accepted: status.accepted,
            rejected: status.rejected,
            ignored: status.ignored,
            errors: status.errors,
            last_error: status.last_error.map(|error| AuthenticatorFailure {
                at_ms: error.at_ms,
                text: error.text,
            }),
        });
        shown.collect()
    }

    fn quarantine(&self) -> std::io::Result<Vec<QuarantinedPart>> {
        self.parts.quarantine.list()
    }

    fn delete_quarantined(&self, id: &str) -> std::io::Result<bool> {
        self.parts.quarantine.delete(id)
    }

    fn backups(&self) -> std::io::Result<Vec<BackupInfo>> {
        self.parts.backups.list()
    }

    fn backup_file(&self, id: &str) -> Option<PathBuf> {
        self.parts.backups.find(id)
    }

    fn create_backup(&self, id: &str, progress: &dyn JobProgress) -> Result<(), String> {
        let on_done = &mut |done| {
            progress.set_done(done);
            !progress.is_cancelled()
        };
        let on_total = &mut |total| progress.set_total(total);
        let created = self.parts.backups.create(id, on_total, on_done);
        created.map_err(|error| format!("{error:#}"))
    }

    fn verify_backup(&self, id: &str, progress: &dyn JobProgress) -> Result<(), String> {
        progress.set_total(self.parts.backups.size(id).unwrap_or(0));
        let verified = self.parts.backups.verify(id, &mut |done| {
            progress.set_done(done);
            !progress.is_cancelled()
        });
        verified.map_err(|error| format!("{error:#}"))
    }

    fn delete_backup(&self, id: &str) -> std::io::Result<bool> {
        self.parts.backups.delete(id)
    }

    fn job_directory(&self) -> PathBuf {
        self.parts.job_directory.clone()
    }

    fn has_room_for_jobs(&self) -> bool {
        self.parts.backups.has_room()
    }

    fn listener_backend(&self) -> Option<&dyn api::ListenerBackend> {
        Some(&self.parts.added_listeners)
    }

    fn cluster_backend(&self) -> Option<&dyn ClusterBackend> {
        let cluster = self.parts.cluster.as_ref()?;
        Some(cluster)
    }

    fn degradation(&self) -> Option<&'static str> {
        self.parts.cluster.as_ref()?.problem()
    }

    fn simulation_backend(&self) -> Option<&dyn api::SimulationBackend> {
        Some(&self.parts.simulations)
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        let mut metrics = allocator::metrics();
        metrics.extend(store_health::metrics(&self.parts.store));
        metrics.extend(self.parts.auth.metrics());
        metrics.extend(ingest_metrics::metrics(&self.parts.ingest));
        metrics.extend(alarm_metrics::metrics(
            &self.parts.alarms,
            &self.parts.rule_device_port,
        ));
        metrics.extend(sink_metrics::metrics(self.parts.connectors.service()));
        metrics.extend(pull_metrics::metrics(&self.parts.pulls));
        metrics.extend(self.parts.commands.metrics());
        metrics.extend(self.parts.relay_events.metrics());
        let files = &self.parts.files;
        metrics.extend(files.service().metric_families(files.queued_bytes()));
        metrics.extend(self.parts.firmware.service.metric_families());
        metrics.extend(self.parts.links.metrics());
        metrics.extend(self.parts.cluster.iter().flat_map(NodeCluster::metrics));
        metrics
    }

    fn rule_metrics(&self) -> Vec<MetricFamily> {
        self.parts.engine.metrics()
    }
}
