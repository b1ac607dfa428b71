//! What devices install, and the campaigns that decide it, as records that all nodes of a cluster have.
//!
//! There are records of three kinds, see [`RecordName`]. The node where a device is connected notifies it and writes how far
//! it is; the node of a campaign writes the targets of the campaign. Each of them learns by the records what the other one
//! does, and a device that moves goes on where it was.
//!
//! `firmware_record`: id -> JSON of the content. `firmware_record_version`: see [`SharedVersions`]. A record about a device
//! that is not known here is kept until the device arrives. With a device, each node removes its records, in a version that is
//! the same on all nodes.

mod names;
mod state;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use cluster::{NodeName, Record, RecordChanges, RecordVersion};
use devices::{Device, DeviceNo, Registry, RegistryError, SharedVersions, VersionTransaction};
use store::{Durability, StoreError, Table, TableBatch, Tables};
use wall_clock::now_ms;

use crate::campaign::{CampaignInfo, CampaignTarget};
use crate::device_state::{InstallAttempt, InstallRecord};
use crate::install_table::{CommitNotice, InstallSharing, InstallTable};
use crate::package::FirmwareType;
use names::{
    CampaignContent, INSTALL, InstallContent, RecordName, TARGET, TargetContent, encode,
    ids_of_device,
};
pub(crate) use state::Effect;
use state::{SharedTarget, SharingState, apply_to, install_of, target_of};

/// Records that are written in one batch.
const BATCH_RECORDS: usize = 1000;

/// Why shared records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareSharingError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// The shared records of this node.
pub(crate) struct Sharing {
    tables: Tables,
    contents: Table,
    pub(crate) versions: SharedVersions,
    node: NodeName,
    registry: Registry,
    /// Serialises changes, also those of the table of installations.
    writing: Arc<Mutex<()>>,
    state: RwLock<SharingState>,
}

/// Changes of records in one batch of the store.
pub(crate) struct RecordTransaction<'a> {
    sharing: &'a Sharing,
    versions: VersionTransaction<'a>,
}

impl RecordTransaction<'_> {
    /// Writes a record that this node changes.
    fn put(&mut self, batch: &mut TableBatch, id: &str, content: &[u8]) -> Result<(), StoreError> {
        self.versions.stamp(batch, id, None, (0, false))?;
        batch.put(&self.sharing.contents, id.as_bytes(), content)
    }

    /// Removes a record that this node has; otherwise there is nothing to remember.
    fn remove(&mut self, batch: &mut TableBatch, id: &str) -> Result<(), StoreError> {
        if self.versions.row(id)?.is_some_and(|row| !row.is_removed) {
            self.versions.stamp(batch, id, None, (0, true))?;
            batch.remove(&self.sharing.contents, id.as_bytes())?;
        }
        Ok(())
    }

    /// To be called once the batch is committed.
    pub(crate) fn finish(self) {
        self.versions.finish();
    }
}

impl Sharing {
    pub(crate) fn open(
        tables: &Tables,
        registry: Registry,
        node: &NodeName,
        writing: Arc<Mutex<()>>,
    ) -> Result<Self, StoreError> {
        let versions = SharedVersions::open(
            tables,
            node,
            "firmware_record_version",
            "firmware_record_awaiting",
        )?;
        // Contents are kept whether their device is known or not.
        versions.set_may_await(false);
        versions.load_digests()?;
        Ok(Self {
            contents: tables.table("firmware_record"),
            tables: tables.clone(),
            versions,
            node: node.clone(),
            registry,
            writing,
            state: RwLock::default(),
        })
    }

    pub(crate) fn changes(&self) -> RecordChanges {
        self.versions.changes.clone()
    }

    pub(crate) fn node(&self) -> &str {
        self.node.as_str()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_state(&self) -> std::sync::RwLockReadGuard<'_, SharingState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_state(&self) -> std::sync::RwLockWriteGuard<'_, SharingState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn transaction(&self) -> RecordTransaction<'_> {
        RecordTransaction {
            sharing: self,
            versions: VersionTransaction::new(&self.versions),
        }
    }

