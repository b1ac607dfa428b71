//! Inspection of a directory. A start rejects damage, a check lists it, a repair lists it and continues
//! without the damaged data.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{SeriesError, SeriesOpenError, io_error};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InspectionMode {
    /// The first damage is an error; nothing has been changed by then.
    Start,
    /// Changes nothing.
    Check,
    /// Keeps damaged files beside the repaired ones.
    Repair,
}

pub(crate) struct Inspection {
    pub(crate) mode: InspectionMode,
    /// Damage, with the data that is lost.
    pub(crate) problems: Vec<String>,
    /// Copies of damaged files.
    pub(crate) damaged_copies: Vec<PathBuf>,
}

impl Inspection {
    pub(crate) fn new(mode: InspectionMode) -> Self {
        Self {
            mode,
            problems: Vec::new(),
            damaged_copies: Vec::new(),
        }
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.mode != InspectionMode::Check
    }

    pub(crate) fn is_repairing(&self) -> bool {
        self.mode == InspectionMode::Repair
    }

    /// Records damage; at a start, returns it as an error.
    pub(crate) fn report_damage(
        &mut self,
        path: &Path,
        offset: u64,
        detail: impl Into<String>,
    ) -> Result<(), SeriesOpenError> {
        let detail = detail.into();
        if self.mode == InspectionMode::Start {
            return Err(SeriesOpenError::Damaged {
                path: path.to_owned(),
                offset,
                detail,
            });
        }
        let problem = format!("{} at byte {offset}: {detail}", path.display());
        self.problems.push(problem);
        self.copy_damaged_file(path)?;
        Ok(())
    }

    /// Records an error that reports damage; returns any other error.
    pub(crate) fn report_open_error(
        &mut self,
        error: SeriesOpenError,
    ) -> Result<(), SeriesOpenError> {
        match error {
            SeriesOpenError::Damaged {
                path,
                offset,
                detail,
            } => self.report_damage(&path, offset, detail),
            SeriesOpenError::Other(SeriesError::Damaged {
                path,
                offset,
                detail,
            }) => self.report_damage(&path, offset, detail),
            other => Err(other),
        }
    }

    /// Copies a damaged file before it is changed.
    fn copy_damaged_file(&mut self, path: &Path) -> Result<(), SeriesError> {
        if !self.is_repairing() || !path.is_file() {
            return Ok(());
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".damaged");
        let copy = PathBuf::from(name);
        if !self.damaged_copies.contains(&copy) {
            fs::copy(path, &copy).map_err(io_error("copy", path))?;
            self.damaged_copies.push(copy);
        }
        Ok(())
    }
}
