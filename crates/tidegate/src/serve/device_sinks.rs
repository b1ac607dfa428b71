//! Rows and messages of devices for the sinks that products and rule chains name.

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use connect::Service;
use connect::row::RowWriter;
use devices::Registry;
use devices::chain::Chains;
use devices::ingest::{Profile, Voice};
use series::{Point, Series};

use super::sinks::put_columns;

/// Numbers of threads that push.
static THREADS: AtomicU16 = AtomicU16::new(0);

thread_local! {
    /// Which part of a sink's queue this thread has: the rows of a device come from one thread, and stay in their order.
    static LANE: Cell<Option<u16>> = const { Cell::new(None) };
}

pub(super) struct DeviceSinks {
    service: Service,
    registry: Registry,
    chains: Chains,
    /// The first lane of a sink's queue that no shard has, and how many there are.
    lanes: (u16, u16),
    /// Names keys.
    series: OnceLock<Series>,
    named: ArcSwap<Named>,
}

/// Sinks that are named somewhere.
#[derive(Default)]
struct Named {
    all: Vec<Box<str>>,
    /// Products name some for rows.
    wants_rows: bool,
}

impl DeviceSinks {
    pub(super) fn new(
        service: Service,
        registry: Registry,
        chains: Chains,
        lanes: (u16, u16),
    ) -> Self {
        let sinks = Self {
            service,
            registry,
            chains,
            lanes,
            series: OnceLock::new(),
            named: ArcSwap::default(),
        };
        sinks.refresh();
        sinks
    }

    pub(super) fn set_series(&self, series: Series) {
        // There is one.
        let _ = self.series.set(series);
    }

    /// Products or chains have changed.
    pub(super) fn refresh(&self) {
        let mut named = Named::default();
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
        self.named.store(Arc::new(named));
    }

    #[inline]
    pub(super) fn wants_rows(&self) -> bool {
        self.named.load().wants_rows
    }

    /// Whether one of them has no room and is not to lose anything.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let named = self.named.load();
        let mut sinks = named.all.iter().filter_map(|name| self.service.sink(name));
        sinks.any(|sink| self.service.is_full(sink))
    }

    fn push(&self, name: &str, fill: impl FnOnce(&mut RowWriter<'_>)) {
        let Some(sink) = self.service.sink(name) else {
            return;
        };
        let (first, count) = self.lanes;
        let lane = LANE.with(|lane| {
            lane.get().unwrap_or_else(|| {
                let number = THREADS.fetch_add(1, Relaxed);
                lane.set(Some(number));
                number
            })
        });
        // What a full queue does with it is the sink's matter, and counted there.
        self.service.push(sink, first + lane % count.max(1), fill);
    }

    /// A row of a device, for the sinks of its product.
    pub(super) fn row(
        &self,
        speaker: Voice<'_>,
        profile: &Profile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let Some(series) = self.series.get() else {
            return;
        };
        for name in &*profile.sinks {
            self.push(name, |row| {
                begin(row, "telemetry", speaker.id, profile, ts_ms);
                row.map("values", |row| {
                    for point in points {
                        let key = series.key_name(point.key).unwrap_or_default();
                        put(row, key, point.value);
                    }
                });
            });
        }
    }

    /// A message of a device, for the sinks of its product's log.
    pub(super) fn log(
        &self,
        by: Voice<'_>,
        profile: &Profile,
        (topic, payload): (&str, &[u8]),
        now_ms: i64,
    ) {
        for name in &*profile.log_sinks {
            self.push(name, |row| {
                begin(row, "log", by.id, profile, now_ms);
                row.text("topic", topic);
                row.bytes("payload", payload);
            });
        }
    }

    /// A row that a node of a chain hands to a sink.
    pub(super) fn of_chain(&self, name: &str, row: rules::Value<'_>) {
        self.push(name, |out| {
            put_columns(out, row);
            // It dates indexes and points; rows of chains call it `ts`.
            if let rules::Value::Map(columns) = row
                && let Some(ts_ms) = time_of(columns)
            {
                out.int("timestamp", ts_ms);
            }
        });
    }
}

/// The time of a row that has no `timestamp`.
fn time_of(columns: &[(&str, rules::Value<'_>)]) -> Option<i64> {
    let has_one = columns.iter().any(|(name, _)| *name == "timestamp");
    columns.iter().find_map(|column| match column {
        ("ts", rules::Value::Int(ts_ms)) if !has_one => Some(*ts_ms),
        _ => None,
    })
}

/// What all rows begin with.
fn begin(row: &mut RowWriter<'_>, kind: &str, device: &str, profile: &Profile, ts_ms: i64) {
    row.text("kind", kind);
    row.text("deviceId", device);
    row.text("productId", profile.product.as_str());
    // As rows of rules have it: it dates indexes and points.
    row.int("timestamp", ts_ms);
}

fn put(row: &mut RowWriter<'_>, key: &str, value: series::Value<'_>) {
    match value {
        series::Value::Bool(value) => row.bool(key, value),
        series::Value::Int(value) => row.int(key, value),
        series::Value::Float(value) => row.float(key, value),
        series::Value::Text(value) => row.text(key, value),
        series::Value::Json(value) => row.json(key, value),
    }
}
