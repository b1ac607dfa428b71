//! Live telemetry: watchers receive rows of devices and keys as they are stored. A watcher that is too slow loses
//! updates, receives their number, and delays no other watcher.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::HashMap;
use series::{DeviceNo, KeyId, Point, PointValue};
use tokio::sync::mpsc;

/// Maximum number of updates queued for one watcher.
const MAX_WAITING: usize = 1024;
/// Maximum size of the text in these updates; an update with a longer text is queued alone.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Maximum number of devices of one watcher.
pub const MAX_WATCHED: usize = 10_000;

type HashState = foldhash::fast::RandomState;

/// An owned value.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
    Json(Box<str>),
}

impl From<PointValue<'_>> for LiveValue {
    fn from(value: PointValue<'_>) -> Self {
        match value {
            PointValue::Bool(value) => Self::Bool(value),
            PointValue::Int(value) => Self::Int(value),
            PointValue::Float(value) => Self::Float(value),
            PointValue::Text(text) => Self::Text(text.into()),
            PointValue::Json(json) => Self::Json(json.into()),
        }
    }
}

impl LiveValue {
    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Json(text) => text.len(),
            Self::Bool(_) | Self::Int(_) | Self::Float(_) => 0,
        }
    }
}

/// A row of a watched device, reduced to the watched keys.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetryUpdate {
    pub device: DeviceNo,
    pub ts_ms: i64,
    pub values: Vec<(KeyId, LiveValue)>,
}

impl TelemetryUpdate {
    fn text_bytes(&self) -> usize {
        let values = self.values.iter();
        values.map(|(_, value)| value.text_bytes()).sum()
    }
}

struct WatcherQueue {
    /// Watched keys; `None`: all.
    keys: Option<Box<[KeyId]>>,
    updates: mpsc::Sender<TelemetryUpdate>,
    /// Size of the text in the queued updates.
    waiting_bytes: AtomicUsize,
    lost_updates: AtomicU64,
}

impl WatcherQueue {
    /// Queues an update, or counts it as lost.
    fn push(&self, update: TelemetryUpdate) {
        let bytes = update.text_bytes();
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_space = bytes == 0 || before == 0 || before + bytes <= MAX_WAITING_BYTES;
        if !has_space || self.updates.try_send(update).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.lost_updates.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// All watchers of live telemetry.
#[derive(Default)]
pub struct LiveTelemetry {
    watched: AtomicUsize,
    by_device: RwLock<HashMap<DeviceNo, Vec<Arc<WatcherQueue>>, HashState>>,
}

/// A watcher of live telemetry; dropping it ends the subscription.
pub struct TelemetryWatcher {
    live: Arc<LiveTelemetry>,
    watch: Arc<WatcherQueue>,
    devices: Box<[DeviceNo]>,
    updates: mpsc::Receiver<TelemetryUpdate>,
}

/// A watcher requests too many devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected at most {MAX_WATCHED} devices to watch, found {0}")]
pub struct WatchLimitError(usize);

impl LiveTelemetry {
    /// Whether there is any watcher.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) > 0
    }

    /// # Errors
    /// Fails if there are more than [`MAX_WATCHED`] devices.
    pub fn watch(
        self: &Arc<Self>,
        devices: &[DeviceNo],
        keys: Option<&[KeyId]>,
    ) -> Result<TelemetryWatcher, WatchLimitError> {
        if devices.len() > MAX_WATCHED {
            return Err(WatchLimitError(devices.len()));
        }
        let (sender, updates) = mpsc::channel(MAX_WAITING);
        let watch = Arc::new(WatcherQueue {
            keys: keys.map(Into::into),
            updates: sender,
            waiting_bytes: AtomicUsize::new(0),
            lost_updates: AtomicU64::new(0),
        });
        let mut devices = devices.to_vec();
        devices.sort_unstable();
        devices.dedup();
        let mut by_device = self
            .by_device
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for device in &devices {
            by_device.entry(*device).or_default().push(watch.clone());
        }
        self.watched.fetch_add(1, Ordering::Relaxed);
        drop(by_device);
        Ok(TelemetryWatcher {
            live: self.clone(),
            watch,
            devices: devices.into(),
            updates,
        })
    }

    /// Sends a stored row to its watchers. Never blocks.
    pub fn publish_row(&self, device: DeviceNo, ts_ms: i64, points: &[Point<'_>]) {
        let by_device = self
            .by_device
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        for watch in by_device.get(&device).into_iter().flatten() {
            let is_watched = |point: &&Point<'_>| match &watch.keys {
                None => true,
                Some(keys) => keys.contains(&point.key),
            };
            let values: Vec<_> = points
                .iter()
                .filter(is_watched)
                .map(|point| (point.key, point.value.into()))
                .collect();
            if values.is_empty() {
                continue;
            }
            watch.push(TelemetryUpdate {
                device,
                ts_ms,
                values,
            });
        }
    }
}

impl TelemetryWatcher {
    /// Waits for the next update.
    pub async fn next(&mut self) -> Option<TelemetryUpdate> {
        let update = self.updates.recv().await?;
        let bytes = update.text_bytes();
        self.watch.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(update)
    }

