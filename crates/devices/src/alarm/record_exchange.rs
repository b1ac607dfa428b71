//! The stored alarms as records that all nodes of a cluster have: reading them for other nodes, and storing those of other nodes.
//!
//! - A record contains the whole alarm. Changes of two nodes are [`merged`], so that none is lost; whichever node sees both
//!   gives the outcome a new version.
//! - A removed alarm never returns: its number is not given again.
//! - Alarms that expire, and those of a removed device, are removed by each node for itself, in the version after the
//!   present one with the node number 0, which is the same at all nodes.
//! - A record waits in the table `alarm_awaiting` while its device is not known, or another alarm has its number, and takes part in
//!   the exchange meanwhile.

use std::ops::Bound;
use std::sync::Arc;

use cluster::{NUMBER_BITS, Record, RecordVersion};
use series::DeviceNo;
use store::{Durability, StoreError};

use super::alarm_store::{AlarmStore, AlarmStoreState};
use super::record::{Alarm, DeviceNumbers};
use super::shared_alarm::{AlarmContent, AlarmName, ids_of_device, merged};
use super::sharing::{AlarmSharing, removal_after};
use super::store_sharing::AlarmSharingError;
use crate::device::Device;
use crate::registry::Registry;

/// A change of another node that this one has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AppliedAlarm {
    pub(super) device: DeviceNo,
    /// Several alarms of the type are not cleared.
    pub(super) has_duplicates: bool,
}

/// What records refer to.
#[derive(Clone, Copy)]
pub(super) struct RecordContext<'a> {
    pub(super) registry: &'a Registry,
    /// Alarms that were cleared earlier are not kept.
    pub(super) cleared_before_ms: u64,
}

/// Where the alarm of a record is to be stored.
enum RecordPlace {
    Device(Arc<Device>),
    /// The device is not known yet, or another alarm has the number.
    Awaiting,
    /// It has expired, or belongs to a device that was removed.
    Nowhere,
}

/// The alarm of a record with what this node knew about it.
struct IncomingAlarm<'a> {
    name: AlarmName<'a>,
    content: AlarmContent,
    /// `None`: a new one, because this node has merged it.
    version: Option<RecordVersion>,
    /// The latest version that is known.
    latest: RecordVersion,
}

impl AlarmStore {
    /// A record for another node. `None`: it is not known, or cannot be sent.
    pub(super) fn read_record(
        &self,
        id: &str,
        registry: &Registry,
    ) -> Result<Option<Record>, AlarmSharingError> {
        let Some((sharing, name)) = self.sharing.get().zip(AlarmName::parse(id)) else {
            return Ok(None);
        };
        // The version and the content are those of one moment.
        let (row, alarm, awaiting) = {
            let _state = self.lock();
            let row = sharing.versions.row(id)?;
            (row, self.alarm_of(name)?, awaiting_content(sharing, id)?)
        };
        let Some(row) = row else {
            return Ok(None);
        };
        let content = match alarm {
            _ if row.is_removed => None,
            Some(alarm) => content_of(alarm, registry)?,
            None => awaiting,
        };
        // Otherwise it would be sent as a removed one.
        let is_readable = row.is_removed || content.is_some();
        Ok(is_readable.then(|| Record {
            id: id.to_owned(),
            version: row.version,
            content,
        }))
    }

