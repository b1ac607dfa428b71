//! `tidegate bench telemetry`: devices of a node report over MQTT, and what is stored counts, not what was sent.
//!
//! The node counts the rows that its time series accepted. At the end the rows of all devices are counted by a query as
//! well, which proves that they can be read. Each row has a time of its own.

mod args;
mod fleet;
mod report_template;
mod sink_meter;

pub(crate) use args::TelemetryArgs;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use wall_clock::now_ms;

use crate::host::{ProcessMeter, allow_open_files};
use crate::node_api::NodeApi;
use args::{PRODUCT, PipelineMode, device_name};
use fleet::{DeviceFleet, FleetReport};
use sink_meter::{SinkMeter, SinkResult};

/// Devices of one request.
const DEVICES_PER_REQUEST: usize = 10_000;
/// What was sent is stored within this time, or lost.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run(arguments: &TelemetryArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        (1..=1_000_000).contains(&arguments.devices),
        "--devices: expected 1 to 1000000"
    );
    ensure!(
        (1..=100).contains(&arguments.keys),
        "--keys: expected 1 to 100"
    );
    ensure!(
        (1..=64).contains(&arguments.threads) && arguments.threads <= arguments.devices as usize,
        "--threads: expected 1 to 64, and no more than there are devices"
    );
    let node = NodeApi::new(&arguments.api, arguments.token_file.as_deref())?;
    allow_open_files(arguments.devices.into())?;
    register_devices(&node, arguments)?;
    let mut meter = arguments.broker_pid.map(ProcessMeter::new).transpose()?;
    let before = node.metric("tidegate_ingest_rows_total")?;
    // Far enough back for a time of its own for each report.
    let first_ms = now_ms() - 7 * 86_400_000;
    delete_rows(&node, arguments, first_ms)?;
    let fleet = DeviceFleet::connect(arguments, first_ms)?;
    let used_before = meter.as_mut().map(ProcessMeter::read).transpose()?;
    let started = Instant::now();
    let sink = arguments.sink.as_ref();
    let sink = sink.map(|name| SinkMeter::new(&node, name)).transpose()?;
    let (report, max_queued) = run_fleet(fleet, sink.as_ref())?;
    let mut stored = node.metric("tidegate_ingest_rows_total")? - before;
    let deadline = Instant::now() + STORE_TIMEOUT;
    while stored < report.sent && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
        stored = node.metric("tidegate_ingest_rows_total")? - before;
    }
    let took_s = started.elapsed().as_secs_f64();
    let sink = sink.map(|sink| sink.finish(report.sent, max_queued, STORE_TIMEOUT));
    let sink = sink.transpose()?;
    let used = meter.as_mut().map(ProcessMeter::read).transpose()?;
    let counted = match arguments.no_count {
        true => None,
        false => Some(count_rows(&node, arguments, first_ms)?),
    };
    let cpu_s = used.zip(used_before);
    let cpu_s = cpu_s.map(|(after, before)| after.cpu_s - before.cpu_s);
    let resident = used.map(|used| used.resident_bytes);
    let shown = TelemetryResult {
        report,
        stored,
        counted,
        took_s,
        cpu_s,
        resident,
        sink,
    };
    shown.print(arguments);
    Ok(match shown.is_complete() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

struct TelemetryResult {
    report: FleetReport,
    stored: u64,
    counted: Option<u64>,
    took_s: f64,
    cpu_s: Option<f64>,
    resident: Option<u64>,
    /// With `--sink`.
    sink: Option<SinkResult>,
}

/// Lets the devices report; also the most rows that waited for the sink meanwhile.
fn run_fleet(
    fleet: DeviceFleet,
    sink: Option<&SinkMeter<'_>>,
) -> anyhow::Result<(FleetReport, u64)> {
    let Some(sink) = sink else {
        return Ok((fleet.run()?, 0));
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let observer = scope.spawn(|| sink.observe_queue(&is_done));
        let report = fleet.run();
        is_done.store(true, Relaxed);
        let max_queued = observer.join();
        let max_queued =
            max_queued.map_err(|_| anyhow::anyhow!("the observer of the sink panicked"))?;
        Ok((report?, max_queued))
    })
}

impl TelemetryResult {
    fn is_complete(&self) -> bool {
        let is_counted = self
            .counted
            .is_none_or(|counted| counted == self.report.sent);
        let is_written = self
            .sink
            .is_none_or(|sink| sink.written == self.report.sent);
        let is_stored = self.stored == self.report.sent && is_counted;
        is_stored && is_written && self.report.disconnected == 0
    }

