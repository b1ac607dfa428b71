//! Tumbling and hopping windows.

use std::collections::BTreeMap;

use super::codec::{DecodeError, WindowReader, encode_key, put_bytes, put_u64};
use super::window_group::{
    AddOutcome, CloseCallback, ClosedGroup, GroupAggregates, GroupKey, WindowBudget, read_key,
};
use crate::calendar::{DAY_S, month_of, month_start};
use crate::window::{Aggregate, CalendarUnit, MAX_OVERLAPPING, WindowSample};
use crate::zone::Zone;

/// Windows that begin at multiples of a duration: tumbling and hopping.
pub(super) struct AlignedWindows {
    grid: WindowGrid,
    /// By start, which is also the order in which they end.
    windows: BTreeMap<u64, BTreeMap<GroupKey, GroupAggregates>>,
}

/// The grid on which windows begin and end.
enum WindowGrid {
    Millis {
        size_ms: u64,
        every_ms: u64,
    },
    /// Windows begin at midnight in a zone, so a change of its clocks makes a window an hour longer or
    /// shorter. Units are days.
    Days {
        size: i64,
        every: i64,
        /// A day on which a window begins.
        first: i64,
        zone: Zone,
    },
    Months {
        size: i64,
        zone: Zone,
    },
}

/// 1970-01-05, the first Monday.
const FIRST_MONDAY: i64 = 4;

const DAY_MS: u64 = DAY_S as u64 * 1000;

impl WindowGrid {
    /// The start of the last window that begins at or before this time.
    fn last_start_ms(&self, at_ms: u64) -> u64 {
        match self {
            Self::Millis { every_ms, .. } => at_ms - at_ms % every_ms,
            Self::Days {
                every, first, zone, ..
            } => {
                let day = day_of(at_ms, zone);
                let mut start = day - (day - first).rem_euclid(*every);
                // If clocks are set back at midnight, a day occurs twice; it ends the second time.
                while midnight_ms(start + every, zone) <= at_ms {
                    start += every;
                }
                midnight_ms(start, zone)
            }
            Self::Months { size, zone } => {
                let month = month_of(day_of(at_ms, zone));
                let mut start = month - month.rem_euclid(*size);
                while midnight_ms(month_start(start + size), zone) <= at_ms {
                    start += size;
                }
                midnight_ms(month_start(start), zone)
            }
        }
    }

    /// The start of the previous window.
    fn before_ms(&self, start_ms: u64) -> Option<u64> {
        match self {
            Self::Millis { every_ms, .. } => start_ms.checked_sub(*every_ms),
            Self::Days { every, zone, .. } => {
                let before_ms = midnight_ms(day_of(start_ms, zone) - every, zone);
                (before_ms < start_ms).then_some(before_ms)
            }
            Self::Months { size, zone } => {
                let before = month_of(day_of(start_ms, zone)) - size;
                let before_ms = midnight_ms(month_start(before), zone);
                (before_ms < start_ms).then_some(before_ms)
            }
        }
    }

    fn end_ms(&self, start_ms: u64) -> u64 {
        match self {
            Self::Millis { size_ms, .. } => start_ms.saturating_add(*size_ms),
            Self::Days { size, zone, .. } => midnight_ms(day_of(start_ms, zone) + size, zone),
            Self::Months { size, zone } => {
                let month = month_of(day_of(start_ms, zone));
                midnight_ms(month_start(month + size), zone)
            }
        }
    }
}

/// Days from 1970 to the local date in the zone.
fn day_of(at_ms: u64, zone: &Zone) -> i64 {
    let unix_s = (at_ms / 1000) as i64;
    (unix_s + i64::from(zone.offset_s(unix_s))).div_euclid(DAY_S)
}

/// The first moment of a day.
fn midnight_ms(day: i64, zone: &Zone) -> u64 {
    let unix_s = zone.to_unix_s(day.saturating_mul(DAY_S));
    u64::try_from(unix_s).unwrap_or(0).saturating_mul(1000)
}

