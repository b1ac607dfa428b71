//! The alarms of a node, for the exchange with the other nodes of a cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::{
    NodeName, Record, RecordChanges, RecordDigests, RecordVersion, SharedRecords,
    SharedRecordsError,
};
use series::DeviceNo;

use super::super::record_exchange::{AppliedAlarm, RecordContext};
use super::super::sharing::AlarmSharing;
use super::super::store_sharing::AlarmSharingError;
use super::alarms_inner::{AlarmJob, AlarmsInner};
use crate::device::Device;

/// Time for which a change of a person waits for the confirmation of the other nodes that can be reached.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(1);

/// Times that a synchronisation waits for transitions. One time is enough, unless the device causes others meanwhile.
const MAX_ATTEMPTS: u8 = 10;

/// What the exchange with other nodes needs.
pub struct AlarmChanges {
    pub changes: RecordChanges,
    pub records: SharedAlarms,
}

impl AlarmsInner {
    fn record_context(&self) -> RecordContext<'_> {
        RecordContext {
            registry: &self.registry,
            cleared_before_ms: self.cleared_before_ms(),
        }
    }

    /// Waits until the other nodes have stored the changes so far, for a limited time. What has not arrived by then arrives later.
    pub(super) fn wait_until_shared(&self) {
        if let Some(sharing) = self.store.sharing.get() {
            let changes = &sharing.versions.changes;
            changes.wait_until_confirmed(CONFIRMATION_TIMEOUT);
        }
    }

    pub(super) fn add_device(&self, device: &Device) {
        let id = device.id.as_str();
        match self.store.apply_awaiting(Some(id), self.record_context()) {
            Ok(applied) => self.use_applied(applied),
            Err(error) => {
                tracing::error!(device = id, %error, "storing the alarms of a new device failed; restart the node");
            }
        }
    }

    fn use_applied(&self, applied: impl IntoIterator<Item = AppliedAlarm>) {
        let is_concerned =
            |alarm: &AppliedAlarm| alarm.has_duplicates || self.watched_devices.has(alarm.device);
        let applied = applied.into_iter().filter(is_concerned);
        let devices: BTreeSet<DeviceNo> = applied.map(|alarm| alarm.device).collect();
        for device in devices {
            self.enqueue(AlarmJob::Synchronize(device, 0));
        }
    }

    /// Another node has changed alarms of a device.
    pub(super) fn synchronize(
        &self,
        device: DeviceNo,
        attempts: u8,
    ) -> Result<(), store::StoreError> {
        self.clear_duplicates(device)?;
        let is_last = attempts == MAX_ATTEMPTS;
        if !self.watched_devices.synchronize(device, self, is_last) {
            // Behind the transitions, which are queued already.
            self.enqueue(AlarmJob::Synchronize(device, attempts + 1));
        }
        Ok(())
    }
}

/// The alarms of a node, for the exchange with other nodes.
pub struct SharedAlarms(Arc<AlarmsInner>);

impl SharedAlarms {
    pub(super) fn begin(
        inner: &Arc<AlarmsInner>,
        node: &NodeName,
    ) -> Result<AlarmChanges, AlarmSharingError> {
        let sharing = inner.store.share(node, &inner.registry)?;
        let changes = sharing.versions.changes.clone();
        let applied = inner.store.apply_awaiting(None, inner.record_context())?;
        inner.use_applied(applied);
        Ok(AlarmChanges {
            changes,
            records: Self(Arc::clone(inner)),
        })
    }

    fn sharing(&self) -> Result<&AlarmSharing, SharedRecordsError> {
        let sharing = self.0.store.sharing.get();
        sharing.ok_or_else(|| "the alarms are not shared".into())
    }
}

impl SharedRecords for SharedAlarms {
    fn context(&self) -> Vec<u8> {
        Vec::new()
    }

    fn merge_context(&self, _context: &[u8]) -> Result<(), SharedRecordsError> {
        Ok(())
    }

    fn root(&self) -> u64 {
        let sharing = self.0.store.sharing.get();
        sharing.map_or(0, |sharing| sharing.versions.digests().root())
    }

    fn digests(&self) -> RecordDigests {
        let sharing = self.0.store.sharing.get();
        sharing.map_or_else(RecordDigests::default, |sharing| {
            sharing.versions.digests().clone()
        })
    }

    fn versions(
        &self,
        bucket: u16,
        each: &mut dyn FnMut(&str, RecordVersion),
    ) -> Result<(), SharedRecordsError> {
        Ok(self.sharing()?.versions.remembered_versions(bucket, each)?)
    }

    fn version(&self, id: &str) -> Result<Option<RecordVersion>, SharedRecordsError> {
        Ok(self.sharing()?.versions.row(id)?.map(|row| row.version))
    }

    fn read(&self, id: &str) -> Result<Option<Record>, SharedRecordsError> {
        let inner = &self.0;
        Ok(inner.store.read_record(id, &inner.registry)?)
    }

    fn apply(&self, records: Vec<Record>) -> Result<(), SharedRecordsError> {
        let inner = &self.0;
        let (context, mut applied) = (inner.record_context(), Vec::new());
        let mut outcome = Ok(());
        for record in &records {
            match inner.store.apply_record(record, context) {
                Ok(alarm) => applied.extend(alarm),
                Err(error) => {
                    outcome = Err(error.into());
                    break;
                }
            }
        }
        inner.use_applied(applied);
        outcome
    }
}
