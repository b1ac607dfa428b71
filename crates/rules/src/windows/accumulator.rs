//! Incremental computation of one aggregate over the events of one window.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::codec::{DecodeError, WindowReader, encode_key, put_bytes, put_owned, put_u64};
use crate::value::{Arena, Number, OwnedValue, Value};
use crate::window::{Aggregate, AggregateKind};

/// Overhead of one value in a list or a set, in bytes.
const PLACE_BYTES: usize = 32;

#[derive(Debug, Clone)]
pub(super) enum Accumulator {
    Count(u64),
    /// `None`: no number so far. Integers stay integers until they overflow.
    Sum(Option<NumericSum>),
    Avg {
        sum: f64,
        count: u64,
    },
    Min(Option<OwnedValue>),
    Max(Option<OwnedValue>),
    First(Option<OwnedValue>),
    Last(Option<OwnedValue>),
    Collect(Vec<OwnedValue>),
    /// Population standard deviation (Welford's algorithm).
    Stddev {
        count: u64,
        mean: f64,
        squares: f64,
    },
    Percentile(Vec<f64>),
    Distinct(BTreeSet<Box<[u8]>>),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum NumericSum {
    Int(i64),
    Float(f64),
}

impl NumericSum {
    fn add(self, number: Number) -> Self {
        let float = match (self, number) {
            (NumericSum::Int(sum), Number::Int(number)) => match sum.checked_add(number) {
                Some(sum) => return NumericSum::Int(sum),
                None => sum as f64,
            },
            (NumericSum::Int(sum), Number::Float(_)) => sum as f64,
            (NumericSum::Float(sum), _) => sum,
        };
        NumericSum::Float(float + number.as_f64())
    }
}

impl Accumulator {
    pub(super) fn new(kind: AggregateKind) -> Self {
        match kind {
            AggregateKind::Count => Self::Count(0),
            AggregateKind::Sum => Self::Sum(None),
            AggregateKind::Avg => Self::Avg { sum: 0.0, count: 0 },
            AggregateKind::Min => Self::Min(None),
            AggregateKind::Max => Self::Max(None),
            AggregateKind::First => Self::First(None),
            AggregateKind::Last => Self::Last(None),
            AggregateKind::Collect => Self::Collect(Vec::new()),
            AggregateKind::Stddev => Self::Stddev {
                count: 0,
                mean: 0.0,
                squares: 0.0,
            },
            AggregateKind::Percentile => Self::Percentile(Vec::new()),
            AggregateKind::DistinctCount => Self::Distinct(BTreeSet::new()),
        }
    }

    /// Adds a value. Skips nulls, and also non-numbers if a number is required. Returns the additional bytes
    /// of memory. If these may exceed `room`, the value is not added and an error is returned.
    pub(super) fn add(
        &mut self,
        value: &Value<'_>,
        room: usize,
    ) -> Result<isize, AccumulatorFullError> {
        if value.is_null() {
            return Ok(0);
        }
        match self {
            Self::Count(count) => *count += 1,
            Self::Sum(sum) => {
                let float = || value.as_f64().map(Number::Float);
                if let Some(number) = value.as_number().or_else(float) {
                    *sum = Some(sum.unwrap_or(NumericSum::Int(0)).add(number));
                }
            }
            Self::Avg { sum, count } => {
                if let Some(number) = value.as_f64() {
                    *sum += number;
                    *count += 1;
                }
            }
            Self::Min(kept) => return replace_if_better(kept, value, Ordering::Less, room),
            Self::Max(kept) => return replace_if_better(kept, value, Ordering::Greater, room),
            Self::First(kept) if kept.is_some() => {}
            Self::First(kept) | Self::Last(kept) => return replace(kept, value, room),
            Self::Collect(list) => {
                let owned = value.into_owned();
                let bytes = owned.size_bytes() + PLACE_BYTES;
                if bytes > room {
                    return Err(AccumulatorFullError);
                }
                list.push(owned);
                return Ok(bytes as isize);
            }
            Self::Stddev {
                count,
                mean,
                squares,
            } => {
                if let Some(number) = value.as_f64() {
                    *count += 1;
                    let before = number - *mean;
                    *mean += before / *count as f64;
                    *squares += before * (number - *mean);
                }
            }
            Self::Percentile(numbers) => {
                if let Some(number) = value.as_f64() {
                    if size_of::<f64>() > room {
                        return Err(AccumulatorFullError);
                    }
                    numbers.push(number);
                    return Ok(size_of::<f64>() as isize);
                }
            }
            Self::Distinct(seen) => {
                let key = encode_key(&[*value]).into_boxed_slice();
                let bytes = key.len() + PLACE_BYTES;
                if seen.contains(&key) {
                    return Ok(0);
                }
                if bytes > room {
                    return Err(AccumulatorFullError);
                }
                seen.insert(key);
                return Ok(bytes as isize);
            }
        }
        Ok(0)
    }