    /// The package that the latest campaign installs on a device.
    pub(crate) fn target(&self, device: DeviceNo, kind: FirmwareType) -> Option<SharedTarget> {
        let state = self.read_state();
        state.targets.get(&(device, kind))?.last().cloned()
    }

    /// Campaigns of this number, in the order of the names of their nodes.
    pub(crate) fn campaigns_of_number(&self, id: u32) -> Vec<CampaignInfo> {
        let state = self.read_state();
        let found = state.campaigns.range((id, String::new())..);
        let found = found.take_while(|((number, _), _)| *number == id);
        found
            .map(|((_, node), content)| content.info(id, node))
            .collect()
    }

    /// A campaign of another node that installs a package, and its node.
    pub(crate) fn campaign_of_package(&self, package: &str) -> Option<(u32, String)> {
        let state = self.read_state();
        let mut campaigns = state.campaigns.iter();
        let user = campaigns
            .find(|((_, node), content)| node != self.node() && content.package() == package);
        user.map(|(name, _)| name.clone())
    }

    /// The stored content of a record.
    pub(crate) fn content(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.contents.get(id.as_bytes())
    }

    /// Writes the targets of a campaign of this node.
    pub(crate) fn set_targets(
        &self,
        targets: &[CampaignTarget],
    ) -> Result<(), FirmwareSharingError> {
        for portion in targets.chunks(BATCH_RECORDS) {
            let _writing = self.lock();
            let mut batch = self.tables.batch()?;
            let mut changes = self.transaction();
            let mut known = Vec::new();
            for target in portion {
                let Some(device) = self.registry.by_no(target.device)? else {
                    continue;
                };
                let (id, content) = self.target_record(&device, target);
                changes.put(&mut batch, &id, &content)?;
                known.push(target);
            }
            batch.commit(Durability::Buffered)?;
            changes.finish();
            let mut state = self.write_state();
            for target in known {
                state.set_target(target.device, target.kind, self.shared_target(target));
            }
        }
        Ok(())
    }

    fn target_record(&self, device: &Device, target: &CampaignTarget) -> (String, Vec<u8>) {
        let name = RecordName::Target {
            device: device.id.as_str(),
            kind: target.kind,
            campaign: target.campaign,
            node: self.node(),
        };
        let content = TargetContent {
            created_ms: device.created_ms,
            package: target.package.clone(),
            attempt: target.attempt,
            begun_at_ms: target.begun_at_ms,
        };
        (name.id(), encode(&content))
    }

    fn shared_target(&self, target: &CampaignTarget) -> SharedTarget {
        SharedTarget {
            package: target.package.clone(),
            attempt: InstallAttempt {
                campaign: target.campaign,
                node: self.node().to_owned(),
                number: target.attempt,
            },
            begun_at_ms: target.begun_at_ms,
        }
    }

    /// Removes targets of a campaign of this node.
    pub(crate) fn remove_targets(
        &self,
        campaign: u32,
        kind: FirmwareType,
        devices: &[DeviceNo],
    ) -> Result<(), FirmwareSharingError> {
        let attempt = InstallAttempt {
            campaign,
            node: self.node().to_owned(),
            number: 0,
        };
        for portion in devices.chunks(BATCH_RECORDS) {
            let _writing = self.lock();
            let mut batch = self.tables.batch()?;
            let mut changes = self.transaction();
            for no in portion {
                // The records of a device that is gone are removed with it.
                if let Some(device) = self.registry.by_no(*no)? {
                    let name = RecordName::Target {
                        device: device.id.as_str(),
                        kind,
                        campaign,
                        node: self.node(),
                    };
                    changes.remove(&mut batch, &name.id())?;
                }
            }
            batch.commit(Durability::Buffered)?;
            changes.finish();
            let mut state = self.write_state();
            for no in portion {
                state.remove_target(*no, kind, &attempt);
            }
        }
        Ok(())
    }

