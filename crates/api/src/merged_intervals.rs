//! Merges the intervals of telemetry that several nodes have.
//!
//! Values of one interval are at several nodes if the device has moved meanwhile. The functions of both parts are combined;
//! `first` and `last` are those of one of the parts, because the times of these values are not known.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use series::Aggregate;

use crate::telemetry_backend::{IntervalLength, IntervalQuery, IntervalRow, TelemetryBackendError};

/// Maximum number of intervals per response, as of one node.
const MAX_INTERVALS: usize = 1_000_000;

pub(crate) struct MergedIntervals {
    /// Number of the functions of the query, which are the first ones of `functions`.
    shown_functions: usize,
    /// The functions that each node is asked for.
    functions: Vec<Aggregate>,
    /// All values of a key are one interval, which begins at the first value of a node.
    is_open: bool,
    /// In the order of the devices and keys in the answers.
    series: Vec<MergedSeries>,
    /// Places in `series`.
    places: HashMap<(Option<String>, String), usize>,
    count: usize,
}

struct MergedSeries {
    /// `None`: all devices, merged.
    device: Option<String>,
    key: String,
    /// Values by function.
    intervals: BTreeMap<i64, Vec<Value>>,
}

impl MergedIntervals {
    pub(crate) fn new(query: &IntervalQuery) -> Self {
        let mut functions = query.functions.clone();
        // The average of several parts needs them.
        for needed in [Aggregate::Count, Aggregate::Sum] {
            if functions.contains(&Aggregate::Avg) && !functions.contains(&needed) {
                functions.push(needed);
            }
        }
        Self {
            shown_functions: query.functions.len(),
            functions,
            is_open: query.from_ms.is_none() && query.length == IntervalLength::All,
            series: Vec::new(),
            places: HashMap::new(),
            count: 0,
        }
    }

    /// The functions to ask each node for.
    pub(crate) fn functions(&self) -> &[Aggregate] {
        &self.functions
    }

    /// Adds intervals of a node.
    ///
    /// # Errors
    /// If there are too many intervals for one response.
    pub(crate) fn add(
        &mut self,
        rows: impl IntoIterator<Item = IntervalRow>,
    ) -> Result<(), TelemetryBackendError> {
        // Rows of one series follow each other.
        let mut current: Option<usize> = None;
        for row in rows {
            let known = current.filter(|at| {
                let series = &self.series[*at];
                series.device == row.device && series.key == row.key
            });
            let at = known.unwrap_or_else(|| self.place_of(row.device, row.key));
            current = Some(at);
            let intervals = &mut self.series[at].intervals;
            let known = match self.is_open {
                true => intervals.pop_first(),
                false => intervals.remove_entry(&row.ts_ms),
            };
            let (ts_ms, values) = match known {
                None => {
                    self.count += 1;
                    (row.ts_ms, row.values)
                }
                Some((ts_ms, values)) => {
                    let values = combine(&self.functions, values, row.values);
                    (ts_ms.min(row.ts_ms), values)
                }
            };
            intervals.insert(ts_ms, values);
            if self.count > MAX_INTERVALS {
                return Err(TelemetryBackendError::Parameter {
                    name: "interval_ms",
                    detail: format!(
                        "expected a length that gives at most {MAX_INTERVALS} intervals"
                    ),
                });
            }
        }
        Ok(())
    }

    fn place_of(&mut self, device: Option<String>, key: String) -> usize {
        let series = &mut self.series;
        let place = self.places.entry((device.clone(), key.clone()));
        *place.or_insert_with(|| {
            series.push(MergedSeries {
                device,
                key,
                intervals: BTreeMap::new(),
            });
            series.len() - 1
        })
    }

    pub(crate) fn into_rows(self) -> Vec<IntervalRow> {
        let mut rows = Vec::with_capacity(self.count);
        for series in self.series {
            rows.extend(series.intervals.into_iter().map(|(ts_ms, mut values)| {
                values.truncate(self.shown_functions);
                IntervalRow {
                    device: series.device.clone(),
                    key: series.key.clone(),
                    ts_ms,
                    values,
                }
            }));
        }
        rows
    }
}

/// Two parts of an interval.
fn combine(functions: &[Aggregate], left: Vec<Value>, right: Vec<Value>) -> Vec<Value> {
    let parts = functions.iter().zip(left.into_iter().zip(right));
    let mut values: Vec<Value> = parts
        .map(|(function, (left, right))| combine_values(*function, left, right))
        .collect();
    let number_of = |wanted: Aggregate| {
        let at = functions.iter().position(|function| *function == wanted)?;
        values.get(at)?.as_f64()
    };
    if let (Some(sum), Some(count)) = (number_of(Aggregate::Sum), number_of(Aggregate::Count)) {
        let averages = functions.iter().zip(&mut values);
        for (_, value) in averages.filter(|(function, _)| **function == Aggregate::Avg) {
            *value = json!(sum / count);
        }
    }
    values
}

