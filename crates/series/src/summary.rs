//! Summary of the values of an interval. Values keep their types: integers are exact, first and last value
//! may be of any kind.
//!
//! The one definition of the aggregates of stored telemetry; the HTTP API takes names from
//! [`Aggregate::NAMES`]. Another aggregate is a variant with its name and its line in [`IntervalSummary::get`]
//! here, and a row in `docs/guides/telemetry.md`. Aggregates of rule windows are defined in `rules`: they
//! follow the order of arrival and the comparison of the rule language.
//!
//! Ties: among values of the same time, the first value is the one that is added first and the last value is
//! the one that is added last. Between equal minima or maxima, the integer is kept, in any order of addition.

use std::cmp::Ordering;

use crate::column_values::{ColumnValues, FloatValues, ValueKind};
use crate::decimal;
use crate::error::SeriesError;
use crate::point::OwnedValue;
use crate::point::PointValue;

/// An aggregate of the values of an interval.
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

impl Aggregate {
    pub const ALL: [Self; 7] = [
        Self::Avg,
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Count,
        Self::First,
        Self::Last,
    ];

    /// The names of [`Self::ALL`], in the same order.
    pub const NAMES: [&'static str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].name();
            at += 1;
        }
        names
    };

    pub const fn name(self) -> &'static str {
        match self {
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
            Self::Sum => "sum",
            Self::Count => "count",
            Self::First => "first",
            Self::Last => "last",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|aggregate| aggregate.name() == name)
    }
}

/// A number with its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumericValue {
    Int(i64),
    Float(f64),
}

impl NumericValue {
    pub fn float(self) -> f64 {
        match self {
            NumericValue::Int(number) => number as f64,
            NumericValue::Float(number) => number,
        }
    }

    pub fn value(self) -> PointValue<'static> {
        match self {
            NumericValue::Int(number) => PointValue::Int(number),
            NumericValue::Float(number) => PointValue::Float(number),
        }
    }

    /// The numeric value: a bool is 0 or 1; texts and NaN have none.
    pub(crate) fn from_value(value: PointValue<'_>) -> Option<Self> {
        match value {
            PointValue::Bool(value) => Some(NumericValue::Int(i64::from(value))),
            PointValue::Int(value) => Some(NumericValue::Int(value)),
            PointValue::Float(value) => (!value.is_nan()).then_some(NumericValue::Float(value)),
            PointValue::Text(_) | PointValue::Json(_) => None,
        }
    }

    fn compare(self, other: NumericValue) -> Ordering {
        match (self, other) {
            (NumericValue::Int(one), NumericValue::Int(other)) => one.cmp(&other),
            (NumericValue::Float(one), NumericValue::Float(other)) => one.total_cmp(&other),
            (NumericValue::Int(int), NumericValue::Float(float)) => compare_mixed(int, float),
            (NumericValue::Float(float), NumericValue::Int(int)) => {
                compare_mixed(int, float).reverse()
            }
        }
    }

    /// Whether this is the better minimum (`Less`) or maximum (`Greater`). An integer replaces an equal float.
    fn replaces(self, known: NumericValue, better: Ordering) -> bool {
        match self.compare(known) {
            Ordering::Equal => matches!((self, known), (Self::Int(_), Self::Float(_))),
            order => order == better,
        }
    }
}

/// Compares without rounding the integer to a double. Rounding would make different integers equal to one float, and
/// the result dependent on the order of the values.
fn compare_mixed(int: i64, float: f64) -> Ordering {
    const BEYOND_I64: f64 = (1_u64 << 63) as f64;
    if float >= BEYOND_I64 {
        return Ordering::Less;
    }
    if float < -BEYOND_I64 {
        return Ordering::Greater;
    }
    let whole = float.trunc() as i64;
    int.cmp(&whole)
        .then_with(|| (whole as f64).total_cmp(&float))
}

/// A sum that is exact for integers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NumericSum {
    /// Sum of the integers. About 2^64 of them fit.
    whole: i128,
    /// Sum of the floats.
    rest: f64,
    has_rest: bool,
}

