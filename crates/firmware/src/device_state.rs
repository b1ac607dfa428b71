//! How far a device is with the installation of its target, and what it reports about that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::package::FirmwarePackage;

const MAX_TEXT_CHARS: usize = 255;
/// Reported properties that are longer as JSON are ignored.
const MAX_PROPERTIES_BYTES: usize = 8192;

/// State of an installation, in the order in which devices pass through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstallState {
    /// The device has not been notified yet.
    Queued,
    /// The device was notified, or is notified when it connects.
    Initiated,
    Downloading,
    Downloaded,
    Verified,
    Updating,
    /// The device runs the target.
    Updated,
    Failed,
}

impl InstallState {
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Initiated,
        Self::Downloading,
        Self::Downloaded,
        Self::Verified,
        Self::Updating,
        Self::Updated,
        Self::Failed,
    ];
    /// Those that devices report.
    pub(crate) const REPORTED: &[Self] = Self::ALL.split_at(2).1;

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Initiated => "initiated",
            Self::Downloading => "downloading",
            Self::Downloaded => "downloaded",
            Self::Verified => "verified",
            Self::Updating => "updating",
            Self::Updated => "updated",
            Self::Failed => "failed",
        }
    }

    /// A state as ThingsBoard's devices report it; `None`: they do not report it, or it is none.
    fn reported(name: &str) -> Option<Self> {
        let mut states = Self::REPORTED.iter().copied();
        states.find(|state| state.name().eq_ignore_ascii_case(name))
    }

    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Updated | Self::Failed)
    }
}

/// A notification of a device by a campaign. Only nodes of a cluster record it, where another node may have the campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstallAttempt {
    pub campaign: u32,
    /// The node of the campaign.
    pub node: String,
    /// How often the campaign had notified the device.
    pub number: u8,
}

impl InstallAttempt {
    pub(crate) fn is_same_campaign(&self, other: &Self) -> bool {
        (self.campaign, &self.node) == (other.campaign, &other.node)
    }
}

/// What a device is to install, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstallRecord {
    /// Id of the package; `null`: nothing is assigned.
    pub package: Option<String>,
    /// Title and version of the package.
    pub title: String,
    pub version: String,
    /// Digest that was sent to the device.
    pub digest: String,
    pub state: InstallState,
    /// Percentage of the download.
    pub progress: Option<u8>,
    /// Why the installation failed.
    pub error: Option<String>,
    /// What the device runs, as it has reported.
    pub current_title: Option<String>,
    pub current_version: Option<String>,
    /// Properties of the firmware that the device runs, as it has reported.
    #[serde(default)]
    pub current_properties: Map<String, Value>,
    /// When the state changed, in milliseconds since 1970.
    pub updated_at_ms: u64,
    /// Of a campaign, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<InstallAttempt>,
}

/// What a device reports about an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallReport {
    pub state: Option<String>,
    pub progress: Option<u8>,
    pub error: Option<String>,
    pub current_title: Option<String>,
    pub current_version: Option<String>,
    /// Properties of the firmware that the device runs.
    pub properties: Option<Map<String, Value>>,
}

impl InstallReport {
    /// Adds a later report.
    pub(crate) fn merge(&mut self, later: Self) {
        let merge = |known: &mut Option<String>, later: Option<String>| {
            if later.is_some() {
                *known = later;
            }
        };
        merge(&mut self.state, later.state);
        merge(&mut self.error, later.error);
        merge(&mut self.current_title, later.current_title);
        merge(&mut self.current_version, later.current_version);
        self.progress = later.progress.or(self.progress);
        if later.properties.is_some() {
            self.properties = later.properties;
        }
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}

impl InstallRecord {
    /// The record of a device that has not been notified of its target.
    pub(crate) fn new(
        package: &FirmwarePackage,
        attempt: Option<InstallAttempt>,
        before: Option<&Self>,
        now_ms: u64,
    ) -> Self {
        let mut record = Self {
            package: Some(package.id.clone()),
            title: package.title.clone(),
            version: package.version.clone(),
            digest: package.digest.clone(),
            state: InstallState::Queued,
            progress: None,
            error: None,
            current_title: before.and_then(|before| before.current_title.clone()),
            current_version: before.and_then(|before| before.current_version.clone()),
            current_properties: before
                .map(|before| before.current_properties.clone())
                .unwrap_or_default(),
            updated_at_ms: now_ms,
            attempt,
        };
        if record.runs_target() {
            record.state = InstallState::Updated;
        }
        record
    }

    /// Whether the device has reported title and version of the target.
    fn runs_target(&self) -> bool {
        self.current_version.as_deref() == Some(&self.version)
            && (self.current_title.as_deref()).is_none_or(|title| title == self.title)
    }

