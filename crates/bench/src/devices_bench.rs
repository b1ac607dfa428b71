//! `tidegate bench devices`: a registry of very many devices in this process: importing, starting, looking up, memory.
//!
//! How fast registered devices connect is measured over the network: `tidegate bench mqtt connect --username 'dev-{number}'`
//! against a node with this data directory.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use devices::{
    DeviceAuthenticator, DeviceLookup, ImportFormat, ImportMode, PRODUCT_KIND,
    PresentedCredentials, Registry,
};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use store::{ExpectedVersion, Store};

use crate::host::ProcessMeter;

/// Lines of one piece, as the command line sends them.
const IMPORT_BATCH_LINES: u64 = 20_000;
const LOOKUPS: u64 = 100_000;

/// Arguments of `tidegate bench devices`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DevicesArgs {
    /// Devices to register
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..=20_000_000))]
    devices: u64,
    /// Devices looked up twice: once on the disk, once in memory
    #[arg(long, default_value_t = LOOKUPS, value_parser = clap::value_parser!(u64).range(1..=5_000_000))]
    hot: u64,
    /// An empty or missing folder for the data, which stays there; a node can be started with it
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Prefix of ids and tokens, followed by a number
    #[arg(long, default_value = "dev-")]
    prefix: String,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
}

struct DevicesResultLine {
    name: String,
    value: f64,
    unit: &'static str,
}

pub(crate) fn run(arguments: &DevicesArgs) -> anyhow::Result<ExitCode> {
    let dir = arguments.data_dir.join("store");
    anyhow::ensure!(
        !dir.exists(),
        "--data-dir: {} is there already; name an empty folder",
        dir.display()
    );
    let mut lines = Vec::new();
    measure_import(arguments, &dir, &mut lines)?;
    measure_start_and_lookups(arguments, &dir, &mut lines)?;
    if arguments.json {
        let object = |line: &DevicesResultLine| json!({"what": line.name, "value": line.value, "unit": line.unit});
        let lines: Vec<Value> = lines.iter().map(object).collect();
        println!("{:#}", Value::Array(lines));
    } else {
        for DevicesResultLine {
            name: what,
            value,
            unit,
        } in &lines
        {
            println!("{what:44} {value:>14.1} {unit}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn open(dir: &std::path::Path) -> anyhow::Result<(Store, Registry)> {
    let (store, _) = Store::open(dir, store::StoreConfig::default())?;
    let registry = Registry::open(
        store.objects(),
        devices::RegistryConfig {
            max_devices: u32::MAX,
            ..devices::RegistryConfig::default()
        },
    )?;
    Ok((store, registry))
}

fn measure_import(
    arguments: &DevicesArgs,
    dir: &std::path::Path,
    lines: &mut Vec<DevicesResultLine>,
) -> anyhow::Result<()> {
    let (store, registry) = open(dir)?;
    let product = json!({"name": "Meters"});
    let made = store
        .objects()
        .put(PRODUCT_KIND, "meter", product, ExpectedVersion::Any);
    made.context("cannot make a product")?;
    let started = Instant::now();
    let mut text = String::new();
    let mut number = 0;
    let mut reported_at = Instant::now();
    while number < arguments.devices {
        text.clear();
        let end = (number + IMPORT_BATCH_LINES).min(arguments.devices);
        for at in number..end {
            let prefix = &arguments.prefix;
            let group = at % 1000;
            writeln!(
                text,
                "{{\"id\":\"{prefix}{at}\",\"product\":\"meter\",\"group\":\"g{group}\",\"credentials\":[{{\"type\":\"token\",\"token\":\"{prefix}{at}\"}}]}}"
            )?;
        }
        let imported =
            registry.import(&text, ImportFormat::Jsonl, ImportMode::Create, number + 1)?;
        anyhow::ensure!(
            imported.created == end - number,
            "{} lines were rejected: {:?}",
            imported.rejected,
            imported.rejections.first()
        );
        number = end;
        if !arguments.quiet && reported_at.elapsed() >= Duration::from_secs(1) {
            let rate = number as f64 / started.elapsed().as_secs_f64();
            eprintln!(
                "{number} of {} devices, {rate:.0} per second",
                arguments.devices
            );
            reported_at = Instant::now();
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    push_line(lines, "import", seconds, "s");
    push_line(
        lines,
        "import",
        arguments.devices as f64 / seconds,
        "devices/s",
    );
    let closing = Instant::now();
    store.tables().sync()?;
    drop((registry, store));
    push_line(
        lines,
        "on disk after",
        closing.elapsed().as_secs_f64() * 1000.0,
        "ms",
    );
    Ok(())
}

fn measure_start_and_lookups(
    arguments: &DevicesArgs,
    dir: &std::path::Path,
    lines: &mut Vec<DevicesResultLine>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let (store, registry) = open(dir)?;
    push_line(
        lines,
        "start",
        started.elapsed().as_secs_f64() * 1000.0,
        "ms",
    );
    anyhow::ensure!(
        u64::from(registry.count()) == arguments.devices,
        "devices are missing"
    );
    push_line(lines, "disk", store.stats().keyed_bytes as f64 / 1e6, "MB");
    push_resident_memory(lines, "resident after the start")?;
    while !registry.has_loaded_names() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let since_start = started.elapsed().as_secs_f64();
    push_line(lines, "names read after", since_start * 1000.0, "ms");
    push_resident_memory(lines, "resident with names")?;
    let directory = DeviceAuthenticator::new(registry.clone())?;
    let hot = arguments.hot.min(arguments.devices);
    // All over the numbers, each once.
    let step = (arguments.devices / hot).max(1);
    for round in ["cold", "hot"] {
        let mut latencies: Histogram<u64> = Histogram::new(3)?;
        let began = Instant::now();
        for at in 0..hot {
            let token = format!("{}{}", arguments.prefix, at * step);
            let shown = PresentedCredentials {
                client_id: "bench",
                username: Some(&token),
                password: None,
                common_name: None,
                now_ms: 0,
            };
            let start = Instant::now();
            let found = match directory.find_in_memory(&shown) {
                DeviceLookup::WouldBlock => directory.find_blocking(&shown)?,
                found => found,
            };
            latencies.record(start.elapsed().as_nanos() as u64)?;
            anyhow::ensure!(
                matches!(found, DeviceLookup::Device(_)),
                "{token} was not found"
            );
        }
        let rate = hot as f64 / began.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        push_line(lines, &format!("look-ups, {round}"), rate, "/s");
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let us = latencies.value_at_quantile(quantile) as f64 / 1000.0;
            push_line(lines, &format!("look-up, {round}, {name}"), us, "us");
        }
    }
    push_line(
        lines,
        "devices in memory",
        registry.cache_counts().0 as f64,
        "",
    );
    push_resident_memory(lines, "resident with these")
}

fn push_resident_memory(lines: &mut Vec<DevicesResultLine>, what: &str) -> anyhow::Result<()> {
    let usage = ProcessMeter::new(std::process::id())?.read()?;
    push_line(lines, what, usage.resident_bytes as f64 / 1e6, "MB");
    Ok(())
}

fn push_line(lines: &mut Vec<DevicesResultLine>, what: &str, value: f64, unit: &'static str) {
    lines.push(DevicesResultLine {
        name: what.to_owned(),
        value,
        unit,
    });
}