    /// Writes campaigns of this node.
    pub(crate) fn set_campaigns(&self, campaigns: Vec<CampaignInfo>) -> Result<(), StoreError> {
        if campaigns.is_empty() {
            return Ok(());
        }
        let _writing = self.lock();
        let mut batch = self.tables.batch()?;
        let mut changes = self.transaction();
        let mut written = Vec::new();
        for info in campaigns {
            let (campaign, node) = (info.id, self.node());
            let content = CampaignContent::new(info);
            let id = RecordName::Campaign { campaign, node }.id();
            changes.put(&mut batch, &id, &encode(&content))?;
            written.push((campaign, content));
        }
        batch.commit(Durability::Buffered)?;
        changes.finish();
        let mut state = self.write_state();
        for (campaign, content) in written {
            let name = (campaign, self.node().to_owned());
            state.campaigns.insert(name, content);
        }
        Ok(())
    }

    /// Removes a campaign of this node.
    pub(crate) fn remove_campaign(&self, campaign: u32) -> Result<(), StoreError> {
        let _writing = self.lock();
        let mut batch = self.tables.batch()?;
        let mut changes = self.transaction();
        let node = self.node();
        let id = RecordName::Campaign { campaign, node }.id();
        changes.remove(&mut batch, &id)?;
        batch.commit(Durability::Buffered)?;
        changes.finish();
        let name = (campaign, node.to_owned());
        self.write_state().campaigns.remove(&name);
        Ok(())
    }

    /// Forgets records that were removed long ago.
    pub(crate) fn forget_removed(&self) -> Result<(), StoreError> {
        let (now_ms, mut forgotten) = (now_ms(), Vec::new());
        self.versions.scan(None, &mut |id, row| {
            if row.is_forgotten(now_ms) {
                forgotten.push(id.to_owned());
            }
            true
        })?;
        for portion in forgotten.chunks(BATCH_RECORDS) {
            let _writing = self.lock();
            let mut batch = self.tables.batch()?;
            for id in portion {
                let row = self.versions.row(id)?;
                if row.is_some_and(|row| row.is_forgotten(now_ms)) {
                    self.versions.forget(&mut batch, id)?;
                }
            }
            batch.commit(Durability::Buffered)?;
        }
        Ok(())
    }

    fn contents_of(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut found = Vec::new();
        let each = &mut |id: &[u8], content: &[u8]| {
            if let Ok(id) = str::from_utf8(id) {
                found.push((id.to_owned(), content.to_vec()));
            }
            true
        };
        self.contents
            .scan(prefix.as_bytes(), Bound::Unbounded, each)?;
        Ok(found)
    }

    /// Reads what is stored, and gives versions to what has changed while the node was in no cluster.
    pub(crate) fn load(
        &self,
        installs: &InstallTable,
        targets: Vec<CampaignTarget>,
        campaigns: Vec<CampaignInfo>,
    ) -> Result<(), FirmwareSharingError> {
        self.forget_removed()?;
        for letter in [INSTALL, TARGET] {
            for (id, content) in self.contents_of(&letter.to_string())? {
                self.load_content(installs, &id, &content)?;
            }
        }
        self.stamp_changed_installs(installs)?;
        self.stamp_changed_campaigns(targets, campaigns)
    }

    fn load_content(
        &self,
        installs: &InstallTable,
        id: &str,
        content: &[u8],
    ) -> Result<(), FirmwareSharingError> {
        let Some(RecordName::Install { device, .. } | RecordName::Target { device, .. }) =
            RecordName::parse(id)
        else {
            return Ok(());
        };
        if let Some(device) = self.registry.device(device)? {
            self.adopt(installs, &device, id, content)?;
        }
        Ok(())
    }

    /// Makes use of a stored record about a device that is known.
    fn adopt(
        &self,
        installs: &InstallTable,
        device: &Device,
        id: &str,
        content: &[u8],
    ) -> Result<(), StoreError> {
        match RecordName::parse(id) {
            Some(RecordName::Install { kind, .. }) => {
                if let Some(record) = install_of(content, device)
                    && installs.get(device.no, kind)?.is_none()
                {
                    let mut batch = self.tables.batch()?;
                    installs.put(&mut batch, device.no, kind, &record)?;
                    batch.commit(Durability::Buffered)?;
                }
            }
            Some(RecordName::Target {
                kind,
                campaign,
                node,
                ..
            }) => {
                if let Some(target) = target_of(content, device, (campaign, node)) {
                    self.write_state().set_target(device.no, kind, target);
                }
            }
            Some(RecordName::Campaign { .. }) | None => {}
        }
        Ok(())
    }