    fn print(&self, arguments: &TelemetryArgs) {
        let per_s = self.stored as f64 / self.took_s;
        let per_cpu_s = self.cpu_s.map(|cpu_s| self.stored as f64 / cpu_s.max(1e-9));
        let resident_mib = self.resident.map(|bytes| bytes as f64 / (1 << 20) as f64);
        if arguments.json {
            let all = json!({
                "devices": arguments.devices, "keys": arguments.keys, "qos": arguments.qos,
                "sent": self.report.sent, "acknowledged": self.report.acknowledged, "stored": self.stored,
                "counted": self.counted, "seconds": self.took_s, "stored_per_s": per_s,
                "stored_per_cpu_s": per_cpu_s, "resident_mib": resident_mib,
                "disconnected": self.report.disconnected, "sink": self.sink.map(SinkResult::to_json),
            });
            println!("{all:#}");
            return;
        }
        let display = |number: Option<f64>, unit: &str| {
            number.map_or_else(|| "-".to_owned(), |number| format!("{number:.0}{unit}"))
        };
        println!("devices                 {}", arguments.devices);
        println!("reports sent            {}", self.report.sent);
        if arguments.qos > 0 {
            println!("acknowledged            {}", self.report.acknowledged);
        }
        println!("rows stored             {}", self.stored);
        if let Some(counted) = self.counted {
            println!("rows read               {counted}");
        }
        println!("until all were stored   {:.2} s", self.took_s);
        println!("stored per second       {per_s:.0}");
        println!("per CPU second          {}", display(per_cpu_s, ""));
        println!("memory                  {}", display(resident_mib, " MiB"));
        if let Some(sink) = &self.sink {
            println!("rows of the sink        {}", sink.written);
            println!("rejected by its system  {}", sink.failed);
            println!("per second              {:.0}", sink.written_per_s());
            println!("most that waited        {}", sink.max_queued);
            println!("rows per write          {:.1}", sink.rows_per_batch());
            println!("mean time of a write    {:.2} ms", sink.batch_mean_ms());
        }
        if self.report.disconnected > 0 {
            println!("connections that ended  {}", self.report.disconnected);
        }
        if !self.is_complete() {
            println!("\nNot everything that was sent is there.");
        }
    }
}

/// Makes the product and the devices, with their names as tokens.
fn register_devices(node: &NodeApi, arguments: &TelemetryArgs) -> anyhow::Result<()> {
    let mode = match arguments.mode {
        PipelineMode::Sync => "sync",
        PipelineMode::Actor => "actor",
    };
    let product = json!({"mode": mode, "description": "made by tidegate bench telemetry"});
    let path = format!("/api/v1/products/{PRODUCT}");
    node.request_json("PUT", &path, Some(&product))?;
    let numbers: Vec<u32> = (0..arguments.devices).collect();
    for numbers in numbers.chunks(DEVICES_PER_REQUEST) {
        let lines: String = numbers
            .iter()
            .map(|number| {
                let id = device_name(*number);
                let credentials = json!([{"type": "token", "token": id}]);
                let device = json!({"id": id, "product": PRODUCT, "credentials": credentials});
                format!("{device}\n")
            })
            .collect();
        let imported = node.post_lines("/api/v1/device-import", &lines)?;
        ensure!(
            imported["rejected"] == 0,
            "some devices cannot be made: {}",
            imported["rejections"]
        );
    }
    Ok(())
}

/// Takes away what a run before has left where the rows of this one will be.
fn delete_rows(node: &NodeApi, arguments: &TelemetryArgs, first_ms: u64) -> anyhow::Result<()> {
    if count_rows(node, arguments, first_ms)? > 0 {
        for number in 0..arguments.devices {
            let path = format!("/api/v1/devices/{}/telemetry", device_name(number));
            node.request_json("DELETE", &path, None)?;
        }
    }
    Ok(())
}

/// Rows that can be read of all devices.
fn count_rows(node: &NodeApi, arguments: &TelemetryArgs, first_ms: u64) -> anyhow::Result<u64> {
    let devices: Vec<String> = (0..arguments.devices).map(device_name).collect();
    let mut sum = 0;
    for devices in devices.chunks(DEVICES_PER_REQUEST) {
        let query = json!({
            "devices": devices, "keys": [report_template::key(0)], "from_ms": first_ms, "to_ms": first_ms + 14 * 86_400_000,
            "interval_ms": 14 * 86_400_000_u64, "origin_ms": first_ms, "functions": ["count"],
        });
        let answer = node.request_json("POST", "/api/v1/telemetry/query", Some(&query))?;
        let rows = answer["data"].as_array().context("expected intervals")?;
        let count = |row: &Value| row["values"]["count"].as_u64().unwrap_or(0);
        sum += rows.iter().map(count).sum::<u64>();
    }
    Ok(sum)
}