fn combine_values(function: Aggregate, left: Value, right: Value) -> Value {
    let (Some(left_number), Some(right_number)) = (left.as_f64(), right.as_f64()) else {
        return if left.is_null() { right } else { left };
    };
    let is_left = |wanted: Ordering| left_number.total_cmp(&right_number) == wanted;
    match function {
        Aggregate::Min if !is_left(Ordering::Less) => right,
        Aggregate::Max if !is_left(Ordering::Greater) => right,
        Aggregate::Count | Aggregate::Sum => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => left
                .checked_add(right)
                .map_or_else(|| json!(left_number + right_number), Value::from),
            _ => json!(left_number + right_number),
        },
        _ => left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(functions: &[Aggregate], from_ms: Option<i64>) -> IntervalQuery {
        IntervalQuery {
            devices: vec!["d".to_owned(), "e".to_owned()],
            keys: vec!["t".to_owned()],
            from_ms,
            to_ms: 100,
            length: match from_ms {
                Some(_) => IntervalLength::Ms(10),
                None => IntervalLength::All,
            },
            origin_ms: None,
            time_zone: None,
            functions: functions.to_vec(),
            merged: false,
        }
    }

    fn row(device: Option<&str>, ts_ms: i64, values: Value) -> IntervalRow {
        IntervalRow {
            device: device.map(str::to_owned),
            key: "t".to_owned(),
            ts_ms,
            values: values.as_array().unwrap().clone(),
        }
    }

    /// Device, time and values.
    fn shown(merged: MergedIntervals) -> Vec<Value> {
        let rows = merged.into_rows().into_iter();
        rows.map(|row| json!([row.device, row.ts_ms, row.values]))
            .collect()
    }

    #[test]
    fn intervals_of_nodes_are_combined() {
        let functions = [Aggregate::Avg, Aggregate::Min, Aggregate::Max];
        let mut merged = MergedIntervals::new(&query(&functions, Some(0)));
        let names: Vec<_> = merged.functions().iter().map(|one| one.name()).collect();
        assert_eq!(names, ["avg", "min", "max", "count", "sum"]);
        let own = [
            row(Some("d"), 0, json!([2.0, 1, 3, 2, 4])),
            row(Some("d"), 10, json!([5.0, 5, 5, 1, 5])),
        ];
        merged.add(own).unwrap();
        let others = [
            row(Some("d"), 10, json!([8.0, 8, 8, 2, 16])),
            row(Some("d"), 20, json!([1.0, 1, 1, 1, 1])),
        ];
        merged.add(others).unwrap();
        assert_eq!(
            shown(merged),
            [
                json!(["d", 0, [2.0, 1, 3]]),
                json!(["d", 10, [7.0, 5, 8]]),
                json!(["d", 20, [1.0, 1, 1]]),
            ]
        );
    }

    #[test]
    fn intervals_of_several_devices_are_combined() {
        let mut merged = MergedIntervals::new(&query(&[Aggregate::Avg], Some(0)));
        let own = [
            row(Some("d"), 0, json!([1.0, 1, 1.0])),
            row(Some("e"), 0, json!([5.0, 1, 5.0])),
        ];
        merged.add(own).unwrap();
        // Page by page.
        merged
            .add([row(Some("d"), 0, json!([3.0, 1, 3.0]))])
            .unwrap();
        merged
            .add([row(Some("d"), 10, json!([7.0, 1, 7.0]))])
            .unwrap();
        assert_eq!(
            shown(merged),
            [
                json!(["d", 0, [2.0]]),
                json!(["d", 10, [7.0]]),
                json!(["e", 0, [5.0]]),
            ]
        );
        let mut merged = MergedIntervals::new(&query(&[Aggregate::Avg], Some(0)));
        merged.add([row(None, 0, json!([1.0, 1, 1.0]))]).unwrap();
        merged.add([row(None, 0, json!([2.0, 1, 2.0]))]).unwrap();
        assert_eq!(shown(merged), [json!([null, 0, [1.5]])]);
    }

    #[test]
    fn an_interval_of_everything_begins_at_the_first_value() {
        let mut merged = MergedIntervals::new(&query(&[Aggregate::Sum], None));
        merged.add([row(Some("d"), 7, json!([1]))]).unwrap();
        merged.add([row(Some("d"), 5, json!([2]))]).unwrap();
        assert_eq!(shown(merged), [json!(["d", 5, [3]])]);
    }

    #[test]
    fn too_many_intervals_are_rejected() {
        let mut merged = MergedIntervals::new(&query(&[Aggregate::Count], Some(0)));
        let rows = |begin: usize| {
            let times = begin..begin + MAX_INTERVALS / 2;
            times.map(|ts_ms| row(Some("d"), ts_ms as i64, json!([1])))
        };
        merged.add(rows(0)).unwrap();
        merged.add(rows(MAX_INTERVALS / 2)).unwrap();
        // The same intervals at another node are no further ones.
        merged.add(rows(0)).unwrap();
        assert!(merged.add([row(Some("e"), 0, json!([1]))]).is_err());
    }
}