    /// Merges the state of an aggregate over later events.
    pub(super) fn merge(&mut self, later: Self) {
        match (self, later) {
            (Self::Count(count), Self::Count(more)) => *count += more,
            (Self::Sum(sum), Self::Sum(Some(more))) => {
                let number = match more {
                    NumericSum::Int(more) => Number::Int(more),
                    NumericSum::Float(more) => Number::Float(more),
                };
                *sum = Some(sum.unwrap_or(NumericSum::Int(0)).add(number));
            }
            (
                Self::Avg { sum, count },
                Self::Avg {
                    sum: more,
                    count: others,
                },
            ) => {
                *sum += more;
                *count += others;
            }
            (Self::Min(kept), Self::Min(Some(other))) => {
                keep_if_ordered(kept, other, Ordering::Less)
            }
            (Self::Max(kept), Self::Max(Some(other))) => {
                keep_if_ordered(kept, other, Ordering::Greater)
            }
            (Self::First(kept @ None), Self::First(other)) => *kept = other,
            (Self::Last(kept), Self::Last(other @ Some(_))) => *kept = other,
            (Self::Collect(list), Self::Collect(more)) => list.extend(more),
            (
                Self::Stddev {
                    count,
                    mean,
                    squares,
                },
                Self::Stddev {
                    count: others,
                    mean: other_mean,
                    squares: other_squares,
                },
            ) if others > 0 => {
                let (ours, theirs) = (*count as f64, others as f64);
                let apart = other_mean - *mean;
                *count += others;
                *mean += apart * theirs / (ours + theirs);
                *squares += other_squares + apart * apart * ours * theirs / (ours + theirs);
            }
            (Self::Percentile(numbers), Self::Percentile(more)) => numbers.extend(more),
            (Self::Distinct(seen), Self::Distinct(more)) => seen.extend(more),
            // Nothing to merge.
            _ => {}
        }
    }

