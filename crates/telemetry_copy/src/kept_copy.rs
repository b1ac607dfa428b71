//! The copy of the telemetry of one node at this one: time series of their own, with the device numbers of this node.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use disk::CheckedLineState;
use serde::{Deserialize, Serialize};
use series::{
    DeviceNo, KeyId, PARTITION_COUNT, Point, PolicyAssignment, Series, SeriesConfig, SeriesError,
    SeriesPositions,
};

use crate::batch::{BatchEntry, BatchReader};
use crate::lock::lock;
use crate::message::{BatchHead, CopyAnswer, CopySource, PlacedCopy};
use crate::ports::CopiedDevices;
use crate::status::KeptCopyStatus;

const RECORD: &str = "copy";
const SERIES: &str = "series";
/// Rows are forced to disk, and then the record of the position, at this interval.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// The same if only the time of the last message has changed.
const TIME_SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// A node that can be reached and has sent nothing for so long stores rows that the copy lacks.
const MAX_SILENCE: Duration = Duration::from_secs(15);

/// What is known of a copy after a restart. The copy has at least what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CopyRecord {
    source: CopySource,
    copy: u64,
    positions: SeriesPositions,
    deletion: u64,
    products: BTreeSet<String>,
    is_complete: bool,
    is_orphan: bool,
    sent_ms: u64,
}

pub(crate) struct KeptCopy {
    pub(crate) key: String,
    directory: PathBuf,
    pub(crate) series: Series,
    state: Mutex<KeptState>,
    /// For readers, who do not wait until a batch is stored.
    shown: Mutex<ShownRecord>,
}

/// What readers see of the record.
struct ShownRecord {
    source: CopySource,
    place: PlacedCopy,
    products: Arc<BTreeSet<String>>,
}

impl ShownRecord {
    fn new(record: &CopyRecord) -> Self {
        Self {
            source: record.source.clone(),
            place: PlacedCopy {
                key: record.source.key(),
                node: record.source.node.clone(),
                is_complete: record.is_complete,
                is_orphan: record.is_orphan,
                sent_ms: record.sent_ms,
                copy: record.copy,
            },
            products: Arc::new(record.products.clone()),
        }
    }
}

struct KeptState {
    /// As it is now; `saved` is on disk.
    record: CopyRecord,
    saved: CopyRecord,
    saved_at: Instant,
    run: Option<u64>,
    last_number: u64,
    last_unknown: Vec<u64>,
    last_contact: Option<Instant>,
    /// There is no room for further keys, so that values are missing.
    lacks_keys: bool,
}

impl KeptState {
    fn new(record: CopyRecord, now: Instant) -> Self {
        Self {
            saved: record.clone(),
            record,
            saved_at: now,
            run: None,
            last_number: 0,
            last_unknown: Vec::new(),
            last_contact: None,
            lacks_keys: false,
        }
    }

    /// Whether something was stored that the saved record does not say. The time of the last message alone is less urgent.
    fn is_save_due(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.saved_at);
        if age < SAVE_INTERVAL || self.record == self.saved {
            return false;
        }
        let known = CopyRecord {
            sent_ms: self.record.sent_ms,
            ..self.saved.clone()
        };
        age >= TIME_SAVE_INTERVAL || known != self.record
    }
}

fn write_record(directory: &Path, record: &CopyRecord) -> Result<(), String> {
    let line = serde_json::to_string(record).map_err(|error| error.to_string())?;
    disk::write_checked_line(directory, RECORD, &line)
        .map_err(|error| format!("the record of the copy cannot be written: {error}"))
}