impl NumericSum {
    fn add(&mut self, number: NumericValue) {
        match number {
            NumericValue::Int(number) => self.whole += i128::from(number),
            NumericValue::Float(number) => self.add_float(number),
        }
    }

    fn add_float(&mut self, number: f64) {
        self.rest += number;
        self.has_rest = true;
    }

    fn merge(&mut self, other: NumericSum) {
        self.whole += other.whole;
        self.rest += other.rest;
        self.has_rest |= other.has_rest;
    }

    pub fn float(self) -> f64 {
        match self.has_rest {
            true => self.whole as f64 + self.rest,
            false => self.whole as f64,
        }
    }

    /// An integer if all values are integers and 64 bits suffice, otherwise the nearest double.
    pub fn number(self) -> NumericValue {
        match i64::try_from(self.whole) {
            Ok(whole) if !self.has_rest => NumericValue::Int(whole),
            _ => NumericValue::Float(self.float()),
        }
    }
}

/// Summary of the values of an interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IntervalSummary {
    /// Number of values of any kind.
    pub count: u64,
    /// Number of numbers and bools, over which `sum`, `min` and `max` are computed; a bool is 0 or 1.
    pub numbers: u64,
    pub sum: NumericSum,
    pub min: Option<NumericValue>,
    pub max: Option<NumericValue>,
    /// The earliest value and its time.
    first: Option<(i64, OwnedValue)>,
    /// The latest value and its time.
    last: Option<(i64, OwnedValue)>,
}

impl IntervalSummary {
    /// The earliest value and its time.
    pub fn first(&self) -> Option<(i64, PointValue<'_>)> {
        self.first
            .as_ref()
            .map(|(ts_ms, value)| (*ts_ms, value.value()))
    }

    /// The latest value and its time.
    pub fn last(&self) -> Option<(i64, PointValue<'_>)> {
        self.last
            .as_ref()
            .map(|(ts_ms, value)| (*ts_ms, value.value()))
    }

    /// A summary of `count` values without further information.
    pub(crate) fn with_count(count: u64) -> Self {
        Self {
            count,
            ..Self::default()
        }
    }

    /// Adds a value.
    pub(crate) fn add(&mut self, ts_ms: i64, value: PointValue<'_>) {
        self.count += 1;
        self.add_number(NumericValue::from_value(value));
        self.add_first(ts_ms, value);
        self.add_last(ts_ms, value);
    }

    /// Adds a value that is neither the first nor the last, unless there is none yet.
    pub(crate) fn add_between(&mut self, ts_ms: i64, value: PointValue<'_>) {
        match self.first.is_some() {
            true => {
                self.count += 1;
                self.add_number(NumericValue::from_value(value));
            }
            false => self.add(ts_ms, value),
        }
    }

    fn add_number(&mut self, number: Option<NumericValue>) {
        let Some(number) = number else { return };
        self.numbers += 1;
        self.sum.add(number);
        self.add_extremes(number, number);
    }

    fn add_extremes(&mut self, min: NumericValue, max: NumericValue) {
        if self
            .min
            .is_none_or(|known| min.replaces(known, Ordering::Less))
        {
            self.min = Some(min);
        }
        if self
            .max
            .is_none_or(|known| max.replaces(known, Ordering::Greater))
        {
            self.max = Some(max);
        }
    }

    /// Adopts a value as the first if it is the earliest.
    pub(crate) fn add_first(&mut self, ts_ms: i64, value: PointValue<'_>) {
        if self.first.as_ref().is_none_or(|first| ts_ms < first.0) {
            self.first = Some((ts_ms, OwnedValue::new(value)));
        }
    }

    /// Adopts a value as the last if it is the latest.
    pub(crate) fn add_last(&mut self, ts_ms: i64, value: PointValue<'_>) {
        if self.last.as_ref().is_none_or(|last| ts_ms >= last.0) {
            self.last = Some((ts_ms, OwnedValue::new(value)));
        }
    }

