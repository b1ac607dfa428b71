//! Looking at a directory: for a start, which refuses what is damaged; for a check, which lists it; for a repair, which lists it
//! and goes on without it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, OpenError, io_error};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The first damage is an error, and nothing was changed then.
    Start,
    /// Nothing is changed.
    Check,
    /// Damaged files are kept beside the repaired ones.
    Repair,
}

pub(crate) struct Inspection {
    pub(crate) mode: Mode,
    /// What is damaged, with what is lost.
    pub(crate) problems: Vec<String>,
    /// Copies of damaged files.
    pub(crate) kept: Vec<PathBuf>,
}

impl Inspection {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            problems: Vec::new(),
            kept: Vec::new(),
        }
    }

    pub(crate) fn writes(&self) -> bool {
        self.mode != Mode::Check
    }

    pub(crate) fn repairs(&self) -> bool {
        self.mode == Mode::Repair
    }

    /// Takes damage down, or ends a start with it.
    pub(crate) fn damaged(
        &mut self,
        path: &Path,
        offset: u64,
        detail: impl Into<String>,
    ) -> Result<(), OpenError> {
        let detail = detail.into();
        if self.mode == Mode::Start {
            return Err(OpenError::Damaged {
                path: path.to_owned(),
                offset,
                detail,
            });
        }
        let problem = format!("{} at byte {offset}: {detail}", path.display());
        self.problems.push(problem);
        self.keep(path)?;
        Ok(())
    }

    /// Takes an error down that is damage, or ends with it.
    pub(crate) fn take(&mut self, error: OpenError) -> Result<(), OpenError> {
        match error {
            OpenError::Damaged {
                path,
                offset,
                detail,
            } => self.damaged(&path, offset, detail),
            OpenError::Other(Error::Damaged {
                path,
                offset,
                detail,
            }) => self.damaged(&path, offset, detail),
            other => Err(other),
        }
    }

    /// Copies a damaged file before it is changed.
    fn keep(&mut self, path: &Path) -> Result<(), Error> {
        if !self.repairs() || !path.is_file() {
            return Ok(());
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".damaged");
        let copy = PathBuf::from(name);
        if !self.kept.contains(&copy) {
            fs::copy(path, &copy).map_err(io_error("keep a copy of", path))?;
            self.kept.push(copy);
        }
        Ok(())
    }
}
