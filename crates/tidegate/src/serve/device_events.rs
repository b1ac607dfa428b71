//! What happens to devices, on its way to the rules FROM `"$EVENT.DEVICE"`: told on shards, workers and other threads, shown to the rules
//! on the control plane, in the order in which it was told.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use devices::live::LiveValue;
use engine::{DeviceEvent, DeviceEventKind, Engine};
use rules::Value;
use series::{KeyId, Point, Series};
use tokio::sync::Notify;

use super::device_outlet::current_tag;

/// What may wait before devices do.
const MANY_WAITING: usize = 10_000;
/// What may wait at all: devices may have been read further.
const MAX_WAITING: usize = 200_000;
/// How often the end looks whether everything is shown.
const POLL: Duration = Duration::from_millis(5);

/// An event that outlives what it came of.
pub(super) struct Happened {
    pub(super) kind: DeviceEventKind,
    pub(super) device: Box<str>,
    pub(super) product: Box<str>,
    pub(super) at_ms: u64,
    pub(super) key: Option<Box<str>>,
    pub(super) what: What,
    pub(super) tag: u64,
}

pub(super) enum What {
    /// JSON.
    Value(String),
    /// The JSON of an object.
    Properties(String),
    Row(Vec<(KeyId, LiveValue)>),
}

/// Events that wait. Clones are the same.
#[derive(Clone)]
pub(super) struct DeviceEvents {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    series: Series,
    queue: Mutex<VecDeque<Happened>>,
    /// In the queue, and what is being shown.
    waiting: AtomicUsize,
    has_work: Notify,
    lost: AtomicU64,
}

impl DeviceEvents {
    pub(super) fn new(engine: Engine, series: Series) -> Self {
        Self {
            inner: Arc::new(Inner {
                engine,
                series,
                queue: Mutex::default(),
                waiting: AtomicUsize::new(0),
                has_work: Notify::new(),
                lost: AtomicU64::new(0),
            }),
        }
    }

    /// Whether any rule wants them: asked before one is made.
    #[inline]
    pub(super) fn are_wanted(&self) -> bool {
        self.inner.engine.wants_device_events()
    }

    /// Whether devices are to wait.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.inner.waiting.load(Relaxed) >= MANY_WAITING
    }

    pub(super) fn waiting(&self) -> usize {
        self.inner.waiting.load(Relaxed)
    }

    /// Events that no rule has seen, because too many waited.
    pub(super) fn lost(&self) -> u64 {
        self.inner.lost.load(Relaxed)
    }

    /// Tells of something. Never waits.
    pub(super) fn push(&self, happened: Happened) {
        if !self.are_wanted() {
            return;
        }
        let mut queue = self.inner.lock();
        if queue.len() >= MAX_WAITING {
            drop(queue);
            self.inner.lost.fetch_add(1, Relaxed);
            return;
        }
        queue.push_back(happened);
        self.inner.waiting.fetch_add(1, Relaxed);
        drop(queue);
        self.inner.has_work.notify_one();
    }

    /// Tells of a row that is stored.
    pub(super) fn stored(&self, device: &str, product: &str, ts_ms: i64, points: &[Point<'_>]) {
        let values = points.iter().map(|point| (point.key, point.value.into()));
        self.push(Happened {
            kind: DeviceEventKind::Property,
            device: device.into(),
            product: product.into(),
            at_ms: ts_ms.max(0).cast_unsigned(),
            key: None,
            what: What::Row(values.collect()),
            tag: current_tag(),
        });
    }

    /// Shows what comes to the rules, as long as the runtime runs.
    pub(super) async fn show(self) {
        loop {
            let all = std::mem::take(&mut *self.inner.lock());
            if all.is_empty() {
                self.inner.has_work.notified().await;
                continue;
            }
            for happened in all {
                self.inner.show(&happened).await;
                self.inner.waiting.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Waits until the rules have seen everything, but not longer than this.
    pub(super) async fn finish(&self, within: Duration) {
        let finishing = async {
            while self.waiting() > 0 {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(within, finishing).await.is_err() {
            let waiting = self.waiting();
            tracing::warn!(waiting, "events of devices are left that no rule has seen");
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Happened>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn show(&self, happened: &Happened) {
        let mut event = DeviceEvent {
            product_id: &happened.product,
            key: happened.key.as_deref(),
            tag: happened.tag,
            ..DeviceEvent::new(happened.kind, &happened.device, happened.at_ms)
        };
        let properties;
        match &happened.what {
            What::Value(json) => event.value = Value::Json(json),
            What::Properties(json) => event.properties = Value::Json(json),
            What::Row(values) => {
                properties = self.object_of(values);
                event.properties = Value::Json(&properties);
                // A report of one property is about that one.
                if let [(key, value)] = &values[..] {
                    event.key = self.series.key_name(*key);
                    event.value = value_of(value);
                }
            }
        }
        self.engine.take_device(event).await;
    }

    fn object_of(&self, values: &[(KeyId, LiveValue)]) -> String {
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
            rules::json::write(&value_of(value), &mut out);
        }
        out.push(b'}');
        String::from_utf8(out).unwrap_or_default()
    }
}

fn value_of(value: &LiveValue) -> Value<'_> {
    match value {
        LiveValue::Bool(value) => Value::Bool(*value),
        LiveValue::Int(value) => Value::Int(*value),
        LiveValue::Float(value) => Value::Float(*value),
        LiveValue::Text(text) => Value::Str(text),
        LiveValue::Json(json) => Value::Json(json),
    }
}