    /// Returns the number of updates lost since the last call.
    pub fn take_lost(&self) -> u64 {
        self.watch.lost_updates.swap(0, Ordering::Relaxed)
    }
}

impl Drop for TelemetryWatcher {
    fn drop(&mut self) {
        let live = &self.live;
        let mut by_device = live
            .by_device
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for device in &self.devices {
            if let Some(watches) = by_device.get_mut(device) {
                watches.retain(|watch| !Arc::ptr_eq(watch, &self.watch));
                if watches.is_empty() {
                    by_device.remove(device);
                }
            }
        }
        live.watched.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(key: u32, value: PointValue<'_>) -> Point<'_> {
        Point {
            key: KeyId(key),
            value,
        }
    }

    #[test]
    fn a_watcher_receives_only_its_devices_and_keys() {
        let live = Arc::new(LiveTelemetry::default());
        assert!(!live.is_watched());
        let mut all = live.watch(&[DeviceNo(1), DeviceNo(2)], None).unwrap();
        let mut one = live.watch(&[DeviceNo(1)], Some(&[KeyId(7)])).unwrap();
        assert!(live.is_watched());
        let points = [
            point(6, PointValue::Int(1)),
            point(7, PointValue::Text("x")),
        ];
        live.publish_row(DeviceNo(1), 10, &points);
        live.publish_row(DeviceNo(2), 20, &points[..1]);
        live.publish_row(DeviceNo(3), 30, &points);
        live.publish_row(DeviceNo(1), 40, &points[..1]);
        let expected = TelemetryUpdate {
            device: DeviceNo(1),
            ts_ms: 10,
            values: vec![(KeyId(7), LiveValue::Text("x".into()))],
        };
        assert_eq!(one.updates.try_recv(), Ok(expected));
        assert!(one.updates.try_recv().is_err());
        let times: Vec<_> = std::iter::from_fn(|| all.updates.try_recv().ok())
            .map(|update| update.ts_ms)
            .collect();
        assert_eq!(times, [10, 20, 40]);
        drop((one, all));
        assert!(!live.is_watched());
        assert!(live.by_device.read().unwrap().is_empty());
    }

    #[test]
    fn a_slow_watcher_loses_updates_and_learns_how_many() {
        let live = Arc::new(LiveTelemetry::default());
        let mut slow = live.watch(&[DeviceNo(1)], None).unwrap();
        for ts_ms in 0..MAX_WAITING as i64 + 5 {
            live.publish_row(DeviceNo(1), ts_ms, &[point(1, PointValue::Bool(true))]);
        }
        assert_eq!(slow.take_lost(), 5);
        assert_eq!(slow.take_lost(), 0);
        assert_eq!(slow.updates.try_recv().map(|update| update.ts_ms), Ok(0));
    }

    #[tokio::test]
    async fn the_text_that_waits_for_a_slow_watcher_is_bounded() {
        let live = Arc::new(LiveTelemetry::default());
        let mut slow = live.watch(&[DeviceNo(1)], None).unwrap();
        let quarter = "x".repeat(MAX_WAITING_BYTES / 4);
        let publish = |text: &str| {
            live.publish_row(DeviceNo(1), 1, &[point(1, PointValue::Text(text))]);
        };
        for _ in 0..6 {
            publish(&quarter);
        }
        assert_eq!(slow.take_lost(), 2);
        for _ in 0..4 {
            assert!(slow.next().await.is_some());
        }
        publish(&quarter.repeat(5));
        publish("x");
        assert_eq!(slow.take_lost(), 1, "a long text waits alone");
        assert!(slow.next().await.is_some());
        publish("x");
        assert_eq!(slow.take_lost(), 0);
    }
}
