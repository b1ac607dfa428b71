//! The program as the API shows and steers it: log levels, settings, what the process uses.

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{
    AuthenticatorFailure, AuthenticatorInfo, AuthenticatorState, LiveConfig, SettingError,
    SettingInfo,
};
use auth::Auth;
use broker::Handle;
use broker::info::MetricFamily;
use devices::pull::Pulls;
use engine::Engine;
use serde_json::{Value, json};
use store::Store;

use super::alarms::Alarming;
use super::commands::NodeCommands;
use super::connectors::Connectors;
use super::device_outlet::RuleDevices;
use super::ingest::Ingest;
use super::{alarm_metrics, allocator, ingest_metrics, pull_metrics, sink_metrics, store_watch};
use crate::config::{Config, Running};
use crate::logging::LogLevels;

const LOG_LEVEL: &str = "log.level";

/// What the program steers and shows.
pub(super) struct Parts {
    pub(super) log_levels: LogLevels,
    pub(super) handle: Handle,
    pub(super) store: Store,
    pub(super) auth: Auth,
    pub(super) engine: Engine,
    pub(super) connectors: Connectors,
    pub(super) ingest: Ingest,
    pub(super) alarming: Alarming,
    pub(super) of_rules: RuleDevices,
    pub(super) pulls: Pulls,
    pub(super) commands: NodeCommands,
    pub(super) http: LiveConfig,
}

pub(super) struct Program {
    parts: Parts,
    state: Mutex<State>,
}

/// What the settings are, and how they are shown. Held while one changes.
struct State {
    running: Running,
    shown: Vec<SettingInfo>,
}

impl Program {
    pub(super) fn new(parts: Parts, config: &Config) -> Self {
        let state = State {
            running: config.running.clone(),
            shown: config.settings.clone(),
        };
        Self {
            parts,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the changed settings hold.
    fn apply(&self, key: &str, running: &Running) -> Result<(), SettingError> {
        match key.split('.').next() {
            Some("log") => {
                let set = self.parts.log_levels.set(running.log_level());
                set.map_err(SettingError::Invalid)?;
            }
            Some("limits") => self.parts.handle.set_limits(running.limits().clone()),
            Some("auth") => self.parts.auth.set_limits(running.auth()),
            Some("http") => self.parts.http.set(running.http(&self.parts.http.get())),
            _ => return Err(SettingError::Fixed),
        }
        Ok(())
    }
}

impl api::Program for Program {
    fn log_level(&self) -> String {
        self.parts.log_levels.current()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        self.set_setting(LOG_LEVEL, &json!(level))
            .map_err(|error| match error {
                SettingError::Invalid(why) => why,
                SettingError::Fixed => "it cannot change".to_owned(),
            })
    }

    fn settings(&self) -> Vec<SettingInfo> {
        self.state().shown.clone()
    }

    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingError> {
        let mut state = self.state();
        let mut changed = state.running.clone();
        let value = changed.change(key, value)?;
        self.apply(key, &changed)?;
        state.running = changed;
        if let Some(setting) = state.shown.iter_mut().find(|setting| setting.key == key) {
            setting.value = value;
            setting.origin = "api".to_owned();
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
            no_opinion: status.no_opinion,
            errors: status.errors,
            last_error: status.last_error.map(|error| AuthenticatorFailure {
                at_ms: error.at_ms,
                text: error.text,
            }),
        });
        shown.collect()
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        let mut metrics = allocator::metrics();
        metrics.extend(store_watch::metrics(&self.parts.store));
        metrics.extend(self.parts.auth.metrics());
        metrics.extend(ingest_metrics::metrics(&self.parts.ingest));
        metrics.extend(alarm_metrics::metrics(
            &self.parts.alarming,
            &self.parts.of_rules,
        ));
        metrics.extend(sink_metrics::metrics(self.parts.connectors.service()));
        metrics.extend(pull_metrics::metrics(&self.parts.pulls));
        metrics.extend(self.parts.commands.metrics());
        metrics
    }

    fn rule_metrics(&self) -> Vec<MetricFamily> {
        self.parts.engine.metrics()
    }
}
