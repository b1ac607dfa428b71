//! All campaigns of the node: creates them, lets time pass, and answers which package a campaign installs on a device.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::{NodeName, SHORT_NUMBER_BITS};
use devices::DeviceNo;
use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use serde::Serialize;
use store::{StoreError, Tables};

use super::definition::{CampaignDefinition, MAX_CAMPAIGN_DEVICES};
use super::run::{
    CampaignCounts, CampaignDevice, CampaignDeviceState, CampaignProgress, CampaignRun,
    CampaignStatus,
};
use super::store::{CampaignRecord, CampaignTables};
use crate::device_state::{InstallRecord, InstallState};
use crate::package::FirmwareType;

/// Maximum number of campaigns of a node, and of devices in all of them.
const MAX_CAMPAIGNS: usize = 1000;
const MAX_DEVICES: usize = 1_000_000;

/// A campaign.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CampaignInfo {
    /// Number given by the node.
    pub id: u32,
    /// The node that runs the campaign; only in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(flatten)]
    pub definition: CampaignDefinition,
    pub status: CampaignStatus,
    /// Why the campaign was halted.
    pub reason: Option<String>,
    /// The wave whose devices are notified, from 0; `null`: all devices have ended.
    pub wave: Option<u16>,
    /// Numbers of devices by state.
    pub counts: CampaignCounts,
    pub created_at_ms: u64,
    /// When the status changed.
    pub changed_at_ms: u64,
}

/// A device of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CampaignDeviceRow {
    /// Id of the device.
    pub device: String,
    pub wave: u16,
    pub state: CampaignDeviceState,
    /// How often the device was notified.
    pub attempts: u8,
    /// When the state changed; 0: never.
    pub changed_at_ms: u64,
    /// Why the last attempt failed, or why the device was cancelled.
    pub error: Option<String>,
}

/// What an operator does with a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CampaignAction {
    Pause,
    Resume,
    Cancel,
}

/// Devices that a campaign no longer decides about.
pub(crate) struct FreedDevices {
    pub(crate) kind: FirmwareType,
    pub(crate) devices: Vec<DeviceNo>,
}

/// Why a request about campaigns failed. Texts are sentences without their full stops.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    #[error("there is no campaign {0}")]
    NotFound(u32),
    /// The state of the campaign does not permit it, or a limit is reached.
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Invalid(crate::definition_error::DefinitionError),
    #[error("the store cannot be used now: {0}")]
    Store(#[from] StoreError),
    #[error("the devices cannot be read now: {0}")]
    Registry(#[from] devices::RegistryError),
}

struct Campaign {
    run: CampaignRun,
    kind: FirmwareType,
    created_at_ms: u64,
    is_unsaved: bool,
    /// Whether other nodes of a cluster have to be told of its progress.
    has_changed: bool,
}

impl Campaign {
    fn record(&self) -> CampaignRecord {
        CampaignRecord {
            definition: self.run.definition().clone(),
            kind: self.kind,
            created_at_ms: self.created_at_ms,
            progress: self.run.progress().clone(),
        }
    }

    fn info(&self, id: u32, node: Option<&String>) -> CampaignInfo {
        let progress = self.run.progress();
        CampaignInfo {
            id,
            node: node.cloned(),
            definition: self.run.definition().clone(),
            status: progress.status,
            reason: progress.reason.clone(),
            wave: self.run.wave(),
            counts: self.run.counts(),
            created_at_ms: self.created_at_ms,
            changed_at_ms: progress.changed_at_ms,
        }
    }

    /// The target of a device that the campaign decides.
    fn target(&self, id: u32, device: DeviceNo) -> Option<CampaignTarget> {
        let known = self.run.devices().get(&device)?;
        self.run.is_target_of(device).then(|| CampaignTarget {
            device,
            kind: self.kind,
            campaign: id,
            package: self.run.definition().package.clone(),
            attempt: known.attempts,
            begun_at_ms: self.created_at_ms,
        })
    }
}

#[derive(Default)]
struct CampaignsState {
    campaigns: BTreeMap<u32, Campaign>,
    /// The highest number that was given; 0: none.
    last_number: u32,
    /// Campaigns that have notified a device, the latest last.
    targets: HashMap<(DeviceNo, FirmwareType), Vec<u32>>,
}

/// Numbers of campaigns, and of the devices of those that have not ended.
#[derive(Debug, Default)]
pub(crate) struct CampaignTotals {
    /// In the order of [`CampaignStatus::ALL`].
    pub(crate) by_status: [u32; CampaignStatus::ALL.len()],
    pub(crate) open_devices: CampaignCounts,
}

/// A device that is to be notified of the package of a campaign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CampaignTarget {
    pub(crate) device: DeviceNo,
    pub(crate) kind: FirmwareType,
    pub(crate) campaign: u32,
    pub(crate) package: String,
    /// How often the device was notified, this time included.
    pub(crate) attempt: u8,
    /// When the campaign was created.
    pub(crate) begun_at_ms: u64,
}

