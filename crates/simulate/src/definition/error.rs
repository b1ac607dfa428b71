//! Errors of a simulation file: where, which field, what is wrong and what to write.

use std::fmt;
use std::path::PathBuf;

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefinitionError {
    /// Such as `fleet.meters.send[0].every`; empty for the file as a whole.
    pub(crate) path: String,
    pub(crate) message: String,
}

impl DefinitionError {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

/// Where a field is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldPosition {
    Line {
        line: usize,
        column: usize,
    },
    /// `--set NAME=VALUE`.
    Argument(String),
    Unknown,
}

/// All errors of one file, with their positions.
#[derive(Clone, Debug)]
pub struct DefinitionErrors {
    pub(crate) file: PathBuf,
    pub(crate) errors: Vec<(FieldPosition, DefinitionError)>,
}

impl fmt::Display for DefinitionErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (position, error)) in self.errors.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            match position {
                FieldPosition::Line { line, column } => {
                    write!(f, "{}:{line}:{column}: ", self.file.display())?;
                }
                FieldPosition::Argument(argument) => write!(f, "--set {argument}: ")?,
                FieldPosition::Unknown => write!(f, "{}: ", self.file.display())?,
            }
            if !error.path.is_empty() {
                write!(f, "{}: ", error.path)?;
            }
            f.write_str(&error.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for DefinitionErrors {}