    fn stamp_changed_installs(&self, installs: &InstallTable) -> Result<(), FirmwareSharingError> {
        for portion in installs.all()?.chunks(BATCH_RECORDS) {
            let _writing = self.lock();
            let mut batch = self.tables.batch()?;
            let mut changes = self.transaction();
            for (no, kind, record) in portion {
                let Some(device) = self.registry.by_no(*no)? else {
                    continue;
                };
                let (id, content) = install_record(&device, *kind, record);
                let stored = self.contents.get(id.as_bytes())?;
                let stored = stored.and_then(|stored| install_of(&stored, &device));
                if stored.as_ref() != Some(record) {
                    // Not the time of the start, so that the later change of two nodes that meet wins.
                    let before = changes.versions.row(&id)?.map(|row| row.version);
                    let own = self.versions.node();
                    let version = RecordVersion::next(before, record.updated_at_ms, own);
                    (changes.versions).stamp(&mut batch, &id, Some(version), (0, false))?;
                    batch.put(&self.contents, id.as_bytes(), &content)?;
                }
            }
            batch.commit(Durability::Buffered)?;
            changes.finish();
        }
        Ok(())
    }

    /// Makes the records of the campaigns of this node equal to them.
    fn stamp_changed_campaigns(
        &self,
        targets: Vec<CampaignTarget>,
        campaigns: Vec<CampaignInfo>,
    ) -> Result<(), FirmwareSharingError> {
        let mut wanted = BTreeSet::new();
        let mut changed = Vec::new();
        for target in targets {
            let Some(device) = self.registry.by_no(target.device)? else {
                continue;
            };
            let (id, _) = self.target_record(&device, &target);
            let name = (target.campaign, self.node());
            let stored = self.contents.get(id.as_bytes())?;
            let stored = stored.and_then(|stored| target_of(&stored, &device, name));
            if stored != Some(self.shared_target(&target)) {
                changed.push(target);
            }
            wanted.insert(id);
        }
        self.set_targets(&changed)?;
        let node = self.node();
        wanted.extend(campaigns.iter().map(|info| {
            let campaign = info.id;
            RecordName::Campaign { campaign, node }.id()
        }));
        self.set_campaigns(campaigns)?;
        let mut stored = self.contents_of(&TARGET.to_string())?;
        stored.extend(self.contents_of("c")?);
        for (id, content) in stored {
            match RecordName::parse(&id) {
                Some(RecordName::Target {
                    device,
                    kind,
                    campaign,
                    node: of,
                }) if of == node && !wanted.contains(&id) => {
                    if let Some(device) = self.registry.device(device)? {
                        self.remove_targets(campaign, kind, &[device.no])?;
                    }
                }
                Some(RecordName::Campaign { campaign, node: of })
                    if of == node && !wanted.contains(&id) =>
                {
                    self.remove_campaign(campaign)?;
                }
                Some(RecordName::Campaign { campaign, node }) => {
                    if let Ok(content) = serde_json::from_slice(&content) {
                        let name = (campaign, node.to_owned());
                        self.write_state().campaigns.insert(name, content);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A device has become known: what other nodes have written about it holds here.
    pub(crate) fn device_created(
        &self,
        installs: &InstallTable,
        device: &Device,
    ) -> Result<(), StoreError> {
        let _writing = self.lock();
        for letter in [INSTALL, TARGET] {
            for (id, content) in self.contents_of(&ids_of_device(letter, device.id.as_str()))? {
                self.adopt(installs, device, &id, &content)?;
            }
        }
        Ok(())
    }

    /// Removes the records of a device that was removed. Each node does so when it learns of that, and all get the same versions.
    pub(crate) fn device_removed(&self, device: &Device) -> Result<(), StoreError> {
        #[derive(serde::Deserialize)]
        struct Created {
            created_ms: u64,
        }
        let _writing = self.lock();
        let mut batch = self.tables.batch()?;
        let mut changes = self.transaction();
        for letter in [INSTALL, TARGET] {
            for (id, content) in self.contents_of(&ids_of_device(letter, device.id.as_str()))? {
                let created = serde_json::from_slice::<Created>(&content);
                let is_its = created.is_ok_and(|created| created.created_ms == device.created_ms);
                let Some(row) = changes.versions.row(&id)?.filter(|_| is_its) else {
                    continue;
                };
                let removed = RecordVersion {
                    time_ms: row.version.time_ms.saturating_add(1),
                    node: 0,
                };
                (changes.versions).stamp(&mut batch, &id, Some(removed), (0, true))?;
                batch.remove(&self.contents, id.as_bytes())?;
            }
        }
        batch.commit(Durability::Buffered)?;
        changes.finish();
        let mut state = self.write_state();
        for kind in FirmwareType::ALL {
            state.targets.remove(&(device.no, kind));
        }
        Ok(())
    }

    /// Stores records of other nodes, where they are later than those of this one.
    pub(crate) fn apply(
        &self,
        installs: &InstallTable,
        records: &[Record],
    ) -> Result<Vec<Effect>, FirmwareSharingError> {
        let _writing = self.lock();
        let mut batch = self.tables.batch()?;
        let mut changes = self.transaction();
        let mut applied = Vec::new();
        for record in records {
            let known = changes.versions.row(&record.id)?;
            if known.is_some_and(|known| known.version >= record.version) {
                continue;
            }
            let Some(name) = RecordName::parse(&record.id) else {
                tracing::warn!(
                    id = record.id,
                    "a record of firmware of another node cannot be read and is missing here; run the same version on all nodes"
                );
                continue;
            };
            let (version, content) = (Some(record.version), record.content.as_deref());
            let state = (0, content.is_none());
            (changes.versions).stamp(&mut batch, &record.id, version, state)?;
            match content {
                Some(content) => batch.put(&self.contents, record.id.as_bytes(), content)?,
                None => batch.remove(&self.contents, record.id.as_bytes())?,
            }
            let device = match name {
                RecordName::Install { device, .. } | RecordName::Target { device, .. } => {
                    self.registry.device(device)?
                }
                RecordName::Campaign { .. } => None,
            };
            if let (RecordName::Install { kind, .. }, Some(content), Some(device)) =
                (name, content, &device)
                && let Some(install) = install_of(content, device)
            {
                installs.put(&mut batch, device.no, kind, &install)?;
            }
            applied.push((name, content, device));
        }
        batch.commit(Durability::Buffered)?;
        changes.finish();
        let mut effects = Vec::new();
        let mut state = self.write_state();
        for (name, content, device) in applied {
            effects.extend(apply_to(&mut state, name, content, device.as_deref()));
        }
        Ok(effects)
    }
}

impl InstallSharing for Sharing {
    fn add_install<'a>(
        &'a self,
        batch: &mut TableBatch,
        device: DeviceNo,
        kind: FirmwareType,
        record: &InstallRecord,
    ) -> Result<Option<CommitNotice<'a>>, StoreError> {
        let device = self.registry.by_no(device).unwrap_or_else(|error| {
            tracing::error!(%error, "reading a device failed; other nodes learn of its firmware later");
            None
        });
        let Some(device) = device else {
            return Ok(None);
        };
        let (id, content) = install_record(&device, kind, record);
        let mut changes = self.transaction();
        changes.put(batch, &id, &content)?;
        Ok(Some(Box::new(|| changes.finish())))
    }
}

fn install_record(
    device: &Device,
    kind: FirmwareType,
    record: &InstallRecord,
) -> (String, Vec<u8>) {
    let name = RecordName::Install {
        device: device.id.as_str(),
        kind,
    };
    let content = InstallContent {
        created_ms: device.created_ms,
        record: record.clone(),
    };
    (name.id(), encode(&content))
}
