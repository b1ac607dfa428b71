//! The result of a run: metrics by phase, conditions, as a table, as JSON or as an HTML page.

use std::fmt::Write as _;

use load_client::assertion::AssertionOutcome;
use load_client::latency::latency_classes;
use load_client::units::Unit;
use serde_json::{Value, json};

use crate::metrics::MetricValues;
use crate::plan::SimulationPlan;
use crate::run::{PhaseCounts, PhaseResult, RunResult, SeriesPoint, TargetAccess};
use crate::verification_plan::VerificationPlan;

/// What a report says of connections without sockets.
pub(crate) const IN_MEMORY: &str =
    "Devices and node were in one process, and connections in memory, without sockets.";

/// What a report is about.
#[derive(Debug)]
pub(crate) struct ReportSubject {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) started: String,
}

#[derive(Debug)]
pub(crate) struct SimulationReport {
    /// Name of the file or of the ready-made simulation.
    pub(crate) name: String,
    pub(crate) description: String,
    /// Start of the run, RFC 3339.
    pub(crate) started: String,
    pub(crate) series: Vec<SeriesPoint>,
    pub(crate) phases: Vec<PhaseReport>,
    /// The whole run, as subscribers and the storage of a node have seen it.
    pub(crate) verification: Option<PhaseReport>,
    pub(crate) is_interrupted: bool,
    /// What a user has changed while it ran.
    pub(crate) interventions: Vec<String>,
    pub(crate) broker: String,
    /// Whether the node was in this process, and connections in memory.
    pub(crate) is_in_memory: bool,
    pub(crate) devices: u64,
    pub(crate) seed: u64,
}

#[derive(Debug)]
pub(crate) struct PhaseReport {
    pub(crate) name: String,
    pub(crate) values: MetricValues,
    /// Connects by duration, as in JetLinks' report.
    pub(crate) classes: Vec<(String, u64)>,
    pub(crate) failures: load_client::client_error::FailureLog,
    pub(crate) conditions: Vec<AssertionOutcome>,
}

impl SimulationReport {
    pub(crate) fn new(
        subject: ReportSubject,
        plan: &SimulationPlan,
        access: &TargetAccess,
        result: &RunResult,
    ) -> Self {
        Self {
            name: subject.name,
            description: subject.description,
            started: subject.started,
            series: result.series.clone(),
            phases: result
                .phases
                .iter()
                .map(|phase| PhaseReport::new(plan, phase))
                .collect(),
            verification: plan
                .verification
                .as_ref()
                .map(|verification| verification_report(verification, result)),
            is_interrupted: result.is_interrupted,
            interventions: result.interventions.clone(),
            broker: access.broker.clone(),
            is_in_memory: access.is_in_memory(),
            devices: plan.devices(),
            seed: plan.seed,
        }
    }

    /// Whether all conditions hold.
    pub(crate) fn holds(&self) -> bool {
        self.sections()
            .all(|phase| phase.conditions.iter().all(|condition| condition.holds))
    }

    /// The phases and the verification.
    pub(crate) fn sections(&self) -> impl Iterator<Item = &PhaseReport> {
        self.phases.iter().chain(&self.verification)
    }

