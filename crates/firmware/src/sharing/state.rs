//! What of the shared records is in memory, and what follows from a record of another node.

use std::collections::{BTreeMap, HashMap};

use devices::{Device, DeviceNo};

use super::names::{CampaignContent, InstallContent, RecordName, TargetContent};
use crate::device_state::{InstallAttempt, InstallRecord};
use crate::package::FirmwareType;

/// A package that a campaign of any node installs on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedTarget {
    pub(crate) package: String,
    pub(crate) attempt: InstallAttempt,
    pub(super) begun_at_ms: u64,
}

/// What is in memory of the records.
#[derive(Default)]
pub(super) struct SharingState {
    pub(super) targets: HashMap<(DeviceNo, FirmwareType), Vec<SharedTarget>>,
    pub(super) campaigns: BTreeMap<(u32, String), CampaignContent>,
}

impl SharingState {
    pub(super) fn set_target(
        &mut self,
        device: DeviceNo,
        kind: FirmwareType,
        target: SharedTarget,
    ) {
        let targets = self.targets.entry((device, kind)).or_default();
        targets.retain(|known| !known.attempt.is_same_campaign(&target.attempt));
        targets.push(target);
        targets.sort_by_key(|target| (target.begun_at_ms, target.attempt.campaign));
    }

    pub(super) fn remove_target(
        &mut self,
        device: DeviceNo,
        kind: FirmwareType,
        attempt: &InstallAttempt,
    ) {
        if let Some(targets) = self.targets.get_mut(&(device, kind)) {
            targets.retain(|known| !known.attempt.is_same_campaign(attempt));
            if targets.is_empty() {
                self.targets.remove(&(device, kind));
            }
        }
    }
}

/// What follows from a record of another node.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect {
    Install(DeviceNo, FirmwareType, Box<InstallRecord>),
    /// The target of a device has changed.
    Target(DeviceNo),
}

/// The record in a content, if it is about this device and not about another one with its id.
pub(super) fn install_of(content: &[u8], device: &Device) -> Option<InstallRecord> {
    let content: InstallContent = serde_json::from_slice(content).ok()?;
    (content.created_ms == device.created_ms).then_some(content.record)
}

pub(super) fn target_of(
    content: &[u8],
    device: &Device,
    (campaign, node): (u32, &str),
) -> Option<SharedTarget> {
    let content: TargetContent = serde_json::from_slice(content).ok()?;
    (content.created_ms == device.created_ms).then(|| SharedTarget {
        package: content.package,
        attempt: InstallAttempt {
            campaign,
            node: node.to_owned(),
            number: content.attempt,
        },
        begun_at_ms: content.begun_at_ms,
    })
}

/// Applies a record of another node to what is in memory.
pub(super) fn apply_to(
    state: &mut SharingState,
    name: RecordName<'_>,
    content: Option<&[u8]>,
    device: Option<&Device>,
) -> Option<Effect> {
    match name {
        RecordName::Install { kind, .. } => {
            let device = device?;
            let record = install_of(content?, device)?;
            Some(Effect::Install(device.no, kind, Box::new(record)))
        }
        RecordName::Target {
            kind,
            campaign,
            node,
            ..
        } => {
            let device = device?;
            match content {
                Some(content) => {
                    let target = target_of(content, device, (campaign, node))?;
                    state.set_target(device.no, kind, target);
                }
                None => {
                    let attempt = InstallAttempt {
                        campaign,
                        node: node.to_owned(),
                        number: 0,
                    };
                    state.remove_target(device.no, kind, &attempt);
                }
            }
            Some(Effect::Target(device.no))
        }
        RecordName::Campaign { campaign, node } => {
            let name = (campaign, node.to_owned());
            match content.and_then(|content| serde_json::from_slice(content).ok()) {
                Some(content) => _ = state.campaigns.insert(name, content),
                None => _ = state.campaigns.remove(&name),
            }
            None
        }
    }
}
