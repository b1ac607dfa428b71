//! What is known about the values of an interval.

use crate::decimal;
use crate::error::Error;

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

    /// Adds decimals of one scale; `first` and `last` are the times of the first and the last of them.
    pub(crate) fn add_decimals(&mut self, numbers: &[i64], scale: u8, first: i64, last: i64) {
        let (Some(earliest), Some(latest)) = (numbers.first(), numbers.last()) else {
            return;
        };
        let least = numbers
            .iter()
            .fold(i64::MAX, |least, &number| least.min(number));
        let most = numbers
            .iter()
            .fold(i64::MIN, |most, &number| most.max(number));
        let is_small = numbers.len() < 1 << 19 && least > -(1 << 44) && most < 1 << 44;
        let float = |number: i64| decimal::unscale(number, scale);
        let sum = match is_small {
            // Exact, and without a division for each.
            true => float(numbers.iter().sum()),
            false => numbers.iter().map(|&number| float(number)).sum(),
        };
        let len = numbers.len() as u64;
        self.merge(&Summary {
            count: len,
            numbers: len,
            sum,
            min: float(least),
            max: float(most),
            first: (first, float(*earliest)),
            last: (last, float(*latest)),
        });
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
    pub(crate) fn check(&self) -> Result<(), Error> {
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
