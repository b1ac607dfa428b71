//! One run of the pipeline: messages are handed over, stored and read back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use devices::chain::Chain;
use devices::ingest::{
    DeviceHandle, DeviceMessage, NoOutputs, Pipeline, PipelineConfig, PipelineMode,
    PipelineOutputs, ProductNo, ProductProfile, TelemetryStorage,
};
use devices::{DeviceId, ProductId};
use hdrhistogram::Histogram;
use serde_json::json;
use series::{DeviceNo, RangeQuery, Series};
use wall_clock::now_ms;

use super::faulty_storage::{FaultyStorage, StorageFault};
use super::pipeline_scenario::{PipelineResult, PipelineScenario};
use crate::alarm_evaluator::AlarmEvaluator;
use crate::host::ProcessMeter;

const TOPIC: &str = "v1/devices/me/telemetry";
/// Different messages, sent in turns.
const PAYLOAD_POOL: usize = 1024;
/// A sender that has waited this long tries the next message.
const MAX_WAIT: Duration = Duration::from_secs(10);
const QUEUE_SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// How a scenario is run.
#[derive(Clone, Debug)]
pub(crate) struct PipelineRun {
    pub(crate) scenario: PipelineScenario,
    /// Of all devices, unless the scenario has its own number.
    pub(crate) messages: u64,
    /// For the store; default: the directory for temporary files.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) mailboxes: usize,
    pub(crate) mailbox_bytes: usize,
    /// Whether an alarm rule evaluates each message.
    pub(crate) alarm: bool,
    pub(crate) fault: StorageFault,
    /// Whether senders wait while the pipeline is saturated, as listeners do.
    pub(crate) senders_wait: bool,
    /// White space at the end of each message.
    pub(crate) padding_bytes: usize,
}

impl PipelineRun {
    pub(crate) fn new(scenario: PipelineScenario, messages: u64) -> Self {
        let config = PipelineConfig::default();
        Self {
            scenario,
            messages,
            directory: None,
            mailboxes: config.mailboxes,
            mailbox_bytes: config.mailbox_bytes,
            alarm: false,
            fault: StorageFault::None,
            senders_wait: true,
            padding_bytes: 0,
        }
    }
}

/// A directory that goes when it is dropped.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new(parent: Option<&Path>) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = parent.join(format!("tidegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // What is left is a directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ten fields, as MiniTB's performance program sends them.
fn build_payloads(padding_bytes: usize) -> Vec<String> {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut payload = || {
        let mut unit = || (random() >> 11) as f64 / (1_u64 << 53) as f64;
        let (temperature, humidity, pressure) = (
            20.0 + unit() * 20.0 + 1e-9,
            40.0 + unit() * 40.0,
            1000.0 + unit() * 100.0,
        );
        let bits = random();
        let status = if bits & 2 == 0 { "running" } else { "idle" };
        format!(
            "{{\"temperature\":{temperature},\"humidity\":{humidity},\"pressure\":{pressure},\"online\":{},\"status\":\"{status}\",\
             \"counter\":{},\"timestamp\":{},\"sendTimeNanos\":{},\"deviceId\":\"4d2c91ae-0c5f-4b59-9d3e-6f1f0a3b7c2d\",\
             \"deviceName\":\"perf-device-001\"{:padding_bytes$}}}",
            bits & 1 == 0,
            bits >> 8 & 0x3ff,
            1_761_390_000_000 + (bits >> 20 & 0xfffff),
            190_000_000_000_000 + (bits >> 24),
            "",
        )
    };
    (0..PAYLOAD_POOL).map(|_| payload()).collect()
}

fn build_profile(mode: PipelineMode, has_alarms: bool) -> anyhow::Result<ProductProfile> {
    let mut nodes = vec![
        json!({"id": "filter", "type": "filter", "condition": "temperature > 20"}),
        json!({"id": "save", "type": "save_telemetry"}),
    ];
    let mut relations = vec![json!({"from": "filter", "on": "true", "to": "save"})];
    if has_alarms {
        nodes.push(json!({"id": "alarm", "type": "alarm"}));
        relations.push(json!({"from": "save", "to": "alarm"}));
    }
    let definition = json!({"nodes": nodes, "relations": relations});
    let definition = serde_json::from_value(definition)?;
    Ok(ProductProfile {
        mode,
        chain: Arc::new(Chain::compile(&definition)?),
        ..ProductProfile::permissive(ProductId::new("bench")?)
    })
}

