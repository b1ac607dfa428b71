//! Ids and contents of the records that nodes of a cluster exchange about firmware.

use serde::{Deserialize, Serialize};

use crate::campaign::{CampaignCounts, CampaignDefinition, CampaignInfo, CampaignStatus};
use crate::device_state::InstallRecord;
use crate::package::FirmwareType;

/// What a record is about. Its id is the letter of the variant and the fields, with NUL between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordName<'a> {
    /// How far a device is.
    Install { device: &'a str, kind: FirmwareType },
    /// The package that a campaign of a node installs on a device.
    Target {
        device: &'a str,
        kind: FirmwareType,
        campaign: u32,
        node: &'a str,
    },
    /// A campaign of a node.
    Campaign { campaign: u32, node: &'a str },
}

pub(crate) const INSTALL: char = 'i';
pub(crate) const TARGET: char = 't';
const CAMPAIGN: char = 'c';

fn letter(kind: FirmwareType) -> &'static str {
    &kind.prefix()[..1]
}

fn kind_of(letter: &str) -> Option<FirmwareType> {
    let mut kinds = FirmwareType::ALL.into_iter();
    kinds.find(|kind| self::letter(*kind) == letter)
}

impl<'a> RecordName<'a> {
    pub(crate) fn id(self) -> String {
        match self {
            Self::Install { device, kind } => format!("{INSTALL}{device}\0{}", letter(kind)),
            Self::Target {
                device,
                kind,
                campaign,
                node,
            } => format!("{TARGET}{device}\0{}\0{campaign}\0{node}", letter(kind)),
            Self::Campaign { campaign, node } => format!("{CAMPAIGN}{campaign}\0{node}"),
        }
    }

    pub(crate) fn parse(id: &'a str) -> Option<Self> {
        let mut letters = id.chars();
        let first = letters.next()?;
        let mut fields = letters.as_str().split('\0');
        let name = match first {
            INSTALL => Self::Install {
                device: fields.next()?,
                kind: kind_of(fields.next()?)?,
            },
            TARGET => Self::Target {
                device: fields.next()?,
                kind: kind_of(fields.next()?)?,
                campaign: fields.next()?.parse().ok()?,
                node: fields.next()?,
            },
            CAMPAIGN => Self::Campaign {
                campaign: fields.next()?.parse().ok()?,
                node: fields.next()?,
            },
            _ => return None,
        };
        fields.next().is_none().then_some(name)
    }
}

/// The beginning of the ids of all records of one kind about a device.
pub(crate) fn ids_of_device(letter: char, device: &str) -> String {
    format!("{letter}{device}\0")
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InstallContent {
    /// When the device was created: a later one with the same id is another device.
    pub(crate) created_ms: u64,
    pub(crate) record: InstallRecord,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TargetContent {
    pub(crate) created_ms: u64,
    pub(crate) package: String,
    /// How often the campaign has notified the device; a device is notified again when it grows.
    pub(crate) attempt: u8,
    /// When the campaign began: of several campaigns, the latest one decides.
    pub(crate) begun_at_ms: u64,
}

/// A campaign without the ids of its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CampaignContent {
    definition: CampaignDefinition,
    status: CampaignStatus,
    reason: Option<String>,
    wave: Option<u16>,
    counts: CampaignCounts,
    created_at_ms: u64,
    changed_at_ms: u64,
}

impl CampaignContent {
    pub(crate) fn new(info: CampaignInfo) -> Self {
        Self {
            definition: CampaignDefinition {
                // Up to 10,000 ids, which only those need who ask the node of the campaign.
                devices: Vec::new(),
                ..info.definition
            },
            status: info.status,
            reason: info.reason,
            wave: info.wave,
            counts: info.counts,
            created_at_ms: info.created_at_ms,
            changed_at_ms: info.changed_at_ms,
        }
    }

    pub(crate) fn info(&self, id: u32, node: &str) -> CampaignInfo {
        CampaignInfo {
            id,
            node: Some(node.to_owned()),
            definition: self.definition.clone(),
            status: self.status,
            reason: self.reason.clone(),
            wave: self.wave,
            counts: self.counts,
            created_at_ms: self.created_at_ms,
            changed_at_ms: self.changed_at_ms,
        }
    }

    pub(crate) fn package(&self) -> &str {
        &self.definition.package
    }
}

pub(crate) fn encode<T: Serialize>(content: &T) -> Vec<u8> {
    serde_json::to_vec(content).expect("contents of records are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let kind = FirmwareType::Software;
        let target = RecordName::Target {
            device: "a/b c",
            kind,
            campaign: 7,
            node: "node-1",
        };
        let install = RecordName::Install { device: "d", kind };
        let campaign = RecordName::Campaign {
            campaign: u32::MAX,
            node: "n",
        };
        for name in [target, install, campaign] {
            assert_eq!(RecordName::parse(&name.id()), Some(name));
        }
        assert!(install.id().starts_with(&ids_of_device(INSTALL, "d")));
        for invalid in [
            "",
            "i",
            "id",
            "id\0x",
            "id\0f\0",
            "td\0f\0x\0n",
            "c1",
            "x1\0n",
        ] {
            assert_eq!(RecordName::parse(invalid), None, "{invalid:?}");
        }
    }
}
