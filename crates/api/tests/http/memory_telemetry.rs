//! Telemetry in memory, for several nodes in one process.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use api::{
    DeviceRejectionList, ImportedRow, IntervalQuery, IntervalRow, LiveTelemetryItem,
    LiveTelemetryStream, RowQuery, TelemetryBackend, TelemetryBackendError, TelemetryCopy,
    TelemetryReader, TelemetrySample, TelemetryTable,
};
use namespaces::NamespaceSelection;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

type Values = Map<String, Value>;

/// The only device that is copied.
const DEVICE: &str = "pump";

/// The telemetry of one device; other ones do not exist.
pub(crate) struct MemoryTelemetry {
    device: &'static str,
    rows: Mutex<BTreeMap<i64, Values>>,
    watchers: Mutex<Vec<mpsc::UnboundedSender<LiveTelemetryItem>>>,
    /// Copies of other nodes by key, and whether they are complete.
    copies: Mutex<BTreeMap<String, (Arc<MemoryTelemetry>, bool)>>,
}

impl MemoryTelemetry {
    pub(crate) fn of_device(device: &'static str) -> Self {
        Self {
            device,
            rows: Mutex::default(),
            watchers: Mutex::default(),
            copies: Mutex::default(),
        }
    }

    /// Keeps a copy of the telemetry of another node.
    pub(crate) fn keep_copy(&self, key: &str, copy: Arc<Self>, is_complete: bool) {
        let mut copies = self.copies.lock().unwrap();
        copies.insert(key.to_owned(), (copy, is_complete));
    }

    /// Stores values of one time.
    pub(crate) fn store(&self, ts_ms: i64, values: &Value) {
        let values = values.as_object().unwrap();
        let mut rows = self.rows.lock().unwrap();
        rows.entry(ts_ms).or_default().extend(values.clone());
        let item = LiveTelemetryItem::Row {
            device: self.device.to_owned(),
            ts_ms,
            values: values.clone().into_iter().collect(),
        };
        let mut watchers = self.watchers.lock().unwrap();
        watchers.retain(|watcher| watcher.send(item.clone()).is_ok());
    }

    /// The number of subscribers.
    pub(crate) fn watchers(&self) -> usize {
        let mut watchers = self.watchers.lock().unwrap();
        watchers.retain(|watcher| !watcher.is_closed());
        watchers.len()
    }

    fn check(&self, device: &str) -> Result<(), TelemetryBackendError> {
        match device == self.device {
            true => Ok(()),
            false => Err(TelemetryBackendError::NoDevice(device.to_owned())),
        }
    }
}

fn is_selected(keys: Option<&[String]>, key: &str) -> bool {
    keys.is_none_or(|keys| keys.iter().any(|wanted| wanted == key))
}

impl TelemetryReader for MemoryTelemetry {
    fn latest(
        &self,
        device: &str,
        keys: Option<&[String]>,
    ) -> Result<Vec<TelemetrySample>, TelemetryBackendError> {
        self.check(device)?;
        let mut latest = BTreeMap::new();
        for (ts_ms, values) in &*self.rows.lock().unwrap() {
            for (key, value) in values.iter().filter(|(key, _)| is_selected(keys, key)) {
                let sample = TelemetrySample {
                    key: key.clone(),
                    ts_ms: *ts_ms,
                    value: value.clone(),
                    unit: None,
                };
                latest.insert(key.clone(), sample);
            }
        }
        Ok(latest.into_values().collect())
    }