    /// Adds numbers with a known count, sum and range.
    pub(crate) fn add_numbers(
        &mut self,
        numbers: u64,
        sum: NumericValue,
        min: NumericValue,
        max: NumericValue,
    ) {
        self.numbers += numbers;
        self.sum.add(sum);
        self.add_extremes(min, max);
    }

    /// Adds values of a column in order of their times; given are the times of the first and the last value.
    pub(crate) fn add_values(
        &mut self,
        values: &ColumnValues,
        places: std::ops::Range<usize>,
        (first, last): (i64, i64),
    ) {
        if places.is_empty() {
            return;
        }
        self.count += places.len() as u64;
        self.add_first(first, values.get(places.start));
        self.add_last(last, values.get(places.end - 1));
        match (&values.mixed, values.kind, &values.floats) {
            (None, Some(ValueKind::Float), FloatValues::Decimal { scale, numbers }) => {
                self.add_decimals(&numbers[places], *scale);
            }
            (None, Some(ValueKind::Float), FloatValues::Plain(floats)) => {
                self.add_floats(&floats[places]);
            }
            (None, Some(ValueKind::Int), _) => self.add_ints(&values.ints[places]),
            (None, Some(ValueKind::Bool), _) => self.add_ints(&values.bools[places]),
            (None, Some(ValueKind::Text | ValueKind::Json), _) => {}
            _ => places
                .for_each(|place| self.add_number(NumericValue::from_value(values.get(place)))),
        }
    }

    fn add_ints(&mut self, ints: &[i64]) {
        let Some((least, most)) = extremes(ints) else {
            return;
        };
        self.numbers += ints.len() as u64;
        self.sum.whole += match is_small(ints.len(), least, most) {
            true => i128::from(ints.iter().sum::<i64>()),
            false => ints.iter().map(|&number| i128::from(number)).sum(),
        };
        self.add_extremes(NumericValue::Int(least), NumericValue::Int(most));
    }

    /// Adds floats; those that are not a number do not count.
    fn add_floats(&mut self, floats: &[f64]) {
        let mut known = floats.iter().copied().filter(|float| !float.is_nan());
        let Some(first) = known.next() else { return };
        self.numbers += 1;
        self.sum.add_float(first);
        let (mut least, mut most) = (first, first);
        for float in known {
            self.numbers += 1;
            self.sum.add_float(float);
            least = if float.total_cmp(&least).is_lt() {
                float
            } else {
                least
            };
            most = if float.total_cmp(&most).is_gt() {
                float
            } else {
                most
            };
        }
        self.add_extremes(NumericValue::Float(least), NumericValue::Float(most));
    }

    /// Adds floats that are decimals of one scale.
    fn add_decimals(&mut self, numbers: &[i64], scale: u8) {
        let Some((least, most)) = extremes(numbers) else {
            return;
        };
        let float = |number: i64| decimal::unscale(number, scale);
        let sum = match is_small(numbers.len(), least, most) {
            // Exact, and without a division for each value.
            true => float(numbers.iter().sum()),
            false => numbers.iter().map(|&number| float(number)).sum(),
        };
        self.numbers += numbers.len() as u64;
        self.sum.add_float(sum);
        self.add_extremes(
            NumericValue::Float(float(least)),
            NumericValue::Float(float(most)),
        );
    }

    /// Merges another summary as if its values were added now: among equal times, the first value remains and
    /// the last value is the other's.
    pub fn merge(&mut self, other: &IntervalSummary) {
        self.count += other.count;
        self.numbers += other.numbers;
        self.sum.merge(other.sum);
        if let (Some(min), Some(max)) = (other.min, other.max) {
            self.add_extremes(min, max);
        }
        if let Some((ts_ms, value)) = other.first() {
            self.add_first(ts_ms, value);
        }
        if let Some((ts_ms, value)) = other.last() {
            self.add_last(ts_ms, value);
        }
    }

