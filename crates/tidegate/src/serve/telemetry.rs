//! The telemetry backend of the API, based on the time series and the registry.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use api::{
    DeviceRejectionList, ImportedRow, IntervalQuery, IntervalRow, LiveTelemetryItem,
    LiveTelemetryStream, RejectionInfo, RowQuery, TelemetryBackend, TelemetryBackendError,
    TelemetryCopy, TelemetryReader, TelemetrySample, TelemetryTable,
};
use devices::ingest::Pipeline;
use devices::live::{LiveTelemetry, LiveValue, TelemetryWatcher};
use devices::telemetry_usage::TelemetryUsage;
use devices::{Device, Registry};
use namespaces::NamespaceSelection;
use relay::RelayService;
use serde_json::Value;
use series::{
    DeviceNo, KeyId, Point, PointValue, RangeQuery, RowOrder, Series, SeriesError, SeriesRow,
    SyncTicket,
};
use telemetry_copy::{CopiedSeries, TelemetryCopies};

use super::telemetry_intervals;
use super::telemetry_rows::JsonRowWriter;
#[cfg(feature = "parquet")]
use super::telemetry_table::ParquetTable;
use super::telemetry_values::{to_backend_error, value_to_json};

#[derive(Clone)]
pub(super) struct TelemetryService {
    pub(super) registry: Registry,
    /// What is read: that of this node, or a copy of that of another one.
    pub(super) series: Series,
    /// The telemetry of this node, for writing.
    pub(super) stored: CopiedSeries,
    pub(super) copies: Arc<OnceLock<TelemetryCopies>>,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) live: Arc<LiveTelemetry>,
    pub(super) usage: TelemetryUsage,
    pub(super) relay: RelayService,
}

impl TelemetryService {
    fn device_no(&self, device: &str) -> Result<DeviceNo, TelemetryBackendError> {
        self.device(device).map(|device| device.no)
    }

    fn device(&self, device: &str) -> Result<Arc<Device>, TelemetryBackendError> {
        match self.registry.device(device) {
            Ok(Some(device)) => Ok(device),
            Ok(None) => Err(TelemetryBackendError::NoDevice(device.to_owned())),
            Err(error) => Err(TelemetryBackendError::Unavailable(error.to_string())),
        }
    }

    /// The unit of a key: that of the thing model; for a device of a relay endpoint also that of the endpoint, or the usual one for
    /// the key.
    pub(super) fn unit_of(&self, device: &Device, key: &str) -> Option<String> {
        let product = device.product.get();
        if let Some(unit) = product.unit_of(key) {
            return Some(unit.to_owned());
        }
        // Devices of an endpoint have its id in front of theirs.
        let (endpoint, _) = device.id.as_str().split_once(':')?;
        self.relay.unit_of(endpoint, product.namespace(), key)
    }

    /// The ids of the keys that exist. `None`: all keys are requested.
    fn key_ids(&self, names: Option<&[String]>) -> Option<Vec<KeyId>> {
        key_ids(&self.series, names)
    }

    fn key_name(&self, key: KeyId) -> String {
        self.series.key_name(key).unwrap_or_default().to_owned()
    }

