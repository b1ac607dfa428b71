//! Passes rows and messages of devices to the sinks named by products and rule chains.

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use connect::ConnectorService;
use connect::row::SinkRowWriter;
use devices::Registry;
use devices::chain::Chains;
use devices::command::Recipient;
use devices::ingest::{DeviceRef, ProductProfile};
use devices::protocol;
use hooks::DurableCallback;
use series::{Point, Series};

use super::sink_port::write_columns;

/// Numbers of pushing threads.
static NEXT_THREAD_NUMBER: AtomicU16 = AtomicU16::new(0);

thread_local! {
    /// The number of this thread as a producer of rows. The rows of a device come from one thread and stay in order.
    static PRODUCER: Cell<Option<u16>> = const { Cell::new(None) };
}

pub(super) struct DeviceSinks {
    service: ConnectorService,
    registry: Registry,
    chains: Chains,
    /// The first producer that is no shard, and the number of such producers.
    producers: (u16, u16),
    /// Resolves key names.
    series: OnceLock<Series>,
    referenced: ArcSwap<ReferencedSinks>,
}

/// Calls the callback when the last reference is dropped.
struct CallbackOnLastDrop(Option<DurableCallback>);

impl Drop for CallbackOnLastDrop {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

/// The sinks referenced by products and chains.
#[derive(Default)]
struct ReferencedSinks {
    all: Vec<Box<str>>,
    /// Whether products name sinks for rows.
    wants_rows: bool,
}

impl DeviceSinks {
    pub(super) fn new(
        service: ConnectorService,
        registry: Registry,
        chains: Chains,
        producers: (u16, u16),
    ) -> Self {
        let sinks = Self {
            service,
            registry,
            chains,
            producers,
            series: OnceLock::new(),
            referenced: ArcSwap::default(),
        };
        sinks.refresh_references();
        sinks
    }

    pub(super) fn set_series(&self, series: Series) {
        // `set` is called once.
        let _ = self.series.set(series);
    }

    /// Updates the references after a change of products or chains.
    pub(super) fn refresh_references(&self) {
        let mut named = ReferencedSinks::default();
        for slot in self.registry.products() {
            let product = slot.get();
            let storage = product.storage();
            named.wants_rows |= !storage.sinks.is_empty();
            let names = storage.sinks.iter().chain(&storage.log_sinks);
            named.all.extend(names.map(|name| name.as_str().into()));
        }
        named.all.extend(self.chains.sinks());
        named.all.sort_unstable();
        named.all.dedup();
        self.referenced.store(Arc::new(named));
    }

    #[inline]
    pub(super) fn wants_rows(&self) -> bool {
        self.referenced.load().wants_rows
    }

    /// Whether a referenced sink has a full queue that must not lose rows.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let named = self.referenced.load();
        let mut sinks = named.all.iter().filter_map(|name| self.service.sink(name));
        sinks.any(|sink| self.service.is_full(sink))
    }

    fn producer_range(&self) -> impl Iterator<Item = u16> + use<> {
        let (first, count) = self.producers;
        first..first + count.max(1)
    }

    /// Whether pushed rows are not yet in the files of their sinks.
    pub(super) fn is_unsettled(&self) -> bool {
        self.producer_range()
            .any(|producer| self.service.is_unsettled(producer))
    }

