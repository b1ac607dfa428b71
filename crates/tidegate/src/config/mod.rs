//! The configuration: one [table] of settings, read from a file, the environment and flags, checked as a
//! whole, explained by a reference that comes from the same table.

mod auth_tables;
mod connector_tables;
mod draft;
mod environment;
mod explain;
mod file;
mod finish;
mod nearest;
mod object_tables;
mod problem;
mod product_tables;
mod reference;
mod rule_tables;
mod running;
mod setting;
mod shown;
mod size;
mod table;
#[cfg(test)]
mod tests;
mod tls_files;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use api::HttpConfig;
use broker::config::{BrokerConfig, TlsConfig};

use crate::logging::LogFormat;
pub(crate) use explain::{UnknownSetting, explain};
pub(crate) use nearest::nearest;
pub(crate) use object_tables::DeclaredObjects;
pub(crate) use problem::{Origin, Problems};
pub(crate) use reference::{markdown, toml_template};
pub(crate) use running::Running;

/// Everything a node needs to know to start.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) broker: BrokerConfig,
    pub(crate) auth: auth::Settings,
    pub(crate) rules: engine::Settings,
    pub(crate) devices: devices::Config,
    pub(crate) telemetry: crate::serve::ingest::Settings,
    pub(crate) alarms: crate::serve::alarms::Settings,
    pub(crate) commands: devices::command::CommandConfig,
    /// `[[rule]]`: names and what the API would take.
    pub(crate) declared_rules: Vec<(String, serde_json::Value)>,
    /// `[[connector]]`, `[[sink]]` and `[[source]]`, connectors first.
    pub(crate) declared_connectors: DeclaredObjects,
    /// `[[product]]`: ids and what the API would take.
    pub(crate) declared_products: product_tables::Declared,
    /// `[[chain]]`, `[[group]]`, `[[pull_source]]` and `[[notification]]`.
    pub(crate) declared_others: DeclaredObjects,
    /// Which addresses objects may lead the node to.
    pub(crate) targets: outbound::targets::TargetPolicy,
    pub(crate) data_dir: PathBuf,
    /// `None`: everything is in memory only.
    pub(crate) store: Option<store::Config>,
    /// A server that keeps queued messages in place of the store's log.
    pub(crate) queue: Option<(offline::Kind, offline::Options)>,
    /// `None`: HTTP is off.
    pub(crate) http: Option<HttpConfig>,
    /// `None`: HTTP is not encrypted.
    pub(crate) http_tls: Option<TlsConfig>,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
    /// The file that was read, if any.
    pub(crate) file: Option<PathBuf>,
    /// What is allowed but probably not meant.
    pub(crate) warnings: Vec<String>,
    /// Every setting with its value and where that comes from, as the API shows it.
    pub(crate) settings: Vec<api::SettingInfo>,
    /// For changing them while the node runs.
    pub(crate) running: Running,
    origins: HashMap<String, Origin>,
}

impl Config {
    /// All objects that stand in it: kind, name and what they say, credentials of users left out.
    pub(crate) fn declared_objects(&self) -> Vec<(&'static str, String, serde_json::Value)> {
        let of = |kind, objects: &[(String, serde_json::Value)]| {
            let objects = objects.iter().cloned();
            objects
                .map(move |(name, value)| (kind, name, value))
                .collect::<Vec<_>>()
        };
        let users = self.broker.users.iter();
        let users = users.map(|user| {
            let name = user.username.clone();
            (auth::objects::USER, name, serde_json::Value::Null)
        });
        [
            users.collect(),
            of(engine::KIND, &self.declared_rules),
            of(devices::PRODUCT_KIND, &self.declared_products.0),
            self.declared_connectors.to_vec(),
            self.declared_others.to_vec(),
        ]
        .concat()
    }

    /// Who said what a key (`listener.mqtt.bind`) is.
    pub(crate) fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }
}

/// A value a flag of its own gives to a setting.
pub(crate) struct Flag {
    pub(crate) flag: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: String,
}

/// What was said and where, weakest first.
#[derive(Default)]
pub(crate) struct Sources {
    /// A file that must be there.
    pub(crate) file: Option<PathBuf>,
    pub(crate) environment: Vec<(String, String)>,
    /// `KEY=VALUE`
    pub(crate) sets: Vec<String>,
    pub(crate) flags: Vec<Flag>,
}

/// Files that are read if they are there and no other is named.
const USUAL_FILES: [&str; 2] = ["tidegate.toml", "/etc/tidegate/tidegate.toml"];

impl Sources {
    /// The environment of this process and the file it names or that lies in a usual place.
    pub(crate) fn of_process(file: Option<PathBuf>) -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let named = std::env::var_os("TIDEGATE_CONFIG").filter(|path| !path.is_empty());
        let usual = || {
            let mut usual = USUAL_FILES.into_iter().map(PathBuf::from);
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

/// Reads and checks a configuration. Flags win over `--set`, that over the environment, that over the file,
/// that over the defaults. Every problem there is comes back at once.
pub(crate) fn load(sources: &Sources) -> Result<Config, Problems> {
    let mut draft = draft::Draft::defaults();
    if let Some(path) = &sources.file {
        file::read(path, &mut draft);
    }
    finish_with(draft, sources)
}

fn finish_with(mut draft: draft::Draft, sources: &Sources) -> Result<Config, Problems> {
    let pairs = sources.environment.iter();
    environment::read_variables(pairs.map(|(name, value)| (&**name, &**value)), &mut draft);
    environment::read_sets(&sources.sets, &mut draft);
    for flag in &sources.flags {
        let raw = setting::Raw::Untyped(flag.value.clone());
        draft.assign(flag.key, &raw, &Origin::Flag(flag.flag), Path::new(""));
    }
    let variable = |name: &str| {
        let mut pairs = sources.environment.iter();
        let found = pairs.find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| PathBuf::from(value))
    };
    let home = finish::DataHome {
        is_root: rustix::process::geteuid().is_root(),
        xdg_data_home: variable("XDG_DATA_HOME"),
        home: variable("HOME"),
    };
    let (config, draft) = finish::finish(draft, sources.file.clone(), &home);
    let mut problems = draft.problems;
    if problems.is_empty() {
        return Ok(config);
    }
    // In the order of the file; what other sources say stays behind it, in the order it was said.
    problems.sort_by_key(|problem| match problem.origin {
        Origin::File { line, column, .. } => (line, column),
        Origin::WholeFile(_) => (0, 0),
        _ => (usize::MAX, 0),
    });
    Err(Problems(problems))
}