    fn rows(
        &self,
        query: &RowQuery,
        each: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryBackendError> {
        self.check(&query.device)?;
        let rows = self.rows.lock().unwrap();
        let selected = rows.range(query.from_ms..query.to_ms);
        let selected = selected.filter_map(|(ts_ms, values)| {
            let values = values.iter();
            let values = values.filter(|(key, _)| is_selected(query.keys.as_deref(), key));
            let values: Vec<_> = values
                .map(|(k, value)| (k.clone(), value.clone()))
                .collect();
            (!values.is_empty()).then_some((*ts_ms, values))
        });
        let mut selected: Vec<_> = selected.collect();
        if query.newest_first {
            selected.reverse();
        }
        for (ts_ms, values) in selected.into_iter().take(query.limit) {
            if !each(ts_ms, values) {
                break;
            }
        }
        Ok(())
    }

    fn write_rows(
        &self,
        query: &RowQuery,
        separator: u8,
        out: &mut Vec<u8>,
        full: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<usize, TelemetryBackendError> {
        let mut count = 0;
        self.rows(query, &mut |ts_ms, values| {
            let values: Values = values.into_iter().collect();
            out.extend(
                json!({"ts_ms": ts_ms, "values": values})
                    .to_string()
                    .bytes(),
            );
            out.push(separator);
            count += 1;
            full(out)
        })?;
        Ok(count)
    }

    fn parquet_table<'a>(
        &'a self,
        _: &'a mut (dyn io::Write + Send),
    ) -> Result<Box<dyn TelemetryTable + 'a>, TelemetryBackendError> {
        Err(TelemetryBackendError::Unavailable("not here".to_owned()))
    }

    /// One interval of each key, with the functions count, sum and avg.
    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
        self.check(&query.devices[0])?;
        let rows = self.rows.lock().unwrap();
        let from_ms = query.from_ms.unwrap();
        let mut found = Vec::new();
        for key in &query.keys {
            let rows = rows.range(from_ms..query.to_ms);
            let numbers: Vec<f64> = rows
                .filter_map(|(_, values)| values.get(key)?.as_f64())
                .collect();
            if numbers.is_empty() {
                continue;
            }
            let sum: f64 = numbers.iter().sum();
            let values = query
                .functions
                .iter()
                .map(|function| match function.name() {
                    "count" => json!(numbers.len()),
                    "sum" => json!(sum),
                    "avg" => json!(sum / numbers.len() as f64),
                    other => panic!("unexpected function {other}"),
                });
            found.push(IntervalRow {
                device: Some(query.devices[0].clone()),
                key: key.clone(),
                ts_ms: from_ms,
                values: values.collect(),
            });
        }
        Ok(found)
    }

    fn subscribe(
        &self,
        devices: &[String],
        _: Option<&[String]>,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
        for device in devices {
            self.check(device)?;
        }
        let (sender, items) = mpsc::unbounded_channel();
        self.watchers.lock().unwrap().push(sender);
        Ok(Box::new(MemoryStream(items)))
    }
}

struct MemoryStream(mpsc::UnboundedReceiver<LiveTelemetryItem>);

impl LiveTelemetryStream for MemoryStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<LiveTelemetryItem>> + Send + '_>> {
        Box::pin(self.0.recv())
    }
}

impl TelemetryBackend for MemoryTelemetry {
    fn import_rows(
        &self,
        _: &[ImportedRow],
        _: &NamespaceSelection,
    ) -> Result<Vec<Result<(), String>>, TelemetryBackendError> {
        Ok(Vec::new())
    }

    fn delete(
        &self,
        device: &str,
        keys: Option<&[String]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), TelemetryBackendError> {
        self.check(device)?;
        for (_, values) in self.rows.lock().unwrap().range_mut(from_ms..to_ms) {
            values.retain(|key, _| !is_selected(keys, key));
        }
        Ok(())
    }

    fn copy(&self, key: &str) -> Option<TelemetryCopy> {
        let (reader, is_complete) = self.copies.lock().unwrap().get(key)?.clone();
        Some(TelemetryCopy {
            reader,
            covers: Box::new(move |devices| Ok(is_complete && devices == [DEVICE])),
        })
    }

    fn rejections(&self, device: &str) -> Result<DeviceRejectionList, TelemetryBackendError> {
        Err(TelemetryBackendError::NoDevice(device.to_owned()))
    }
}