    fn read(
        &self,
        device: DeviceNo,
        query: &RowQuery,
        each: &mut dyn FnMut(SeriesRow<'_>) -> ControlFlow<()>,
    ) -> Result<(), TelemetryBackendError> {
        let keys = self.key_ids(query.keys.as_deref());
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let range = RangeQuery {
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            limit: query.limit,
            order: match query.newest_first {
                true => RowOrder::NewestFirst,
                false => RowOrder::OldestFirst,
            },
        };
        let read = (self.series).range(device, keys.as_deref(), &range, each);
        read.map_err(to_backend_error)
    }
}

impl TelemetryService {
    /// Stores an imported row. `Ok(Err(_))`: it is invalid.
    fn import_row(
        &self,
        row: &ImportedRow,
        namespaces: &NamespaceSelection,
    ) -> Result<Result<SyncTicket, String>, TelemetryBackendError> {
        let device = self.registry.device(&row.device);
        let device =
            device.map_err(|error| TelemetryBackendError::Unavailable(error.to_string()))?;
        let namespace_of = |device: &Device| device.product.get().namespace().to_owned();
        let Some(device) = device.filter(|device| namespaces.contains(&namespace_of(device)))
        else {
            return Ok(Err(format!("there is no device {:?}", row.device)));
        };
        let usage = self.registry.namespace_usage(&namespace_of(&device));
        if usage.is_some_and(|usage| usage.is_telemetry_full()) {
            let detail = "the quota telemetry_megabytes of the namespace is reached".to_owned();
            return Err(TelemetryBackendError::Unavailable(detail));
        }
        let texts: Vec<Option<String>> = row.values.values().map(json_text).collect();
        let mut points = Vec::with_capacity(row.values.len());
        for ((name, value), text) in row.values.iter().zip(&texts) {
            let Some(value) = point_value(value, text.as_deref()) else {
                continue;
            };
            match self.series.get_or_create_key(name) {
                Ok(key) => points.push(Point { key, value }),
                Err(error) => return Ok(Err(format!("{name}: {error}"))),
            }
        }
        let is_copied = device.product.get().storage().replicated;
        match (self.stored).submit(device.no, row.ts_ms, &points, is_copied) {
            Ok(ticket) => Ok(Ok(ticket)),
            Err(error @ (SeriesError::Full(_) | SeriesError::Busy | SeriesError::Closed)) => {
                Err(to_backend_error(error))
            }
            Err(error) => Ok(Err(error.to_string())),
        }
    }
}

/// The ids of the keys that exist. `None`: all keys are requested.
fn key_ids(series: &Series, names: Option<&[String]>) -> Option<Vec<KeyId>> {
    let names = names?.iter();
    Some(names.filter_map(|name| series.find_key(name)).collect())
}

/// The text of a value that is stored as JSON.
fn json_text(value: &Value) -> Option<String> {
    (value.is_array() || value.is_object()).then(|| value.to_string())
}

/// The value as it is stored; `None` for `null`.
fn point_value<'a>(value: &'a Value, json: Option<&'a str>) -> Option<PointValue<'a>> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => PointValue::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(value) => PointValue::Int(value),
            None => PointValue::Float(number.as_f64()?),
        },
        Value::String(text) => PointValue::Text(text),
        Value::Array(_) | Value::Object(_) => PointValue::Json(json?),
    })
}

impl TelemetryReader for TelemetryService {
    fn latest(
        &self,
        device: &str,
        keys: Option<&[String]>,
    ) -> Result<Vec<TelemetrySample>, TelemetryBackendError> {
        let device = self.device(device)?;
        let keys = self.key_ids(keys);
        let mut samples = Vec::new();
        let latest = self
            .series
            .latest(device.no, keys.as_deref(), &mut |ts_ms, point| {
                let key = self.key_name(point.key);
                samples.push(TelemetrySample {
                    unit: self.unit_of(&device, &key),
                    key,
                    ts_ms,
                    value: value_to_json(point.value),
                });
            });
        latest.map_err(to_backend_error)?;
        samples.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(samples)
    }

    fn rows(
        &self,
        query: &RowQuery,
        each: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryBackendError> {
        let device = self.device_no(&query.device)?;
        self.read(device, query, &mut |row| {
            let points = row.points.iter();
            let values = points.map(|point| (self.key_name(point.key), value_to_json(point.value)));
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
    ) -> Result<usize, TelemetryBackendError> {
        let device = self.device_no(&query.device)?;
        let mut writer = JsonRowWriter::new(&self.series, separator);
        self.read(device, query, &mut |row| writer.write(&row, out, full))?;
        Ok(writer.rows)
    }

    #[cfg(feature = "parquet")]
    fn parquet_table<'a>(
        &'a self,
        out: &'a mut (dyn io::Write + Send),
    ) -> Result<Box<dyn TelemetryTable + 'a>, TelemetryBackendError> {
        Ok(Box::new(ServiceTable {
            service: self,
            table: ParquetTable::new(&self.series, out)?,
        }))
    }

    #[cfg(not(feature = "parquet"))]
    fn parquet_table<'a>(
        &'a self,
        _: &'a mut (dyn io::Write + Send),
    ) -> Result<Box<dyn TelemetryTable + 'a>, TelemetryBackendError> {
        Err(TelemetryBackendError::Parameter {
            name: "format",
            detail: "expected jsonl or csv; this program was built without the feature `parquet`"
                .to_owned(),
        })
    }

    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
        let numbers = query.devices.iter().map(|device| self.device_no(device));
        let numbers: Vec<DeviceNo> = numbers.collect::<Result<_, _>>()?;
        let keys = self.key_ids(Some(&query.keys)).unwrap_or_default();
        telemetry_intervals::query_intervals(&self.series, query, (&numbers, &keys))
    }

    fn subscribe(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
        let numbers = devices.iter().map(|device| self.device_no(device));
        let numbers: Vec<DeviceNo> = numbers.collect::<Result<_, _>>()?;
        // A requested key may not exist yet; without ids the filter compares names.
        let known = self.key_ids(keys).filter(|known| {
            let wanted = keys.map_or(0, <[String]>::len);
            known.len() == wanted
        });
        let names = match known {
            None => keys.map(<[String]>::to_vec),
            Some(_) => None,
        };
        let keys = known;
        let watching = self.live.watch(&numbers, keys.as_deref());
        let watching = watching.map_err(|error| TelemetryBackendError::Parameter {
            name: "devices",
            detail: error.to_string(),
        })?;
        let devices = numbers.into_iter().zip(devices.iter().cloned());
        Ok(Box::new(WatchedTelemetry {
            series: self.series.clone(),
            devices: devices.collect(),
            keys: names,
            watching,
        }))
    }
}