    /// Stores a record of another node, merged with what this one knows.
    pub(super) fn apply_record(
        &self,
        record: &Record,
        context: RecordContext<'_>,
    ) -> Result<Option<AppliedAlarm>, AlarmSharingError> {
        let Some(sharing) = self.sharing.get() else {
            return Ok(None);
        };
        let Some(name) = AlarmName::parse(&record.id) else {
            warn_unreadable(record);
            return Ok(None);
        };
        let mut state = self.lock();
        let known = sharing.versions.row(&record.id)?;
        let is_later = known.is_none_or(|known| known.version < record.version);
        let latest = known.map_or(record.version, |known| known.version.max(record.version));
        if known.is_some_and(|known| known.version == record.version) {
            return Ok(None);
        }
        let is_removed = known.is_some_and(|known| known.is_removed);
        let Some(content) = &record.content else {
            return match (is_removed, is_later) {
                (true, false) => Ok(None),
                (_, true) => Ok(self.remove_record(&mut state, name, record.version)?),
                (false, false) => {
                    Ok(self.remove_record(&mut state, name, removal_after(latest))?)
                }
            };
        };
        if is_removed {
            return match is_later {
                true => Ok(self.remove_record(&mut state, name, removal_after(latest))?),
                false => Ok(None),
            };
        }
        let Some(mut content) = AlarmContent::decode(name, content) else {
            warn_unreadable(record);
            return Ok(None);
        };
        let mut version = Some(record.version);
        if let Some(before) = self.alarm_before(sharing, name, &record.id)? {
            let outcome = merged(&before, &content.alarm, is_later);
            if !is_later && outcome == before {
                return Ok(None);
            }
            version = version.filter(|_| is_later && outcome == content.alarm);
            content.alarm = outcome;
        }
        let incoming = IncomingAlarm {
            name,
            content,
            version,
            latest,
        };
        self.store_incoming(&mut state, incoming, context)
    }

    /// What this node knows about the alarm of a record, without numbers of devices.
    fn alarm_before(
        &self,
        sharing: &AlarmSharing,
        name: AlarmName<'_>,
        id: &str,
    ) -> Result<Option<Alarm>, StoreError> {
        if let Some(mut alarm) = self.alarm_of(name)? {
            alarm.device_no = DeviceNumbers::default();
            return Ok(Some(alarm));
        }
        let awaiting = awaiting_content(sharing, id)?;
        let awaiting = awaiting.and_then(|content| AlarmContent::decode(name, &content));
        Ok(awaiting.map(|content| content.alarm))
    }

    fn store_incoming(
        &self,
        state: &mut AlarmStoreState,
        incoming: IncomingAlarm<'_>,
        context: RecordContext<'_>,
    ) -> Result<Option<AppliedAlarm>, AlarmSharingError> {
        match self.place_of(&incoming, context)? {
            RecordPlace::Nowhere => {
                let version = removal_after(incoming.latest);
                Ok(self.remove_record(state, incoming.name, version)?)
            }
            RecordPlace::Awaiting => Ok(self.await_record(state, &incoming)?),
            RecordPlace::Device(device) => {
                let applied = self.write_incoming(state, incoming, &device, context.registry)?;
                Ok(Some(applied))
            }
        }
    }

    fn place_of(
        &self,
        incoming: &IncomingAlarm<'_>,
        context: RecordContext<'_>,
    ) -> Result<RecordPlace, AlarmSharingError> {
        let (name, content) = (incoming.name, &incoming.content);
        let cleared_at_ms = content.alarm.cleared_at_ms;
        if cleared_at_ms.is_some_and(|at_ms| at_ms < context.cleared_before_ms) {
            return Ok(RecordPlace::Nowhere);
        }
        let Some(device) = context.registry.device(name.device)? else {
            let registry = context.registry;
            let was_removed = registry.was_removed_after(name.device, content.created_ms)?;
            return Ok(match was_removed {
                true => RecordPlace::Nowhere,
                false => RecordPlace::Awaiting,
            });
        };
        if content.created_ms != device.created_ms {
            return Ok(match content.created_ms < device.created_ms {
                true => RecordPlace::Nowhere,
                false => RecordPlace::Awaiting,
            });
        }
        let occupant = self.get(name.id)?;
        match occupant.is_some_and(|alarm| AlarmName::of(&alarm) != Some(name)) {
            true => Ok(RecordPlace::Awaiting),
            false => Ok(RecordPlace::Device(device)),
        }
    }