/// Sends the messages of a run, and counts what was stored.
pub(crate) fn measure(run: &PipelineRun) -> anyhow::Result<PipelineResult> {
    let scenario = &run.scenario;
    let scratch = TemporaryDirectory::new(run.directory.as_deref())?;
    let (series, _) = Series::open(
        &scratch.path().join("series"),
        series::SeriesConfig::default(),
    )?;
    let config = PipelineConfig {
        directory: Some(scratch.path().join("mailboxes")),
        mailboxes: run.mailboxes,
        mailbox_bytes: run.mailbox_bytes,
        ..PipelineConfig::default()
    };
    let (outside, numbers): (Arc<dyn PipelineOutputs>, Vec<_>) = match run.alarm {
        false => (
            Arc::new(NoOutputs),
            (0..scenario.devices).map(DeviceNo).collect(),
        ),
        true => {
            let (watched, numbers) =
                AlarmEvaluator::new(scratch.path(), &series, scenario.devices)?;
            (Arc::new(watched), numbers)
        }
    };
    let storage = (run.fault != StorageFault::None)
        .then(|| Arc::new(FaultyStorage::new(series.clone(), run.fault)));
    let store: Arc<dyn TelemetryStorage> = match &storage {
        Some(faulty) => faulty.clone(),
        None => Arc::new(series.clone()),
    };
    let pipeline = Pipeline::open(
        &config,
        vec![(ProductNo(0), build_profile(scenario.mode, run.alarm)?)],
        store,
        Arc::new(NoOutputs),
        outside,
    )?;
    let devices: Vec<DeviceHandle> = (0..)
        .zip(&numbers)
        .map(|(number, no): (u32, _)| {
            Ok(DeviceHandle {
                no: *no,
                product: ProductNo(0),
                id: DeviceId::new(&format!("device-{number:05}"))?,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    let per_device = scenario
        .messages
        .unwrap_or_else(|| (run.messages / u64::from(scenario.devices)).max(1));
    let sent = per_device * u64::from(scenario.devices);
    let payloads = build_payloads(run.padding_bytes);
    let now_ms = now_ms() as i64;
    // Each message of a device has a time of its own; none is in the future.
    let since_ms = now_ms - per_device as i64;
    let mut meter = ProcessMeter::new(std::process::id())?;
    let before = meter.read()?;
    let began = Instant::now();
    let load = MessageLoad {
        devices: &devices,
        payloads: &payloads,
        per_device,
        since_ms,
    };
    let max_queued = AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    let (times, handed_over, took, after) = std::thread::scope(|scope| -> anyhow::Result<_> {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                max_queued.fetch_max(pipeline.snapshot().queued, Relaxed);
                std::thread::sleep(QUEUE_SAMPLE_INTERVAL);
            }
        });
        let sent = send_messages(&pipeline, run, &load);
        max_queued.fetch_max(pipeline.snapshot().queued, Relaxed);
        let handed_over = meter.read();
        if let Some(storage) = &storage {
            storage.end_outage_after_sending();
        }
        pipeline.flush();
        // Before the other thread ends, which takes a moment.
        let (took, after) = (began.elapsed(), meter.read());
        is_done.store(true, Relaxed);
        Ok((sent?, handed_over?, took, after?))
    })?;
    let us = |ns: u64| ns as f64 / 1e3;
    let counted = pipeline.snapshot().latency;
    let (mean_us, quantiles) = match scenario.mode {
        PipelineMode::Sync => (
            times.mean() / 1e3,
            [0.5, 0.95, 0.99].map(|part| us(times.value_at_quantile(part))),
        ),
        PipelineMode::Actor => (
            us(counted.sum_ns) / counted.count.max(1) as f64,
            [500, 950, 990].map(|part| us(counted.quantile_ns(part))),
        ),
    };
    pipeline.stop();
    let stored = count_stored_rows(&series, &numbers)?;
    Ok(PipelineResult {
        name: scenario.name,
        sent,
        stored,
        per_s: stored as f64 / as_seconds(took),
        cpu_us: (after.cpu_s - before.cpu_s) * 1e6 / sent as f64,
        mean_us,
        p50_us: quantiles[0],
        p95_us: quantiles[1],
        p99_us: quantiles[2],
        resident_mib: after.resident_bytes as f64 / f64::from(1 << 20),
        max_queued: max_queued.into_inner(),
        peak_bytes: handed_over.resident_bytes.max(after.resident_bytes),
        seconds: took.as_secs_f64(),
    })
}

/// The messages of a scenario.
struct MessageLoad<'a> {
    devices: &'a [DeviceHandle],
    payloads: &'a [String],
    per_device: u64,
    /// Time of the first message of each device; the others follow at intervals of 1 ms.
    since_ms: i64,
}

/// Submits the messages on the threads of the scenario; returns the times of the calls, for products in `sync` mode.
fn send_messages(
    pipeline: &Pipeline,
    run: &PipelineRun,
    load: &MessageLoad<'_>,
) -> anyhow::Result<Histogram<u64>> {
    let new_histogram = || Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3);
    let senders = run.scenario.senders as usize;
    let is_sync = run.scenario.mode == PipelineMode::Sync;
    let send = |sender: usize| -> anyhow::Result<Histogram<u64>> {
        let mut times = new_histogram()?;
        let mut processor = pipeline.processor();
        for number in 0..load.per_device {
            for (at, device) in (load.devices.iter().enumerate().skip(sender)).step_by(senders) {
                let payload = &load.payloads[(number as usize + at * 7) % PAYLOAD_POOL];
                let message = DeviceMessage {
                    sender: device.as_device_ref(),
                    topic: TOPIC,
                    payload: payload.as_bytes(),
                    received_ms: load.since_ms + number as i64,
                };
                let submitted = is_sync.then(Instant::now);
                // Rows that are not stored are counted, and reported at the end.
                let _ = pipeline.submit(&mut processor, &message);
                if let Some(submitted) = submitted {
                    times.saturating_record(submitted.elapsed().as_nanos() as u64);
                }
                if run.senders_wait && pipeline.is_saturated() {
                    pipeline.wait_for_room(MAX_WAIT);
                }
            }
        }
        Ok(times)
    };
    let mut times = new_histogram()?;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let threads: Vec<_> = (0..senders)
            .map(|sender| scope.spawn(move || send(sender)))
            .collect();
        for thread in threads {
            times.add(thread.join().ok().context("a sender panicked")??)?;
        }
        Ok(())
    })?;
    Ok(times)
}

fn as_seconds(took: Duration) -> f64 {
    took.as_secs_f64().max(1e-9)
}

/// Rows in the store that are whole.
fn count_stored_rows(series: &Series, devices: &[DeviceNo]) -> anyhow::Result<u64> {
    let mut count = 0;
    for device in devices {
        let all = RangeQuery::default();
        series.range(*device, None, &all, &mut |row| {
            count += u64::from(row.points.len() == 10);
            std::ops::ControlFlow::Continue(())
        })?;
    }
    Ok(count)
}