    /// Returns one of the aggregates. `None` if there is no value or, for `avg`, `min`, `max` and `sum`, no
    /// number. `avg` is a float. `min`, `max` and `sum` of integers are integers; a sum that exceeds 64 bits
    /// is a float.
    pub fn get(&self, aggregate: Aggregate) -> Option<PointValue<'_>> {
        let has_numbers = self.numbers > 0;
        match aggregate {
            Aggregate::Count => Some(PointValue::Int(self.count as i64)),
            Aggregate::First => self.first().map(|(_, value)| value),
            Aggregate::Last => self.last().map(|(_, value)| value),
            Aggregate::Min => self.min.map(NumericValue::value),
            Aggregate::Max => self.max.map(NumericValue::value),
            Aggregate::Sum => has_numbers.then(|| self.sum.number().value()),
            Aggregate::Avg => {
                has_numbers.then(|| PointValue::Float(self.sum.float() / self.numbers as f64))
            }
        }
    }
}

fn extremes(numbers: &[i64]) -> Option<(i64, i64)> {
    let (first, rest) = numbers.split_first()?;
    let least = rest.iter().fold(*first, |least, &number| least.min(number));
    let most = rest.iter().fold(*first, |most, &number| most.max(number));
    Some((least, most))
}

/// Whether the sum certainly fits 63 bits.
fn is_small(len: usize, least: i64, most: i64) -> bool {
    len < 1 << 19 && least > -(1 << 44) && most < 1 << 44
}

/// The intervals of an aggregation.
#[derive(Debug, Clone, Default)]
pub struct Intervals {
    pub from_ms: i64,
    pub to_ms: i64,
    /// Intervals begin at multiples of this from the origin; the first and the last are cut by `from_ms` and
    /// `to_ms`.
    pub interval_ms: i64,
    /// The begin of any one interval, such as a local midnight.
    pub origin_ms: i64,
    /// Begins of intervals, ascending, instead of `interval_ms` and `origin_ms`: for calendar days, months
    /// and years. The first one is not after `from_ms`. If empty, `interval_ms` and `origin_ms` apply.
    pub starts: Vec<i64>,
}

/// Maximum number of intervals of one query.
pub const MAX_INTERVALS: i64 = 1_000_000;

impl Intervals {
    pub(crate) fn check(&self) -> Result<(), SeriesError> {
        if let Some(first) = self.starts.first() {
            let ascends = self.starts.is_sorted_by(|one, next| one < next);
            return match ascends && *first <= self.from_ms {
                true => Ok(()),
                false => Err(SeriesError::Query {
                    field: "starts",
                    found: *first,
                    expected: "ascending times, the first of them not after from_ms",
                }),
            };
        }
        if self.interval_ms < 1 {
            return Err(SeriesError::Query {
                field: "interval_ms",
                found: self.interval_ms,
                expected: "1 or more",
            });
        }
        let span = i128::from(self.to_ms) - i128::from(self.from_ms);
        if span / i128::from(self.interval_ms) > i128::from(MAX_INTERVALS) {
            return Err(SeriesError::Query {
                field: "interval_ms",
                found: self.interval_ms,
                expected: "long enough for no more than 1,000,000 intervals; give a later from_ms or a longer interval",
            });
        }
        Ok(())
    }

    /// The begin of the interval that contains a time, and the begin of the next one.
    #[inline]
    pub(crate) fn interval_of(&self, ts_ms: i64) -> (i64, i64) {
        if self.starts.is_empty() {
            let start = ts_ms - (ts_ms - self.origin_ms).rem_euclid(self.interval_ms);
            return (start, start.saturating_add(self.interval_ms));
        }
        let next = self.starts.partition_point(|&start| start <= ts_ms);
        let start = self.starts[next.saturating_sub(1)];
        (start, self.starts.get(next).copied().unwrap_or(i64::MAX))
    }

    #[inline]
    pub(crate) fn start_of(&self, ts_ms: i64) -> i64 {
        self.interval_of(ts_ms).0
    }
}

#[cfg(test)]
mod tests;