impl AlignedWindows {
    pub(super) fn new(size_ms: u64, every_ms: u64, zone: &Zone) -> Self {
        let size_ms = size_ms.max(1);
        let every_ms = every_ms.max(size_ms.div_ceil(MAX_OVERLAPPING)).max(1);
        let is_of_days = size_ms.is_multiple_of(DAY_MS) && every_ms.is_multiple_of(DAY_MS);
        let grid = match is_of_days && *zone != Zone::UTC {
            true => WindowGrid::Days {
                size: (size_ms / DAY_MS) as i64,
                every: (every_ms / DAY_MS) as i64,
                first: 0,
                zone: zone.clone(),
            },
            false => WindowGrid::Millis { size_ms, every_ms },
        };
        Self {
            grid,
            windows: BTreeMap::new(),
        }
    }

    /// Tumbling windows of weeks or months.
    pub(super) fn by_calendar(size: u32, unit: CalendarUnit, zone: &Zone) -> Self {
        let size = i64::from(size.max(1));
        let zone = zone.clone();
        let grid = match unit {
            CalendarUnit::Week => WindowGrid::Days {
                size: 7 * size,
                every: 7 * size,
                first: FIRST_MONDAY,
                zone,
            },
            CalendarUnit::Month => WindowGrid::Months { size, zone },
        };
        Self {
            grid,
            windows: BTreeMap::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &WindowSample<'_>,
        closed_ms: u64,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
    ) -> AddOutcome {
        let at_ms = sample.timestamp_ms;
        let key = encode_key(sample.key);
        let mut outcome = AddOutcome::Late;
        let mut start_ms = self.grid.last_start_ms(at_ms);
        // From the last window that contains the event to the first. If there are gaps between windows, no
        // window may contain it.
        loop {
            let end_ms = self.grid.end_ms(start_ms);
            if end_ms <= at_ms || end_ms <= closed_ms {
                break;
            }
            let groups = self.windows.entry(start_ms).or_default();
            let added = match groups.get_mut(&key[..]) {
                Some(sums) => sums.add(sample.arguments, room),
                None if room.try_reserve_group(GroupAggregates::empty_bytes(&key, aggregates)) => {
                    let mut sums = GroupAggregates::new(aggregates);
                    let added = sums.add(sample.arguments, room);
                    groups.insert(key[..].into(), sums);
                    added
                }
                None => AddOutcome::Full,
            };
            if groups.is_empty() {
                self.windows.remove(&start_ms);
            }
            if outcome != AddOutcome::Full {
                outcome = added;
            }
            match self.grid.before_ms(start_ms) {
                Some(earlier_ms) => start_ms = earlier_ms,
                None => break,
            }
        }
        outcome
    }

    pub(super) fn advance(
        &mut self,
        closed_ms: u64,
        room: &mut WindowBudget,
        close: CloseCallback<'_>,
    ) {
        while let Some(first) = self.windows.first_entry() {
            let start_ms = *first.key();
            let end_ms = self.grid.end_ms(start_ms);
            if end_ms > closed_ms {
                return;
            }
            for (key, sums) in &first.remove() {
                room.release_group(sums.size_bytes(key));
                close(ClosedGroup {
                    start_ms,
                    end_ms,
                    key,
                    sums,
                });
            }
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        let (start_ms, _) = self.windows.first_key_value()?;
        Some(self.grid.end_ms(*start_ms))
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.windows.len() as u64, out);
        for (start_ms, groups) in &self.windows {
            put_u64(*start_ms, out);
            put_u64(groups.len() as u64, out);
            for (key, sums) in groups {
                put_bytes(key, out);
                sums.put(out);
            }
        }
    }

    pub(super) fn read(
        &mut self,
        from: &mut WindowReader<'_>,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
    ) -> Result<(), DecodeError> {
        for _ in 0..from.u64()? {
            let start_ms = from.u64()?;
            let mut groups = BTreeMap::new();
            for _ in 0..from.u64()? {
                let (key, sums) = (read_key(from)?, GroupAggregates::read(from, aggregates)?);
                if room.try_reserve_group(sums.size_bytes(&key)) {
                    groups.insert(key, sums);
                }
            }
            self.windows.insert(start_ms, groups);
        }
        Ok(())
    }
}