    pub(super) fn result<'a>(&self, aggregate: &Aggregate, arena: &'a Arena) -> Value<'a> {
        match self {
            Self::Count(count) => Value::Int(*count as i64),
            Self::Sum(None) => Value::Undefined,
            Self::Sum(Some(NumericSum::Int(sum))) => Value::Int(*sum),
            Self::Sum(Some(NumericSum::Float(sum))) => Value::Float(*sum),
            Self::Avg { count: 0, .. } | Self::Stddev { count: 0, .. } => Value::Undefined,
            Self::Avg { sum, count } => Value::Float(sum / *count as f64),
            Self::Min(kept) | Self::Max(kept) | Self::First(kept) | Self::Last(kept) => kept
                .as_ref()
                .map_or(Value::Undefined, |kept| kept.to_value(arena)),
            Self::Collect(list) => Value::Array(
                arena.alloc_slice_fill_iter(list.iter().map(|value| value.to_value(arena))),
            ),
            Self::Stddev { count, squares, .. } => Value::Float((squares / *count as f64).sqrt()),
            Self::Percentile(numbers) => percentile(numbers, aggregate.percentile),
            Self::Distinct(seen) => Value::Int(seen.len() as i64),
        }
    }

    /// Heap memory in bytes, in addition to its own size.
    pub(super) fn size_bytes(&self) -> usize {
        match self {
            Self::Min(kept) | Self::Max(kept) | Self::First(kept) | Self::Last(kept) => {
                kept.as_ref().map_or(0, OwnedValue::size_bytes)
            }
            Self::Collect(list) => {
                let bytes = list.iter().map(|value| value.size_bytes() + PLACE_BYTES);
                bytes.sum()
            }
            Self::Percentile(numbers) => numbers.len() * size_of::<f64>(),
            Self::Distinct(seen) => seen.iter().map(|key| key.len() + PLACE_BYTES).sum(),
            Self::Count(_) | Self::Sum(_) | Self::Avg { .. } | Self::Stddev { .. } => 0,
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Count(count) => put_u64(*count, out),
            Self::Sum(sum) => match sum {
                None => out.push(0),
                Some(NumericSum::Int(sum)) => {
                    out.push(1);
                    out.extend_from_slice(&sum.to_le_bytes());
                }
                Some(NumericSum::Float(sum)) => {
                    out.push(2);
                    out.extend_from_slice(&sum.to_le_bytes());
                }
            },
            Self::Avg { sum, count } => {
                out.extend_from_slice(&sum.to_le_bytes());
                put_u64(*count, out);
            }
            Self::Min(kept) | Self::Max(kept) | Self::First(kept) | Self::Last(kept) => {
                put_owned(kept.as_ref().unwrap_or(&OwnedValue::Null), out);
            }
            Self::Collect(list) => {
                put_u64(list.len() as u64, out);
                list.iter().for_each(|value| put_owned(value, out));
            }
            Self::Stddev {
                count,
                mean,
                squares,
            } => {
                put_u64(*count, out);
                out.extend_from_slice(&mean.to_le_bytes());
                out.extend_from_slice(&squares.to_le_bytes());
            }
            Self::Percentile(numbers) => {
                put_u64(numbers.len() as u64, out);
                let numbers = numbers.iter();
                numbers.for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            }
            Self::Distinct(seen) => {
                put_u64(seen.len() as u64, out);
                seen.iter().for_each(|key| put_bytes(key, out));
            }
        }
    }

    pub(super) fn read(
        kind: AggregateKind,
        from: &mut WindowReader<'_>,
    ) -> Result<Self, DecodeError> {
        let mut read = Self::new(kind);
        match &mut read {
            Self::Count(count) => *count = from.u64()?,
            Self::Sum(sum) => {
                *sum = match from.u8()? {
                    0 => None,
                    1 => Some(NumericSum::Int(from.u64()? as i64)),
                    2 => Some(NumericSum::Float(from.f64()?)),
                    _ => return Err(DecodeError),
                }
            }
            Self::Avg { sum, count } => (*sum, *count) = (from.f64()?, from.u64()?),
            Self::Min(kept) | Self::Max(kept) | Self::First(kept) | Self::Last(kept) => {
                *kept = match from.owned()? {
                    OwnedValue::Undefined | OwnedValue::Null => None,
                    value => Some(value),
                }
            }
            Self::Collect(list) => {
                for _ in 0..from.u64()? {
                    list.push(from.owned()?);
                }
            }
            Self::Stddev {
                count,
                mean,
                squares,
            } => (*count, *mean, *squares) = (from.u64()?, from.f64()?, from.f64()?),
            Self::Percentile(numbers) => {
                for _ in 0..from.u64()? {
                    numbers.push(from.f64()?);
                }
            }
            Self::Distinct(seen) => {
                for _ in 0..from.u64()? {
                    seen.insert(from.bytes()?.into());
                }
            }
        }
        Ok(read)
    }
}

/// There is no memory left for more state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AccumulatorFullError;

fn replace_if_better(
    kept: &mut Option<OwnedValue>,
    value: &Value<'_>,
    wanted: Ordering,
    room: usize,
) -> Result<isize, AccumulatorFullError> {
    let order = |kept: &Value<'_>| {
        value
            .compare(kept)
            .unwrap_or_else(|| value.total_order(kept))
    };
    let is_better = match kept {
        None => true,
        Some(OwnedValue::Int(kept)) => order(&Value::Int(*kept)) == wanted,
        Some(OwnedValue::Float(kept)) => order(&Value::Float(*kept)) == wanted,
        Some(OwnedValue::Str(kept)) => order(&Value::Str(kept)) == wanted,
        Some(kept) => order(&kept.to_value(&Arena::new())) == wanted,
    };
    match is_better {
        true => replace(kept, value, room),
        false => Ok(0),
    }
}

fn keep_if_ordered(kept: &mut Option<OwnedValue>, other: OwnedValue, wanted: Ordering) {
    let arena = Arena::new();
    let is_better = kept.as_ref().is_none_or(|kept| {
        let (kept, other) = (kept.to_value(&arena), other.to_value(&arena));
        other
            .compare(&kept)
            .unwrap_or_else(|| other.total_order(&kept))
            == wanted
    });
    if is_better {
        *kept = Some(other);
    }
}

fn replace(
    kept: &mut Option<OwnedValue>,
    value: &Value<'_>,
    room: usize,
) -> Result<isize, AccumulatorFullError> {
    let owned = value.into_owned();
    let before = kept.as_ref().map_or(0, OwnedValue::size_bytes);
    let after = owned.size_bytes();
    if after > before + room {
        return Err(AccumulatorFullError);
    }
    *kept = Some(owned);
    Ok(after as isize - before as isize)
}

