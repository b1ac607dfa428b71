//! The configuration: read from a file, the environment and flags by one table of settings,
//! validated as a whole, and documented by a reference generated from the same table.

mod auth_tables;
mod byte_size;
mod config_draft;
mod config_error;
mod connector_tables;
mod environment;
mod explain;
mod file;
mod object_tables;
mod product_tables;
mod reference;
mod rule_tables;
mod runtime_settings;
mod setting_kind;
mod settings_table;
mod settings_view;
mod suggestion;
#[cfg(test)]
mod tests;
mod tls_files;
mod validation;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use api::HttpConfig;
use broker::config::{BrokerConfig, TlsConfig};
use serde_json::{Value, json};

use crate::logging::LogFormat;
pub(crate) use config_error::{ConfigErrors, ValueOrigin};
pub(crate) use explain::{UnknownSettingError, explain};
pub(crate) use object_tables::DeclaredObjects;
pub(crate) use reference::{markdown, toml_template};
pub(crate) use runtime_settings::RuntimeSettings;
pub(crate) use suggestion::nearest;

/// The complete configuration of a node.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) broker: BrokerConfig,
    pub(crate) auth: auth::AuthSettings,
    pub(crate) rules: engine::RuleEngineSettings,
    pub(crate) devices: devices::RegistryConfig,
    pub(crate) telemetry: crate::serve::node_ingest::IngestSettings,
    pub(crate) alarms: crate::serve::alarms::AlarmSettings,
    pub(crate) commands: devices::command::CommandConfig,
    /// `[[rule]]`: names and definitions in the form of the API.
    pub(crate) declared_rules: Vec<(String, Value)>,
    /// `[[connector]]`, `[[sink]]` and `[[source]]`, connectors first.
    pub(crate) declared_connectors: DeclaredObjects,
    /// `[[product]]`: ids and definitions in the form of the API.
    pub(crate) declared_products: product_tables::DeclaredProducts,
    /// `[[chain]]`, `[[group]]`, `[[pull_source]]` and `[[notification]]`.
    pub(crate) declared_others: DeclaredObjects,
    /// The addresses that the node may connect to on behalf of objects.
    pub(crate) targets: outbound::target_policy::TargetPolicy,
    pub(crate) data_dir: PathBuf,
    /// `None`: sessions and messages are in memory only.
    pub(crate) store: Option<store::StoreConfig>,
    /// The server that stores session queues instead of the store's log.
    pub(crate) queue: Option<(offline::QueueBackendKind, offline::QueueBackendOptions)>,
    /// `None`: HTTP is off.
    pub(crate) http: Option<HttpConfig>,
    /// `None`: HTTP is served without TLS.
    pub(crate) http_tls: Option<TlsConfig>,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
    /// The file that was read, if any.
    pub(crate) file: Option<PathBuf>,
    /// Warnings about settings that are valid but probably unintended.
    pub(crate) warnings: Vec<String>,
    /// Every setting with its value and origin, as the API shows it.
    pub(crate) settings: Vec<api::SettingInfo>,
    /// Used to change settings at run time.
    pub(crate) running: RuntimeSettings,
    origins: HashMap<String, ValueOrigin>,
    declared_at: HashMap<(&'static str, String), ValueOrigin>,
}

/// A declared object. Its value may contain secrets.
#[derive(Clone)]
pub(crate) struct Declaration {
    pub(crate) kind: &'static str,
    pub(crate) id: String,
    pub(crate) value: Value,
    pub(crate) origin: ValueOrigin,
}

