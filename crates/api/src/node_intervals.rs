//! Intervals of telemetry between the nodes of a cluster, page by page.
//!
//! A page begins behind a row of the one before. The node that answers keeps nothing between the pages: it leaves out the devices
//! and keys whose intervals were sent, and computes the others again only as far as they are on the page.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use series::Aggregate;

use crate::shared_value::{SharedValue, size_of};
use crate::telemetry_backend::{
    CalendarUnit, IntervalLength, IntervalQuery, IntervalRow, TelemetryBackendError,
    TelemetryReader, to_reason,
};

/// Devices whose intervals are computed at a time.
const DEVICES_PER_PART: usize = 64;
/// Size of a row without its values.
const BYTES_PER_ROW: usize = 24;

/// Is answered with an [`IntervalPage`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct IntervalQuestion {
    query: SharedIntervalQuery,
    /// The last row of the previous page.
    after: Option<IntervalPlace>,
    max_bytes: usize,
}

/// Names a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct IntervalPlace {
    /// `None`: all devices, merged.
    device: Option<String>,
    key: String,
    ts_ms: i64,
}

/// Intervals in the order of their query.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct IntervalPage {
    series: Vec<SharedSeries>,
    /// No rows follow.
    is_last: bool,
}

/// Intervals of one key of a device.
#[derive(Debug, Serialize, Deserialize)]
struct SharedSeries {
    /// `None`: all devices, merged.
    device: Option<String>,
    key: String,
    /// Begins with the values by function.
    rows: Vec<(i64, Vec<SharedValue>)>,
}

