//! Configuration of the series: memory and disk limits, durability, retention.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use disk::{Fsync, ParseFsyncError};

use crate::error::SeriesOpenError;
use crate::point::DeviceNo;

pub(crate) const DAY_MS: i64 = 86_400_000;

/// From a given age on, points become one row of aggregates per interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownsamplingTier {
    /// Age of a day's end from which its points are downsampled.
    pub after_ms: i64,
    /// Length of an interval; a divisor of [`SeriesConfig::window_ms`], and a multiple of the previous tier's
    /// interval.
    pub interval_ms: i64,
}

/// Retention and downsampling of the points of some devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Points older than this are removed, whole days at a time; `None`: never.
    pub retention_ms: Option<i64>,
    /// Ascending by age.
    pub tiers: Vec<DownsamplingTier>,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            retention_ms: Some(90 * DAY_MS),
            tiers: Vec::new(),
        }
    }
}

/// Maps a device number to the number of its policy. Called when segment files are checked and merged; may
/// wait.
#[derive(Clone)]
pub struct PolicyResolver(Arc<dyn Fn(DeviceNo) -> u8 + Send + Sync>);

impl PolicyResolver {
    pub fn new(policy_of: impl Fn(DeviceNo) -> u8 + Send + Sync + 'static) -> Self {
        Self(Arc::new(policy_of))
    }

    pub(crate) fn policy_number(&self, device: DeviceNo) -> u8 {
        (self.0)(device)
    }
}

impl fmt::Debug for PolicyResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyOf")
    }
}

/// Policies and their assignment to devices: one value, so that no number of one list is looked up in
/// another.
#[derive(Debug, Clone, Default)]
pub struct PolicyAssignment {
    /// Policies by number. Number 0 applies to devices without an assignment; if it is missing, it is the
    /// default policy.
    pub policies: Vec<(u8, RetentionPolicy)>,
    /// Without it, all devices have number 0.
    pub policy_of: Option<PolicyResolver>,
    /// Changes when the result of `policy_of` changes, and causes all files to be checked again. Need not be
    /// stable across restarts.
    pub revision: u64,
}

/// Limits of the series.
#[derive(Debug, Clone)]
pub struct SeriesConfig {
    /// When the write-ahead log is forced to disk.
    pub fsync: Fsync,
    /// Maximum memory for appended rows that are not in segment files yet.
    pub memtable_bytes: usize,
    /// Rows are in a segment file after this time at the latest, so that a start has little to read.
    pub flush_after: Duration,
    /// Size of one file of the write-ahead log.
    pub wal_segment_bytes: u32,
    /// Rows are flushed to segment files early when the write-ahead log has grown to this size.
    pub max_wal_bytes: u64,
    /// No rows are accepted while the file system has less free space.
    pub min_free_bytes: u64,
    /// Time span of one segment file. Fixed when a directory is created.
    pub window_ms: i64,
    /// Maximum number of key names.
    pub max_keys: u32,
    /// Rows may be this far ahead of the clock.
    pub max_future_ms: i64,
    /// Memory for the cached latest values of queried devices.
    pub latest_cache_bytes: usize,
    /// Speed at which segment files are verified after a start; 0: not at all.
    pub verify_bytes_per_s: u64,
    /// The retention policies at the start.
    pub assignment: PolicyAssignment,
}

impl Default for SeriesConfig {
    fn default() -> Self {
        Self {
            fsync: Fsync::default(),
            memtable_bytes: 32 << 20,
            flush_after: Duration::from_secs(15 * 60),
            wal_segment_bytes: 16 << 20,
            max_wal_bytes: 512 << 20,
            min_free_bytes: 256 << 20,
            window_ms: DAY_MS,
            max_keys: 65_536,
            max_future_ms: DAY_MS,
            latest_cache_bytes: 16 << 20,
            verify_bytes_per_s: 64 << 20,
            assignment: PolicyAssignment::default(),
        }
    }
}

impl SeriesConfig {
    /// Size at which the memtable of one partition is frozen: all partitions together take half of the
    /// memory.
    pub(crate) fn freeze_bytes(&self) -> usize {
        self.memtable_bytes / (2 * crate::partitioning::PARTITION_COUNT)
    }

    /// Size of the chunks that store rows in memory.
    pub(crate) fn chunk_bytes(&self) -> usize {
        (self.freeze_bytes() / 16).clamp(4 << 10, 64 << 10)
    }

