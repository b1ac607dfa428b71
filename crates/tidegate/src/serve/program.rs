//! The program as the API shows and steers it: log levels, settings, what the process uses.

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{LiveConfig, SettingError, SettingInfo};
use auth::Auth;
use broker::Handle;
use broker::info::MetricFamily;
use engine::Engine;
use serde_json::{Value, json};
use store::Store;

use super::{allocator, store_watch};
use crate::config::{Config, Running};
use crate::logging::LogLevels;

const LOG_LEVEL: &str = "log.level";

pub(super) struct Program {
    log_levels: LogLevels,
    handle: Handle,
    store: Store,
    auth: Auth,
    engine: Engine,
    http: LiveConfig,
    state: Mutex<State>,
}

/// What the settings are, and how they are shown. Held while one changes.
struct State {
    running: Running,
    shown: Vec<SettingInfo>,
}

impl Program {
    pub(super) fn new(
        log_levels: LogLevels,
        handle: Handle,
        store: Store,
        auth: Auth,
        http: LiveConfig,
        engine: Engine,
        config: &Config,
    ) -> Self {
        let state = State {
            running: config.running.clone(),
            shown: config.settings.clone(),
        };
        Self {
            log_levels,
            handle,
            store,
            auth,
            engine,
            http,
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
                let set = self.log_levels.set(running.log_level());
                set.map_err(SettingError::Invalid)?;
            }
            Some("limits") => self.handle.set_limits(running.limits().clone()),
            Some("auth") => self.auth.set_limits(running.auth()),
            Some("http") => self.http.set(running.http(&self.http.get())),
            _ => return Err(SettingError::Fixed),
        }
        Ok(())
    }
}

impl api::Program for Program {
    fn log_level(&self) -> String {
        self.log_levels.current()
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

    fn metrics(&self) -> Vec<MetricFamily> {
        let mut metrics = allocator::metrics();
        metrics.extend(store_watch::metrics(&self.store));
        metrics.extend(self.auth.metrics());
        metrics
    }

    fn rule_metrics(&self) -> Vec<MetricFamily> {
        self.engine.metrics()
    }
}