    fn write_incoming(
        &self,
        state: &mut AlarmStoreState,
        incoming: IncomingAlarm<'_>,
        device: &Device,
        registry: &Registry,
    ) -> Result<AppliedAlarm, AlarmSharingError> {
        let IncomingAlarm { name, content, .. } = incoming;
        let mut alarm = content.alarm;
        let mut numbers = vec![device.no];
        for gateway in &content.gateways {
            // It has not arrived yet, or was removed.
            if let Some(gateway) = registry.device(gateway)?
                && !numbers.contains(&gateway.no)
            {
                numbers.push(gateway.no);
            }
        }
        numbers.truncate(MAX_DEVICES);
        alarm.device_no = DeviceNumbers(numbers);
        if let Some(sharing) = self.sharing.get()
            && name.id.0 >> NUMBER_BITS == sharing.node.first_number() >> NUMBER_BITS
        {
            // Another node may have what this one has lost.
            state.number_from(name.id.0 + 1);
        }
        let stored = self.alarm_of(name)?;
        let mut batch = self.tables.batch()?;
        let mut stamps = self.stamps();
        let encoded = self.write(&mut batch, state, stored.as_ref(), &alarm)?;
        let id = name.record_id();
        stamps.change_record(&mut batch, (&id, incoming.version), &encoded)?;
        batch.commit(Durability::Buffered)?;
        stamps.finish(false);
        state.replace(stored.as_ref(), &alarm);
        Ok(AppliedAlarm {
            device: device.no,
            has_duplicates: state.open(device.no, &alarm.kind).len() > 1,
        })
    }

    fn await_record(
        &self,
        state: &mut AlarmStoreState,
        incoming: &IncomingAlarm<'_>,
    ) -> Result<Option<AppliedAlarm>, StoreError> {
        let (id, content) = (incoming.name.record_id(), incoming.content.encode());
        let stored = self.alarm_of(incoming.name)?;
        let mut batch = self.tables.batch()?;
        let mut stamps = self.stamps();
        stamps.await_record(&mut batch, (&id, incoming.version), &content)?;
        if let Some(stored) = &stored {
            self.erase(&mut batch, stored)?;
        }
        batch.commit(Durability::Buffered)?;
        stamps.finish(false);
        Ok(stored.and_then(|stored| removed_from(state, &stored)))
    }

    /// Removes the alarm of a record, and remembers that.
    fn remove_record(
        &self,
        state: &mut AlarmStoreState,
        name: AlarmName<'_>,
        version: RecordVersion,
    ) -> Result<Option<AppliedAlarm>, StoreError> {
        let stored = self.alarm_of(name)?;
        let mut batch = self.tables.batch()?;
        let mut stamps = self.stamps();
        stamps.set(&mut batch, &name.record_id(), version, (0, true))?;
        if let Some(stored) = &stored {
            self.erase(&mut batch, stored)?;
        }
        batch.commit(Durability::Buffered)?;
        stamps.finish(false);
        Ok(stored.and_then(|stored| removed_from(state, &stored)))
    }

    /// Stores the records that have waited for a device, or with `None` for any device.
    pub(super) fn apply_awaiting(
        &self,
        device: Option<&str>,
        context: RecordContext<'_>,
    ) -> Result<Vec<AppliedAlarm>, AlarmSharingError> {
        let mut applied = Vec::new();
        let Some(sharing) = self.sharing.get() else {
            return Ok(applied);
        };
        let ids = awaiting_ids(sharing, device)?;
        if device.is_none() && ids.is_empty() {
            sharing.versions.set_may_await(false);
        }
        for id in ids {
            let mut state = self.lock();
            let Some(waiting) = awaiting_record(sharing, &id)? else {
                continue;
            };
            let Some(content) = waiting.content else {
                continue;
            };
            let incoming = IncomingAlarm {
                name: waiting.name,
                content,
                version: Some(waiting.version),
                latest: waiting.version,
            };
            if !matches!(self.place_of(&incoming, context)?, RecordPlace::Awaiting) {
                applied.extend(self.store_incoming(&mut state, incoming, context)?);
            }
        }
        Ok(applied)
    }