/// Interpolates linearly between the two closest numbers.
fn percentile(numbers: &[f64], percent: f64) -> Value<'static> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return Value::Undefined;
    };
    let place = percent.clamp(0.0, 100.0) / 100.0 * last as f64;
    let (below, above) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    Value::Float(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result_of(kind: AggregateKind, values: &[Value<'_>]) -> String {
        let aggregate = Aggregate {
            kind,
            percentile: 90.0,
        };
        let mut sum = Accumulator::new(kind);
        let mut bytes = 0;
        for value in values {
            bytes += sum.add(value, usize::MAX / 2).expect("there is room");
        }
        assert_eq!(bytes, sum.size_bytes() as isize, "{kind:?}");
        let mut stored = Vec::new();
        sum.put(&mut stored);
        let mut reader = WindowReader::new(&stored);
        let read = Accumulator::read(kind, &mut reader).expect("the encoding is valid");
        assert!(reader.is_empty());
        let arena = Arena::new();
        let [result, again] = [&sum, &read].map(|sum| {
            let mut json = Vec::new();
            sum.result(&aggregate, &arena).write_json(&mut json);
            String::from_utf8(json).expect("JSON is UTF-8")
        });
        assert_eq!(result, again, "{kind:?}");
        result
    }

    #[test]
    fn aggregates_are_correct_and_survive_a_snapshot() {
        use AggregateKind::*;
        let values = [
            Value::Int(4),
            Value::Undefined,
            Value::Int(2),
            Value::Str("6"),
            Value::Int(2),
        ];
        let expected = [
            (Count, "4"),
            (Sum, "14"),
            (Avg, "3.5"),
            (Min, "2"),
            (Max, "\"6\""),
            (First, "4"),
            (Last, "2"),
            (Collect, "[4,2,\"6\",2]"),
            (Stddev, "1.6583123951777"),
            (Percentile, "5.4"),
            (DistinctCount, "3"),
        ];
        for (kind, expected) in expected {
            assert_eq!(result_of(kind, &values), expected, "{kind:?}");
        }
        for (kind, _) in expected {
            let nothing = match kind {
                Count | DistinctCount => "0",
                Collect => "[]",
                _ => "null",
            };
            assert_eq!(result_of(kind, &[Value::Undefined]), nothing, "{kind:?}");
        }
    }

    #[test]
    fn merged_parts_equal_the_whole() {
        let values = [3, 9, 4, 4, 1, 7].map(Value::Int);
        for (_, kind) in AggregateKind::ALL {
            for split in 0..=values.len() {
                let sum_of = |values: &[Value<'_>]| {
                    let mut sum = Accumulator::new(kind);
                    for value in values {
                        sum.add(value, usize::MAX / 2).expect("there is room");
                    }
                    sum
                };
                let mut sum = sum_of(&values[..split]);
                sum.merge(sum_of(&values[split..]));
                let aggregate = Aggregate {
                    kind,
                    percentile: 30.0,
                };
                let arena = Arena::new();
                let [merged, whole] = [&sum, &sum_of(&values)].map(|sum| {
                    let value = sum.result(&aggregate, &arena);
                    match value {
                        // The results differ in rounding.
                        Value::Float(number) => format!("{number:.9}"),
                        value => value.text(&arena).to_owned(),
                    }
                });
                assert_eq!(merged, whole, "{kind:?} at {split}");
                assert_eq!(sum.size_bytes(), sum_of(&values).size_bytes(), "{kind:?}");
            }
        }
    }

    #[test]
    fn a_sum_that_overflows_continues_as_a_float() {
        let sum = result_of(AggregateKind::Sum, &[Value::Int(i64::MAX), Value::Int(1)]);
        assert_eq!(sum.parse::<f64>(), Ok(9_223_372_036_854_775_808.0));
        let sum = result_of(AggregateKind::Sum, &[Value::Int(1), Value::Float(0.5)]);
        assert_eq!(sum, "1.5");
    }

    #[test]
    fn growth_stops_at_the_limit() {
        for kind in [
            AggregateKind::Collect,
            AggregateKind::DistinctCount,
            AggregateKind::Percentile,
            AggregateKind::Last,
        ] {
            let mut sum = Accumulator::new(kind);
            assert_eq!(
                sum.add(&Value::Int(1), 4),
                Err(AccumulatorFullError),
                "{kind:?}"
            );
            assert_eq!(sum.size_bytes(), 0);
        }
    }
}
