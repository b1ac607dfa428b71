//! The program as the API shows and controls it: log levels, settings, process metrics.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{
    AuthenticatorFailure, AuthenticatorInfo, AuthenticatorState, BackupInfo, ConfiguredValue,
    JobProgress, QuarantinedPart, SettingChangeError, SettingInfo, SharedHttpConfig,
};
use auth::AuthService;
use broker::BrokerHandle;
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
use super::node_commands::NodeCommands;
use super::node_connectors::NodeConnectors;
use super::node_firmware::NodeFirmware;
use super::node_ingest::NodeIngest;
use super::relay_events::RelayEventQueue;
use super::{alarm_metrics, allocator, ingest_metrics, pull_metrics, sink_metrics, store_health};
use crate::backup::Backups;
use crate::config::{Config, RuntimeSettings};
use crate::logging::LogLevels;
use crate::quarantine::Quarantine;

const LOG_LEVEL: &str = "log.level";

/// The components of the program that the API shows and controls.
pub(super) struct ProgramParts {
    pub(super) log_levels: LogLevels,
    pub(super) handle: BrokerHandle,
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
    pub(super) http: SharedHttpConfig,
    pub(super) files: FileWorkers,
    pub(super) firmware: NodeFirmware,
    pub(super) links: LinkGateway,
    pub(super) quarantine: Quarantine,
    pub(super) backups: Backups,
    pub(super) job_directory: PathBuf,
    pub(super) added_listeners: AddedListeners,
}

pub(super) struct ProgramService {
    parts: ProgramParts,
    state: Mutex<SettingsState>,
}

/// The settings and their origins. Locked while one changes.
struct SettingsState {
    /// Without changes over the API.
    configured: RuntimeSettings,
    running: RuntimeSettings,
    view: Vec<SettingInfo>,
}

impl ProgramService {
    pub(super) fn new(parts: ProgramParts, config: &Config) -> Self {
        let state = SettingsState {
            configured: config.running.clone(),
            running: config.running.clone(),
            view: config.settings.clone(),
        };
        Self {
            parts,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, SettingsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a changed setting.
    fn apply_setting(
        &self,
        key: &str,
        running: &RuntimeSettings,
    ) -> Result<(), SettingChangeError> {
        match key.split('.').next() {
            Some("log") => {
                let set = self.parts.log_levels.set(running.log_level());
                set.map_err(SettingChangeError::Invalid)?;
            }
            Some("limits") => self.parts.handle.set_limits(running.limits().clone()),
            Some("auth") => self.parts.auth.set_limits(running.auth()),
            Some("http") => self
                .parts
                .http
                .set(running.http_config(&self.parts.http.get())),
            _ => return Err(SettingChangeError::Fixed),
        }
        Ok(())
    }
}

impl api::ProgramBackend for ProgramService {
    fn log_level(&self) -> String {
        self.parts.log_levels.current()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        self.set_setting(LOG_LEVEL, &json!(level))
            .map_err(|error| match error {
                SettingChangeError::Invalid(why) => why,
                SettingChangeError::Fixed => "it cannot change at run time".to_owned(),
            })
    }

    fn settings(&self) -> Vec<SettingInfo> {
        self.state().view.clone()
    }

    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingChangeError> {
        let mut state = self.state();
        let mut changed = state.running.clone();
        let value = changed.change_setting(key, value)?;
        self.apply_setting(key, &changed)?;
        state.running = changed;
        if let Some(setting) = state.view.iter_mut().find(|setting| setting.key == key) {
            let before = std::mem::replace(&mut setting.value, value);
            let origin = std::mem::replace(&mut setting.origin, "api".to_owned());
            setting.configured.get_or_insert(ConfiguredValue {
                value: before,
                origin,
            });
        }
        Ok(())
    }

    fn reset_setting(&self, key: &str) -> Result<(), SettingChangeError> {
        let mut state = self.state();
        let mut changed = state.running.clone();
        changed.reset_setting(key, &state.configured)?;
        self.apply_setting(key, &changed)?;
        state.running = changed;
        let setting = state.view.iter_mut().find(|setting| setting.key == key);
        if let Some(setting) = setting
            && let Some(configured) = setting.configured.take()
        {
            (setting.value, setting.origin) = (configured.value, configured.origin);
        }
        Ok(())
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
        metrics.extend(self.parts.firmware.metrics());
        metrics.extend(self.parts.links.metrics());
        metrics
    }

    fn rule_metrics(&self) -> Vec<MetricFamily> {
        self.parts.engine.metrics()
    }
}
