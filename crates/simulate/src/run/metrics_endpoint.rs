//! Counters of a run in the text format of Prometheus, over HTTP.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

use super::run_shared::{NO_PHASE, RunShared};
use crate::plan::SimulationPlan;

const ACCEPT_INTERVAL: Duration = Duration::from_millis(20);
/// Time for a request, and for its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_REQUEST_BYTES: usize = 8192;

/// A listening socket; requests are answered one after the other while a run lasts.
#[derive(Debug)]
pub(crate) struct MetricsEndpoint {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsEndpoint {
    pub(crate) fn bind(address: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address)
            .with_context(|| format!("--metrics {address}: cannot listen there"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the run ends.
    pub(super) fn run(&self, plan: &SimulationPlan, shared: &RunShared) {
        while !shared.is_stopped() {
            match self.listener.accept() {
                // A client that does not read its answer concerns only itself.
                Ok((stream, _)) => drop(answer(stream, plan, shared)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => std::thread::sleep(ACCEPT_INTERVAL),
            }
        }
    }
}

fn answer(mut stream: TcpStream, plan: &SimulationPlan, shared: &RunShared) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = [0; MAX_REQUEST_BYTES];
    let mut length = 0;
    while length < request.len() && !request[..length].ends_with(b"\r\n\r\n") {
        match stream.read(&mut request[length..])? {
            0 => return Ok(()),
            read => length += read,
        }
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", render(plan, shared))
    } else {
        ("404 Not Found", "expected GET /metrics\n".to_owned())
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn render(plan: &SimulationPlan, shared: &RunShared) -> String {
    let progress = shared.progress();
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: f64| {
        writeln!(
            out,
            "# HELP tidegate_simulate_{name} {help}\n# TYPE tidegate_simulate_{name} {kind}\ntidegate_simulate_{name} {value}"
        )
        .expect("a text takes all");
    };
    let count = |count: u64| count as f64;
    metric(
        "devices",
        "gauge",
        "Devices of the simulation.",
        count(plan.devices()),
    );
    metric(
        "connected_devices",
        "gauge",
        "Devices with a connection.",
        count(progress.connected),
    );
    for (name, help, value) in [
        ("connects_total", "Connections accepted.", progress.connects),
        (
            "failures_total",
            "Connections that failed or ended unexpectedly.",
            progress.failures,
        ),
        ("sent_messages_total", "Messages sent.", progress.sent),
        (
            "acknowledged_messages_total",
            "Messages acknowledged by the broker.",
            progress.acknowledged,
        ),
        (
            "received_messages_total",
            "Messages received by devices.",
            progress.received,
        ),
        (
            "delivered_messages_total",
            "Verified messages received by subscribers.",
            progress.delivered,
        ),
        (
            "skipped_messages_total",
            "Messages not sent because the broker was too slow.",
            progress.skipped,
        ),
        (
            "missed_messages_total",
            "Messages not sent because the simulator was too slow.",
            progress.missed,
        ),
    ] {
        metric(name, "counter", help, count(value));
    }
    let acknowledged = progress.acknowledged;
    writeln!(
        out,
        "# HELP tidegate_simulate_ack_seconds Time from when a message was due to its acknowledgement.\n\
         # TYPE tidegate_simulate_ack_seconds summary\n\
         tidegate_simulate_ack_seconds_sum {}\ntidegate_simulate_ack_seconds_count {acknowledged}",
        progress.ack_sum_ns as f64 / 1e9
    )
    .expect("a text takes all");
    let phase = shared.phase().0;
    if phase != NO_PHASE {
        // Names of phases may contain any character.
        let name = &plan.phases[phase].name;
        let name = name
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        writeln!(
            out,
            "# HELP tidegate_simulate_phase Number of the current phase, from 1.\n\
             # TYPE tidegate_simulate_phase gauge\ntidegate_simulate_phase{{name=\"{name}\"}} {}",
            phase + 1
        )
        .expect("a text takes all");
    }
    out
}
