//! What the API asks of the telemetry of devices, from the time series and the registry.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;

use api::{
    IntervalQuery, IntervalRow, LiveItem, LiveRows, Refusal, Refusals, RowQuery, Sample,
    TelemetryProblem, TelemetryTools,
};
use devices::Registry;
use devices::ingest::Pipeline;
use devices::live::{Live, LiveValue, Watching};
use serde_json::Value;
use series::{DeviceNo, Error, KeyId, Order, Range, Row, Series};

use super::telemetry_intervals;
use super::telemetry_rows::RowWriter;
#[cfg(feature = "parquet")]
use super::telemetry_table::Table;

#[derive(Clone)]
pub(super) struct Telemetry {
    pub(super) registry: Registry,
    pub(super) series: Series,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) live: Arc<Live>,
}

pub(super) fn problem(error: Error) -> TelemetryProblem {
    match error {
        Error::Query {
            field,
            found,
            expected,
        } => TelemetryProblem::Parameter {
            name: field,
            detail: format!("{found}; expected {expected}"),
        },
        other => TelemetryProblem::Unavailable(other.to_string()),
    }
}

pub(super) fn json_of(value: series::Value<'_>) -> Value {
    match value {
        series::Value::Bool(value) => value.into(),
        series::Value::Int(value) => value.into(),
        series::Value::Float(value) => value.into(),
        series::Value::Text(text) => text.into(),
        // It was checked when it came.
        series::Value::Json(json) => serde_json::from_str(json).unwrap_or_default(),
    }
}

impl Telemetry {
    fn number(&self, device: &str) -> Result<DeviceNo, TelemetryProblem> {
        match self.registry.device(device) {
            Ok(Some(device)) => Ok(device.no),
            Ok(None) => Err(TelemetryProblem::NoDevice(device.to_owned())),
            Err(error) => Err(TelemetryProblem::Unavailable(error.to_string())),
        }
    }

    /// The numbers of keys that there are. `None`: all keys are wanted.
    fn keys(&self, names: Option<&[String]>) -> Option<Vec<KeyId>> {
        let names = names?.iter();
        Some(
            names
                .filter_map(|name| self.series.find_key(name))
                .collect(),
        )
    }

    fn name(&self, key: KeyId) -> String {
        self.series.key_name(key).unwrap_or_default().to_owned()
    }

    fn read(
        &self,
        device: DeviceNo,
        query: &RowQuery,
        each: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), TelemetryProblem> {
        let keys = self.keys(query.keys.as_deref());
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let range = Range {
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            limit: query.limit,
            order: match query.newest_first {
                true => Order::NewestFirst,
                false => Order::OldestFirst,
            },
        };
        let read = (self.series).range(device, keys.as_deref(), &range, each);
        read.map_err(problem)
    }
}

impl TelemetryTools for Telemetry {
    fn latest(
        &self,
        device: &str,
        keys: Option<&[String]>,
    ) -> Result<Vec<Sample>, TelemetryProblem> {
        let device = self.number(device)?;
        let keys = self.keys(keys);
        let mut samples = Vec::new();
        let latest = self
            .series
            .latest(device, keys.as_deref(), &mut |ts_ms, point| {
                samples.push(Sample {
                    key: self.name(point.key),
                    ts_ms,
                    value: json_of(point.value),
                });
            });
        latest.map_err(problem)?;
        samples.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(samples)
    }

