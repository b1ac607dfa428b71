//! Sends commands to devices over the API of the node, and measures how long they take until the device has answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use load_client::host::now_ns;
use load_client::node_api::NodeApi;
use outbound::url_encoding::url_encode;

use super::phase_counts::PhaseCounts;
use super::run_shared::{NO_PHASE, RunShared};
use crate::command_plan::CommandPlan;
use crate::plan::SimulationPlan;
use crate::random::RandomKey;

/// Longest time without a look at the phase and the end of the run.
const MAX_WAIT: Duration = Duration::from_millis(5);
/// Commands that would be sent later than this after they were due are left out.
const MAX_DELAY_NS: u64 = 1_000_000_000;
/// Purpose of random keys from which devices are drawn.
const COMMAND_PURPOSE: u64 = 5 << 32;

/// The schedule of one command of the file, which several threads share.
pub(super) struct CommandSender<'a> {
    node: &'a NodeApi,
    plan: &'a SimulationPlan,
    shared: &'a RunShared,
    command: &'a CommandPlan,
    key: RandomKey,
    schedule: Mutex<CommandSchedule>,
    is_stopped: AtomicBool,
}

/// When the next command is due.
#[derive(Debug, Default)]
struct CommandSchedule {
    /// `None`: at the next look.
    next_ns: Option<u64>,
    /// Commands that were due.
    number: u64,
}

/// A command that is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DueCommand {
    number: u64,
    due_ns: u64,
    /// Commands before it that are left out, because all threads waited for answers.
    skipped: u64,
}

impl CommandSchedule {
    /// Takes a command that is due at this rate per second.
    fn take(&mut self, now_ns: u64, rate: f64) -> Option<DueCommand> {
        if rate <= 0.0 {
            // What would be due meanwhile is not made up for.
            self.next_ns = None;
            return None;
        }
        let interval_ns = ((1e9 / rate) as u64).max(1);
        // The rate may have been lower when the time was chosen.
        let latest_ns = now_ns.saturating_add(interval_ns);
        let mut due_ns = self.next_ns.unwrap_or(now_ns).min(latest_ns);
        self.next_ns = Some(due_ns);
        if due_ns > now_ns {
            return None;
        }
        let mut skipped = 0;
        if now_ns - due_ns > MAX_DELAY_NS {
            skipped = (now_ns - due_ns) / interval_ns;
            due_ns = now_ns;
        }
        self.next_ns = Some(due_ns + interval_ns);
        self.number += 1;
        Some(DueCommand {
            number: self.number,
            due_ns,
            skipped,
        })
    }
}