    pub(crate) fn to_json(&self) -> Value {
        let section = |phase: &PhaseReport| {
            let metrics = phase.values.iter_table();
            let metrics =
                metrics.map(|(metric, value)| (metric.name.to_owned(), number(metric.unit, value)));
            let classes = phase
                .classes
                .iter()
                .map(|(label, count)| json!({"class": label, "connects": count}));
            json!({
                "name": phase.name,
                "metrics": metrics.collect::<serde_json::Map<_, _>>(),
                "connect_classes": classes.collect::<Vec<_>>(),
                "failures": phase.failures.by_kind,
                "first_failures": phase.failures.first,
                "assertions": phase.conditions,
            })
        };
        let phases = self.phases.iter().map(section);
        json!({
            "broker": self.broker, "in_memory": self.is_in_memory, "devices": self.devices, "seed": self.seed, "interrupted": self.is_interrupted,
            "interventions": self.interventions,
            "holds": self.holds(), "phases": phases.collect::<Vec<_>>(),
            "verification": self.verification.as_ref().map(section),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let mut out = String::new();
        let devices = Unit::Count.format(self.devices as f64);
        writeln!(
            out,
            "{devices} devices, broker {}, seed {}",
            self.broker, self.seed
        )
        .expect("a text takes all");
        if self.is_in_memory {
            writeln!(out, "{IN_MEMORY}").expect("a text takes all");
        }
        for phase in self.sections() {
            phase.write(&mut out).expect("a text takes all");
        }
        if !self.interventions.is_empty() {
            out.push_str("\nChanged by keys while it ran:\n");
            for change in &self.interventions {
                writeln!(out, "  {change}").expect("a text takes all");
            }
        }
        if self.is_interrupted {
            out.push_str("\nThe run was interrupted.\n");
        }
        out
    }
}

/// Whole numbers stay whole.
fn number(unit: Unit, value: f64) -> Value {
    match unit {
        Unit::Count | Unit::Bytes => json!(value as u64),
        _ => json!(value),
    }
}

impl PhaseReport {
    fn new(plan: &SimulationPlan, result: &PhaseResult) -> Self {
        let values = phase_values(result, plan);
        let phase = &plan.phases[result.phase];
        let classes = match result.counts.connect.is_empty() {
            true => Vec::new(),
            false => latency_classes(&result.counts.connect),
        };
        Self {
            name: phase.name.clone(),
            conditions: phase
                .assertions
                .iter()
                .map(|condition| condition.evaluate(&values))
                .collect(),
            classes,
            failures: result.counts.failures.clone(),
            values,
        }
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n{}", self.name)?;
        for (metric, value) in self.values.iter_table() {
            writeln!(
                out,
                "  {:<52} {:<14} {}",
                metric.label,
                metric.unit.format(value),
                metric.name
            )?;
        }
        if !self.classes.is_empty() {
            let total: u64 = self.classes.iter().map(|(_, count)| count).sum();
            writeln!(out, "  connects by duration")?;
            for (label, count) in self.classes.iter().filter(|(_, count)| *count > 0) {
                let share = Unit::Fraction.format(*count as f64 / total as f64);
                writeln!(
                    out,
                    "    {label:<50} {:<14} {share}",
                    Unit::Count.format(*count as f64)
                )?;
            }
        }
        for (kind, count) in &self.failures.by_kind {
            writeln!(out, "  failure: {kind}: {count}")?;
        }
        for described in &self.failures.first {
            writeln!(out, "    {described}")?;
        }
        for condition in &self.conditions {
            let word = if condition.holds { "holds" } else { "FAILS" };
            writeln!(
                out,
                "  {word}: {} ({})",
                condition.condition, condition.found
            )?;
        }
        Ok(())
    }
}

/// What subscribers have received in the whole run, and what a node has stored.
fn verification_report(plan: &VerificationPlan, result: &RunResult) -> PhaseReport {
    let mut counts = PhaseCounts::default();
    for phase in &result.phases {
        counts.add(&phase.counts);
    }
    let mut values = MetricValues::default();
    if let Some(verified) = result.verified {
        values.set("sent", verified.sent as f64);
        values.set("lost", verified.lost as f64);
    }
    set_deliveries(&mut values, &counts);
    PhaseReport {
        name: "verification".to_owned(),
        conditions: plan
            .assertions
            .iter()
            .map(|condition| condition.evaluate(&values))
            .collect(),
        classes: Vec::new(),
        failures: Default::default(),
        values,
    }
}

fn set_deliveries(values: &mut MetricValues, counts: &PhaseCounts) {
    values.set("delivered", counts.delivered as f64);
    values.set("repeated", counts.repeated as f64);
    values.set("reordered", counts.reordered as f64);
    values.set_latencies("delivery_", &counts.delivery);
    let stored = counts.storage.len();
    if stored + counts.unstored > 0 {
        values.set("stored", stored as f64);
        values.set("unstored", counts.unstored as f64);
        values.set_latencies("storage_", &counts.storage);
    }
}

fn phase_values(result: &PhaseResult, plan: &SimulationPlan) -> MetricValues {
    let counts = &result.counts;
    let mut values = MetricValues::default();
    let per_s = |count: u64| count as f64 / result.seconds.max(1e-9);
    values.set("seconds", result.seconds);
    values.set("connected", result.connected as f64);
    values.set("connects", counts.connects as f64);
    values.set("connect_failures", counts.connect_failures as f64);
    values.set("connect_rate", per_s(counts.connects));
    if let Some(memory) = result.memory {
        values.set("resident_bytes", memory.resident_bytes as f64);
        if let Some(bytes) = memory.bytes_per_device(result.connected) {
            values.set("device_bytes", bytes);
        }
    }
    values.set("disconnects", counts.disconnects as f64);
    values.set("faults", counts.faults as f64);
    values.set("reconnects", counts.reconnect.len() as f64);
    values.set("sent", counts.sent as f64);
    values.set("sent_rate", per_s(counts.sent));
    values.set("skipped", counts.skipped as f64);
    values.set("missed", counts.missed as f64);
    let mut sends = plan.fleets.iter().flat_map(|fleet| &fleet.sends);
    if sends.any(|send| send.random_devices.is_some()) {
        values.set("offline", counts.offline as f64);
    }
    values.set("sent_bytes", counts.sent_bytes as f64);
    values.set("acknowledged", counts.acknowledged as f64);
    values.set("rejected", counts.rejected as f64);
    values.set("unacknowledged", counts.unacknowledged as f64);
    values.set("received", counts.received as f64);
    values.set("requests", counts.requests as f64);
    values.set("answers", counts.answers as f64);
    values.set("failed_answers", counts.failed_answers as f64);
    values.set("unanswered", counts.unanswered as f64);
    let downloads = counts.downloaded_files + counts.failed_downloads;
    if downloads > 0 {
        values.set("downloaded_files", counts.downloaded_files as f64);
        values.set("failed_downloads", counts.failed_downloads as f64);
    }
    if counts.commands > 0 {
        values.set("commands", counts.commands as f64);
        values.set("failed_commands", counts.failed_commands as f64);
        values.set("skipped_commands", counts.skipped_commands as f64);
        values.set_latencies("command_", &counts.command);
    }
    if counts.updates > 0 {
        values.set("updates", counts.updates as f64);
    }
    let ended_updates = counts.completed_updates + counts.failed_updates;
    if counts.updates + ended_updates > 0 {
        values.set("completed_updates", counts.completed_updates as f64);
        values.set("failed_updates", counts.failed_updates as f64);
        values.set_latencies("update_", &counts.update);
    }
    // A phase may continue a download that neither begins nor ends in it.
    if counts.updates + ended_updates + downloads + counts.downloaded_bytes > 0 {
        values.set("damaged_images", counts.damaged_images as f64);
        values.set("downloaded_bytes", counts.downloaded_bytes as f64);
    }
    if let Some(campaign) = &result.campaign {
        values.set("campaign_succeeded", campaign.succeeded as f64);
        values.set("campaign_failed", campaign.failed as f64);
    }
    values.set("script_errors", counts.script_errors as f64);
    for (prefix, histogram) in [
        ("connect_", &counts.connect),
        ("reconnect_", &counts.reconnect),
        ("ack_", &counts.ack),
    ] {
        values.set_latencies(prefix, histogram);
    }
    if plan.verification.is_some() {
        set_deliveries(&mut values, counts);
    }
    values
}