pub(crate) struct Campaigns {
    tables: CampaignTables,
    state: Mutex<CampaignsState>,
    /// The name of this node in its cluster.
    node: Option<String>,
    /// The first number that this node gives in a cluster, and the number after the last one.
    numbers: Option<(u32, u32)>,
}

impl CampaignsState {
    fn add_target(&mut self, device: DeviceNo, kind: FirmwareType, campaign: u32) {
        let campaigns = self.targets.entry((device, kind)).or_default();
        if !campaigns.contains(&campaign) {
            campaigns.push(campaign);
            campaigns.sort_unstable();
        }
    }

    fn remove_target(&mut self, device: DeviceNo, kind: FirmwareType, campaign: u32) {
        if let Some(campaigns) = self.targets.get_mut(&(device, kind)) {
            campaigns.retain(|known| *known != campaign);
            if campaigns.is_empty() {
                self.targets.remove(&(device, kind));
            }
        }
    }

    /// The campaign whose notification of the device a record answers.
    fn campaign_of(
        &self,
        device: DeviceNo,
        kind: FirmwareType,
        record: &InstallRecord,
        node: Option<&str>,
    ) -> Option<u32> {
        let Some(node) = node else {
            return self.targets.get(&(device, kind))?.last().copied();
        };
        // In a cluster, what was recorded for another attempt may arrive late.
        let attempt = record.attempt.as_ref().filter(|it| it.node == node)?;
        let campaign = self.campaigns.get(&attempt.campaign)?;
        let known = campaign.run.devices().get(&device)?;
        (known.attempts == attempt.number).then_some(attempt.campaign)
    }

    fn find(&mut self, id: u32) -> Result<&mut Campaign, CampaignError> {
        self.campaigns
            .get_mut(&id)
            .ok_or(CampaignError::NotFound(id))
    }
}