    /// Removes the records that wait for a device which was removed.
    pub(super) fn remove_awaiting(&self, device: &Device) -> Result<(), StoreError> {
        let Some(sharing) = self.sharing.get() else {
            return Ok(());
        };
        for id in awaiting_ids(sharing, Some(device.id.as_str()))? {
            let mut state = self.lock();
            let Some(waiting) = awaiting_record(sharing, &id)? else {
                continue;
            };
            let content = waiting.content;
            if content.is_none_or(|content| content.created_ms <= device.created_ms) {
                let removal = removal_after(waiting.version);
                self.remove_record(&mut state, waiting.name, removal)?;
            }
        }
        Ok(())
    }
}

/// Devices of one alarm, as many as its stored form can have: its own one, and gateways.
const MAX_DEVICES: usize = 16;

fn removed_from(state: &mut AlarmStoreState, alarm: &Alarm) -> Option<AppliedAlarm> {
    state.remove_from_memory(alarm);
    let device = *alarm.devices().first()?;
    Some(AppliedAlarm {
        device,
        has_duplicates: false,
    })
}

fn warn_unreadable(record: &Record) {
    tracing::warn!(
        id = record.id,
        "an alarm of another node cannot be read and is missing here; run the same version on all nodes"
    );
}

/// The content of an alarm. `None`: its device was removed just now.
fn content_of(alarm: Alarm, registry: &Registry) -> Result<Option<Vec<u8>>, AlarmSharingError> {
    let [own, gateways @ ..] = alarm.devices() else {
        return Ok(None);
    };
    let Some(device) = registry.by_no(*own)? else {
        return Ok(None);
    };
    let mut ids = Vec::new();
    for gateway in gateways {
        let gateway = registry.by_no(*gateway)?;
        ids.extend(gateway.map(|gateway| gateway.id.as_str().to_owned()));
    }
    let created_ms = device.created_ms;
    Ok(Some(AlarmContent::new(alarm, created_ms, ids).encode()))
}

/// The ids of the records that wait for a device, or for any device.
fn awaiting_ids(sharing: &AlarmSharing, device: Option<&str>) -> Result<Vec<String>, StoreError> {
    if !sharing.versions.may_await() {
        return Ok(Vec::new());
    }
    let prefix = device.map_or_else(String::new, ids_of_device);
    let (mut ids, awaiting) = (Vec::new(), &sharing.versions.awaiting);
    awaiting.scan(prefix.as_bytes(), Bound::Unbounded, &mut |id, _| {
        ids.extend(str::from_utf8(id).map(str::to_owned));
        true
    })?;
    Ok(ids)
}

/// A record that waits for its device.
struct AwaitingRecord<'a> {
    name: AlarmName<'a>,
    version: RecordVersion,
    /// `None`: this version cannot read it.
    content: Option<AlarmContent>,
}

fn awaiting_record<'a>(
    sharing: &AlarmSharing,
    id: &'a str,
) -> Result<Option<AwaitingRecord<'a>>, StoreError> {
    let (Some(name), Some(row), Some(content)) = (
        AlarmName::parse(id),
        sharing.versions.row(id)?,
        awaiting_content(sharing, id)?,
    ) else {
        return Ok(None);
    };
    Ok(Some(AwaitingRecord {
        name,
        version: row.version,
        content: AlarmContent::decode(name, &content),
    }))
}

/// The content of a record that waits.
fn awaiting_content(sharing: &AlarmSharing, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
    if !sharing.versions.may_await() {
        return Ok(None);
    }
    let row = sharing.versions.awaiting.get(id.as_bytes())?;
    Ok(row.and_then(|row| Some(row.get(RecordVersion::BYTES..)?.to_vec())))
}
