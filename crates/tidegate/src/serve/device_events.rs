//! The queue of device events for the rules FROM `"$EVENT.DEVICE"`. Shards, workers and other
//! threads push events; the control plane passes them to the rules in the same order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use devices::live::LiveValue;
use engine::{DeviceEvent, DeviceEventKind, Engine};
use rules::Value;
use series::{KeyId, Point, Series};
use tokio::sync::Notify;

use super::device_port::current_tag;

/// Queue length above which devices are paused.
const SOFT_MAX_EVENTS: usize = 10_000;
/// Maximum queue length. It exceeds the soft limit because devices may have been read further.
const MAX_EVENTS: usize = 200_000;
/// Interval at which `finish` checks whether all events were processed.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A device event that owns its data.
pub(super) struct QueuedDeviceEvent {
    pub(super) kind: DeviceEventKind,
    pub(super) device: Box<str>,
    pub(super) product: Box<str>,
    pub(super) at_ms: u64,
    pub(super) key: Option<Box<str>>,
    pub(super) payload: DeviceEventPayload,
    pub(super) tag: u64,
}

pub(super) enum DeviceEventPayload {
    /// JSON text.
    Value(String),
    /// The JSON text of an object.
    Properties(String),
    Row(Vec<(KeyId, LiveValue)>),
}

/// The queue of device events. Clones share it.
#[derive(Clone)]
pub(super) struct DeviceEventQueue {
    inner: Arc<DeviceEventQueueInner>,
}

struct DeviceEventQueueInner {
    engine: Engine,
    series: Series,
    queue: Mutex<VecDeque<QueuedDeviceEvent>>,
    /// Number of events in the queue and in processing.
    waiting: AtomicUsize,
    has_work: Notify,
    lost: AtomicU64,
}

impl DeviceEventQueue {
    pub(super) fn new(engine: Engine, series: Series) -> Self {
        Self {
            inner: Arc::new(DeviceEventQueueInner {
                engine,
                series,
                queue: Mutex::default(),
                waiting: AtomicUsize::new(0),
                has_work: Notify::new(),
                lost: AtomicU64::new(0),
            }),
        }
    }

    /// Whether any rule reads device events; checked before an event is built.
    #[inline]
    pub(super) fn has_rules(&self) -> bool {
        self.inner.engine.wants_device_events()
    }

    /// Whether devices must be paused.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.inner.waiting.load(Relaxed) >= SOFT_MAX_EVENTS
    }

    pub(super) fn waiting(&self) -> usize {
        self.inner.waiting.load(Relaxed)
    }

    /// Number of events discarded because the queue was full.
    pub(super) fn lost_events(&self) -> u64 {
        self.inner.lost.load(Relaxed)
    }

    /// Queues an event. Never blocks.
    pub(super) fn push(&self, queued: QueuedDeviceEvent) {
        if !self.has_rules() {
            return;
        }
        let mut queue = self.inner.lock();
        if queue.len() >= MAX_EVENTS {
            drop(queue);
            self.inner.lost.fetch_add(1, Relaxed);
            return;
        }
        queue.push_back(queued);
        self.inner.waiting.fetch_add(1, Relaxed);
        drop(queue);
        self.inner.has_work.notify_one();
    }

    /// Queues the event of a stored row.
    pub(super) fn push_stored_row(
        &self,
        device: &str,
        product: &str,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let values = points.iter().map(|point| (point.key, point.value.into()));
        self.push(QueuedDeviceEvent {
            kind: DeviceEventKind::Property,
            device: device.into(),
            product: product.into(),
            at_ms: ts_ms.max(0).cast_unsigned(),
            key: None,
            payload: DeviceEventPayload::Row(values.collect()),
            tag: current_tag(),
        });
    }

    /// Passes queued events to the rules; runs until the runtime stops.
    pub(super) async fn run(self) {
        loop {
            let all = std::mem::take(&mut *self.inner.lock());
            if all.is_empty() {
                self.inner.has_work.notified().await;
                continue;
            }
            for queued in all {
                self.inner.show_to_rules(&queued).await;
                self.inner.waiting.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Waits until the rules have processed all events, at most this long.
    pub(super) async fn finish(&self, within: Duration) {
        let finishing = async {
            while self.waiting() > 0 {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(within, finishing).await.is_err() {
            let waiting = self.waiting();
            tracing::warn!(
                waiting,
                "time-out while stopping; device events not passed to rules are discarded"
            );
        }
    }
}

impl DeviceEventQueueInner {
    fn lock(&self) -> MutexGuard<'_, VecDeque<QueuedDeviceEvent>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn show_to_rules(&self, queued: &QueuedDeviceEvent) {
        let mut event = DeviceEvent {
            product_id: &queued.product,
            key: queued.key.as_deref(),
            tag: queued.tag,
            ..DeviceEvent::new(queued.kind, &queued.device, queued.at_ms)
        };
        let properties;
        match &queued.payload {
            DeviceEventPayload::Value(json) => event.value = Value::Json(json),
            DeviceEventPayload::Properties(json) => event.properties = Value::Json(json),
            DeviceEventPayload::Row(values) => {
                properties = self.values_to_json(values);
                event.properties = Value::Json(&properties);
                // A report with a single property names that property.
                if let [(key, value)] = &values[..] {
                    event.key = self.series.key_name(*key);
                    event.value = to_value(value);
                }
            }
        }
        self.engine.handle_device_event(event).await;
    }

    fn values_to_json(&self, values: &[(KeyId, LiveValue)]) -> String {
        let mut out = Vec::with_capacity(32 * values.len());
        out.push(b'{');
        for (key, value) in values {
            let Some(name) = self.series.key_name(*key) else {
                continue;
            };
            if out.len() > 1 {
                out.push(b',');
            }
            rules::json::write_string(name, &mut out);
            out.push(b':');
            rules::json::write(&to_value(value), &mut out);
        }
        out.push(b'}');
        String::from_utf8(out).unwrap_or_default()
    }
}

fn to_value(value: &LiveValue) -> Value<'_> {
    match value {
        LiveValue::Bool(value) => Value::Bool(*value),
        LiveValue::Int(value) => Value::Int(*value),
        LiveValue::Float(value) => Value::Float(*value),
        LiveValue::Text(text) => Value::Str(text),
        LiveValue::Json(json) => Value::Json(json),
    }
}
