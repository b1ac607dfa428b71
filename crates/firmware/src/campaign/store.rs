//! Campaigns in tables of the store.
//!
//! `firmware_campaign`: number (big-endian) -> JSON of definition and progress. `firmware_campaign_device`: number of the
//! campaign, number of the device (both big-endian) -> JSON of the device. `firmware_campaign_number`: `last` -> the highest number that
//! was given, so that no number is given again after its campaign was deleted.

use std::collections::BTreeMap;
use std::ops::Bound;

use devices::DeviceNo;
use serde::{Deserialize, Serialize};
use store::{Durability, StoreError, Table, Tables};

use super::definition::CampaignDefinition;
use super::run::{CampaignChanges, CampaignDevice, CampaignProgress};
use crate::package::FirmwareType;

/// Devices that are removed in one batch.
const REMOVE_BATCH: usize = 10_000;
const LAST_NUMBER_KEY: &[u8] = b"last";

/// What is stored of a campaign besides its devices.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CampaignRecord {
    pub(super) definition: CampaignDefinition,
    pub(super) kind: FirmwareType,
    pub(super) created_at_ms: u64,
    pub(super) progress: CampaignProgress,
}

pub(super) struct CampaignTables {
    tables: Tables,
    campaigns: Table,
    devices: Table,
    numbers: Table,
}

fn device_key(campaign: u32, device: DeviceNo) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&campaign.to_be_bytes());
    key[4..].copy_from_slice(&device.0.to_be_bytes());
    key
}

fn number(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("records of campaigns are JSON")
}

impl CampaignTables {
    pub(super) fn open(tables: &Tables) -> Result<Self, StoreError> {
        Ok(Self {
            campaigns: tables.table("firmware_campaign"),
            devices: tables.table("firmware_campaign_device"),
            numbers: tables.table("firmware_campaign_number"),
            tables: tables.clone(),
        })
    }

    pub(super) fn load(&self) -> Result<Vec<(u32, CampaignRecord)>, StoreError> {
        let mut found = Vec::new();
        self.campaigns.scan(b"", Bound::Unbounded, &mut |key, value| {
            match serde_json::from_slice(value) {
                Ok(record) => found.push((number(key), record)),
                Err(error) => {
                    tracing::error!(campaign = number(key), %error, "a stored campaign is invalid; ignored");
                }
            }
            true
        })?;
        Ok(found)
    }

    pub(super) fn load_devices(
        &self,
        campaign: u32,
    ) -> Result<BTreeMap<DeviceNo, CampaignDevice>, StoreError> {
        let mut found = BTreeMap::new();
        let prefix = campaign.to_be_bytes();
        self.devices
            .scan(&prefix, Bound::Unbounded, &mut |key, value| {
                if let Ok(device) = serde_json::from_slice(value) {
                    found.insert(DeviceNo(number(&key[4..])), device);
                }
                true
            })?;
        Ok(found)
    }

    /// The highest number that was given to a campaign; 0: none.
    pub(super) fn last_number(&self) -> Result<u32, StoreError> {
        let last = self.numbers.get(LAST_NUMBER_KEY)?;
        Ok(last.map_or(0, |bytes| number(&bytes)))
    }

    /// Writes a new campaign with all its devices, and its number as the last one.
    pub(super) fn create(
        &self,
        number: u32,
        record: &CampaignRecord,
        devices: &BTreeMap<DeviceNo, CampaignDevice>,
    ) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        batch.put(&self.numbers, LAST_NUMBER_KEY, &number.to_be_bytes())?;
        batch.commit(Durability::Buffered)?;
        self.replace(number, record, devices)
    }

    /// Writes a campaign with all its devices.
    pub(super) fn replace(
        &self,
        number: u32,
        record: &CampaignRecord,
        devices: &BTreeMap<DeviceNo, CampaignDevice>,
    ) -> Result<(), StoreError> {
        // An interrupted removal of a campaign of this number may have left devices.
        let left: Vec<DeviceNo> = self.load_devices(number)?.into_keys().collect();
        let mut batch = self.tables.batch()?;
        for no in left {
            batch.remove(&self.devices, &device_key(number, no))?;
        }
        for (no, device) in devices {
            batch.put(&self.devices, &device_key(number, *no), &json(device))?;
        }
        batch.put(&self.campaigns, &number.to_be_bytes(), &json(record))?;
        batch.commit(Durability::Buffered)
    }

    pub(super) fn write(
        &self,
        number: u32,
        record: &CampaignRecord,
        changes: &CampaignChanges,
    ) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        for (no, device) in &changes.devices {
            batch.put(&self.devices, &device_key(number, *no), &json(device))?;
        }
        if changes.progress.is_some() {
            batch.put(&self.campaigns, &number.to_be_bytes(), &json(record))?;
        }
        batch.commit(Durability::Buffered)
    }

    /// Removes a campaign first and its devices after it, so that an interrupted removal leaves no campaign without
    /// devices.
    pub(super) fn remove(
        &self,
        number: u32,
        devices: &BTreeMap<DeviceNo, CampaignDevice>,
    ) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        batch.remove(&self.campaigns, &number.to_be_bytes())?;
        batch.commit(Durability::Buffered)?;
        let devices: Vec<DeviceNo> = devices.keys().copied().collect();
        for some in devices.chunks(REMOVE_BATCH) {
            let mut batch = self.tables.batch()?;
            for no in some {
                batch.remove(&self.devices, &device_key(number, *no))?;
            }
            batch.commit(Durability::Buffered)?;
        }
        Ok(())
    }
}
