//! `tidegate bench firmware`: many devices of a node of its own download one image at once over MQTT.
//!
//! Each device requests chunks one after the other, as ThingsBoard's protocol requires, and verifies the digest of the
//! image. Meanwhile two other clients exchange small messages, whose latency is measured.
//!
//! The node has the first core, the devices have the second one, and the other clients the third one. With two cores the
//! other clients share that of the devices, which run with the lowest priority.

mod client;
mod devices;
mod other_clients;
mod thread_usage;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::json;

use self::devices::{DownloadPlan, download_all};
use self::other_clients::{OtherClients, OtherClientsPlan};
use self::thread_usage::{ThreadUsage, busiest_thread};
use crate::files_bench::{FileContent, NodeAddresses, UploadMethod, hex};
use crate::host;
use crate::measured_cases::{CaseOutputArgs, MeasuredCase, MeasuredCases};
use crate::metrics::MetricValues;
use crate::node_api::NodeApi;
use crate::own_node::{OwnNode, OwnNodeOptions};
use crate::units;

const PRODUCT: &str = "bench";
const FILE: &str = "image";
/// Share of a core from which a thread counts as the bottleneck.
const BUSY: f64 = 0.9;

const CONFIGURATION: &str = r#"
[[listener]]
name = "mqtt"
bind = "127.0.0.1:0"
max_new_connections_per_s = 0
"#;

/// Arguments of `tidegate bench firmware`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FirmwareArgs {
    /// Devices that download at once
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    devices: u32,
    /// Size of the image
    #[arg(long, value_name = "BYTES", default_value = "4MB", value_parser = units::parse_bytes)]
    image: usize,
    /// Size of the chunks that devices request
    #[arg(long, value_name = "BYTES", default_value = "64KiB", value_parser = units::parse_bytes)]
    chunk: usize,
    /// Time between two messages of the other clients
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::parse_duration)]
    interval: Duration,
    /// Time for which the other clients are measured alone
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::parse_duration)]
    idle: Duration,
    /// Program of the node [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<std::path::PathBuf>,
    #[command(flatten)]
    output: CaseOutputArgs,
}

pub(crate) fn run(arguments: &FirmwareArgs) -> anyhow::Result<ExitCode> {
    host::allow_open_files(u64::from(arguments.devices) + 16)?;
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("cannot find this program")?,
    };
    // Before the first thread is pinned.
    let core_of_other_clients = host::allowed_cores().get(2).copied();
    let options = OwnNodeOptions {
        benchmark: "firmware",
        parent: None,
        arguments: &[],
        configuration: CONFIGURATION,
        is_pinned: true,
    };
    let node = OwnNode::start(&program, &options)?;
    let api = NodeApi::new(&node.address("http")?, Some(&node.token_file()))?;
    let content = FileContent::new(arguments.image as u64);
    let plan = DownloadPlan {
        address: node.address("mqtt")?,
        devices: arguments.devices,
        chunk: arguments.chunk as u64,
        size: content.size,
        digest: content.sha256(),
    };
    create_devices(&api, &plan)?;
    assign_image(&node, &api, &content, &plan)?;

    let mut outcome = MeasuredCases::new(&arguments.output);
    let others_plan = OtherClientsPlan {
        address: plan.address.clone(),
        interval: arguments.interval,
        core: core_of_other_clients,
    };
    let others = OtherClients::start(&others_plan)?;
    std::thread::sleep(arguments.idle);
    report_latency(&mut outcome, "other clients alone", &others.stop()?, &[]);

    let while_connecting = OtherClients::start(&others_plan)?;
    let mut while_downloading = None;
    let (mut before, mut after) = (None, None);
    let connected = || {
        let name = format!("while {} devices connect", plan.devices);
        report_latency(&mut outcome, &name, &while_connecting.stop()?, &[]);
        while_downloading = Some(OtherClients::start(&others_plan)?);
        before = Some(BenchThreads::read(&node));
        Ok(())
    };
    let downloaded = || after = Some(BenchThreads::read(&node));
    let (downloads, elapsed) = download_all(&plan, connected, downloaded)?;
    let seconds = elapsed.as_secs_f64();
    let (Some(others), Some(before), Some(after)) = (while_downloading, before, after) else {
        bail!("the devices were not connected");
    };
    let histogram = others.stop()?;
    let bytes = downloads.complete * plan.size;
    let measures = [
        ("received", downloads.complete as f64),
        ("seconds", seconds),
        ("payload_rate", bytes as f64 / seconds),
        ("faults", downloads.faults as f64),
    ];
    let name = format!("while {} devices download", plan.devices);
    report_latency(&mut outcome, &name, &histogram, &measures);
    outcome.print(&format!(
        "{} of {} devices have verified {} bytes each in {seconds:.1} s: {:.0} MB/s; {} requests were repeated; {} chunks were read from the disk",
        downloads.complete,
        plan.devices,
        plan.size,
        bytes as f64 / seconds / 1e6,
        downloads.repeated,
        api.metric("tidegate_firmware_chunk_reads_total")?,
    ));
    let node_thread = busiest_thread(&before.node, &after.node, seconds);
    let own_thread = busiest_thread(&before.own, &after.own, seconds);
    outcome.print(&bottleneck(node_thread, own_thread));
    outcome.finish("firmware")
}

