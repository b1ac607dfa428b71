//! The versions of alarms in a cluster, and which changes the other nodes are told.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cluster::{NodeName, RecordVersion};
use store::{StoreError, TableBatch, Tables};
use xxhash_rust::xxh3::xxh3_64;

use super::announcements::Announcements;
use super::record::Alarm;
use super::shared_alarm::AlarmName;
use crate::registry::{SharedVersions, VersionRow, VersionTransaction};

/// The versions of the alarms that this node shares. The revision in a version is a digest of the stored alarm, by which a node
/// recognises what it has changed outside the cluster.
pub(super) struct AlarmSharing {
    pub(super) versions: SharedVersions,
    pub(super) node: NodeName,
    announcements: Mutex<Announcements>,
}

/// The versions that one batch changes; of a node without a cluster, none.
pub(super) struct AlarmStamps<'a> {
    sharing: Option<(&'a AlarmSharing, VersionTransaction<'a>)>,
    changed: Vec<String>,
}

/// The version of a removal that each node makes for itself, the same at all of them.
pub(super) fn removal_after(version: RecordVersion) -> RecordVersion {
    RecordVersion {
        time_ms: version.time_ms.saturating_add(1),
        node: 0,
    }
}

/// The digest of a stored alarm.
pub(super) fn revision_of(encoded: &[u8]) -> u32 {
    xxh3_64(encoded) as u32
}

impl AlarmSharing {
    pub(super) fn open(tables: &Tables, node: &NodeName) -> Result<Self, StoreError> {
        let versions = SharedVersions::open(tables, node, "alarm_version", "alarm_awaiting")?;
        Ok(Self {
            versions,
            node: node.clone(),
            announcements: Mutex::default(),
        })
    }

    fn announcements(&self) -> MutexGuard<'_, Announcements> {
        let announcements = self.announcements.lock();
        announcements.unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the other nodes what has changed repeatedly. To be called several times a second.
    pub(super) fn announce_due(&self) {
        let due = self.announcements().take_due(Instant::now());
        if !due.is_empty() {
            self.versions.changes.add(due.iter().map(|id| &**id));
        }
    }

    fn announce(&self, ids: &[String], is_urgent: bool) {
        let now = Instant::now();
        let mut announcements = self.announcements();
        let due = ids.iter().map(String::as_str);
        let due = due.filter(|id| announcements.is_due(id, is_urgent, now));
        let due: Vec<&str> = due.collect();
        drop(announcements);
        if !due.is_empty() {
            self.versions.changes.add(due);
        }
    }
}

impl<'a> AlarmStamps<'a> {
    pub(super) fn new(sharing: Option<&'a AlarmSharing>) -> Self {
        Self {
            sharing: sharing.map(|sharing| (sharing, VersionTransaction::new(&sharing.versions))),
            changed: Vec::new(),
        }
    }

    /// Gives an alarm that this node has changed a new version.
    pub(super) fn change(
        &mut self,
        batch: &mut TableBatch,
        alarm: &Alarm,
        encoded: &[u8],
    ) -> Result<(), StoreError> {
        let Some(name) = AlarmName::of(alarm) else {
            return Ok(());
        };
        self.stamp(batch, name.record_id(), revision_of(encoded), false)
    }

    /// The same for an alarm that this node removes on behalf of a person.
    pub(super) fn remove(
        &mut self,
        batch: &mut TableBatch,
        alarm: &Alarm,
    ) -> Result<(), StoreError> {
        match AlarmName::of(alarm) {
            Some(name) => self.stamp(batch, name.record_id(), 0, true),
            None => Ok(()),
        }
    }

    /// Remembers that an alarm is removed which the other nodes remove for themselves.
    pub(super) fn expire(
        &mut self,
        batch: &mut TableBatch,
        alarm: &Alarm,
    ) -> Result<(), StoreError> {
        match AlarmName::of(alarm) {
            Some(name) => self.expire_record(batch, &name.record_id()),
            None => Ok(()),
        }
    }

    pub(super) fn expire_record(
        &mut self,
        batch: &mut TableBatch,
        id: &str,
    ) -> Result<(), StoreError> {
        if let Some((_, versions)) = &mut self.sharing
            && let Some(row) = versions.row(id)?.filter(|row| !row.is_removed)
        {
            versions.stamp(batch, id, Some(removal_after(row.version)), (0, true))?;
        }
        Ok(())
    }

    /// Gives the record of a stored alarm the version of another node, or with `None` a new one.
    pub(super) fn change_record(
        &mut self,
        batch: &mut TableBatch,
        (id, version): (&str, Option<RecordVersion>),
        encoded: &[u8],
    ) -> Result<(), StoreError> {
        let revision = revision_of(encoded);
        match version {
            Some(version) => self.set(batch, id, version, (revision, false)),
            None => self.stamp(batch, id.to_owned(), revision, false),
        }
    }

    /// Keeps a record until its device is known.
    pub(super) fn await_record(
        &mut self,
        batch: &mut TableBatch,
        (id, version): (&str, Option<RecordVersion>),
        content: &[u8],
    ) -> Result<(), StoreError> {
        self.change_record(batch, (id, version), content)?;
        if let Some((_, versions)) = &mut self.sharing
            && let Some(row) = versions.row(id)?
        {
            versions.set_awaiting(batch, id, row.version, content)?;
            versions.prepare();
        }
        Ok(())
    }

    /// Sets the version of a record, of which the other nodes learn when they compare their records.
    pub(super) fn set(
        &mut self,
        batch: &mut TableBatch,
        id: &str,
        version: RecordVersion,
        state: (u32, bool),
    ) -> Result<(), StoreError> {
        if let Some((_, versions)) = &mut self.sharing {
            versions.stamp(batch, id, Some(version), state)?;
        }
        Ok(())
    }

    /// The version of a record after the changes so far.
    pub(super) fn row(&self, id: &str) -> Result<Option<VersionRow>, StoreError> {
        match &self.sharing {
            Some((_, versions)) => versions.row(id),
            None => Ok(None),
        }
    }

    fn stamp(
        &mut self,
        batch: &mut TableBatch,
        id: String,
        revision: u32,
        is_removed: bool,
    ) -> Result<(), StoreError> {
        let Some((sharing, versions)) = &mut self.sharing else {
            return Ok(());
        };
        let before = versions.row(&id)?.map(|row| row.version);
        if before.is_none() && is_removed {
            // No other node can have it.
            return Ok(());
        }
        // Not `None`, with which the other nodes are told at once.
        let version = RecordVersion::next(before, wall_clock::now_ms(), sharing.versions.node());
        versions.stamp(batch, &id, Some(version), (revision, is_removed))?;
        self.changed.push(id);
        Ok(())
    }

    /// To be called once the batch is committed. `is_urgent`: the other nodes are told at once.
    pub(super) fn finish(self, is_urgent: bool) {
        if let Some((sharing, versions)) = self.sharing {
            versions.finish();
            sharing.announce(&self.changed, is_urgent);
        }
    }
}
