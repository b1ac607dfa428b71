//! Rows that are sent again, or only now: those of devices that the standby did not know, and the earlier rows of devices of which it had
//! none.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use series::{DeviceNo, Series};

use crate::batch::{BatchWriter, RowTimes};
use crate::ports::CopiedDevices;
use crate::repair::{ALL_TIMES, DeviceRows};

/// Time between two attempts to send rows of devices that the standby does not know.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Devices whose rows are sent again. If more are refused, the copy is completed as after a restart.
const MAX_RETRIED_DEVICES: usize = 10_000;

#[derive(Default)]
pub(crate) struct Retries {
    /// The times of refused rows.
    refused: HashMap<DeviceNo, RowTimes, RandomState>,
    begun_at: Option<Instant>,
    /// Rows that are being sent.
    rows: VecDeque<DeviceRows>,
}

impl Retries {
    pub(crate) fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.rows.is_empty()
    }

    /// All rows of a device are to be sent.
    pub(crate) fn add_all(&mut self, device: DeviceNo, id: String) {
        self.rows
            .push_back(DeviceRows::new(device, id, [ALL_TIMES]));
    }

    /// Rows of a device were refused.
    ///
    /// # Errors
    /// If there are too many.
    pub(crate) fn add_refused(
        &mut self,
        device: DeviceNo,
        (first, last): RowTimes,
    ) -> Result<(), String> {
        let times = self.refused.entry(device).or_insert((first, last));
        *times = (times.0.min(first), times.1.max(last));
        match self.refused.len() > MAX_RETRIED_DEVICES {
            true => Err(format!(
                "the standby does not know more than {MAX_RETRIED_DEVICES} devices"
            )),
            false => Ok(()),
        }
    }

    /// A batch of rows; `None`: there are none, or not yet.
    ///
    /// # Errors
    /// If the time series or the devices cannot be read.
    pub(crate) fn batch(
        &mut self,
        series: &Series,
        devices: &dyn CopiedDevices,
        now: Instant,
    ) -> Result<Option<BatchWriter>, String> {
        let is_due = self
            .begun_at
            .is_none_or(|at| now.saturating_duration_since(at) >= RETRY_INTERVAL);
        if self.rows.is_empty() && !self.refused.is_empty() && is_due {
            self.begun_at = Some(now);
            for (device, (first, last)) in std::mem::take(&mut self.refused) {
                // Those of removed devices are not wanted any more.
                if let Some((id, _)) = devices.device(device)? {
                    let times = std::iter::once(first..last.saturating_add(1));
                    self.rows.push_back(DeviceRows::new(device, id, times));
                }
            }
        }
        let mut batch = BatchWriter::default();
        while let Some(rows) = self.rows.front_mut() {
            if !rows.fill(&mut batch, series)? {
                break;
            }
            self.rows.pop_front();
        }
        Ok((!batch.is_empty()).then_some(batch))
    }
}