/// The use of the threads of both processes.
struct BenchThreads {
    node: ThreadUsage,
    own: ThreadUsage,
}

impl BenchThreads {
    fn read(node: &OwnNode) -> Self {
        Self {
            node: ThreadUsage::read(node.pid()),
            own: ThreadUsage::read(std::process::id()),
        }
    }
}

/// What limits the rate, as far as the threads show it.
fn bottleneck(node: Option<(String, f64)>, own: Option<(String, f64)>) -> String {
    let percent = |share: f64| share * 100.0;
    match (node, own) {
        (Some((thread, share)), _) if share >= BUSY => {
            format!(
                "bottleneck: the thread {thread} of the node, busy for {:.0} %",
                percent(share)
            )
        }
        (_, Some((thread, share))) if share >= BUSY => format!(
            "bottleneck: the devices of this program (thread {thread}), busy for {:.0} %",
            percent(share)
        ),
        (Some((thread, share)), Some((_, own))) => format!(
            "bottleneck: no thread; the busiest of the node is {thread} with {:.0} %, that of the devices has {:.0} %, so waiting for answers limits the rate",
            percent(share),
            percent(own)
        ),
        _ => "bottleneck: unknown, since this system does not show the use of threads".to_owned(),
    }
}

fn report_latency(
    outcome: &mut MeasuredCases<'_>,
    name: &str,
    histogram: &Histogram<u64>,
    others: &[(&str, f64)],
) {
    let ms = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e6;
    let line = format!(
        "{name}: {} messages, p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, highest {:.3} ms",
        histogram.len(),
        ms(0.5),
        ms(0.99),
        ms(0.999),
        histogram.max() as f64 / 1e6
    );
    let mut measures = MetricValues::default();
    measures.set_latencies("", histogram);
    for (metric, value) in others {
        measures.set(metric, *value);
    }
    let name = name.to_owned();
    outcome.add(MeasuredCase { name, measures }, &line);
}

fn create_devices(api: &NodeApi, plan: &DownloadPlan) -> anyhow::Result<()> {
    api.request_json("POST", "/api/v1/products", Some(&json!({"id": PRODUCT})))?;
    let mut lines = String::new();
    for number in 0..plan.devices {
        let token = plan.token(number);
        let device = json!({
            "id": token, "product": PRODUCT, "credentials": [{"type": "token", "token": token}],
        });
        lines += &format!("{device}\n");
    }
    let summary = api.post_lines("/api/v1/device-import", &lines)?;
    let rejected = summary["rejected"].as_u64().unwrap_or(0);
    ensure!(
        rejected == 0,
        "the node rejects {rejected} devices: {summary}"
    );
    Ok(())
}

fn assign_image(
    node: &OwnNode,
    api: &NodeApi,
    content: &FileContent,
    plan: &DownloadPlan,
) -> anyhow::Result<()> {
    let token = std::fs::read_to_string(node.token_file()).context("cannot read api.token")?;
    let addresses = NodeAddresses {
        mqtt: plan.address.clone(),
        http: node.address("http")?,
        link: String::new(),
        token: token.trim().to_owned(),
    };
    UploadMethod::Http.send(&addresses, FILE, content, &plan.digest)?;
    let listed = api.request_json("GET", "/api/v1/files", None)?;
    let file = &listed["data"][0];
    ensure!(
        file["checksum"] == hex(&plan.digest),
        "the node has stored another image: {file}"
    );
    let package = json!({
        "id": "bench-1", "title": "bench", "firmware_version": "1", "product": PRODUCT, "file": file["id"],
    });
    api.request_json("POST", "/api/v1/firmware", Some(&package))?;
    let assignment = json!({"package": "bench-1", "product": PRODUCT});
    api.request_json(
        "PUT",
        "/api/v1/firmware-assignments/bench",
        Some(&assignment),
    )?;
    Ok(())
}