impl TelemetryBackend for TelemetryService {
    fn import_rows(
        &self,
        rows: &[ImportedRow],
        namespaces: &NamespaceSelection,
    ) -> Result<Vec<Result<(), String>>, TelemetryBackendError> {
        let mut results = Vec::with_capacity(rows.len());
        let mut ticket = None;
        for row in rows {
            results.push(match self.import_row(row, namespaces)? {
                Ok(last) => {
                    ticket = Some(last);
                    Ok(())
                }
                Err(reason) => Err(reason),
            });
        }
        if let Some(ticket) = ticket {
            let durable = self.series.wait_until_durable(ticket);
            durable.map_err(to_backend_error)?;
        }
        Ok(results)
    }

    fn delete(
        &self,
        device: &str,
        keys: Option<&[String]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), TelemetryBackendError> {
        let device = self.device_no(device)?;
        // Nodes that cannot be reached do not delete it in their copies.
        let unattended = self.copies.get().map(TelemetryCopies::unattended);
        for copy in unattended.into_iter().flatten() {
            let keys = key_ids(&copy, keys);
            if keys.as_ref().is_none_or(|keys| !keys.is_empty()) {
                let deleted = copy.delete_range(device, keys.as_deref(), from_ms, to_ms);
                deleted.map_err(to_backend_error)?;
            }
        }
        let keys = self.key_ids(keys);
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let deleted = (self.stored).delete_range(device, keys.as_deref(), from_ms, to_ms);
        deleted.map_err(to_backend_error)
    }

    fn copy(&self, key: &str) -> Option<TelemetryCopy> {
        let copy = self.copies.get()?.readable(key)?;
        let reader = Self {
            series: copy.series.clone(),
            ..self.clone()
        };
        Some(TelemetryCopy {
            reader: Arc::new(reader),
            covers: Box::new(move |devices| copy.covers(devices)),
        })
    }

    fn count_stored_bytes(&self) {
        self.usage.count();
    }

    fn rejections(&self, device: &str) -> Result<DeviceRejectionList, TelemetryBackendError> {
        let device_rejections = self.pipeline.rejections_of(self.device_no(device)?);
        let rejections =
            device_rejections
                .last
                .into_iter()
                .map(|device_rejections| RejectionInfo {
                    subject: device_rejections.subject.into(),
                    reason: device_rejections.reason.into(),
                    count: device_rejections.count,
                    last_at_ms: device_rejections.at_ms,
                });
        Ok(DeviceRejectionList {
            device: device.to_owned(),
            count: device_rejections.count,
            rejections: rejections.collect(),
        })
    }
}

#[cfg(feature = "parquet")]
struct ServiceTable<'a> {
    service: &'a TelemetryService,
    table: ParquetTable<'a>,
}

#[cfg(feature = "parquet")]
impl TelemetryTable for ServiceTable<'_> {
    fn add(&mut self, query: &RowQuery) -> Result<(), TelemetryBackendError> {
        let device = self.service.device_no(&query.device)?;
        let add = &mut |row: SeriesRow<'_>| self.table.add(&query.device, &row);
        self.service.read(device, query, add)?;
        self.table.check()
    }

    fn add_row(
        &mut self,
        device: &str,
        ts_ms: i64,
        values: &[(String, Value)],
    ) -> Result<(), TelemetryBackendError> {
        for (key, value) in values {
            let text = json_text(value);
            if let Some(value) = point_value(value, text.as_deref()) {
                self.table.add_value(ts_ms, device, key, value)?;
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), TelemetryBackendError> {
        self.table.finish()
    }
}

struct WatchedTelemetry {
    series: Series,
    devices: HashMap<DeviceNo, String>,
    /// Only these keys; `None`: all keys.
    keys: Option<Vec<String>>,
    watching: TelemetryWatcher,
}

impl WatchedTelemetry {
    async fn next_item(&mut self) -> Option<LiveTelemetryItem> {
        loop {
            let lost = self.watching.take_lost();
            if lost > 0 {
                return Some(LiveTelemetryItem::Lost(lost));
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
                return Some(LiveTelemetryItem::Row {
                    device: device.cloned().unwrap_or_default(),
                    ts_ms: update.ts_ms,
                    values,
                });
            }
        }
    }
}

impl LiveTelemetryStream for WatchedTelemetry {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<LiveTelemetryItem>> + Send + '_>> {
        Box::pin(self.next_item())
    }
}