    /// Returns a function that calls its argument when the rows pushed so far are in the files of
    /// their sinks.
    pub(super) fn settle_later(&self) -> impl FnOnce(DurableCallback) + Send + Sync + 'static {
        let (service, producers) = (self.service.clone(), self.producer_range());
        move |done| {
            let all = Arc::new(CallbackOnLastDrop(Some(done)));
            for producer in producers.filter(|producer| service.is_unsettled(*producer)) {
                let one = Arc::clone(&all);
                service.settle_shared(producer, Box::new(move || drop(one)));
            }
        }
    }

    fn push_to_sink(&self, name: &str, fill: impl FnOnce(&mut SinkRowWriter<'_>)) {
        let Some(sink) = self.service.sink(name) else {
            return;
        };
        let (first, count) = self.producers;
        let producer = PRODUCER.with(|producer| {
            producer.get().unwrap_or_else(|| {
                let number = NEXT_THREAD_NUMBER.fetch_add(1, Relaxed);
                producer.set(Some(number));
                number
            })
        });
        // A full queue is handled and counted by the sink.
        self.service
            .push(sink, first + producer % count.max(1), fill);
    }

    /// Pushes a row of a device to the sinks of its product.
    pub(super) fn push_row(
        &self,
        speaker: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let Some(series) = self.series.get() else {
            return;
        };
        for name in &*profile.sinks {
            self.push_to_sink(name, |row| {
                let product = profile.product.as_str();
                write_common_fields(row, "telemetry", speaker.id, product, ts_ms);
                row.map("values", |row| {
                    for point in points {
                        let key = series.key_name(point.key).unwrap_or_default();
                        write_field(row, key, point.value);
                    }
                });
            });
        }
    }

    /// Pushes a message of a device to the sinks of its product's log.
    pub(super) fn push_device_log(
        &self,
        by: DeviceRef<'_>,
        profile: &ProductProfile,
        (topic, payload): (&str, &[u8]),
        now_ms: i64,
    ) {
        let is_secret =
            protocol::parse_device_topic(topic).is_some_and(|route| route.kind.is_secret());
        let entry = DeviceLogEntry {
            device: by.id,
            product: profile.product.as_str(),
            direction: "up",
            topic,
            payload: if is_secret { b"***" } else { payload },
            most: profile.log_payload_bytes,
            now_ms,
        };
        for name in &*profile.log_sinks {
            self.push_to_sink(name, |row| entry.write_fields(row));
        }
    }

    /// Pushes a message to a device to the sinks of its product's log.
    pub(super) fn push_downlink_log(
        &self,
        to: &Recipient,
        topic: &str,
        payload: &[u8],
        now_ms: i64,
    ) {
        let (device, product) = (to.device.as_str(), to.product.as_str());
        let Some(now) = self.registry.product(product) else {
            return;
        };
        let now = now.get();
        let storage = now.storage();
        if !storage.device_log {
            return;
        }
        let entry = DeviceLogEntry {
            device,
            product,
            direction: "down",
            topic,
            payload,
            most: storage.log_payload_bytes as usize,
            now_ms,
        };
        for name in storage.log_sink_names() {
            self.push_to_sink(name, |row| entry.write_fields(row));
        }
    }

    /// Pushes a row of a chain node to a sink.
    pub(super) fn push_chain_row(&self, name: &str, row: rules::Value<'_>) {
        self.push_to_sink(name, |out| {
            write_columns(out, row);
            // `timestamp` dates indexes and points; rows of chains call it `ts`.
            if let rules::Value::Map(columns) = row
                && let Some(ts_ms) = row_timestamp(columns)
            {
                out.int("timestamp", ts_ms);
            }
        });
    }
}

/// A message in the log of a product.
struct DeviceLogEntry<'e> {
    device: &'e str,
    product: &'e str,
    direction: &'e str,
    topic: &'e str,
    payload: &'e [u8],
    /// Maximum number of payload bytes kept.
    most: usize,
    now_ms: i64,
}

impl DeviceLogEntry<'_> {
    fn write_fields(&self, row: &mut SinkRowWriter<'_>) {
        write_common_fields(row, "log", self.device, self.product, self.now_ms);
        row.text("direction", self.direction);
        row.text("topic", self.topic);
        let kept = truncate_payload(self.payload, self.most);
        row.bytes("payload", kept);
        if kept.len() < self.payload.len() {
            let bytes = i64::try_from(self.payload.len());
            row.int("payloadBytes", bytes.unwrap_or(i64::MAX));
        }
    }
}

/// Truncates the payload to the given length without splitting a character at the end.
fn truncate_payload(payload: &[u8], most: usize) -> &[u8] {
    let Some(kept) = payload.get(..most) else {
        return payload;
    };
    match std::str::from_utf8(kept) {
        // The cut splits a character, if the payload is text at all.
        Err(error) if error.error_len().is_none() => &kept[..error.valid_up_to()],
        _ => kept,
    }
}

/// The time of a row without `timestamp`.
fn row_timestamp(columns: &[(&str, rules::Value<'_>)]) -> Option<i64> {
    let has_one = columns.iter().any(|(name, _)| *name == "timestamp");
    columns.iter().find_map(|column| match column {
        ("ts", rules::Value::Int(ts_ms)) if !has_one => Some(*ts_ms),
        _ => None,
    })
}

/// Writes the fields at the start of all rows.
fn write_common_fields(
    row: &mut SinkRowWriter<'_>,
    kind: &str,
    device: &str,
    product: &str,
    ts_ms: i64,
) {
    row.text("kind", kind);
    row.text("deviceId", device);
    row.text("productId", product);
    // As in rows of rules, `timestamp` dates indexes and points.
    row.int("timestamp", ts_ms);
}

fn write_field(row: &mut SinkRowWriter<'_>, key: &str, value: series::PointValue<'_>) {
    match value {
        series::PointValue::Bool(value) => row.bool(key, value),
        series::PointValue::Int(value) => row.int(key, value),
        series::PointValue::Float(value) => row.float(key, value),
        series::PointValue::Text(value) => row.text(key, value),
        series::PointValue::Json(value) => row.json(key, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_cut_between_characters() {
        assert_eq!(truncate_payload(b"abc", 3), b"abc");
        assert_eq!(truncate_payload(b"abcd", 3), b"abc");
        assert_eq!(truncate_payload("aé€".as_bytes(), 4), "aé".as_bytes());
        assert_eq!(truncate_payload(b"a\xff\xffb", 2), b"a\xff");
        assert_eq!(truncate_payload(b"abc", 0), b"");
    }
}
