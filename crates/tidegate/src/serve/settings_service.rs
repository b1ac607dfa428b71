//! The settings of the running node: changes over the API, and a configuration that is read again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{ConfiguredValue, SettingChangeError, SettingInfo, SharedHttpConfig};
use auth::AuthService;
use broker::BrokerHandle;
use serde_json::Value;

use crate::config::{Config, DeclaredDefinitions, RuntimeSettings};
use crate::logging::LogLevels;

/// What settings take effect on.
pub(super) struct SettingsTargets {
    pub(super) log_levels: LogLevels,
    pub(super) handle: BrokerHandle,
    pub(super) auth: AuthService,
    /// `None`: HTTP is off.
    pub(super) http: Option<SharedHttpConfig>,
}

pub(super) struct NodeSettingsService {
    targets: SettingsTargets,
    state: Mutex<SettingsState>,
}

/// The settings and their origins. Locked while one changes.
struct SettingsState {
    /// Without changes over the API.
    configured: RuntimeSettings,
    running: RuntimeSettings,
    view: Vec<SettingInfo>,
    /// What the configuration declared when the node started.
    declared: DeclaredDefinitions,
}

/// The differences between a configuration that was read again and the former one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReloadResult {
    /// Settings that have taken effect.
    pub(super) changed: Vec<String>,
    /// Settings that a change over the API overrides. They take effect when it is reverted.
    pub(super) overridden: Vec<String>,
    /// Settings and tables that take effect when the node starts again.
    pub(super) needs_restart: Vec<String>,
}

impl NodeSettingsService {
    pub(super) fn new(targets: SettingsTargets, config: &Config) -> Self {
        let state = SettingsState {
            configured: config.running.clone(),
            running: config.running.clone(),
            view: config.settings.clone(),
            declared: config.declared_definitions(),
        };
        Self {
            targets,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, SettingsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn log_level(&self) -> String {
        self.targets.log_levels.current()
    }

    pub(super) fn list(&self) -> Vec<SettingInfo> {
        self.state().view.clone()
    }

    /// Changes a setting until it is reset.
    pub(super) fn set(&self, key: &str, value: &Value) -> Result<(), SettingChangeError> {
        let mut state = self.state();
        let mut changed = state.running.clone();
        let value = changed.change_setting(key, value)?;
        self.apply(key, &changed)?;
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

    /// Gives a setting its configured value.
    pub(super) fn reset(&self, key: &str) -> Result<(), SettingChangeError> {
        let mut state = self.state();
        let mut changed = state.running.clone();
        changed.reset_setting(key, &state.configured)?;
        self.apply(key, &changed)?;
        state.running = changed;
        let setting = state.view.iter_mut().find(|setting| setting.key == key);
        if let Some(setting) = setting
            && let Some(configured) = setting.configured.take()
        {
            (setting.value, setting.origin) = (configured.value, configured.origin);
        }
        Ok(())
    }

    /// Takes over the settings of a configuration that can change at run time, and names the others.
    pub(super) fn reload(&self, config: &Config) -> ReloadResult {
        let mut state = self.state();
        let mut result = ReloadResult::default();
        for new in &config.settings {
            let Some(at) = state.view.iter().position(|old| old.key == new.key) else {
                result.needs_restart.push(new.key.clone());
                continue;
            };
            let old = &state.view[at];
            let configured = old.configured.as_ref().map_or(&old.value, |old| &old.value);
            if *configured == new.value {
                continue;
            }
            if !new.changeable {
                result.needs_restart.push(new.key.clone());
            } else if let Some(configured) = &mut state.view[at].configured {
                configured.value = new.value.clone();
                configured.origin.clone_from(&new.origin);
                result.overridden.push(new.key.clone());
            } else {
                let mut running = state.running.clone();
                let is_applied = running.reset_setting(&new.key, &config.running).is_ok()
                    && self.apply(&new.key, &running).is_ok();
                if !is_applied {
                    result.needs_restart.push(new.key.clone());
                    continue;
                }
                state.running = running;
                state.view[at].value = new.value.clone();
                state.view[at].origin.clone_from(&new.origin);
                result.changed.push(new.key.clone());
            }
        }
        let removed = state.view.iter().map(|old| &old.key);
        let removed = removed.filter(|key| !config.settings.iter().any(|new| new.key == **key));
        result.needs_restart.extend(removed.cloned());
        let declared = config.declared_definitions();
        let tables = state.declared.differences(&declared);
        result.needs_restart.extend(tables.map(str::to_owned));
        // For changes that are reverted later. What takes effect at the next start has no effect here.
        state.configured = config.running.clone();
        result
    }

    /// Lets a changed setting take effect.
    fn apply(&self, key: &str, running: &RuntimeSettings) -> Result<(), SettingChangeError> {
        match key.split('.').next() {
            Some("log") => {
                let set = self.targets.log_levels.set(running.log_level());
                set.map_err(SettingChangeError::Invalid)?;
            }
            Some("limits") => self.targets.handle.set_limits(running.limits().clone()),
            Some("auth") => self.targets.auth.set_limits(running.auth()),
            Some("http") => {
                if let Some(http) = &self.targets.http {
                    http.set(running.http_config(&http.get()));
                }
            }
            _ => return Err(SettingChangeError::Fixed),
        }
        Ok(())
    }
}