    /// Checks that the limits are consistent.
    pub(crate) fn check(&self) -> Result<(), SeriesOpenError> {
        let refuse = |field, found: String, expected: &str| {
            Err(SeriesOpenError::Setting {
                field,
                found,
                expected: expected.to_owned(),
            })
        };
        let block = crate::wal::block::BLOCK_BYTES as u32;
        if !self.wal_segment_bytes.is_multiple_of(block)
            || !(block..=1 << 30).contains(&self.wal_segment_bytes)
        {
            let found = self.wal_segment_bytes.to_string();
            return refuse(
                "wal_segment_bytes",
                found,
                "a multiple of 256 KiB up to 1 GiB",
            );
        }
        if self.max_wal_bytes < 4 * u64::from(self.wal_segment_bytes) {
            let found = self.max_wal_bytes.to_string();
            return refuse(
                "max_wal_bytes",
                found,
                "at least four times wal_segment_bytes",
            );
        }
        if self.memtable_bytes < 1 << 20 {
            return refuse(
                "memtable_bytes",
                self.memtable_bytes.to_string(),
                "at least 1 MiB",
            );
        }
        if !(60_000..=400 * DAY_MS).contains(&self.window_ms) {
            return refuse(
                "window_ms",
                self.window_ms.to_string(),
                "a minute to 400 days",
            );
        }
        if !(1..=1 << 24).contains(&self.max_keys) {
            return refuse("max_keys", self.max_keys.to_string(), "1 to 16,777,216");
        }
        if self.max_future_ms < 0 {
            return refuse("max_future_ms", self.max_future_ms.to_string(), "0 or more");
        }
        self.assignment.check(self.window_ms)
    }
}

impl PolicyAssignment {
    pub(crate) fn check(&self, window_ms: i64) -> Result<(), SeriesOpenError> {
        let mut policies = self.policies.iter();
        policies.try_for_each(|(number, policy)| policy.check(*number, window_ms))
    }
}

impl RetentionPolicy {
    pub(crate) fn check(&self, number: u8, window_ms: i64) -> Result<(), SeriesOpenError> {
        let refuse = |what: &str, found: i64, expected: &str| {
            Err(SeriesOpenError::Setting {
                field: "policies",
                found: format!("{what} {found} ms in policy {number}"),
                expected: expected.to_owned(),
            })
        };
        if let Some(retention_ms) = self.retention_ms
            && retention_ms < 1
        {
            return refuse("retention", retention_ms, "1 ms or more");
        }
        let mut before: Option<&DownsamplingTier> = None;
        for tier in &self.tiers {
            if tier.after_ms < 0 || before.is_some_and(|before| tier.after_ms <= before.after_ms) {
                return refuse("an age of", tier.after_ms, "ages ascending from 0");
            }
            let is_multiple =
                before.is_none_or(|before| tier.interval_ms % before.interval_ms == 0);
            if tier.interval_ms < 1 || window_ms % tier.interval_ms != 0 || !is_multiple {
                let expected = "divisors of window_ms, each a multiple of the one before";
                return refuse("an interval of", tier.interval_ms, expected);
            }
            before = Some(tier);
        }
        Ok(())
    }

    /// The interval of points of this age; 0 means original points, `None` that they are removed.
    pub(crate) fn interval_at(&self, age_ms: i64) -> Option<i64> {
        if self
            .retention_ms
            .is_some_and(|retention_ms| age_ms > retention_ms)
        {
            return None;
        }
        let reached = self.tiers.iter().rev().find(|tier| age_ms >= tier.after_ms);
        Some(reached.map_or(0, |tier| tier.interval_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_determines_the_interval_of_an_age() {
        let policy = RetentionPolicy {
            retention_ms: Some(100),
            tiers: vec![
                DownsamplingTier {
                    after_ms: 10,
                    interval_ms: 60_000,
                },
                DownsamplingTier {
                    after_ms: 50,
                    interval_ms: 3_600_000,
                },
            ],
        };
        assert!(policy.check(1, DAY_MS).is_ok());
        let at = |age| policy.interval_at(age);
        assert_eq!(
            [at(9), at(10), at(50)],
            [Some(0), Some(60_000), Some(3_600_000)]
        );
        assert_eq!(at(101), None);
    }

    #[test]
    fn invalid_settings_are_refused_with_the_field() {
        let tier = |after_ms, interval_ms| DownsamplingTier {
            after_ms,
            interval_ms,
        };
        for tiers in [
            vec![tier(5, 7)],
            vec![tier(5, 60_000), tier(5, 120_000)],
            vec![tier(1, 120_000), tier(2, 180_000)],
        ] {
            let policy = RetentionPolicy {
                retention_ms: None,
                tiers,
            };
            assert!(
                policy
                    .check(3, DAY_MS)
                    .unwrap_err()
                    .to_string()
                    .contains("policy 3")
            );
        }
        let config = SeriesConfig {
            wal_segment_bytes: 1000,
            ..SeriesConfig::default()
        };
        assert!(
            config
                .check()
                .unwrap_err()
                .to_string()
                .contains("wal_segment_bytes")
        );
    }
}
