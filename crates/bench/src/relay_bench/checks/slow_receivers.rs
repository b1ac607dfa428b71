//! Two receivers that do not read while a sender sends as fast as eight others receive. These must get everything. The
//! slow ones must be told exactly what they have lost, and the statistics must say the same.

use serde_json::json;

use super::check_result::CheckResult;
use crate::relay_bench::delivery_verifier::RelayShape;
use crate::relay_bench::generator::RelayLoad;
use crate::relay_bench::generator_run::run_load;
use crate::relay_bench::message_template::{MessageTemplate, RelayMode};
use crate::relay_bench::server::{EndpointSet, RelayServer, definition};
use crate::worker::LoadPace;

const RECEIVERS: usize = 8;
const SLOW_RECEIVERS: usize = 2;
/// The system buffers megabytes between two sockets, which have to be full within the time.
const MESSAGE_BYTES: usize = 32 * 1024;
/// As much as the window, so that nothing is dropped for those that read.
const MAX_BACKLOG_BYTES: usize = WINDOW as usize * MESSAGE_BYTES;
const WINDOW: u64 = 4;
const DURATION_NS: u64 = 5_000_000_000;

pub(super) fn run(server: &RelayServer, result: &mut CheckResult) -> anyhow::Result<()> {
    let shape = RelayShape {
        endpoints: 1,
        senders: 1,
        receivers: RECEIVERS + SLOW_RECEIVERS,
        slow_receivers: SLOW_RECEIVERS,
    };
    let load = RelayLoad {
        shape,
        template: MessageTemplate::new(RelayMode::Direct, MESSAGE_BYTES)?,
        pace: LoadPace::Window(WINDOW),
        concurrency: 1,
        connect_timeout_ns: 10_000_000_000,
        hold_ns: 0,
        warmup_ns: 0,
        duration_ns: DURATION_NS,
        quiet_ns: 3_000_000_000,
    };
    let mut fields = definition(RelayMode::Direct, shape.connections(), MESSAGE_BYTES);
    fields["max_backlog_bytes"] = json!(MAX_BACKLOG_BYTES);
    let endpoints = EndpointSet::create(server, 1, &fields)?;
    let title = "slow receivers".to_owned();
    let run = run_load(server, &endpoints.ids, &load, title, true)?;
    let status = endpoints.status(0)?;
    let (counts, slow) = (&run.counts, &run.slow);
    result.value("messages sent", run.sent as f64, "");
    result.value("delivered to others", counts.received as f64, "");
    result.latencies(
        ["others, p50", "others, p99", "others, max"],
        &counts.latency,
    );
    result.value("received by slow receivers", slow.received as f64, "");
    result.value("dropped for slow receivers", slow.faults.lost as f64, "");
    result.value(
        "dropped according to warnings",
        slow.named_dropped as f64,
        "",
    );
    result.expect("lost by others", counts.faults.lost, 0);
    result.expect("repeated for others", counts.faults.repeated, 0);
    result.expect("out of order for others", counts.faults.reordered, 0);
    result.expect("messages that nobody sent", counts.unexpected, 0);
    result.expect("connections that failed", counts.failures.count(), 0);
    result.expect("repeated for slow receivers", slow.faults.repeated, 0);
    result.expect("out of order for slow receivers", slow.faults.reordered, 0);
    let missing = slow.faults.lost;
    result.expect("dropped according to warnings", slow.named_dropped, missing);
    let counted = status["dropped_messages"].as_u64().unwrap_or(u64::MAX);
    result.expect("dropped according to the statistics", counted, missing);
    if missing == 0 {
        let failure = "nothing was dropped: the buffers took everything, so nothing was checked";
        result.failures.push(failure.to_owned());
    }
    if slow.warnings < SLOW_RECEIVERS as u64 {
        let warned = slow.warnings;
        let failure = format!("{warned} warnings for {SLOW_RECEIVERS} slow receivers");
        result.failures.push(failure);
    }
    Ok(())
}
