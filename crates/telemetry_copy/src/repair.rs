//! Completing a copy from the time series of the node: what was stored while the standby could not be reached, before the
//! node was restarted, or above the limit of the queue; and all rows of a new copy.
//!
//! Rows are read in the times that have changed since the position of the copy, and sent again also if the copy has them: equal
//! rows change nothing.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{ControlFlow, Range};

use series::{DeviceNo, PARTITION_COUNT, RangeQuery, Series, SeriesPositions, partition_of};

use crate::batch::BatchWriter;
use crate::deletion_journal::RecordedDeletion;
use crate::ports::CopiedDevices;

/// Rows of a device that are read at a time.
const PAGE_ROWS: usize = 2000;
/// Devices without rows to send that are examined before the caller can do something else.
const MAX_SKIPPED_DEVICES: usize = 10_000;

/// All times.
pub(crate) const ALL_TIMES: Range<i64> = -(1 << 59)..(1 << 59);

/// What the copy lacks.
pub(crate) struct RepairPlan {
    /// The copy has the rows up to here, of products that are not `added`.
    pub(crate) since: SeriesPositions,
    /// Products that are copied.
    pub(crate) products: BTreeSet<String>,
    /// Those of them that were not copied before.
    pub(crate) added: BTreeSet<String>,
    /// Products that are copied no more.
    pub(crate) removed: BTreeSet<String>,
    pub(crate) deletions: VecDeque<RecordedDeletion>,
}

pub(crate) struct Repair {
    pub(crate) plan: RepairPlan,
    changed: [Vec<Range<i64>>; PARTITION_COUNT],
    devices: std::vec::IntoIter<DeviceNo>,
    current: Option<DeviceRows>,
    /// The last deletion in batches that were filled.
    pub(crate) last_deletion: u64,
}

/// The rows of a device that are still to be sent.
pub(crate) struct DeviceRows {
    device: DeviceNo,
    id: String,
    times: VecDeque<Range<i64>>,
}

impl DeviceRows {
    pub(crate) fn new(
        device: DeviceNo,
        id: String,
        times: impl IntoIterator<Item = Range<i64>>,
    ) -> Self {
        Self {
            device,
            id,
            times: times.into_iter().collect(),
        }
    }

    /// Adds rows to a batch until it is full. Returns whether all are added.
    ///
    /// # Errors
    /// If the time series cannot be read.
    pub(crate) fn fill(
        &mut self,
        batch: &mut BatchWriter,
        series: &Series,
    ) -> Result<bool, String> {
        while let Some(times) = self.times.front_mut() {
            if batch.is_full() {
                return Ok(false);
            }
            let range = RangeQuery {
                from_ms: times.start,
                to_ms: times.end,
                limit: PAGE_ROWS,
                ..RangeQuery::default()
            };
            let (mut rows, mut is_stopped) = (0, false);
            let device = (self.device, self.id.as_str());
            let read = series.range(self.device, None, &range, &mut |row| {
                rows += 1;
                times.start = row.ts_ms + 1;
                batch.add_row(device, row.ts_ms, row.points, |key| series.key_name(key));
                is_stopped = batch.is_full();
                match is_stopped {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            read.map_err(|error| error.to_string())?;
            if !is_stopped && rows < PAGE_ROWS {
                self.times.pop_front();
            }
        }
        Ok(true)
    }
}

impl Repair {
    /// # Errors
    /// If the time series cannot be read.
    pub(crate) fn begin(plan: RepairPlan, series: &Series) -> Result<Self, String> {
        // Also if nothing has changed, because the caller wants to know the devices.
        let devices = series.devices().map_err(|error| error.to_string())?;
        Ok(Self {
            changed: series.changed_times(&plan.since),
            plan,
            devices: devices.into_iter(),
            current: None,
            last_deletion: 0,
        })
    }

    /// Adds what is missing to a batch until it is full. Returns whether there is nothing left; `known` gets the devices that are
    /// copied completely.
    ///
    /// # Errors
    /// If the time series or the devices cannot be read.
    pub(crate) fn fill(
        &mut self,
        batch: &mut BatchWriter,
        series: &Series,
        devices: &dyn CopiedDevices,
        known: &mut dyn FnMut(DeviceNo),
    ) -> Result<bool, String> {
        let name_of = |key| series.key_name(key);
        while let Some(deletion) = self.plan.deletions.pop_front() {
            self.last_deletion = deletion.number;
            add_deletion(batch, &deletion, series, devices)?;
            if batch.is_full() {
                return Ok(false);
            }
        }
        let mut skipped = 0;
        loop {
            if let Some(current) = &mut self.current {
                if !current.fill(batch, series)? {
                    return Ok(false);
                }
                self.current = None;
            }
            if batch.is_full() || skipped >= MAX_SKIPPED_DEVICES {
                return Ok(false);
            }
            let Some(device) = self.devices.next() else {
                return Ok(true);
            };
            skipped += 1;
            let Some((id, product)) = devices.device(device)? else {
                continue;
            };
            if self.plan.removed.contains(&product) {
                let all = (i64::MIN, i64::MAX);
                batch.add_deletion((device, &id), None, all, name_of);
            } else if self.plan.products.contains(&product) {
                known(device);
                let times = match self.plan.added.contains(&product) {
                    true => vec![ALL_TIMES],
                    false => self.changed[partition_of(device)].clone(),
                };
                self.current = Some(DeviceRows::new(device, id, times));
            }
        }
    }
}

/// Adds a deletion to a batch, if the device still exists.
///
/// # Errors
/// If the devices cannot be read.
pub(crate) fn add_deletion(
    batch: &mut BatchWriter,
    deletion: &RecordedDeletion,
    series: &Series,
    devices: &dyn CopiedDevices,
) -> Result<(), String> {
    let device = DeviceNo(deletion.device);
    // Nodes delete the telemetry of a removed device by themselves.
    if let Some((id, _)) = devices.device(device)? {
        let keys = deletion.keys.as_ref();
        let keys: Option<Vec<_>> =
            keys.map(|keys| keys.iter().map(|key| series::KeyId(*key)).collect());
        let times = (deletion.from_ms, deletion.to_ms);
        batch.add_deletion((device, &id), keys.as_deref(), times, |key| {
            series.key_name(key)
        });
    }
    Ok(())
}
