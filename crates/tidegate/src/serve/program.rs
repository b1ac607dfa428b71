//! The program as the API shows and steers it: log levels, settings, what the process uses.

use std::sync::{Mutex, PoisonError};

use api::{SettingError, SettingInfo};
use auth::Auth;
use broker::info::MetricFamily;
use engine::Engine;
use serde_json::{Value, json};
use store::Store;

use super::{allocator, store_watch};
use crate::config::Config;
use crate::logging::LogLevels;

const LOG_LEVEL: &str = "log.level";

pub(super) struct Program {
    log_levels: LogLevels,
    store: Store,
    auth: Auth,
    engine: Engine,
    settings: Mutex<Vec<SettingInfo>>,
}

impl Program {
    pub(super) fn new(
        log_levels: LogLevels,
        store: Store,
        auth: Auth,
        engine: Engine,
        config: &Config,
    ) -> Self {
        Self {
            log_levels,
            store,
            auth,
            engine,
            settings: Mutex::new(config.settings.clone()),
        }
    }

    /// Notes that the API has changed a setting.
    fn note(&self, key: &str, value: Value) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(setting) = settings.iter_mut().find(|setting| setting.key == key) {
            setting.value = value;
            setting.origin = "api".to_owned();
        }
    }
}

impl api::Program for Program {
    fn log_level(&self) -> String {
        self.log_levels.current()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        self.log_levels.set(level)?;
        self.note(LOG_LEVEL, json!(level));
        Ok(())
    }

    fn settings(&self) -> Vec<SettingInfo> {
        let settings = self.settings.lock();
        settings.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingError> {
        match key {
            LOG_LEVEL => {
                let level = value.as_str();
                let level = level.ok_or_else(|| SettingError::Invalid("expected a text".into()))?;
                self.set_log_level(level).map_err(SettingError::Invalid)
            }
            _ => Err(SettingError::Fixed),
        }
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
