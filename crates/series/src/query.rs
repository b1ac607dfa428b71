//! Reading rows of one device back, in order and each time once, wherever they are.

use std::ops::ControlFlow;

use crate::error::Error;
use crate::memtable::PieceView;
use crate::part::{partition_of, place_of};
use crate::point::{DeviceNo, KeyId, Point, Row};
use crate::shared::{MAX_TS, Shared, lock};
use crate::table::Table;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// Which rows are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The first time.
    pub from_ms: i64,
    /// The time behind the last one.
    pub to_ms: i64,
    /// Rows at most.
    pub limit: usize,
    pub order: Order,
}

impl Default for Range {
    fn default() -> Self {
        Self {
            from_ms: -MAX_TS,
            to_ms: MAX_TS,
            limit: usize::MAX,
            order: Order::OldestFirst,
        }
    }
}

/// How values of an interval become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aggregate {
    Avg,
    Min,
    Max,
    Sum,
    Count,
    First,
    Last,
}

/// What is known about the values of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Values of any kind.
    pub count: u64,
    /// Numbers and bools among them; the rest is about these.
    pub numbers: u64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    /// The earliest, and when.
    pub first: (i64, f64),
    /// The latest, and when.
    pub last: (i64, f64),
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            count: 0,
            numbers: 0,
            sum: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            first: (i64::MAX, 0.0),
            last: (i64::MIN, 0.0),
        }
    }
}

impl Summary {
    #[inline]
    pub(crate) fn add(&mut self, ts_ms: i64, number: Option<f64>) {
        self.count += 1;
        if let Some(number) = number.filter(|number| !number.is_nan()) {
            self.add_number(ts_ms, number);
        }
    }

    /// Adds a number that is not NaN, without counting it as a value.
    #[inline]
    pub(crate) fn add_number(&mut self, ts_ms: i64, number: f64) {
        self.numbers += 1;
        self.sum += number;
        self.min = if number < self.min { number } else { self.min };
        self.max = if number > self.max { number } else { self.max };
        if ts_ms < self.first.0 {
            self.first = (ts_ms, number);
        }
        if ts_ms >= self.last.0 {
            self.last = (ts_ms, number);
        }
    }

    pub(crate) fn merge(&mut self, other: &Summary) {
        self.count += other.count;
        self.numbers += other.numbers;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        if other.numbers > 0 && other.first.0 < self.first.0 {
            self.first = other.first;
        }
        if other.numbers > 0 && other.last.0 >= self.last.0 {
            self.last = other.last;
        }
    }

    /// One of the aggregates; `None` if no value is a number, except for the count.
    pub fn get(&self, aggregate: Aggregate) -> Option<f64> {
        if aggregate == Aggregate::Count {
            return Some(self.count as f64);
        }
        (self.numbers > 0).then(|| match aggregate {
            Aggregate::Avg => self.sum / self.numbers as f64,
            Aggregate::Min => self.min,
            Aggregate::Max => self.max,
            Aggregate::Sum => self.sum,
            Aggregate::Count => self.count as f64,
            Aggregate::First => self.first.1,
            Aggregate::Last => self.last.1,
        })
    }
}

/// Times to aggregate over.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    pub from_ms: i64,
    pub to_ms: i64,
    /// Intervals begin at multiples of this from the origin; the first and the last are cut by `from_ms` and `to_ms`.
    pub interval_ms: i64,
    /// Where one interval begins, such as a local midnight.
    pub origin_ms: i64,
}

/// The most intervals of one query.
pub const MAX_INTERVALS: i64 = 1_000_000;

