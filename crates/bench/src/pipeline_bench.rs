//! `tidegate bench pipeline`: what the way of a device's message into the telemetry store costs, measured in this process through
//! the same door by which the node's listeners bring messages.
//!
//! A message counts when it can be read back from the store. Its latency is from hand-over until it is stored. Senders wait as the
//! listeners make publishers wait: while the pipeline is saturated, they hand nothing over.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use devices::chain::Chain;
use devices::ingest::{
    DeviceHandle, DeviceMessage, NoOutputs, Pipeline, PipelineConfig, PipelineMode,
    PipelineOutputs, ProductNo, ProductProfile,
};
use devices::{DeviceId, ProductId};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use series::{DeviceNo, RangeQuery, Series};
use wall_clock::now_ms;

use crate::alarm_evaluator::AlarmEvaluator;
use crate::host::ProcessMeter;

const TOPIC: &str = "v1/devices/me/telemetry";
/// Different messages, sent in turns.
const PAYLOAD_POOL: usize = 1024;
/// A sender that has waited this long tries the next message.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Arguments of `tidegate bench pipeline`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PipelineArgs {
    /// Messages of each scenario but the burst
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    messages: u64,
    /// Only scenarios whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Directory for the stores, which are removed afterwards [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Size of a mailbox in bytes
    #[arg(long, default_value_t = PipelineConfig::default().mailbox_bytes, value_name = "BYTES")]
    mailbox_bytes: usize,
    /// Evaluate an alarm rule for each message
    #[arg(long)]
    alarm: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

struct PipelineScenario {
    name: &'static str,
    mode: PipelineMode,
    devices: u32,
    senders: u32,
    /// Of each device; `None`: so that all devices together send as many as were asked for.
    messages: Option<u64>,
}

const SCENARIOS: [PipelineScenario; 11] = [
    scenario("sync 1 device", PipelineMode::Sync, 1, 1),
    scenario("sync 10 devices", PipelineMode::Sync, 10, 2),
    scenario("sync 50 devices", PipelineMode::Sync, 50, 2),
    scenario("sync 100 devices", PipelineMode::Sync, 100, 2),
    scenario("sync 10,000 devices", PipelineMode::Sync, 10_000, 2),
    scenario("actor 1 device", PipelineMode::Actor, 1, 1),
    scenario("actor 10 devices", PipelineMode::Actor, 10, 1),
    scenario("actor 50 devices", PipelineMode::Actor, 50, 1),
    scenario("actor 100 devices", PipelineMode::Actor, 100, 1),
    scenario("actor 10,000 devices", PipelineMode::Actor, 10_000, 1),
    PipelineScenario {
        name: "actor burst 20 x 5000",
        mode: PipelineMode::Actor,
        devices: 20,
        senders: 20,
        messages: Some(5000),
    },
];

const fn scenario(
    name: &'static str,
    mode: PipelineMode,
    devices: u32,
    senders: u32,
) -> PipelineScenario {
    PipelineScenario {
        name,
        mode,
        devices,
        senders,
        messages: None,
    }
}

/// What a scenario has shown.
struct PipelineResult {
    name: &'static str,
    sent: u64,
    stored: u64,
    per_s: f64,
    cpu_us: f64,
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    resident_mib: f64,
}

impl PipelineResult {
    fn to_json(&self) -> Value {
        json!({
            "scenario": self.name, "sent": self.sent, "stored": self.stored, "per_s": self.per_s.round(),
            "cpu_us_per_message": self.cpu_us, "mean_us": self.mean_us, "p50_us": self.p50_us,
            "p95_us": self.p95_us, "p99_us": self.p99_us, "resident_mib": self.resident_mib,
        })
    }
}

pub(crate) fn run(arguments: &PipelineArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        (1000..=100_000_000).contains(&arguments.messages),
        "--messages: expected 1000 to 100000000"
    );
    let wanted = |scenario: &&PipelineScenario| {
        let part = arguments.only.as_deref().unwrap_or_default();
        scenario.name.contains(part)
    };
    let mut all = Vec::new();
    let mut is_whole = true;
    if !arguments.json {
        println!(
            "{:22} {:>9} {:>9} {:>11} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "scenario",
            "sent",
            "stored",
            "stored/s",
            "CPU us",
            "mean us",
            "p50 us",
            "p95 us",
            "p99 us",
            "MiB"
        );
    }
    for scenario in SCENARIOS.iter().filter(wanted) {
        let shown = measure_scenario(scenario, arguments)?;
        is_whole &= shown.stored == shown.sent;
        if !arguments.json {
            println!(
                "{:22} {:>9} {:>9} {:>11.0} {:>8.2} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
                shown.name,
                shown.sent,
                shown.stored,
                shown.per_s,
                shown.cpu_us,
                shown.mean_us,
                shown.p50_us,
                shown.p95_us,
                shown.p99_us,
                shown.resident_mib
            );
        }
        all.push(shown.to_json());
    }
    anyhow::ensure!(!all.is_empty(), "--only: there is no such scenario");
    if arguments.json {
        println!("{:#}", Value::Array(all));
    }
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A directory that goes when it is dropped.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new(arguments: &PipelineArgs) -> anyhow::Result<Self> {
        let parent = arguments
            .directory
            .clone()
            .unwrap_or_else(std::env::temp_dir);
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
fn build_payloads() -> Vec<String> {
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
             \"deviceName\":\"perf-device-001\"}}",
            bits & 1 == 0,
            bits >> 8 & 0x3ff,
            1_761_390_000_000 + (bits >> 20 & 0xfffff),
            190_000_000_000_000 + (bits >> 24),
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

fn measure_scenario(
    scenario: &PipelineScenario,
    arguments: &PipelineArgs,
) -> anyhow::Result<PipelineResult> {
    let scratch = TemporaryDirectory::new(arguments)?;
    let (series, _) = Series::open(
        &scratch.path().join("series"),
        series::SeriesConfig::default(),
    )?;
    let config = PipelineConfig {
        directory: Some(scratch.path().join("mailboxes")),
        mailbox_bytes: arguments.mailbox_bytes,
        ..PipelineConfig::default()
    };
    let (outside, numbers): (Arc<dyn PipelineOutputs>, Vec<_>) = match arguments.alarm {
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
    let pipeline = Pipeline::open(
        &config,
        vec![(ProductNo(0), build_profile(scenario.mode, arguments.alarm)?)],
        Arc::new(series.clone()),
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
        .unwrap_or_else(|| (arguments.messages / u64::from(scenario.devices)).max(1));
    let sent = per_device * u64::from(scenario.devices);
    let payloads = build_payloads();
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
    let times = send_messages(&pipeline, scenario, &load)?;
    pipeline.flush();
    let took = began.elapsed();
    let after = meter.read()?;
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
    scenario: &PipelineScenario,
    load: &MessageLoad<'_>,
) -> anyhow::Result<Histogram<u64>> {
    let new_histogram = || Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3);
    let senders = scenario.senders as usize;
    let is_sync = scenario.mode == PipelineMode::Sync;
    let send = |sender: usize| -> anyhow::Result<Histogram<u64>> {
        let mut times = new_histogram()?;
        let mut lane = pipeline.lane();
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
                let _ = pipeline.submit(&mut lane, &message);
                if let Some(submitted) = submitted {
                    times.saturating_record(submitted.elapsed().as_nanos() as u64);
                }
                if pipeline.is_saturated() {
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
