//! `report`: the four scenarios of the published report of WebSocket Relay Platform 1.0, with what they leave out: really
//! many endpoints, latency until receipt, and what was lost.
//!
//! That report opens all connections to one endpoint. Its latencies are the time of the call that passes a frame to the
//! local socket, and its error rate counts failures of that call.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::delivery_verifier::RelayShape;
use super::generator::RelayLoad;
use super::generator_run::{RelayRun, RunPart, run_load};
use super::message_template::{MessageTemplate, RelayMode};
use super::server::{EndpointSet, RelayServer, RelayServerArgs, definition};
use crate::units;
use crate::worker::LoadPace;

/// Length of a message; the report does not state it.
const MESSAGE_BYTES: usize = 128;
const CONCURRENCY: usize = 50;
const CONNECT_TIMEOUT_NS: u64 = 10_000_000_000;
const QUIET_NS: u64 = 2_000_000_000;

/// One of the report's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PublishedScenario {
    /// One endpoint with 10, 20 and 50 connections that send a message each second
    Connections,
    /// 10, 20 and 50 endpoints with 5 connections that send a message every two seconds
    Endpoints,
    /// One endpoint with 50 connections that send 100, 300 and 500 messages per second together
    Rate,
    /// One endpoint with 50 connections that send a message every ten seconds, for five minutes
    Long,
}

/// What the report states.
#[derive(Clone, Copy, Debug)]
struct PublishedFigures {
    sent_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Messages sent and received; stated for the last scenario only.
    received: Option<(u64, u64)>,
}

/// One step of a scenario.
#[derive(Clone, Copy, Debug)]
struct PublishedStage {
    scenario: PublishedScenario,
    endpoints: usize,
    /// Of each endpoint; all of them send.
    connections: usize,
    /// Messages per second of all connections together.
    per_second: f64,
    seconds: u64,
    published: PublishedFigures,
}

const fn stage(
    scenario: PublishedScenario,
    (endpoints, connections): (usize, usize),
    (per_second, seconds): (f64, u64),
    (sent_per_s, p50_ms, p99_ms): (f64, f64, f64),
) -> PublishedStage {
    PublishedStage {
        scenario,
        endpoints,
        connections,
        per_second,
        seconds,
        published: PublishedFigures {
            sent_per_s,
            p50_ms,
            p99_ms,
            received: None,
        },
    }
}

const LONG: PublishedStage = stage(
    PublishedScenario::Long,
    (1, 50),
    (5.0, 300),
    (5.0, 0.02, 0.16),
);

/// All steps, as the report lists them.
#[rustfmt::skip]
const STAGES: &[PublishedStage] = &[
    stage(PublishedScenario::Connections, (1, 10), (10.0, 60), (9.98, 0.03, 0.28)),
    stage(PublishedScenario::Connections, (1, 20), (20.0, 60), (19.96, 0.02, 0.22)),
    stage(PublishedScenario::Connections, (1, 50), (50.0, 60), (49.84, 0.02, 0.17)),
    stage(PublishedScenario::Endpoints, (10, 5), (25.0, 30), (24.95, 0.02, 0.16)),
    stage(PublishedScenario::Endpoints, (20, 5), (50.0, 30), (49.81, 0.02, 0.15)),
    stage(PublishedScenario::Endpoints, (50, 5), (125.0, 30), (124.18, 0.02, 0.08)),
    stage(PublishedScenario::Rate, (1, 50), (100.0, 30), (99.35, 0.02, 0.17)),
    stage(PublishedScenario::Rate, (1, 50), (300.0, 30), (297.45, 0.01, 0.13)),
    stage(PublishedScenario::Rate, (1, 50), (500.0, 30), (492.66, 0.01, 0.06)),
    PublishedStage {
        published: PublishedFigures { received: Some((1_500, 71_050)), ..LONG.published },
        ..LONG
    },
];

