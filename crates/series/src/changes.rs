//! What has been stored since an earlier state of the store: positions in the numbering of rows, and the times of the
//! rows behind them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::handle::Series;
use crate::lock::lock;
use crate::memtable::Memtable;
use crate::partitioning::{PARTITION_COUNT, partition_of};
use crate::point::DeviceNo;

/// The number of the last row of each partition. Numbers continue after a restart. A power failure may take the last
/// rows, and their numbers are then used again.
pub type SeriesPositions = [u64; PARTITION_COUNT];

impl Series {
    /// The present positions. A row that is appended later has a higher number than that of its partition.
    #[must_use]
    pub fn positions(&self) -> SeriesPositions {
        let partitions = &self.shared().partitions;
        std::array::from_fn(|at| partitions[at].last_lsn.load(Ordering::Acquire))
    }

    /// The position of the partition of a device.
    #[inline]
    #[must_use]
    pub fn position_of(&self, device: DeviceNo) -> u64 {
        let cell = &self.shared().partitions[partition_of(device)];
        cell.last_lsn.load(Ordering::Acquire)
    }

    /// For each partition, time ranges that contain the times of all rows behind these positions, ascending and apart from
    /// each other. Whole windows are named, and those whose files were merged since, so that they also contain other rows. 0
    /// as a position: of all rows.
    #[must_use]
    pub fn changed_times(&self, since: &SeriesPositions) -> [Vec<Range<i64>>; PARTITION_COUNT] {
        std::array::from_fn(|at| self.changed_times_of(at, since[at]))
    }

    fn changed_times_of(&self, partition: usize, since: u64) -> Vec<Range<i64>> {
        let shared = self.shared();
        let window_ms = shared.config.window_ms;
        // First and last window.
        let mut changed = BTreeSet::<(i64, i64)>::new();
        let files = {
            let part = lock(&shared.partitions[partition].partition);
            let frozen = part.frozen.iter().map(|frozen| &**frozen);
            let behind = |memtable: &&Memtable| memtable.next_lsn > since + 1;
            for memtable in frozen.chain([&part.active]).filter(behind) {
                let times = memtable.times_of_devices();
                changed.extend(times.map(|(first, last)| {
                    (first.div_euclid(window_ms), last.div_euclid(window_ms))
                }));
            }
            Arc::clone(&part.files)
        };
        let of_files = files.iter().filter(|file| file.meta.last_lsn > since);
        changed.extend(of_files.map(|file| (file.meta.window, file.meta.window)));
        let mut ranges: Vec<Range<i64>> = Vec::new();
        for (first, last) in changed {
            let begin = first.saturating_mul(window_ms);
            let end = last.saturating_add(1).saturating_mul(window_ms);
            match ranges.last_mut() {
                Some(before) if before.end >= begin => before.end = before.end.max(end),
                _ => ranges.push(begin..end),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Point, PointValue, SeriesConfig};

    const DAY: i64 = 86_400_000;

    #[test]
    fn the_times_of_later_rows_are_found_in_memory_in_files_and_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let config = || SeriesConfig {
            min_free_bytes: 0,
            assignment: crate::PolicyAssignment {
                policies: vec![(
                    0,
                    crate::RetentionPolicy {
                        retention_ms: None,
                        tiers: Vec::new(),
                    },
                )],
                ..Default::default()
            },
            ..SeriesConfig::default()
        };
        let (series, _) = Series::open(directory.path(), config()).unwrap();
        let device = DeviceNo(5);
        let part = partition_of(device);
        let key = series.get_or_create_key("t").unwrap();
        let append = |series: &Series, ts_ms: i64| {
            let point = Point {
                key,
                value: PointValue::Int(ts_ms),
            };
            series.append(device, ts_ms, &[point]).unwrap();
        };
        assert_eq!(series.positions(), [0; PARTITION_COUNT]);
        append(&series, 10 * DAY + 3);
        append(&series, 11 * DAY + 3);
        series.flush().unwrap();
        let first = series.positions();
        assert_eq!(first[part], 2);
        assert_eq!(series.position_of(device), 2);
        assert!(series.changed_times(&first).iter().all(Vec::is_empty));
        append(&series, 20 * DAY + 7);
        let at_20 = 20 * DAY..21 * DAY;
        let of_day_20 = std::slice::from_ref(&at_20);
        assert_eq!(series.changed_times(&first)[part], *of_day_20);
        series.flush().unwrap();
        assert_eq!(series.changed_times(&first)[part], *of_day_20);
        let all = series.changed_times(&[0; PARTITION_COUNT]);
        assert_eq!(all[part], [10 * DAY..12 * DAY, at_20.clone()]);
        series.close();
        drop(series);
        let (series, _) = Series::open(directory.path(), config()).unwrap();
        assert_eq!(series.positions()[part], 3);
        append(&series, -3);
        assert_eq!(series.changed_times(&first)[part], [-DAY..0, at_20.clone()]);
    }
}