impl KeptCopy {
    /// Creates an empty copy in a directory that does not exist.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn create(
        directory: PathBuf,
        (source, copy): (CopySource, u64),
        config: SeriesConfig,
        now: Instant,
    ) -> Result<Self, String> {
        disk::create_private_dir(&directory).map_err(|error| error.to_string())?;
        let opened = Series::open(&directory.join(SERIES), config);
        let (series, _) = opened.map_err(|error| error.to_string())?;
        let record = CopyRecord {
            source,
            copy,
            positions: [0; PARTITION_COUNT],
            deletion: 0,
            products: BTreeSet::new(),
            is_complete: false,
            is_orphan: false,
            sent_ms: 0,
        };
        write_record(&directory, &record)?;
        Ok(Self::new(directory, series, record, now))
    }

    fn new(directory: PathBuf, series: Series, record: CopyRecord, now: Instant) -> Self {
        Self {
            key: record.source.key(),
            directory,
            series,
            shown: Mutex::new(ShownRecord::new(&record)),
            state: Mutex::new(KeptState::new(record, now)),
        }
    }

    /// Opens a copy; `None`: its creation was not completed.
    ///
    /// # Errors
    /// If it is damaged, or cannot be read.
    pub(crate) fn open(
        directory: PathBuf,
        config: SeriesConfig,
        now: Instant,
    ) -> Result<Option<Self>, String> {
        let line = match disk::read_checked_line(&directory.join(RECORD)) {
            Ok(CheckedLineState::Intact(line)) => line,
            Ok(CheckedLineState::Missing) => return Ok(None),
            Ok(CheckedLineState::Damaged) => return Err("its record is damaged".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        let record: CopyRecord =
            serde_json::from_str(&line).map_err(|error| format!("its record: {error}"))?;
        let opened = Series::open(&directory.join(SERIES), config);
        let (series, _) = opened.map_err(|error| error.to_string())?;
        Ok(Some(Self::new(directory, series, record, now)))
    }

    fn state(&self) -> MutexGuard<'_, KeptState> {
        lock(&self.state)
    }

    /// Shows the record to readers.
    fn show(&self, record: &CopyRecord) {
        let mut shown = lock(&self.shown);
        let place = &mut shown.place;
        (place.is_complete, place.is_orphan) = (record.is_complete, record.is_orphan);
        place.sent_ms = record.sent_ms;
        if *shown.products != record.products {
            shown.products = Arc::new(record.products.clone());
        }
    }

    pub(crate) fn source(&self) -> CopySource {
        lock(&self.shown).source.clone()
    }

    pub(crate) fn copy(&self) -> u64 {
        lock(&self.shown).place.copy
    }

    pub(crate) fn is_orphan(&self) -> bool {
        lock(&self.shown).place.is_orphan
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.series
            .devices()
            .is_ok_and(|devices| devices.is_empty())
    }

    pub(crate) fn place(&self) -> PlacedCopy {
        lock(&self.shown).place.clone()
    }

    pub(crate) fn status(&self) -> KeptCopyStatus {
        let stats = self.series.stats();
        let place = self.place();
        KeptCopyStatus {
            key: place.key,
            node: place.node,
            is_complete: place.is_complete,
            is_orphan: place.is_orphan,
            bytes: stats.segment_bytes + stats.wal_bytes,
            sent_ms: place.sent_ms,
        }
    }

    /// Whether the devices of this product are copied.
    pub(crate) fn covers(&self, product: &str) -> bool {
        let products = lock(&self.shown).products.clone();
        products.contains(product)
    }

    /// A run of the node begins to send. Returns what is on disk.
    pub(crate) fn begin(&self, run: u64, now: Instant) -> Result<CopyAnswer, String> {
        let mut state = self.state();
        state.run = Some(run);
        state.last_number = 0;
        state.last_unknown.clear();
        state.last_contact = Some(now);
        (state.record.is_complete, state.record.is_orphan) = (false, false);
        self.show(&state.record);
        // Not what is only in memory: the node would take it for known after a restart of both.
        self.save(&mut state, now)?;
        Ok(CopyAnswer::Position {
            positions: state.saved.positions,
            deletion: state.saved.deletion,
            products: state.saved.products.iter().cloned().collect(),
        })
    }

    /// The node has begun again with other time series.
    pub(crate) fn set_orphan(&self, now: Instant) -> Result<(), String> {
        let mut state = self.state();
        state.record.is_orphan = true;
        state.run = None;
        self.show(&state.record);
        self.save(&mut state, now)
    }

    /// Stores a batch. A repeated one is answered as before.
    ///
    /// # Errors
    /// If it cannot be read, or this node cannot store it now. It is to be repeated then.
    pub(crate) fn store(
        &self,
        head: &BatchHead,
        entries: &[u8],
        devices: &dyn CopiedDevices,
        now: Instant,
    ) -> Result<CopyAnswer, String> {
        let mut state = self.state();
        if state.run != Some(head.run) || state.record.copy != head.copy {
            return Ok(CopyAnswer::NotBegun);
        }
        if head.number > state.last_number {
            let unknown = self.store_entries(&mut state, entries, devices)?;
            let is_whole = unknown.is_empty();
            state.last_number = head.number;
            state.last_unknown = unknown;
            let lacks_keys = state.lacks_keys;
            let record = &mut state.record;
            if is_whole && let Some(positions) = head.positions {
                record.positions = positions;
            }
            record.deletion = record.deletion.max(head.deletion);
            if let Some(products) = &head.products {
                record.products = products.iter().cloned().collect();
            }
            record.is_complete = head.is_complete && is_whole && !lacks_keys;
            record.sent_ms = head.sent_ms;
            self.show(&state.record);
        }
        state.last_contact = Some(now);
        let has_changed = state.record.is_complete != state.saved.is_complete
            || state.record.products != state.saved.products;
        if has_changed || state.is_save_due(now) {
            self.save(&mut state, now)?;
        }
        Ok(CopyAnswer::Stored {
            unknown_devices: state.last_unknown.clone(),
            deletion: state.saved.deletion,
        })
    }

    /// Stores entries in their order. Returns the numbers of unknown devices, whose entries are left out.
    fn store_entries(
        &self,
        state: &mut KeptState,
        entries: &[u8],
        devices: &dyn CopiedDevices,
    ) -> Result<Vec<u64>, String> {
        let mut known: Vec<Option<DeviceNo>> = Vec::new();
        // `None`: this node has no room for the key.
        let mut keys: Vec<Option<KeyId>> = Vec::new();
        let mut unknown = BTreeSet::new();
        let mut reader = BatchReader::new(entries);
        let mut points = Vec::new();
        while let Some(entry) = reader.next()? {
            match entry {
                BatchEntry::Device(id) => known.push(devices.by_id(id)?.map(|(number, _)| number)),
                BatchEntry::Key(name) => keys.push(self.key(state, name)?),
                BatchEntry::Row { device, ts_ms } => {
                    let Some(number) = known[device] else {
                        unknown.insert(device as u64);
                        continue;
                    };
                    points.clear();
                    points.extend(reader.points.iter().filter_map(|(key, value)| {
                        let value = *value;
                        Some(Point {
                            key: keys[*key]?,
                            value,
                        })
                    }));
                    match self.series.submit(number, ts_ms, &points) {
                        Ok(_) => {}
                        Err(
                            error @ (SeriesError::Busy
                            | SeriesError::Full(_)
                            | SeriesError::Io { .. }
                            | SeriesError::Closed),
                        ) => return Err(error.to_string()),
                        // It is older than the retention, for example.
                        Err(error) => {
                            tracing::debug!(copy = self.key, %error, "a row is not copied")
                        }
                    }
                }
                BatchEntry::Deletion {
                    device,
                    keys: of_keys,
                    from_ms,
                    to_ms,
                } => {
                    // The telemetry of an unknown device is not here.
                    let Some(number) = known[device] else {
                        continue;
                    };
                    let of_keys: Option<Vec<KeyId>> = of_keys
                        .map(|of_keys| of_keys.iter().filter_map(|key| keys[*key]).collect());
                    if of_keys.as_ref().is_some_and(Vec::is_empty) {
                        continue;
                    }
                    let deleted =
                        self.series
                            .delete_range(number, of_keys.as_deref(), from_ms, to_ms);
                    deleted.map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(unknown.into_iter().collect())
    }

    /// `None`: there is no room for the key.
    fn key(&self, state: &mut KeptState, name: &str) -> Result<Option<KeyId>, String> {
        match self.series.get_or_create_key(name) {
            Ok(key) => Ok(Some(key)),
            Err(
                error @ (SeriesError::Busy
                | SeriesError::Full(_)
                | SeriesError::Io { .. }
                | SeriesError::Closed),
            ) => Err(error.to_string()),
            Err(error) => {
                if !std::mem::replace(&mut state.lacks_keys, true) {
                    tracing::error!(copy = self.key, key = name, %error, "a copy of telemetry has no room for a key; the copy is incomplete");
                }
                Ok(None)
            }
        }
    }

    /// Forces the rows to disk, then the record.
    fn save(&self, state: &mut KeptState, now: Instant) -> Result<(), String> {
        self.series.sync().map_err(|error| error.to_string())?;
        write_record(&self.directory, &state.record)?;
        state.saved = state.record.clone();
        state.saved_at = now;
        Ok(())
    }

    /// To be called every few seconds.
    pub(crate) fn tick(&self, is_reachable: bool, now: Instant) -> Result<(), String> {
        let mut state = self.state();
        let is_silent = |last: Instant| now.saturating_duration_since(last) > MAX_SILENCE;
        if is_reachable && !state.record.is_orphan {
            // After a start of this node, the other one gets the same time.
            let last_contact = *state.last_contact.get_or_insert(now);
            state.record.is_complete &= !is_silent(last_contact);
            self.show(&state.record);
        }
        match state.is_save_due(now) {
            true => self.save(&mut state, now),
            false => Ok(()),
        }
    }

    pub(crate) fn set_policies(&self, assignment: PolicyAssignment) {
        if let Err(error) = self.series.set_policies(assignment) {
            tracing::error!(%error, "updating the retention of a copy of telemetry failed; the previous one stays in effect");
        }
    }

    /// Deletes the telemetry of a device that was removed.
    pub(crate) fn delete_device(&self, device: DeviceNo) {
        if let Err(error) = self.series.delete_device(device) {
            tracing::error!(copy = self.key, %error, "deleting the telemetry of a removed device in a copy failed; it stays on disk");
        }
    }

    /// Writes what is known, and closes the time series.
    pub(crate) fn close(&self, now: Instant) {
        let mut state = self.state();
        if state.record != state.saved
            && let Err(error) = self.save(&mut state, now)
        {
            tracing::warn!(
                copy = self.key,
                error,
                "the position of a copy of telemetry cannot be written; rows are sent again"
            );
        }
        self.series.close();
    }

    /// Removes the copy with its files.
    pub(crate) fn remove(&self) -> Result<(), String> {
        self.series.close();
        // First, so that what is left after a crash is no copy.
        let record = self.directory.join(RECORD);
        let removed = std::fs::remove_file(record);
        let removed = removed.and_then(|()| std::fs::remove_dir_all(&self.directory));
        removed.map_err(|error| format!("{}: {error}", self.directory.display()))
    }
}
