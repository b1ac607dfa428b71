//! Downsampling: old rows become one row per interval with count, sum, minimum, maximum, first and last
//! value.
//!
//! The time of such a row is the begin of its interval. For a key with numeric values, a range query returns
//! the mean, otherwise the last value. Aggregates over whole intervals are the same as over the original
//! points.

use std::collections::BTreeMap;

use crate::cell::Cell;
use crate::column_table::{Column, ColumnFacet, ColumnTable};
use crate::point::{KeyId, PointValue};
use crate::summary::{Aggregate, IntervalSummary, NumericValue};

/// Downsamples rows, and rows that were downsampled before, to longer intervals.
pub(crate) fn downsample(
    raw: &ColumnTable,
    before: &[ColumnTable],
    interval_ms: i64,
) -> ColumnTable {
    let mut of_keys: BTreeMap<KeyId, BTreeMap<i64, IntervalSummary>> = BTreeMap::new();
    let start_of = |ts_ms: i64| ts_ms - ts_ms.rem_euclid(interval_ms);
    for table in before {
        for_each_summary(table, &mut |key, ts_ms, summary| {
            let of_key = of_keys.entry(key).or_default();
            of_key.entry(start_of(ts_ms)).or_default().merge(summary);
        });
    }
    for column in raw
        .columns
        .iter()
        .filter(|column| column.facet == ColumnFacet::Value)
    {
        let of_key = of_keys.entry(column.key).or_default();
        for (row, &ts_ms) in raw.ts.iter().enumerate() {
            let Some(place) = column.value_index(row) else {
                continue;
            };
            let value = column.values.get(place);
            let summary = of_key.entry(start_of(ts_ms)).or_default();
            match before.is_empty() {
                true => summary.add(ts_ms, value),
                // If late rows meet downsampled ones, the first and last value of the latter remain.
                false => summary.add_between(ts_ms, value),
            }
        }
    }
    write_summaries(&of_keys)
}

fn write_summaries(of_keys: &BTreeMap<KeyId, BTreeMap<i64, IntervalSummary>>) -> ColumnTable {
    let mut starts: Vec<i64> = of_keys
        .values()
        .flat_map(|of_key| of_key.keys().copied())
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let mut table = ColumnTable::default();
    for start in starts {
        table.begin_row(start);
        for (key, of_key) in of_keys {
            let Some(summary) = of_key.get(&start) else {
                continue;
            };
            let (Some((_, first)), Some((_, last))) = (summary.first(), summary.last()) else {
                continue;
            };
            let mut put = |facet, value| {
                let column = table.column(*key, facet);
                table.put(column, Cell::Plain(value));
            };
            put(ColumnFacet::Count, PointValue::Int(summary.count as i64));
            put(ColumnFacet::First, first);
            put(ColumnFacet::Last, last);
            if let (Some(min), Some(max)) = (summary.min, summary.max) {
                put(
                    ColumnFacet::Numbers,
                    PointValue::Int(summary.numbers as i64),
                );
                put(ColumnFacet::Sum, summary.sum.number().value());
                put(ColumnFacet::Min, min.value());
                put(ColumnFacet::Max, max.value());
            }
        }
    }
    table.finish();
    table
}

fn value_at(column: Option<&Column>, row: usize) -> Option<PointValue<'_>> {
    let column = column?;
    Some(column.values.get(column.value_index(row)?))
}

/// Passes the summary of each row and key to the caller.
pub(crate) fn for_each_summary(
    table: &ColumnTable,
    each: &mut dyn FnMut(KeyId, i64, &IntervalSummary),
) {
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
        let [count, numbers, sum] =
            [ColumnFacet::Count, ColumnFacet::Numbers, ColumnFacet::Sum].map(find);
        let [min, max, first, last] = [
            ColumnFacet::Min,
            ColumnFacet::Max,
            ColumnFacet::First,
            ColumnFacet::Last,
        ]
        .map(find);
        for (row, &ts_ms) in table.ts.iter().enumerate() {
            let value = |column| value_at(column, row);
            let number = |column| value(column).and_then(NumericValue::from_value);
            let (Some(count), Some(first), Some(last)) = (number(count), value(first), value(last))
            else {
                continue;
            };
            let mut summary = IntervalSummary::with_count(count.float() as u64);
            summary.add_first(ts_ms, first);
            summary.add_last(ts_ms, last);
            if let (Some(numbers), Some(sum), Some(min), Some(max)) =
                (number(numbers), number(sum), number(min), number(max))
            {
                summary.add_numbers(numbers.float() as u64, sum, min, max);
            }
            each(key, ts_ms, &summary);
        }
    }
}

/// The rows as a range query returns them: the mean of numbers, the last of other values.
pub(crate) fn to_range_values(table: &ColumnTable) -> ColumnTable {
    values(table, Aggregate::Avg)
}

/// The rows with the last value of each interval.
pub(crate) fn to_last_values(table: &ColumnTable) -> ColumnTable {
    values(table, Aggregate::Last)
}

fn values(table: &ColumnTable, wanted: Aggregate) -> ColumnTable {
    let mut rows: BTreeMap<i64, Vec<(KeyId, IntervalSummary)>> = BTreeMap::new();
    for_each_summary(table, &mut |key, ts_ms, summary| {
        let of_row = rows.entry(ts_ms).or_default();
        of_row.push((key, summary.clone()));
    });
    let mut table = ColumnTable::default();
    for (ts_ms, of_row) in &rows {
        table.begin_row(*ts_ms);
        for (key, summary) in of_row {
            let column = table.column(*key, ColumnFacet::Value);
            let value = summary.get(wanted).or(summary.get(Aggregate::Last));
            if let Some(value) = value {
                table.put(column, Cell::Plain(value));
            }
        }
    }
    table.finish();
    table
}
