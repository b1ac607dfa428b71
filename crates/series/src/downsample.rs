//! Old rows as one row per interval: how many values there were, their sum, least and most, the first and the last.
//!
//! Such a row has the time its interval begins. Of a key whose values are numbers, a range gives the mean; of others the last
//! value. Aggregates over whole intervals are what they would be of the points.

use std::collections::BTreeMap;

use crate::cell::Cell;
use crate::latest::Owned;
use crate::point::{KeyId, Value};
use crate::summary::Summary;
use crate::table::{Column, Facet, Table};

struct Interval {
    summary: Summary,
    first: Owned,
    last: Owned,
}

/// Makes rows and rows that were downsampled before into rows of longer intervals.
pub(crate) fn downsample(raw: &Table, before: &[Table], interval_ms: i64) -> Table {
    let mut of_keys: BTreeMap<KeyId, BTreeMap<i64, Interval>> = BTreeMap::new();
    let start_of = |ts_ms: i64| ts_ms - ts_ms.rem_euclid(interval_ms);
    for table in before {
        each_interval(table, &mut |key, ts_ms, interval| {
            let of_key = of_keys.entry(key).or_default();
            match of_key.get_mut(&start_of(ts_ms)) {
                Some(known) => {
                    known.summary.merge(&interval.summary);
                    known.last = interval.last;
                }
                None => {
                    of_key.insert(start_of(ts_ms), interval);
                }
            }
        });
    }
    for column in raw
        .columns
        .iter()
        .filter(|column| column.facet == Facet::Value)
    {
        let of_key = of_keys.entry(column.key).or_default();
        for (row, &ts_ms) in raw.ts.iter().enumerate() {
            let Some(place) = column.place(row) else {
                continue;
            };
            let value = column.values.get(place);
            let interval = of_key.entry(start_of(ts_ms)).or_insert_with(|| Interval {
                summary: Summary::default(),
                first: Owned::new(value),
                last: Owned::new(value),
            });
            interval.summary.add(ts_ms, value.number());
            // Where rows come late to what was downsampled before, its last value stays.
            if before.is_empty() {
                interval.last = Owned::new(value);
            }
        }
    }
    write(&of_keys)
}

fn write(of_keys: &BTreeMap<KeyId, BTreeMap<i64, Interval>>) -> Table {
    let mut starts: Vec<i64> = of_keys
        .values()
        .flat_map(|of_key| of_key.keys().copied())
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let mut table = Table::default();
    for start in starts {
        table.begin_row(start);
        for (key, of_key) in of_keys {
            let Some(interval) = of_key.get(&start) else {
                continue;
            };
            let summary = &interval.summary;
            let mut put = |facet, value| {
                let column = table.column(*key, facet);
                table.put(column, Cell::Plain(value));
            };
            put(Facet::Count, Value::Int(summary.count as i64));
            put(Facet::First, interval.first.value());
            put(Facet::Last, interval.last.value());
            if summary.numbers > 0 {
                put(Facet::Numbers, Value::Int(summary.numbers as i64));
                put(Facet::Sum, Value::Float(summary.sum));
                put(Facet::Min, Value::Float(summary.min));
                put(Facet::Max, Value::Float(summary.max));
            }
        }
    }
    table.finish();
    table
}

fn each_interval(table: &Table, each: &mut dyn FnMut(KeyId, i64, Interval)) {
    let mut keys: Vec<KeyId> = table.columns.iter().map(|column| column.key).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let find = |facet| {
            table
                .columns
                .iter()
                .find(|column| column.key == key && column.facet == facet)
        };
        let [count, numbers, sum] = [Facet::Count, Facet::Numbers, Facet::Sum].map(find);
        let [min, max, first, last] = [Facet::Min, Facet::Max, Facet::First, Facet::Last].map(find);
        for (row, &ts_ms) in table.ts.iter().enumerate() {
            let value = |column: Option<&Column>| {
                let column = column?;
                column
                    .place(row)
                    .map(|place| Owned::new(column.values.get(place)))
            };
            let number = |column| value(column).and_then(|value| value.value().number());
            let (Some(count), Some(first), Some(last)) = (number(count), value(first), value(last))
            else {
                continue;
            };
            let mut summary = Summary {
                count: count as u64,
                ..Summary::default()
            };
            if let (Some(numbers), Some(sum), Some(min), Some(max)) =
                (number(numbers), number(sum), number(min), number(max))
            {
                summary.numbers = numbers as u64;
                (summary.sum, summary.min, summary.max) = (sum, min, max);
                // Where the first or last value is no number, the mean stands for it.
                let number_of = |value: &Owned| {
                    let number = value.value().number().filter(|number| !number.is_nan());
                    number.unwrap_or(sum / numbers)
                };
                summary.first = (ts_ms, number_of(&first));
                summary.last = (ts_ms, number_of(&last));
            }
            each(
                key,
                ts_ms,
                Interval {
                    summary,
                    first,
                    last,
                },
            );
        }
    }
}

/// Gives what each row says of each key.
pub(crate) fn each_summary(table: &Table, each: &mut dyn FnMut(KeyId, i64, &Summary)) {
    each_interval(table, &mut |key, ts_ms, interval| {
        each(key, ts_ms, &interval.summary)
    });
}

/// The rows as a range gives them: the mean of numbers, the last of others.
pub(crate) fn as_values(table: &Table) -> Table {
    values(table, &|interval| match interval.summary.numbers {
        0 => interval.last.value(),
        numbers => Value::Float(interval.summary.sum / numbers as f64),
    })
}

/// The rows with the last value of each interval.
pub(crate) fn last_values(table: &Table) -> Table {
    values(table, &|interval| interval.last.value())
}

fn values(table: &Table, value: &dyn Fn(&Interval) -> Value<'_>) -> Table {
    let mut rows: BTreeMap<i64, Vec<(KeyId, Interval)>> = BTreeMap::new();
    each_interval(table, &mut |key, ts_ms, interval| {
        rows.entry(ts_ms).or_default().push((key, interval))
    });
    let mut table = Table::default();
    for (ts_ms, of_row) in &rows {
        table.begin_row(*ts_ms);
        for (key, interval) in of_row {
            let column = table.column(*key, Facet::Value);
            table.put(column, Cell::Plain(value(interval)));
        }
    }
    table.finish();
    table
}
