//! The sources of the configuration: file, environment and flags, and their priority.

use std::path::{Path, PathBuf};

use super::config_draft::ConfigDraft;
use super::config_error::{ConfigErrors, ValueOrigin};
use super::node_config::Config;
use super::{environment, file, setting_kind, validation};

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
    let mut draft = ConfigDraft::defaults();
    if let Some(path) = &sources.file {
        file::read(path, &mut draft);
    }
    finish_with(draft, sources)
}

pub(super) fn finish_with(
    mut draft: ConfigDraft,
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