/// Like [`IntervalQuery`].
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SharedIntervalQuery {
    devices: Vec<String>,
    keys: Vec<String>,
    from_ms: Option<i64>,
    to_ms: i64,
    length: SharedLength,
    origin_ms: Option<i64>,
    time_zone: Option<String>,
    functions: Vec<String>,
    merged: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SharedLength {
    All,
    Ms(i64),
    Day,
    Week,
    WeekFromSunday,
    Month,
    Quarter,
    Year,
}

impl From<IntervalLength> for SharedLength {
    fn from(length: IntervalLength) -> Self {
        match length {
            IntervalLength::All => Self::All,
            IntervalLength::Ms(ms) => Self::Ms(ms),
            IntervalLength::Calendar(unit) => match unit {
                CalendarUnit::Day => Self::Day,
                CalendarUnit::Week => Self::Week,
                CalendarUnit::WeekFromSunday => Self::WeekFromSunday,
                CalendarUnit::Month => Self::Month,
                CalendarUnit::Quarter => Self::Quarter,
                CalendarUnit::Year => Self::Year,
            },
        }
    }
}

impl From<SharedLength> for IntervalLength {
    fn from(length: SharedLength) -> Self {
        Self::Calendar(match length {
            SharedLength::All => return Self::All,
            SharedLength::Ms(ms) => return Self::Ms(ms),
            SharedLength::Day => CalendarUnit::Day,
            SharedLength::Week => CalendarUnit::Week,
            SharedLength::WeekFromSunday => CalendarUnit::WeekFromSunday,
            SharedLength::Month => CalendarUnit::Month,
            SharedLength::Quarter => CalendarUnit::Quarter,
            SharedLength::Year => CalendarUnit::Year,
        })
    }
}

impl SharedIntervalQuery {
    fn new(query: &IntervalQuery) -> Self {
        let names = query
            .functions
            .iter()
            .map(|function| function.name().to_owned());
        Self {
            devices: query.devices.clone(),
            keys: query.keys.clone(),
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            length: query.length.into(),
            origin_ms: query.origin_ms,
            time_zone: query.time_zone.clone(),
            functions: names.collect(),
            merged: query.merged,
        }
    }

    fn into_query(self) -> Result<IntervalQuery, String> {
        let functions = self.functions.iter().map(|name| {
            let function = Aggregate::from_name(name);
            function.ok_or_else(|| format!("it does not know the function {name:?}"))
        });
        Ok(IntervalQuery {
            functions: functions.collect::<Result<_, _>>()?,
            devices: self.devices,
            keys: self.keys,
            from_ms: self.from_ms,
            to_ms: self.to_ms,
            length: self.length.into(),
            origin_ms: self.origin_ms,
            time_zone: self.time_zone,
            merged: self.merged,
        })
    }
}

impl IntervalQuestion {
    /// Asks for the first page, whose rows have about this size.
    pub(crate) fn new(query: &IntervalQuery, max_bytes: usize) -> Self {
        Self {
            query: SharedIntervalQuery::new(query),
            after: None,
            max_bytes,
        }
    }

    /// The devices that it is about.
    pub(crate) fn devices(&self) -> &[String] {
        &self.query.devices
    }

    /// Asks for what follows on a page; `None`: nothing.
    ///
    /// # Errors
    /// If the page is empty although more follows.
    pub(crate) fn after(self, page: &IntervalPage) -> Result<Option<Self>, String> {
        if page.is_last {
            return Ok(None);
        }
        let last = page.series.last().and_then(|series| {
            let (ts_ms, _) = series.rows.last()?;
            Some(IntervalPlace {
                device: series.device.clone(),
                key: series.key.clone(),
                ts_ms: *ts_ms,
            })
        });
        let last = last.ok_or("it has sent an empty page of intervals")?;
        // Also ends if a node sends the same page again and again.
        match self.after.as_ref() == Some(&last) {
            true => Err("it has sent the same intervals again".to_owned()),
            false => Ok(Some(Self {
                after: Some(last),
                ..self
            })),
        }
    }
}

impl IntervalPage {
    pub(crate) fn into_rows(self) -> impl Iterator<Item = IntervalRow> {
        self.series.into_iter().flat_map(|series| {
            let SharedSeries { device, key, rows } = series;
            rows.into_iter().map(move |(ts_ms, values)| IntervalRow {
                device: device.clone(),
                key: key.clone(),
                ts_ms,
                values: values.into_iter().map(Value::from).collect(),
            })
        })
    }

    /// Adds rows up to a size; `false`: some are left.
    fn fill(&mut self, rows: impl Iterator<Item = IntervalRow>, room: &mut usize) -> bool {
        for row in rows {
            if *room == 0 {
                return false;
            }
            let values: Vec<_> = row.values.into_iter().map(SharedValue::from).collect();
            let mut bytes = BYTES_PER_ROW + values.iter().map(size_of).sum::<usize>();
            let known = self.series.last_mut();
            let known = known.filter(|series| series.device == row.device && series.key == row.key);
            match known {
                Some(series) => series.rows.push((row.ts_ms, values)),
                None => {
                    bytes += row.key.len() + row.device.as_deref().map_or(0, str::len);
                    self.series.push(SharedSeries {
                        device: row.device,
                        key: row.key,
                        rows: vec![(row.ts_ms, values)],
                    });
                }
            }
            *room = room.saturating_sub(bytes);
        }
        true
    }
}

/// Answers with intervals of this node. May block.
pub(crate) fn interval_page(
    telemetry: &dyn TelemetryReader,
    question: IntervalQuestion,
) -> Result<IntervalPage, String> {
    let after = question.after;
    let mut parts = QueryParts::new(question.query.into_query()?, after.clone())?;
    let mut page = IntervalPage::default();
    let mut room = question.max_bytes.max(1);
    while let Some(part) = parts.next_part() {
        let rows = intervals_of_known(telemetry, part).map_err(to_reason)?;
        let sent = after.as_ref().map_or(0, |after| rows_until(&rows, after));
        if !page.fill(rows.into_iter().skip(sent), &mut room) {
            return Ok(page);
        }
    }
    page.is_last = true;
    Ok(page)
}

/// Number of the rows up to this one; 0 if they contain none of its device and key.
fn rows_until(rows: &[IntervalRow], place: &IntervalPlace) -> usize {
    let is_of_series = |row: &IntervalRow| row.device == place.device && row.key == place.key;
    let last = rows
        .iter()
        .rposition(|row| is_of_series(row) && row.ts_ms <= place.ts_ms);
    last.map_or(0, |last| last + 1)
}

/// Parts of a query whose intervals together are those of the query, in its order.
struct QueryParts {
    query: IntervalQuery,
    /// Devices or, if they are merged, keys of the parts so far.
    done: usize,
    /// Where the first part begins.
    after: Option<IntervalPlace>,
}

impl QueryParts {
    /// Begins at the device, or with merged devices at the key, of the last row that was sent.
    fn new(query: IntervalQuery, after: Option<IntervalPlace>) -> Result<Self, String> {
        let done = match &after {
            Some(after) if is_divisible(&query) => {
                let names = if query.merged {
                    &query.keys
                } else {
                    &query.devices
                };
                let name = match &after.device {
                    Some(device) if !query.merged => device,
                    _ => &after.key,
                };
                let place = names.iter().position(|known| known == name);
                place.ok_or("the intervals to continue are not those of the query")?
            }
            _ => 0,
        };
        Ok(Self { query, done, after })
    }

    fn next_part(&mut self) -> Option<IntervalQuery> {
        let all = match self.query.merged {
            true => self.query.keys.len(),
            false => self.query.devices.len(),
        };
        if self.done >= all {
            return None;
        }
        if !is_divisible(&self.query) {
            self.done = all;
            return Some(self.query.clone());
        }
        let after = self.after.take();
        // What was sent in part is computed alone.
        let count = match self.query.merged || after.is_some() {
            true => 1,
            false => DEVICES_PER_PART.min(all - self.done),
        };
        let range = self.done..self.done + count;
        self.done += count;
        let (keys, devices) = (&self.query.keys, &self.query.devices);
        let mut part = IntervalQuery {
            keys: Vec::new(),
            devices: Vec::new(),
            ..self.query.clone()
        };
        (part.keys, part.devices) = match self.query.merged {
            true => (keys[range].to_vec(), devices.clone()),
            false => (keys.clone(), devices[range].to_vec()),
        };
        if let Some(after) = after {
            let begin = part.keys.iter().position(|key| *key == after.key);
            part.keys.drain(..begin.unwrap_or(0));
            if let (IntervalLength::Ms(length_ms), [_]) = (part.length, &part.keys[..]) {
                // The intervals begin at the same times as before.
                part.origin_ms = Some(after.ts_ms);
                let next_ms = after.ts_ms.saturating_add(length_ms);
                part.from_ms = Some(next_ms.min(part.to_ms));
            }
        }
        Some(part)
    }
}

/// Without a begin, the intervals of a device depend on the first values of the others.
fn is_divisible(query: &IntervalQuery) -> bool {
    query.from_ms.is_some()
}

/// The intervals of those of the devices that exist.
fn intervals_of_known(
    telemetry: &dyn TelemetryReader,
    mut query: IntervalQuery,
) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
    loop {
        match telemetry.intervals(&query) {
            Err(TelemetryBackendError::NoDevice(absent)) if query.devices.contains(&absent) => {
                query.devices.retain(|device| *device != absent);
                if query.devices.is_empty() {
                    return Ok(Vec::new());
                }
            }
            intervals => return intervals,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::telemetry_backend::{
        LiveTelemetryStream, RowQuery, TelemetrySample, TelemetryTable,
    };

    /// Counts values by device, key and time as the telemetry of a node does.
    #[derive(Default)]
    struct CountedValues {
        /// The times of the values.
        series: BTreeMap<(&'static str, &'static str), Vec<i64>>,
        queries: Mutex<Vec<IntervalQuery>>,
    }

    impl CountedValues {
        fn times(&self, device: &str, key: &str) -> impl Iterator<Item = i64> {
            let found = self
                .series
                .iter()
                .find(|(names, _)| **names == (device, key));
            found
                .into_iter()
                .flat_map(|(_, times)| times.iter().copied())
        }
    }

    impl TelemetryReader for CountedValues {
        fn intervals(
            &self,
            query: &IntervalQuery,
        ) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
            if query.devices.iter().any(|device| device == "absent") {
                return Err(TelemetryBackendError::NoDevice("absent".to_owned()));
            }
            self.queries.lock().unwrap().push(query.clone());
            let all = || {
                let names = query.devices.iter();
                names.flat_map(|device| query.keys.iter().map(move |key| (device, key)))
            };
            let firsts = all().filter_map(|(device, key)| self.times(device, key).min());
            let from_ms = query
                .from_ms
                .unwrap_or_else(|| firsts.min().unwrap_or(query.to_ms));
            let start_of = |ts_ms: i64| match query.length {
                IntervalLength::Ms(ms) => {
                    ts_ms - (ts_ms - query.origin_ms.unwrap_or(0)).rem_euclid(ms)
                }
                _ => from_ms,
            };
            let mut rows: Vec<IntervalRow> = Vec::new();
            let mut merged = BTreeMap::<(String, i64), u64>::new();
            for (device, key) in all() {
                let mut counts = BTreeMap::<i64, u64>::new();
                let times = self.times(device, key);
                for ts_ms in times.filter(|ts_ms| (from_ms..query.to_ms).contains(ts_ms)) {
                    *counts.entry(start_of(ts_ms)).or_default() += 1;
                    *merged.entry((key.clone(), start_of(ts_ms))).or_default() += 1;
                }
                rows.extend(counts.into_iter().map(|(ts_ms, count)| IntervalRow {
                    device: Some(device.clone()),
                    key: key.clone(),
                    ts_ms,
                    values: vec![json!(count)],
                }));
            }
            if query.merged {
                let merged = merged.into_iter();
                let merged = merged.map(|((key, ts_ms), count)| IntervalRow {
                    device: None,
                    key,
                    ts_ms,
                    values: vec![json!(count)],
                });
                rows = merged.collect();
            }
            Ok(rows)
        }

        fn latest(
            &self,
            _: &str,
            _: Option<&[String]>,
        ) -> Result<Vec<TelemetrySample>, TelemetryBackendError> {
            unreachable!("not asked for")
        }

        fn rows(
            &self,
            _: &RowQuery,
            _: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
        ) -> Result<(), TelemetryBackendError> {
            unreachable!("not asked for")
        }

        fn write_rows(
            &self,
            _: &RowQuery,
            _: u8,
            _: &mut Vec<u8>,
            _: &mut dyn FnMut(&mut Vec<u8>) -> bool,
        ) -> Result<usize, TelemetryBackendError> {
            unreachable!("not asked for")
        }

        fn parquet_table<'a>(
            &'a self,
            _: &'a mut (dyn io::Write + Send),
        ) -> Result<Box<dyn TelemetryTable + 'a>, TelemetryBackendError> {
            unreachable!("not asked for")
        }

        fn subscribe(
            &self,
            _: &[String],
            _: Option<&[String]>,
        ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
            unreachable!("not asked for")
        }
    }

    fn query(devices: &[&str], keys: &[&str]) -> IntervalQuery {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        IntervalQuery {
            devices: names(devices),
            keys: names(keys),
            from_ms: Some(5),
            to_ms: 1000,
            length: IntervalLength::Ms(10),
            origin_ms: Some(3),
            time_zone: None,
            functions: vec![Aggregate::Count],
            merged: false,
        }
    }

    /// The rows of all pages, and the number of pages.
    fn paged(
        telemetry: &CountedValues,
        query: &IntervalQuery,
        max_bytes: usize,
    ) -> (Vec<IntervalRow>, usize) {
        let (mut rows, mut pages) = (Vec::new(), 0);
        let mut next = Some(IntervalQuestion::new(query, max_bytes));
        while let Some(question) = next {
            // As they are sent.
            let sent = serde_json::to_vec(&question).unwrap();
            let page = interval_page(telemetry, serde_json::from_slice(&sent).unwrap()).unwrap();
            let sent = serde_json::to_vec(&page).unwrap();
            assert!(sent.len() < 2 * max_bytes + 500, "{} bytes", sent.len());
            next = question.after(&page).unwrap();
            rows.extend(page.into_rows());
            pages += 1;
        }
        (rows, pages)
    }

    fn counted_values() -> CountedValues {
        let devices = ["a", "b", "c", "d"];
        let mut telemetry = CountedValues::default();
        for (place, device) in devices.into_iter().enumerate() {
            for (step, key) in [(7, "z"), (11, "x"), (13, "y")] {
                let times = (0..40).map(|at| at * step + place as i64);
                telemetry.series.insert((device, key), times.collect());
            }
        }
        // A device with values of one key only, and one with none.
        telemetry.series.remove(&("b", "z"));
        telemetry.series.remove(&("b", "y"));
        telemetry
    }

    #[test]
    fn the_pages_of_a_query_are_its_intervals() {
        let telemetry = counted_values();
        let devices = ["d", "b", "absent", "a", "nothing", "c"];
        let all = query(&devices, &["x", "z", "y"]);
        let known = query(&["d", "b", "a", "nothing", "c"], &["x", "z", "y"]);
        for (length, from_ms, merged) in [
            (IntervalLength::Ms(10), Some(5), false),
            (IntervalLength::Ms(10), Some(5), true),
            (IntervalLength::Ms(10), None, false),
            (IntervalLength::All, None, false),
            (IntervalLength::All, Some(5), true),
        ] {
            let change = |query: &IntervalQuery| IntervalQuery {
                length,
                from_ms,
                merged,
                ..query.clone()
            };
            let mut expected = telemetry.intervals(&change(&known)).unwrap();
            let by_name = |rows: &mut Vec<IntervalRow>| {
                rows.sort_by(|one, other| (&one.key, one.ts_ms).cmp(&(&other.key, other.ts_ms)));
            };
            for max_bytes in [1, 100, 1000, 1 << 20] {
                let (mut rows, pages) = paged(&telemetry, &change(&all), max_bytes);
                if merged {
                    // Merged keys are in another order.
                    by_name(&mut rows);
                    by_name(&mut expected);
                }
                assert_eq!(
                    rows, expected,
                    "{length:?} {from_ms:?} {merged} {max_bytes}"
                );
                match max_bytes {
                    // A row on each page.
                    1 => assert!(pages >= expected.len()),
                    1_048_576 => assert_eq!(pages, 1),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn what_was_sent_is_not_computed_again() {
        let telemetry = counted_values();
        let all = query(&["a", "b", "c"], &["x", "y"]);
        paged(&telemetry, &all, 200);
        let queries = std::mem::take(&mut *telemetry.queries.lock().unwrap());
        let last = queries.last().unwrap();
        assert_eq!(
            (&last.devices[..], &last.keys[..]),
            (&["c".to_owned()][..], &["y".to_owned()][..])
        );
        assert!(last.from_ms > Some(300), "{last:?}");
        let continued = queries.iter().skip(1);
        assert!(continued.clone().all(|query| query.devices.len() < 3));
    }

    #[test]
    fn a_node_that_sends_no_rows_is_not_asked_forever() {
        let question = IntervalQuestion::new(&query(&["a"], &["x"]), 100);
        assert!(question.clone().after(&IntervalPage::default()).is_err());
        let page = || IntervalPage {
            series: vec![SharedSeries {
                device: Some("a".to_owned()),
                key: "x".to_owned(),
                rows: vec![(3, vec![SharedValue::Int(1)])],
            }],
            is_last: false,
        };
        let next = question.after(&page()).unwrap().unwrap();
        assert!(next.after(&page()).is_err());
    }

    #[test]
    fn lengths_are_the_same_at_the_other_node() {
        for length in [
            IntervalLength::All,
            IntervalLength::Ms(7),
            IntervalLength::Calendar(CalendarUnit::WeekFromSunday),
            IntervalLength::Calendar(CalendarUnit::Year),
        ] {
            let sent = serde_json::to_vec(&SharedLength::from(length)).unwrap();
            let received: SharedLength = serde_json::from_slice(&sent).unwrap();
            assert_eq!(IntervalLength::from(received), length);
        }
    }
}