    /// Applies what the device reports; false: nothing changed.
    pub(crate) fn apply(&mut self, report: &InstallReport, now_ms: u64) -> bool {
        let before = self.clone();
        if let Some(title) = &report.current_title {
            self.current_title = Some(bounded(title));
        }
        if let Some(version) = &report.current_version {
            self.current_version = Some(bounded(version));
        }
        if let Some(properties) = &report.properties
            && Value::Object(properties.clone()).to_string().len() <= MAX_PROPERTIES_BYTES
        {
            self.current_properties = properties.clone();
        }
        let state = report.state.as_deref().and_then(InstallState::reported);
        let reports_other = report.current_version.is_some() && !self.runs_target();
        match state {
            Some(InstallState::Updated) if reports_other => {
                self.state = InstallState::Failed;
                let version = self.current_version.as_deref().unwrap_or_default();
                self.error = Some(format!(
                    "the device reports the version {version:?} after the update"
                ));
            }
            // Reports in quick succession are applied as one; a device restarts after this state, and then reports its version.
            Some(InstallState::Updating)
                if report.current_version.is_some() && self.runs_target() =>
            {
                self.state = InstallState::Updated;
                self.error = None;
            }
            Some(state) => {
                self.state = state;
                self.error = match state {
                    InstallState::Failed => {
                        Some(bounded(report.error.as_deref().unwrap_or("unknown")))
                    }
                    _ => None,
                };
            }
            // A device that has restarted reports only what it runs.
            None if report.current_version.is_some() && self.runs_target() => {
                self.state = InstallState::Updated;
                self.error = None;
            }
            None => {}
        }
        if let Some(progress) = report.progress {
            self.progress = Some(progress.min(100));
        }
        if self.state != before.state && self.state != InstallState::Downloading {
            self.progress = None;
        }
        let has_changed = *self != before;
        if has_changed {
            self.updated_at_ms = now_ms;
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::DigestAlgorithm;
    use crate::package::FirmwareType;

    fn record() -> InstallRecord {
        let package = FirmwarePackage {
            id: "p".to_owned(),
            title: "pump".to_owned(),
            version: "2".to_owned(),
            product: "pump".to_owned(),
            kind: FirmwareType::Firmware,
            namespace: "default".to_owned(),
            file: "f".to_owned(),
            size: 1,
            sha256: None,
            digest_algorithm: DigestAlgorithm::Sha256,
            digest: "00".to_owned(),
            tag: "pump 2".to_owned(),
            url: None,
            parameters: Map::new(),
        };
        InstallRecord::new(&package, None, None, 1)
    }

    fn report(state: &str, version: &str) -> InstallReport {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        InstallReport {
            state: text(state),
            current_version: text(version),
            current_title: text(version).map(|_| "pump".to_owned()),
            ..InstallReport::default()
        }
    }

    /// A report of the state, and then one of the version.
    fn merged_report(state: &str, version: &str) -> InstallReport {
        let mut merged = report(state, "");
        merged.merge(report("", version));
        merged
    }

    #[test]
    fn reports_change_the_state() {
        let mut record = record();
        for (reported, expected) in [
            (report("DOWNLOADING", ""), InstallState::Downloading),
            (report("VERIFIED", ""), InstallState::Verified),
            (report("nonsense", "1"), InstallState::Verified),
            (report("QUEUED", ""), InstallState::Verified),
            (report("UPDATING", "1"), InstallState::Updating),
            (report("UPDATED", "1"), InstallState::Failed),
            (report("", "2"), InstallState::Updated),
            (report("UPDATING", ""), InstallState::Updating),
            (merged_report("UPDATING", "2"), InstallState::Updated),
            (report("FAILED", ""), InstallState::Failed),
        ] {
            record.apply(&reported, 2);
            assert_eq!(record.state, expected, "{reported:?}");
        }
        assert_eq!(record.error.as_deref(), Some("unknown"));
        assert!(!record.apply(&report("FAILED", ""), 3) && record.updated_at_ms == 2);
    }

    #[test]
    fn reported_properties_are_kept_within_their_limit() {
        let mut record = record();
        let properties = |text: String| InstallReport {
            properties: Some(Map::from_iter([("chip".to_owned(), text.into())])),
            ..report("", "1")
        };
        assert!(record.apply(&properties("a7".to_owned()), 2));
        // A report without properties does not remove them.
        record.apply(&report("", "1"), 3);
        assert!(!record.apply(&properties("x".repeat(MAX_PROPERTIES_BYTES)), 4));
        assert_eq!(record.current_properties["chip"], "a7");
        let mut merged = properties("b".to_owned());
        merged.merge(report("", "2"));
        assert!(record.apply(&merged, 5));
        assert_eq!(record.current_properties["chip"], "b");
    }
}
