//! Versions of the alarms that a node has when it becomes a member of a cluster, or was outside it.

use std::ops::Bound;

use cluster::{NUMBER_BITS, NodeName, RecordVersion};
use store::{Durability, StoreError};

use super::alarm_store::{AlarmStore, AlarmStoreState};
use super::record::{Alarm, AlarmId};
use super::shared_alarm::{AlarmName, last_change_ms};
use super::sharing::{AlarmSharing, AlarmStamps, revision_of};
use crate::registry::{Registry, RegistryError};

/// Alarms that are written in one batch.
const BATCH_ALARMS: usize = 1000;

/// Why shared alarms cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AlarmSharingError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl AlarmStore {
    /// Gives versions to all alarms of devices. To be called once, before they are exchanged. Reads all of them.
    pub(super) fn share(
        &self,
        node: &NodeName,
        registry: &Registry,
    ) -> Result<&AlarmSharing, AlarmSharingError> {
        let sharing = AlarmSharing::open(&self.tables, node)?;
        // From now on, changes of alarms have versions.
        let existing = sharing.versions.load_digests()?;
        let sharing = self.sharing.get_or_init(|| sharing);
        self.forget_removed()?;
        let known = self.stamp_changed(sharing, registry)?;
        if known < existing {
            self.stamp_removed(sharing)?;
        }
        Ok(sharing)
    }

    /// Forgets alarms that were removed long ago.
    pub(super) fn forget_removed(&self) -> Result<(), StoreError> {
        let Some(sharing) = self.sharing.get() else {
            return Ok(());
        };
        let (now_ms, mut forgotten) = (wall_clock::now_ms(), Vec::new());
        sharing.versions.scan(None, &mut |id, row| {
            if row.is_forgotten(now_ms) {
                forgotten.push(id.to_owned());
            }
            true
        })?;
        for portion in forgotten.chunks(BATCH_ALARMS) {
            let _state = self.lock();
            let mut batch = self.tables.batch()?;
            for id in portion {
                let row = sharing.versions.row(id)?;
                if row.is_some_and(|row| row.is_forgotten(now_ms)) {
                    sharing.versions.forget(&mut batch, id)?;
                }
            }
            batch.commit(Durability::Buffered)?;
        }
        Ok(())
    }

    /// Returns how many alarms had a version already.
    fn stamp_changed(
        &self,
        sharing: &AlarmSharing,
        registry: &Registry,
    ) -> Result<u64, AlarmSharingError> {
        let first_new = self.lock().first_new_id();
        let (mut known, mut from) = (0, Vec::new());
        loop {
            // Those have got their numbers just now.
            let renumbered = first_new..self.lock().first_new_id();
            let mut keys = Vec::new();
            self.alarms
                .scan(b"", Bound::Excluded(&from), &mut |key, _| {
                    keys.push(key.to_vec());
                    keys.len() < BATCH_ALARMS
                })?;
            let Some(last) = keys.last() else {
                return Ok(known);
            };
            from = last.clone();
            let mut state = self.lock();
            let mut portion = Vec::new();
            for key in keys {
                let decode = |bytes: &[u8]| Some((Alarm::decode(bytes)?, revision_of(bytes)));
                let stored = self.alarms.get_with(&key, decode)?.flatten();
                let is_old = |alarm: &Alarm| !alarm.is_of_node() && !renumbered.contains(&alarm.id);
                portion.extend(stored.filter(|(alarm, _)| is_old(alarm)));
            }
            let mut batch = self.tables.batch()?;
            let mut stamps = self.stamps();
            let mut replaced = Vec::new();
            for (alarm, mut revision) in portion {
                // The node has ended between the removal of the device and that of the alarm.
                let is_orphan = registry.was_removed_after(&alarm.device, 0)?;
                let shared = shared_form(&alarm, sharing, &mut state);
                let name = AlarmName::of(shared.as_ref().unwrap_or(&alarm));
                let id = name.map(AlarmName::record_id).unwrap_or_default();
                let row = stamps.row(&id)?;
                known += u64::from(row.is_some_and(|row| !row.is_removed));
                if is_orphan || row.is_some_and(|row| row.is_removed) {
                    stamps.expire_record(&mut batch, &id)?;
                    self.erase(&mut batch, &alarm)?;
                    replaced.push((alarm, None));
                    continue;
                }
                if let Some(shared) = &shared {
                    self.erase(&mut batch, &alarm)?;
                    revision = revision_of(&self.write(&mut batch, &state, None, shared)?);
                }
                if row.is_none_or(|row| row.revision != revision) {
                    // Not the time of the start, so that the later change of two nodes that meet wins.
                    let before = row.map(|row| row.version);
                    let changed_ms = last_change_ms(&alarm).min(wall_clock::now_ms());
                    let own = sharing.versions.node();
                    let version = RecordVersion::next(before, changed_ms, own);
                    stamps.set(&mut batch, &id, version, (revision, false))?;
                }
                if let Some(shared) = shared {
                    replaced.push((alarm, Some(shared)));
                }
            }
            batch.commit(Durability::Buffered)?;
            stamps.finish(false);
            for (alarm, shared) in replaced {
                match shared {
                    Some(shared) => state.replace(Some(&alarm), &shared),
                    None => state.remove_from_memory(&alarm),
                }
            }
        }
    }

    /// Alarms that were removed while the node was in no cluster.
    fn stamp_removed(&self, sharing: &AlarmSharing) -> Result<(), StoreError> {
        for portion in sharing.versions.existing_ids()?.chunks(BATCH_ALARMS) {
            let _state = self.lock();
            let mut batch = self.tables.batch()?;
            let mut stamps = AlarmStamps::new(Some(sharing));
            for id in portion {
                let is_stored = match AlarmName::parse(id) {
                    Some(name) => self.alarm_of(name)?.is_some(),
                    None => false,
                };
                if !is_stored && !sharing.versions.awaiting.has(id.as_bytes())? {
                    let before = stamps.row(id)?.map(|row| row.version);
                    let (now_ms, own) = (wall_clock::now_ms(), sharing.versions.node());
                    let version = RecordVersion::next(before, now_ms, own);
                    stamps.set(&mut batch, id, version, (0, true))?;
                }
            }
            batch.commit(Durability::Buffered)?;
            stamps.finish(false);
        }
        Ok(())
    }

    /// The stored alarm of a record.
    pub(super) fn alarm_of(&self, name: AlarmName<'_>) -> Result<Option<Alarm>, StoreError> {
        let alarm = self.get(name.id)?;
        Ok(alarm.filter(|alarm| AlarmName::of(alarm) == Some(name)))
    }
}

/// An alarm of the time before the nodes shared their alarms, with its node. A number of the time before the cluster, which other
/// nodes have given as well, is replaced. `None`: the alarm has its node already.
fn shared_form(
    alarm: &Alarm,
    sharing: &AlarmSharing,
    state: &mut AlarmStoreState,
) -> Option<Alarm> {
    if alarm.node.is_some() {
        return None;
    }
    let mut shared = alarm.clone();
    shared.node = Some(sharing.node.as_str().to_owned());
    if alarm.id < AlarmId(1 << NUMBER_BITS) {
        shared.id = state.next_id();
    }
    Some(shared)
}