    fn rows(
        &self,
        query: &RowQuery,
        each: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryProblem> {
        let device = self.number(&query.device)?;
        self.read(device, query, &mut |row| {
            let points = row.points.iter();
            let values = points.map(|point| (self.name(point.key), json_of(point.value)));
            match each(row.ts_ms, values.collect()) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })
    }

    fn write_rows(
        &self,
        query: &RowQuery,
        separator: u8,
        out: &mut Vec<u8>,
        full: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<usize, TelemetryProblem> {
        let device = self.number(&query.device)?;
        let mut writer = RowWriter::new(&self.series, separator);
        self.read(device, query, &mut |row| writer.write(&row, out, full))?;
        Ok(writer.rows)
    }

    #[cfg(feature = "parquet")]
    fn write_parquet(
        &self,
        query: &RowQuery,
        out: &mut (dyn io::Write + Send),
    ) -> Result<(), TelemetryProblem> {
        let device = self.number(&query.device)?;
        let mut table = Table::new(&query.device, &self.series, out)?;
        self.read(device, query, &mut |row| table.add(&row))?;
        table.finish()
    }

    #[cfg(not(feature = "parquet"))]
    fn write_parquet(
        &self,
        query: &RowQuery,
        _: &mut (dyn io::Write + Send),
    ) -> Result<(), TelemetryProblem> {
        self.number(&query.device)?;
        Err(TelemetryProblem::Parameter {
            name: "format",
            detail: "expected jsonl or csv; this program was built without the feature `parquet`"
                .to_owned(),
        })
    }

    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryProblem> {
        let numbers = query.devices.iter().map(|device| self.number(device));
        let numbers: Vec<DeviceNo> = numbers.collect::<Result<_, _>>()?;
        let keys = self.keys(Some(&query.keys)).unwrap_or_default();
        telemetry_intervals::intervals(&self.series, query, (&numbers, &keys))
    }

    fn delete(
        &self,
        device: &str,
        keys: Option<&[String]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), TelemetryProblem> {
        let device = self.number(device)?;
        let keys = self.keys(keys);
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let deleted = (self.series).delete_range(device, keys.as_deref(), from_ms, to_ms);
        deleted.map_err(problem)
    }

    fn refusals(&self, device: &str) -> Result<Refusals, TelemetryProblem> {
        let trouble = self.pipeline.trouble_of(self.number(device)?);
        let refusals = trouble.last.into_iter().map(|trouble| Refusal {
            subject: trouble.subject.into(),
            reason: trouble.reason.into(),
            count: trouble.count,
            last_at_ms: trouble.at_ms,
        });
        Ok(Refusals {
            device: device.to_owned(),
            count: trouble.count,
            refusals: refusals.collect(),
        })
    }

    fn watch(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Box<dyn LiveRows>, TelemetryProblem> {
        let numbers = devices.iter().map(|device| self.number(device));
        let numbers: Vec<DeviceNo> = numbers.collect::<Result<_, _>>()?;
        // A key may come that nobody has sent yet: it has no number, and names are looked at then.
        let known = self.keys(keys).filter(|known| {
            let wanted = keys.map_or(0, <[String]>::len);
            known.len() == wanted
        });
        let names = match known {
            None => keys.map(<[String]>::to_vec),
            Some(_) => None,
        };
        let keys = known;
        let watching = self.live.watch(&numbers, keys.as_deref());
        let watching = watching.map_err(|error| TelemetryProblem::Parameter {
            name: "devices",
            detail: error.to_string(),
        })?;
        let devices = numbers.into_iter().zip(devices.iter().cloned());
        Ok(Box::new(Rows {
            series: self.series.clone(),
            devices: devices.collect(),
            keys: names,
            watching,
        }))
    }
}

struct Rows {
    series: Series,
    devices: HashMap<DeviceNo, String>,
    /// Only these; `None`: all that come.
    keys: Option<Vec<String>>,
    watching: Watching,
}

impl Rows {
    async fn next_item(&mut self) -> Option<LiveItem> {
        loop {
            let lost = self.watching.take_lost();
            if lost > 0 {
                return Some(LiveItem::Lost(lost));
            }
            let update = self.watching.next().await?;
            let values = update.values.into_iter().filter_map(|(key, value)| {
                let name = self.series.key_name(key).unwrap_or_default();
                let is_wanted = |keys: &Vec<String>| keys.iter().any(|key| key == name);
                if !self.keys.as_ref().is_none_or(is_wanted) {
                    return None;
                }
                let value = match value {
                    LiveValue::Bool(value) => value.into(),
                    LiveValue::Int(value) => value.into(),
                    LiveValue::Float(value) => value.into(),
                    LiveValue::Text(text) => Value::from(&*text),
                    LiveValue::Json(json) => serde_json::from_str(&json).unwrap_or_default(),
                };
                Some((name.to_owned(), value))
            });
            let values: Vec<_> = values.collect();
            if !values.is_empty() {
                let device = self.devices.get(&update.device);
                return Some(LiveItem::Row {
                    device: device.cloned().unwrap_or_default(),
                    ts_ms: update.ts_ms,
                    values,
                });
            }
        }
    }
}

impl LiveRows for Rows {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<LiveItem>> + Send + '_>> {
        Box::pin(self.next_item())
    }
}