impl Intervals {
    fn check(&self) -> Result<(), Error> {
        if self.interval_ms < 1 {
            return Err(Error::Query {
                field: "interval_ms",
                found: self.interval_ms,
                expected: "1 or more",
            });
        }
        let span = i128::from(self.to_ms) - i128::from(self.from_ms);
        if span / i128::from(self.interval_ms) > i128::from(MAX_INTERVALS) {
            return Err(Error::Query {
                field: "interval_ms",
                found: self.interval_ms,
                expected: "long enough for no more than 1,000,000 intervals",
            });
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn start_of(&self, ts_ms: i64) -> i64 {
        ts_ms - (ts_ms - self.origin_ms).rem_euclid(self.interval_ms)
    }
}

/// Gives tables of rows of a device, in the order of their times and with none in two of them.
pub(crate) fn each_table(
    shared: &Shared,
    device: DeviceNo,
    keys: Option<&[KeyId]>,
    range: &Range,
    each: &mut dyn FnMut(&Table) -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut views: Vec<PieceView> = Vec::new();
    {
        let part = lock(&shared.parts[partition_of(device)].part);
        let place = place_of(device);
        let memtables = part
            .frozen
            .iter()
            .map(|frozen| &**frozen)
            .chain([&part.active]);
        for memtable in memtables {
            memtable.pieces(place, range.from_ms, range.to_ms, &mut |view| {
                views.push(view)
            });
        }
    }
    let mut table = Table::default();
    for view in &views {
        table
            .read_piece(view, keys)
            .expect("what was encoded in this process can be read");
    }
    table.sort();
    if !table.is_empty() {
        let _ = each(&table);
    }
    Ok(())
}

pub(crate) fn range(
    shared: &Shared,
    device: DeviceNo,
    keys: Option<&[KeyId]>,
    range: &Range,
    each: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut left = range.limit;
    if left == 0 || range.from_ms >= range.to_ms {
        return Ok(());
    }
    let backwards = range.order == Order::NewestFirst;
    each_table(shared, device, keys, range, &mut |table| {
        let rows = table.within(range.from_ms, range.to_ms);
        table.each_row(rows, backwards, &mut |ts_ms, points| {
            left -= 1;
            each(Row { ts_ms, points })?;
            match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })
    })
}

pub(crate) fn latest(
    shared: &Shared,
    device: DeviceNo,
    keys: Option<&[KeyId]>,
    each: &mut dyn FnMut(i64, Point<'_>),
) -> Result<(), Error> {
    let mut seen: Vec<KeyId> = Vec::new();
    let all = Range {
        order: Order::NewestFirst,
        ..Range::default()
    };
    range(shared, device, keys, &all, &mut |row| {
        for point in row.points {
            if !seen.contains(&point.key) {
                seen.push(point.key);
                each(row.ts_ms, *point);
            }
        }
        match keys {
            Some(keys) if keys.len() == seen.len() => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })
}

/// Gives what each interval of each device and key has, devices and keys in the order they are asked for.
pub(crate) fn aggregate(
    shared: &Shared,
    devices: &[DeviceNo],
    keys: &[KeyId],
    intervals: &Intervals,
    each: &mut dyn FnMut(DeviceNo, KeyId, i64, &Summary),
) -> Result<(), Error> {
    intervals.check()?;
    let range = Range {
        from_ms: intervals.from_ms,
        to_ms: intervals.to_ms,
        ..Range::default()
    };
    for &device in devices {
        let mut of_keys: Vec<Vec<(i64, Summary)>> = vec![Vec::new(); keys.len()];
        each_table(shared, device, Some(keys), &range, &mut |table| {
            for row in table.within(range.from_ms, range.to_ms) {
                let start = intervals.start_of(table.ts[row]);
                for column in &table.columns {
                    let at = keys.iter().position(|key| *key == column.key);
                    let (Some(at), Some(place)) = (at, column.place(row)) else {
                        continue;
                    };
                    let of_key = &mut of_keys[at];
                    if of_key.last().is_none_or(|last| last.0 != start) {
                        of_key.push((start, Summary::default()));
                    }
                    let (_, last) = of_key.last_mut().expect("one was pushed if there was none");
                    last.add(table.ts[row], column.values.get(place).number());
                }
            }
            ControlFlow::Continue(())
        })?;
        for (key, of_key) in keys.iter().zip(&of_keys) {
            of_key
                .iter()
                .for_each(|(start, summary)| each(device, *key, *start, summary));
        }
    }
    Ok(())
}
