//! Results of rows, kept as JSON beside the page and written after each row. An interrupted run can continue, and pages
//! can be generated again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::catalogue::ReportForm;
use super::machine::MachineDescription;

/// Version of the file, raised when a field changes its meaning or goes away.
const FORMAT: u32 = 1;

/// All results of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredResults {
    format: u32,
    pub(super) report: String,
    /// By id of the row.
    pub(super) rows: BTreeMap<String, StoredRow>,
}

/// The result of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredRow {
    /// `short` or `full`.
    pub(super) form: String,
    pub(super) command: String,
    /// Whether the devices were connected in memory, to a node in the same process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_in_memory: bool,
    #[serde(flatten)]
    pub(super) outcome: RowOutcome,
    /// By id of the figure, in its unit.
    #[serde(default)]
    pub(super) values: BTreeMap<String, f64>,
    /// Milliseconds since 1970.
    pub(super) started_ms: u64,
    pub(super) seconds: f64,
    /// Cores that other programs used just before.
    pub(super) other_cores: Option<f64>,
    pub(super) machine: MachineDescription,
}

/// How measuring a row ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(super) enum RowOutcome {
    Measured,
    /// The command failed, or found a fault such as a lost message.
    Failed {
        reason: String,
    },
    /// The machine does not have what the row needs.
    NotMeasured {
        reason: String,
    },
}

impl StoredResults {
    pub(super) fn new(report: &str) -> Self {
        Self {
            format: FORMAT,
            report: report.to_owned(),
            rows: BTreeMap::new(),
        }
    }

    /// Reads a file, which must be of this report.
    pub(super) fn read(path: &Path, report: &str) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let results: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} contains no results of a report", path.display()))?;
        ensure!(
            results.format == FORMAT,
            "{} has format {}, expected {FORMAT}; measure again without it",
            path.display(),
            results.format
        );
        ensure!(
            results.report == report,
            "{} contains the results of report {}, expected {report}",
            path.display(),
            results.report
        );
        Ok(results)
    }

    /// Replaces the file at once, so that an interruption leaves the old or the new one.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        replace_file(path, &text)
    }

    /// Whether a row need not be measured again when a run continues.
    pub(super) fn is_done(&self, row: &str, form: ReportForm, command: &str) -> bool {
        self.rows.get(row).is_some_and(|stored| {
            stored.form == form.name()
                && stored.command == command
                && stored.outcome == RowOutcome::Measured
        })
    }
}

/// Writes a file beside the final one and renames it.
pub(super) fn replace_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    fs::write(&part, text)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
