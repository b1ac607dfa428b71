//! Configuration errors and their places.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueOrigin {
    /// The default value.
    Default,
    /// A place in a file; line and column count from 1.
    File {
        path: Arc<PathBuf>,
        line: usize,
        column: usize,
    },
    /// A file as a whole.
    WholeFile(Arc<PathBuf>),
    /// The name of an environment variable.
    Environment(String),
    /// `--set`, with its key.
    Set(String),
    /// A dedicated flag, such as `--mqtt`.
    Flag(&'static str),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("configuration"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::WholeFile(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Set(key) => write!(f, "--set {key}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

impl ValueOrigin {
    /// The part of the configuration, as named by the API.
    pub(crate) fn part(&self) -> &'static str {
        match self {
            Self::Default | Self::File { .. } | Self::WholeFile(_) => "file",
            Self::Environment(_) => "environment",
            Self::Set(_) | Self::Flag(_) => "command_line",
        }
    }

    /// The place as a line of a file, without the column.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::File { path, line, .. } => format!("{}:{line}", path.display()),
            other => other.to_string(),
        }
    }
}

/// One configuration error. Never contains the value of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigError {
    pub(crate) origin: ValueOrigin,
    /// The full dotted key; empty if the error is not about a key.
    pub(crate) key: String,
    /// What is wrong and what was expected.
    pub(crate) message: String,
}

impl ConfigError {
    pub(crate) fn new(
        origin: ValueOrigin,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            origin,
            key: key.into(),
            message: rules::with_suggestion(&message.into()),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        let is_named_by_origin = matches!(&self.origin, ValueOrigin::Set(key) if *key == self.key);
        if !self.key.is_empty() && !is_named_by_origin {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// All configuration errors.
#[derive(Debug)]
pub(crate) struct ConfigErrors(pub(crate) Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => writeln!(f, "the configuration has a problem")?,
            n => writeln!(f, "the configuration has {n} problems")?,
        }
        for problem in &self.0 {
            writeln!(f, "  {problem}")?;
        }
        f.write_str("`tidegate config reference` lists every key with its values and its default.")
    }
}

impl std::error::Error for ConfigErrors {}