impl Campaigns {
    pub(crate) fn open(
        tables: &Tables,
        node: Option<&NodeName>,
        now_ms: u64,
    ) -> Result<Self, StoreError> {
        let tables = CampaignTables::open(tables)?;
        let mut state = CampaignsState {
            last_number: tables.last_number()?,
            ..CampaignsState::default()
        };
        for (id, record) in tables.load()? {
            let devices = tables.load_devices(id)?;
            let run = CampaignRun::new(record.definition, record.progress, devices, now_ms);
            let notified: Vec<DeviceNo> = run.devices().keys().copied().collect();
            for no in notified.into_iter().filter(|no| run.is_target_of(*no)) {
                state.add_target(no, record.kind, id);
            }
            let campaign = Campaign {
                run,
                kind: record.kind,
                created_at_ms: record.created_at_ms,
                is_unsaved: false,
                has_changed: false,
            };
            state.last_number = state.last_number.max(id);
            state.campaigns.insert(id, campaign);
        }
        Ok(Self {
            tables,
            state: Mutex::new(state),
            node: node.map(NodeName::to_string),
            numbers: node.map(|node| {
                let first = node.first_short_number();
                (first, first.saturating_add(1 << SHORT_NUMBER_BITS))
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, CampaignsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a campaign of these devices, each with its wave.
    pub(crate) fn create(
        &self,
        definition: CampaignDefinition,
        kind: FirmwareType,
        devices: BTreeMap<DeviceNo, CampaignDevice>,
        now_ms: u64,
    ) -> Result<CampaignInfo, CampaignError> {
        if devices.is_empty() {
            let detail = "the product has no device that is selected; register its devices first, or change group and devices";
            return Err(CampaignError::Conflict(detail.to_owned()));
        }
        if devices.len() > MAX_CAMPAIGN_DEVICES {
            let detail = format!(
                "expected 1 to {MAX_CAMPAIGN_DEVICES} devices of the product, not {}",
                devices.len()
            );
            return Err(CampaignError::Conflict(detail));
        }
        let mut state = self.lock();
        let known: usize = state
            .campaigns
            .values()
            .map(|it| it.run.devices().len())
            .sum();
        if state.campaigns.len() >= MAX_CAMPAIGNS || known + devices.len() > MAX_DEVICES {
            let detail = format!(
                "the limit of {MAX_CAMPAIGNS} campaigns with {MAX_DEVICES} devices is reached; delete campaigns that have ended"
            );
            return Err(CampaignError::Conflict(detail));
        }
        let id = self.next_number(state.last_number);
        if state.campaigns.contains_key(&id) {
            let detail =
                "this node has given all its numbers of campaigns; create it at another node";
            return Err(CampaignError::Conflict(detail.to_owned()));
        }
        let progress = CampaignProgress {
            status: CampaignStatus::Running,
            reason: None,
            settled: (0, 0),
            changed_at_ms: now_ms,
        };
        let run = CampaignRun::new(definition, progress, devices, now_ms);
        let campaign = Campaign {
            run,
            kind,
            created_at_ms: now_ms,
            is_unsaved: false,
            has_changed: true,
        };
        self.tables
            .create(id, &campaign.record(), campaign.run.devices())?;
        state.last_number = id;
        let info = campaign.info(id, self.node.as_ref());
        state.campaigns.insert(id, campaign);
        Ok(info)
    }

    /// The number after the last one; in a cluster one that no other node gives.
    fn next_number(&self, last: u32) -> u32 {
        let next = last.saturating_add(1);
        match self.numbers {
            Some((first, end)) if !(first..end).contains(&next) => first,
            _ => next,
        }
    }

    /// The name of this node in its cluster.
    pub(crate) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// All campaigns, and the targets of devices that they decide.
    pub(crate) fn shared(&self) -> (Vec<CampaignInfo>, Vec<CampaignTarget>) {
        let state = self.lock();
        let campaigns = state.campaigns.iter();
        let infos = campaigns.map(|(id, campaign)| campaign.info(*id, self.node.as_ref()));
        let targets = state.campaigns.iter().flat_map(|(id, campaign)| {
            let devices = campaign.run.devices().keys();
            devices.filter_map(|device| campaign.target(*id, *device))
        });
        (infos.collect(), targets.collect())
    }

    /// Those of the targets that their campaigns no longer decide.
    pub(crate) fn obsolete_targets<'t>(
        &self,
        targets: &'t [CampaignTarget],
    ) -> Vec<&'t CampaignTarget> {
        let state = self.lock();
        let is_obsolete = |target: &&CampaignTarget| {
            let campaign = state.campaigns.get(&target.campaign);
            !campaign.is_some_and(|campaign| campaign.run.is_target_of(target.device))
        };
        targets.iter().filter(is_obsolete).collect()
    }

    /// Campaigns that have changed since the last call.
    pub(crate) fn take_changed(&self) -> Vec<CampaignInfo> {
        let mut state = self.lock();
        let campaigns = state.campaigns.iter_mut();
        let changed = campaigns.filter_map(|(id, campaign)| {
            let has_changed = std::mem::take(&mut campaign.has_changed);
            has_changed.then(|| campaign.info(*id, self.node.as_ref()))
        });
        changed.collect()
    }

    pub(crate) fn list(&self, namespaces: &NamespaceSelection) -> Vec<CampaignInfo> {
        let state = self.lock();
        let campaigns = state.campaigns.iter().rev();
        let infos = campaigns.map(|(id, campaign)| campaign.info(*id, self.node.as_ref()));
        infos
            .filter(|info| namespaces.contains(&info.definition.namespace))
            .collect()
    }

    pub(crate) fn get(&self, id: u32) -> Option<CampaignInfo> {
        self.lock()
            .campaigns
            .get(&id)
            .map(|campaign| campaign.info(id, self.node.as_ref()))
    }

    pub(crate) fn totals(&self) -> CampaignTotals {
        let mut totals = CampaignTotals::default();
        for campaign in self.lock().campaigns.values() {
            let status = campaign.run.progress().status;
            totals.by_status[status as usize] += 1;
            if !status.is_final() {
                totals.open_devices.add(campaign.run.counts());
            }
        }
        totals
    }

    /// Up to `limit` devices of a campaign behind a number.
    pub(crate) fn devices(
        &self,
        id: u32,
        from: DeviceNo,
        limit: usize,
    ) -> Result<Vec<(DeviceNo, CampaignDevice)>, CampaignError> {
        let mut state = self.lock();
        let devices = state.find(id)?.run.devices().range(from..);
        let devices = devices.map(|(no, device)| (*no, device.clone()));
        Ok(devices.take(limit).collect())
    }

    /// Writes what has changed. If that fails, everything is written again with the next change.
    fn save(&self, id: u32, campaign: &mut Campaign) -> Result<(), StoreError> {
        let changes = campaign.run.take_changes();
        campaign.has_changed |= changes.progress.is_some() || !changes.devices.is_empty();
        let saved = match campaign.is_unsaved {
            true => self
                .tables
                .replace(id, &campaign.record(), campaign.run.devices()),
            false if changes.progress.is_none() && changes.devices.is_empty() => Ok(()),
            false => self.tables.write(id, &campaign.record(), &changes),
        };
        campaign.is_unsaved = saved.is_err();
        saved
    }

    /// Carries out an action. Returns the campaign, and the devices whose targets may have changed.
    pub(crate) fn act(
        &self,
        id: u32,
        action: CampaignAction,
        now_ms: u64,
    ) -> Result<(CampaignInfo, FreedDevices), CampaignError> {
        let mut state = self.lock();
        let campaign = state.find(id)?;
        let mut open = Vec::new();
        let is_done = match action {
            CampaignAction::Pause => campaign.run.pause(now_ms),
            CampaignAction::Resume => campaign.run.resume(now_ms),
            CampaignAction::Cancel => match campaign.run.cancel(now_ms) {
                Some(devices) => {
                    open = devices;
                    true
                }
                None => false,
            },
        };
        if !is_done {
            let (status, expected) = match action {
                CampaignAction::Pause => (campaign.run.progress().status, "running"),
                CampaignAction::Resume => (campaign.run.progress().status, "paused or halted"),
                CampaignAction::Cancel => (campaign.run.progress().status, "not ended"),
            };
            let detail = format!("the campaign is {status:?}; expected one that is {expected}");
            return Err(CampaignError::Conflict(detail.to_lowercase()));
        }
        self.save(id, campaign)?;
        let (info, kind) = (campaign.info(id, self.node.as_ref()), campaign.kind);
        for no in &open {
            state.remove_target(*no, kind, id);
        }
        let freed = FreedDevices {
            kind,
            devices: open,
        };
        Ok((info, freed))
    }

    /// Deletes a campaign that has ended. Returns it, and the devices whose targets may have changed.
    pub(crate) fn delete(&self, id: u32) -> Result<(CampaignInfo, FreedDevices), CampaignError> {
        let mut state = self.lock();
        let campaign = state.find(id)?;
        if !campaign.run.progress().status.is_final() {
            let detail = "the campaign has not ended; cancel it first";
            return Err(CampaignError::Conflict(detail.to_owned()));
        }
        let (info, kind) = (campaign.info(id, self.node.as_ref()), campaign.kind);
        self.tables.remove(id, campaign.run.devices())?;
        let notified: Vec<DeviceNo> = campaign.run.devices().keys().copied().collect();
        state.campaigns.remove(&id);
        for no in &notified {
            state.remove_target(*no, kind, id);
        }
        let freed = FreedDevices {
            kind,
            devices: notified,
        };
        Ok((info, freed))
    }

    /// Whether a campaign that is not deleted installs this package.
    pub(crate) fn uses_package(&self, package: &str) -> Option<u32> {
        let state = self.lock();
        let mut campaigns = state.campaigns.iter();
        let user = campaigns.find(|(_, campaign)| campaign.run.definition().package == package);
        user.map(|(id, _)| *id)
    }

    /// The package that the latest campaign has assigned to a device, and the campaign.
    pub(crate) fn target(&self, device: DeviceNo, kind: FirmwareType) -> Option<(u32, String)> {
        let state = self.lock();
        let id = *state.targets.get(&(device, kind))?.last()?;
        let campaign = state.campaigns.get(&id)?;
        Some((id, campaign.run.definition().package.clone()))
    }

    /// Devices that were notified and have no result, as far as campaigns know.
    pub(crate) fn started(&self) -> Vec<(DeviceNo, FirmwareType)> {
        let state = self.lock();
        let campaigns = state.campaigns.values();
        let devices = campaigns.flat_map(|campaign| {
            let devices = campaign.run.devices().iter();
            let started = devices.filter(|(_, it)| it.state == CampaignDeviceState::Started);
            started.map(|(no, _)| (*no, campaign.kind))
        });
        devices.collect()
    }

    /// Takes what a device has reported.
    pub(crate) fn record(
        &self,
        device: DeviceNo,
        kind: FirmwareType,
        record: &InstallRecord,
        now_ms: u64,
    ) {
        let result = match record.state {
            InstallState::Updated => Ok(()),
            InstallState::Failed => Err(record.error.clone().unwrap_or_default()),
            _ => return,
        };
        let mut state = self.lock();
        let Some(id) = state.campaign_of(device, kind, record, self.node.as_deref()) else {
            return;
        };
        let Some(campaign) = state.campaigns.get_mut(&id) else {
            return;
        };
        if record.package.as_ref() == Some(&campaign.run.definition().package) {
            campaign.run.record_result(device, result, now_ms);
        }
    }

    /// A device was deleted. Campaigns write it when time passes.
    pub(crate) fn device_deleted(&self, device: DeviceNo, id: Option<&str>, now_ms: u64) {
        let mut state = self.lock();
        let state = &mut *state;
        let mut kinds = Vec::new();
        for (campaign_id, campaign) in &mut state.campaigns {
            if campaign.run.device_deleted(device, id, now_ms) {
                kinds.push((campaign.kind, *campaign_id));
            }
        }
        for (kind, campaign_id) in kinds {
            state.remove_target(device, kind, campaign_id);
        }
    }

    /// Lets time pass. Returns the devices to be notified; what they depend on is stored before.
    pub(crate) fn advance(&self, now_ms: u64) -> Vec<CampaignTarget> {
        let mut state = self.lock();
        let state = &mut *state;
        let mut starts = Vec::new();
        for (id, campaign) in &mut state.campaigns {
            let started = campaign.run.advance(now_ms);
            if let Err(error) = self.save(*id, campaign) {
                tracing::error!(campaign = id, %error, "storing the progress of a campaign failed; retrying");
            }
            let started = started.into_iter();
            starts.extend(started.filter_map(|device| campaign.target(*id, device)));
        }
        for start in &starts {
            state.add_target(start.device, start.kind, start.campaign);
        }
        starts
    }
}

/// Assigns waves to devices. `group_of` is the first wave of a group that contains the device.
pub(crate) fn assign_waves(
    definition: &CampaignDefinition,
    all: &[Arc<devices::Device>],
    group_wave: impl Fn(&devices::Device) -> Option<u16>,
) -> BTreeMap<DeviceNo, CampaignDevice> {
    let mut assigned = BTreeMap::new();
    let mut others = Vec::new();
    for device in all {
        match group_wave(device) {
            Some(wave) => _ = assigned.insert(device.no, CampaignDevice::waiting(wave)),
            None => others.push(device.no),
        }
    }
    // Devices that were registered together are not in one wave.
    others.sort_by_key(|no| crc32fast::hash(&no.0.to_be_bytes()));
    let mut others = others.into_iter();
    for (wave, part) in definition.waves.iter().enumerate() {
        let percent = usize::from(part.percent.unwrap_or(0));
        let count = (all.len() * percent).div_ceil(100);
        let devices = others.by_ref().take(count);
        assigned.extend(devices.map(|no| (no, CampaignDevice::waiting(wave as u16))));
    }
    let last = definition.waves.len() as u16;
    assigned.extend(others.map(|no| (no, CampaignDevice::waiting(last))));
    assigned
}