impl PublishedStage {
    fn name(&self) -> String {
        let (endpoints, connections) = (self.endpoints, self.connections);
        match self.scenario {
            PublishedScenario::Connections => format!("{connections} connections"),
            PublishedScenario::Endpoints => {
                format!("{endpoints} endpoints x {connections}")
            }
            PublishedScenario::Rate => format!("{} messages/s", self.per_second),
            PublishedScenario::Long => "5 minutes, 1 in 10 s".to_owned(),
        }
    }
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PublishedReportScenario {
    /// Run only this scenario (repeatable)
    #[arg(long = "scenario", value_enum)]
    scenarios: Vec<PublishedScenario>,
    /// Run only steps with this name, such as "20 connections" (repeatable)
    #[arg(long = "step", value_name = "NAME")]
    steps: Vec<String>,
    /// Length of each step instead of the report's (60, 30, 30 and 300 seconds)
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    relay: RelayServerArgs,
    /// Write the result as JSON, `-` for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// A step and what was measured.
struct StageResult {
    stage: PublishedStage,
    relay: String,
    run: RelayRun,
}

impl PublishedReportScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let servers = self.relay.servers()?;
        let is_selected = |stage: &&PublishedStage| {
            (self.scenarios.is_empty() || self.scenarios.contains(&stage.scenario))
                && (self.steps.is_empty() || self.steps.contains(&stage.name()))
        };
        let mut results = Vec::new();
        for stage in STAGES.iter().filter(is_selected) {
            for server in &servers {
                results.push(self.measure(server, *stage)?);
            }
        }
        ensure!(
            !results.is_empty(),
            "--step: there is no such step; expected {}",
            STAGES
                .iter()
                .map(PublishedStage::name)
                .collect::<Vec<_>>()
                .join(", ")
        );
        let is_flawless = results.iter().all(StageResult::is_flawless);
        write_result(
            self.json.as_deref(),
            || to_json(&results),
            || table(&results),
        )?;
        Ok(match is_flawless {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn measure(&self, server: &RelayServer, stage: PublishedStage) -> anyhow::Result<StageResult> {
        let duration = self.duration.unwrap_or(Duration::from_secs(stage.seconds));
        let load = RelayLoad {
            shape: RelayShape {
                endpoints: stage.endpoints,
                senders: stage.connections,
                receivers: 0,
                slow_receivers: 0,
            },
            template: MessageTemplate::new(RelayMode::Json, MESSAGE_BYTES)?,
            pace: LoadPace::Rate {
                per_second: stage.per_second,
                tick_ns: 0,
            },
            concurrency: CONCURRENCY,
            connect_timeout_ns: CONNECT_TIMEOUT_NS,
            hold_ns: 0,
            warmup_ns: 0,
            duration_ns: duration.as_nanos() as u64,
            quiet_ns: QUIET_NS,
        };
        let fields = definition(RelayMode::Json, stage.connections, MESSAGE_BYTES);
        let endpoints = EndpointSet::create(server, stage.endpoints, &fields)?;
        let title = format!("{}, {}", stage.name(), server.label);
        let run = run_load(server, &endpoints.ids, &load, title, self.quiet)?;
        Ok(StageResult {
            stage,
            relay: server.label.clone(),
            run,
        })
    }
}

impl StageResult {
    fn is_flawless(&self) -> bool {
        let counts = &self.run.counts;
        counts.faults == Default::default()
            && counts.unsent == 0
            && counts.unexpected == 0
            && counts.failures.count() == 0
    }

    fn sent_per_s(&self) -> f64 {
        self.run.sent as f64 / self.run.counts.seconds.max(1e-9)
    }

    /// Deliveries over the whole run.
    fn delivered(&self) -> u64 {
        let counts = &self.run.counts;
        counts.expected.saturating_sub(counts.faults.lost)
    }

    fn latency_ms(&self, quantile: f64) -> f64 {
        self.run.counts.latency.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Messages that were lost, repeated, in the wrong order or wrong, of all that were expected.
    fn fault_share(&self) -> f64 {
        let (counts, faults) = (&self.run.counts, &self.run.counts.faults);
        let count = faults.lost + faults.repeated + faults.reordered + counts.unexpected;
        (count + counts.unsent) as f64 / counts.expected.max(1) as f64
    }

    /// Use of one core by the relay.
    fn cpu(&self) -> Option<f64> {
        let broker = self.run.observations.broker?;
        Some(broker.cpu_s / self.run.counts.seconds.max(1e-9))
    }
}

/// Writes JSON to a file, or to standard output instead of the table.
pub(super) fn write_result(
    json: Option<&Path>,
    value: impl FnOnce() -> Value,
    table: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let Some(path) = json else {
        print!("{}", table());
        return Ok(());
    };
    let text = format!("{:#}\n", value());
    if path == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("cannot write --json {}", path.display()))?;
    print!("{}", table());
    Ok(())
}

fn to_json(results: &[StageResult]) -> Value {
    let stages = results.iter().map(|result| {
        let (stage, counts) = (&result.stage, &result.run.counts);
        let scenario = stage.scenario.to_possible_value();
        json!({
            "scenario": scenario.map(|value| value.get_name().to_owned()),
            "step": stage.name(),
            "relay": result.relay,
            "published": {
                "sent_per_s": stage.published.sent_per_s,
                "send_call_p50_ms": stage.published.p50_ms,
                "send_call_p99_ms": stage.published.p99_ms,
                "sent": stage.published.received.map(|(sent, _)| sent),
                "received": stage.published.received.map(|(_, received)| received),
            },
            "seconds": counts.seconds,
            "due_per_s": stage.per_second,
            "sent_per_s": result.sent_per_s(),
            "sent": result.run.sent,
            "unsent": counts.unsent,
            "expected": counts.expected,
            "delivered": result.delivered(),
            "fault_share": result.fault_share(),
            "mean_ms": counts.latency.mean() / 1e6,
            "p50_ms": result.latency_ms(0.5),
            "p95_ms": result.latency_ms(0.95),
            "p99_ms": result.latency_ms(0.99),
            "max_ms": counts.latency.max() as f64 / 1e6,
            "lost": counts.faults.lost,
            "repeated": counts.faults.repeated,
            "reordered": counts.faults.reordered,
            "unexpected": counts.unexpected,
            "failures": counts.failures,
            "connected": result.stage.endpoints * result.stage.connections,
            "parts": result.run.parts.iter().map(part_to_json).collect::<Vec<_>>(),
            "relay_cpu": result.cpu(),
        })
    });
    json!({ "stages": stages.collect::<Vec<_>>() })
}

fn part_to_json(part: &RunPart) -> Value {
    json!({
        "connected": part.connected,
        "received": part.latency.len(),
        "p95_ms": part.latency.value_at_quantile(0.95) as f64 / 1e6,
        "failures": part.failures,
    })
}

const HEADINGS: [&str; 13] = [
    "",
    "published/s",
    "send p50",
    "send p99",
    "due/s",
    "sent/s",
    "delivered",
    "p50 ms",
    "p99 ms",
    "max ms",
    "lost",
    "repeated",
    "out of order",
];

fn table(results: &[StageResult]) -> String {
    let has_several_relays = results
        .iter()
        .any(|result| result.relay != results[0].relay);
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for result in results {
        let (stage, counts) = (&result.stage, &result.run.counts);
        rows.push([
            match has_several_relays {
                true => format!("{}, {}", stage.name(), result.relay),
                false => stage.name(),
            },
            format!("{:.2}", stage.published.sent_per_s),
            format!("{:.2}", stage.published.p50_ms),
            format!("{:.2}", stage.published.p99_ms),
            format!("{:.2}", stage.per_second),
            format!("{:.2}", result.sent_per_s()),
            result.delivered().to_string(),
            format!("{:.3}", result.latency_ms(0.5)),
            format!("{:.3}", result.latency_ms(0.99)),
            format!("{:.3}", counts.latency.max() as f64 / 1e6),
            counts.faults.lost.to_string(),
            counts.faults.repeated.to_string(),
            counts.faults.reordered.to_string(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let _ = write!(out, "{:1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
    }
    out.push('\n');
    for result in results {
        if let Some((sent, received)) = result.stage.published.received {
            let expected = sent * (result.stage.connections as u64 - 1);
            let _ = writeln!(
                out,
                "The report states {sent} messages sent and {received} received of {expected}: {} are missing.",
                expected - received
            );
            break;
        }
    }
    out.push_str(
        "send p50, send p99: the report's latencies, which end when a frame is passed to the local socket. p50, p99 and max \
         end at the receiver and begin when the message was due.\n",
    );
    for result in results.iter().filter(|result| !result.is_flawless()) {
        let counts = &result.run.counts;
        let _ = writeln!(
            out,
            "FAILED: {}, {}: {:?}, {} not sent, {} that were never sent, {} connections failed {:?}",
            result.stage.name(),
            result.relay,
            counts.faults,
            counts.unsent,
            counts.unexpected,
            counts.failures.count(),
            counts.failures.first
        );
    }
    out
}