impl Config {
    /// All declared objects in their stored form.
    pub(crate) fn declared_objects(&self) -> Vec<Declaration> {
        let users = self.broker.users.iter().map(|user| {
            let value = json!({"scram": user.credential});
            (auth::objects::USER, user.username.clone(), value)
        });
        let authenticators = self.auth.authenticator_ids().into_iter();
        let authenticators = authenticators.zip(self.auth.authenticators.iter().cloned());
        let acl_rules = self.auth.rule_ids().into_iter();
        let acl_rules = acl_rules.zip(self.auth.rules.iter().cloned());
        let of = |kind| move |(id, value)| (kind, id, value);
        let objects = users
            .chain(authenticators.map(of(auth::objects::AUTHENTICATOR)))
            .chain(acl_rules.map(of(auth::objects::ACL_RULE)))
            .chain(
                self.declared_rules
                    .iter()
                    .cloned()
                    .map(of(engine::RULE_KIND)),
            )
            .chain((self.declared_products.0.iter().cloned()).map(of(devices::PRODUCT_KIND)))
            .chain(self.declared_connectors.iter().cloned())
            .chain(self.declared_others.iter().cloned());
        let declarations = objects.map(|(kind, id, value)| {
            let user_key = format!("user.{id}");
            let origin = match kind {
                auth::objects::USER => self.origins.get(&user_key),
                _ => self.declared_at.get(&(kind, id.clone())),
            };
            Declaration {
                origin: origin.unwrap_or(&ValueOrigin::Default).clone(),
                kind,
                id,
                value,
            }
        });
        declarations.collect()
    }

    /// The origin of a key's value (`listener.mqtt.bind`).
    pub(crate) fn origin(&self, key: &str) -> &ValueOrigin {
        self.origins.get(key).unwrap_or(&ValueOrigin::Default)
    }
}

/// A setting given by a dedicated flag.
pub(crate) struct FlagValue {
    pub(crate) flag: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: String,
}

/// The sources of the configuration, lowest priority first.
#[derive(Default)]
pub(crate) struct ConfigSources {
    /// A file that must exist.
    pub(crate) file: Option<PathBuf>,
    pub(crate) environment: Vec<(String, String)>,
    /// `KEY=VALUE`
    pub(crate) sets: Vec<String>,
    pub(crate) flags: Vec<FlagValue>,
}

/// Files that are read if they exist and no other file is given.
const DEFAULT_FILES: [&str; 2] = ["tidegate.toml", "/etc/tidegate/tidegate.toml"];

impl ConfigSources {
    /// The environment of this process, and the file given or found in a default place.
    pub(crate) fn from_process(file: Option<PathBuf>) -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let named = std::env::var_os("TIDEGATE_CONFIG").filter(|path| !path.is_empty());
        let usual = || {
            let mut usual = DEFAULT_FILES.into_iter().map(PathBuf::from);
            usual.find(|path| path.is_file())
        };
        Self {
            file: file.or(named.map(PathBuf::from)).or_else(usual),
            environment: std::env::vars_os()
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
            sets: Vec::new(),
            flags: Vec::new(),
        }
    }
}

/// Reads and validates a configuration. Priorities: flags, `--set`, environment, file, defaults.
/// Returns all errors at once.
pub(crate) fn load(sources: &ConfigSources) -> Result<Config, ConfigErrors> {
    let mut draft = config_draft::ConfigDraft::defaults();
    if let Some(path) = &sources.file {
        file::read(path, &mut draft);
    }
    finish_with(draft, sources)
}

fn finish_with(
    mut draft: config_draft::ConfigDraft,
    sources: &ConfigSources,
) -> Result<Config, ConfigErrors> {
    let pairs = sources.environment.iter();
    environment::read_variables(pairs.map(|(name, value)| (&**name, &**value)), &mut draft);
    environment::read_sets(&sources.sets, &mut draft);
    for flag in &sources.flags {
        let raw = setting_kind::RawValue::Untyped(flag.value.clone());
        draft.assign(flag.key, &raw, &ValueOrigin::Flag(flag.flag), Path::new(""));
    }
    let variable = |name: &str| {
        let mut pairs = sources.environment.iter();
        let found = pairs.find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| PathBuf::from(value))
    };
    let home = validation::DefaultDataDirs {
        is_root: rustix::process::geteuid().is_root(),
        xdg_data_home: variable("XDG_DATA_HOME"),
        home: variable("HOME"),
    };
    let (config, draft) = validation::finish(draft, sources.file.clone(), &home);
    let mut problems = draft.errors;
    if problems.is_empty() {
        return Ok(config);
    }
    // Errors of the file in its order, then those of other sources in the order of their
    // assignments.
    problems.sort_by_key(|problem| match problem.origin {
        ValueOrigin::File { line, column, .. } => (line, column),
        ValueOrigin::WholeFile(_) => (0, 0),
        _ => (usize::MAX, 0),
    });
    Err(ConfigErrors(problems))
}
