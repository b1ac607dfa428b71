//! The firmware of a node, for the exchange with the other nodes of a cluster.

use std::sync::Arc;

use cluster::{
    NodeName, Record, RecordChanges, RecordDigests, RecordVersion, SharedRecords,
    SharedRecordsError,
};
use store::Tables;

use crate::service::{DevicePresenceCheck, FirmwareService};
use crate::sharing::{Effect, FirmwareSharingError, Sharing};

/// What the exchange with other nodes needs.
pub struct FirmwareChanges {
    pub changes: RecordChanges,
    pub records: SharedFirmware,
}

impl FirmwareService {
    /// Shares what devices install with the other nodes of a cluster from now on. To be called once, before
    /// [`start`](Self::start) and before devices connect. `is_here` tells whether a device is online at this node, which then
    /// notifies it. Reads all records.
    ///
    /// # Errors
    /// If the store fails.
    pub fn share(
        &self,
        node: &NodeName,
        tables: &Tables,
        is_here: DevicePresenceCheck,
    ) -> Result<FirmwareChanges, FirmwareSharingError> {
        let inner = &self.inner;
        let writing = inner.installs.writing();
        let sharing = Sharing::open(tables, self.registry().clone(), node, writing)?;
        let (campaigns, targets) = inner.campaigns.shared();
        sharing.load(&inner.installs, targets, campaigns)?;
        let changes = FirmwareChanges {
            changes: sharing.changes(),
            records: SharedFirmware(self.clone()),
        };
        let sharing = Arc::new(sharing);
        inner.installs.share(sharing.clone());
        // Set once.
        let _ = inner.shared.set(sharing);
        let _ = inner.presence.set(is_here);
        inner.update_use();
        Ok(changes)
    }
}

/// The firmware of a node, for the exchange with other nodes.
pub struct SharedFirmware(pub(crate) FirmwareService);

impl SharedFirmware {
    fn sharing(&self) -> Result<&Sharing, SharedRecordsError> {
        let sharing = self.0.inner.sharing();
        sharing.ok_or_else(|| "the firmware is not shared".into())
    }
}

impl SharedRecords for SharedFirmware {
    fn context(&self) -> Vec<u8> {
        Vec::new()
    }

    fn merge_context(&self, _context: &[u8]) -> Result<(), SharedRecordsError> {
        Ok(())
    }

    fn root(&self) -> u64 {
        let sharing = self.0.inner.sharing();
        sharing.map_or(0, |sharing| sharing.versions.digests().root())
    }

    fn digests(&self) -> RecordDigests {
        let sharing = self.0.inner.sharing();
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
        let sharing = self.sharing()?;
        // The version and the content are those of one moment.
        let _writing = sharing.lock();
        let Some(row) = sharing.versions.row(id)? else {
            return Ok(None);
        };
        let content = match row.is_removed {
            true => None,
            false => sharing.content(id)?,
        };
        // Otherwise it would be sent as a removed one.
        let is_readable = row.is_removed || content.is_some();
        Ok(is_readable.then(|| Record {
            id: id.to_owned(),
            version: row.version,
            content,
        }))
    }

    fn apply(&self, records: Vec<Record>) -> Result<(), SharedRecordsError> {
        let service = &self.0;
        for effect in self.sharing()?.apply(service.installs(), &records)? {
            match effect {
                Effect::Install(device, kind, record) => {
                    service.record_changed(device, kind, &record);
                }
                Effect::Target(device) => service.target_queue().push_device(device),
            }
        }
        Ok(())
    }
}