impl<'a> CommandSender<'a> {
    pub(super) fn new(
        node: &'a NodeApi,
        plan: &'a SimulationPlan,
        shared: &'a RunShared,
        number: usize,
    ) -> Self {
        let command = &plan.commands[number];
        Self {
            node,
            plan,
            shared,
            command,
            key: RandomKey::of_device(plan.seed, command.fleet as u32, u32::MAX)
                .purpose(COMMAND_PURPOSE + number as u64),
            schedule: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Ends all threads when their commands have ended.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// One thread: sends commands until [`stop`](Self::stop); returns what was counted in each phase.
    pub(super) fn run(&self) -> Vec<PhaseCounts> {
        let mut by_phase = Vec::new();
        while !self.is_stopped.load(Ordering::Relaxed) {
            let rate = self.rate();
            let due = self.lock().take(now_ns(), rate);
            match due {
                Some(due) => self.send(due, &mut by_phase),
                None => std::thread::sleep(self.wait_time()),
            }
        }
        by_phase
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CommandSchedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time until the next command is due.
    fn wait_time(&self) -> Duration {
        let next_ns = self.lock().next_ns;
        next_ns.map_or(MAX_WAIT, |next_ns| {
            Duration::from_nanos(next_ns.saturating_sub(now_ns())).min(MAX_WAIT)
        })
    }

    /// Commands per second now; 0 as long as no device is connected.
    fn rate(&self) -> f64 {
        let (phase, started_ns) = self.shared.phase();
        let control = self.shared.control();
        if phase == NO_PHASE || control.is_paused() || self.shared.progress().connected == 0 {
            return 0.0;
        }
        let elapsed_ns = now_ns().saturating_sub(started_ns + control.paused_ns());
        self.command.rate * self.plan.phases[phase].load_at(elapsed_ns) * control.factor()
    }

    /// Sends a command and waits for its end. It counts in the phase in which it ends.
    fn send(&self, due: DueCommand, by_phase: &mut Vec<PhaseCounts>) {
        let fleet = &self.plan.fleets[self.command.fleet];
        let at = self.key.below(due.number, u64::from(fleet.count)) as u32;
        let device = fleet.device_id(self.plan.seed, at);
        let (id, resource) = (url_encode(&device), &self.command.resource);
        let path = format!("/api/v1/devices/{id}/{resource}");
        let answer = self
            .node
            .request_json("POST", &path, Some(&self.command.body));
        let took_ns = now_ns().saturating_sub(due.due_ns);
        let phase = match self.shared.phase().0 {
            NO_PHASE => 0,
            phase => phase,
        };
        if by_phase.len() <= phase {
            by_phase.resize_with(phase + 1, PhaseCounts::default);
        }
        let counts = &mut by_phase[phase];
        counts.commands += 1;
        counts.skipped_commands += due.skipped;
        let failure = match answer {
            Ok(command) if command["state"] == "success" => {
                counts.command.saturating_record(took_ns);
                return;
            }
            Ok(command) => {
                let state = command["state"].as_str().unwrap_or("without a state");
                let text = format!("{device}: the command is {state}");
                (format!("command {state}"), text)
            }
            Err(error) => (
                "command not accepted".to_owned(),
                format!("{device}: {error:#}"),
            ),
        };
        counts.failed_commands += 1;
        counts.failures.record_other(&failure.0, || failure.1);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use load_client::node_api::{NodeRequest, NodeTransport};
    use serde_json::{Value, json};

    use super::*;
    use crate::definition::SourceDocument;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn commands_are_due_at_their_rate() {
        let mut schedule = CommandSchedule::default();
        let mut take = |ms: u64, rate| schedule.take(ms * 1_000_000, rate);
        assert_eq!(take(5000, 0.0), None);
        assert!(take(6000, 10.0).is_some_and(|due| due.skipped == 0));
        assert_eq!(take(6099, 10.0), None);
        let due = take(6250, 10.0).expect("a command is due");
        assert_eq!((due.number, due.due_ns), (2, 6100 * 1_000_000));
        assert!(take(6250, 10.0).is_some());
        assert_eq!(take(6250, 10.0), None);
        // All threads were busy for two seconds.
        let due = take(8300, 10.0).expect("a command is due");
        assert_eq!((due.skipped, due.due_ns), (20, 8300 * 1_000_000));
        // A low rate does not delay commands of a higher one.
        assert_eq!(take(8300, 0.001), None);
        assert_eq!(take(8400, 10.0).map(|due| due.number), Some(5));
    }

    struct AnsweringNode;

    impl NodeTransport for AnsweringNode {
        fn send(&self, request: &NodeRequest<'_>) -> anyhow::Result<(u16, String)> {
            let (_, body) = request.body.expect("a command");
            let body: Value = serde_json::from_str(body)?;
            assert_eq!(body["method"], "reboot");
            let (status, state) = match request.path {
                "/api/v1/devices/m%2F0/commands" => (200, "success"),
                "/api/v1/devices/m%2F1/commands" => (200, "timeout"),
                _ => (503, "busy"),
            };
            Ok((status, json!({"state": state}).to_string()))
        }

        fn address(&self) -> String {
            "memory".to_owned()
        }
    }

    #[test]
    fn round_trips_and_failures_are_counted() {
        let text = r#"
[fleet.meters]
count = 3
id = "m/{index}"
[[command]]
fleet = "meters"
method = "reboot"
rate = 10
[[phase]]
name = "steady"
duration = "1s"
"#;
        let document = SourceDocument::parse(Path::new("a.toml"), text).expect("TOML");
        let compiled = crate::plan_compiler::compile(&document, Path::new(""), Default::default());
        let (_, plan) = compiled.expect("valid");
        let node = NodeApi::with_transport(Arc::new(AnsweringNode));
        let shared = RunShared::new(1, false, None);
        let sender = CommandSender::new(&node, &plan, &shared, 0);
        assert!(sender.rate() < f64::EPSILON, "no device is connected");
        let mut by_phase = Vec::new();
        for number in 1..=60 {
            let due_ns = now_ns() - SECOND_NS;
            let due = DueCommand {
                number,
                due_ns,
                skipped: 0,
            };
            sender.send(due, &mut by_phase);
        }
        let counts = &by_phase[0];
        let (timeouts, rejected) = (
            counts.failures.by_kind["command timeout"],
            counts.failures.by_kind["command not accepted"],
        );
        assert_eq!(counts.commands, 60);
        assert_eq!(counts.failed_commands, timeouts + rejected);
        assert_eq!(counts.command.len(), 60 - timeouts - rejected);
        // From when the command was due.
        assert!(counts.command.min() >= SECOND_NS * 99 / 100);
    }
}
