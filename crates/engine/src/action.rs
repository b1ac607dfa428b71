//! Rule actions: republish, write to the log, send a row to a sink, write telemetry or an alarm of a device.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rules::{CompileOptions, Rule};

use crate::action_error::ActionError;
use crate::action_input::ActionInput;
use crate::counters::{ProducerCounters, RuleCounter};
use crate::definition::{ActionDefinition, ActionKind};
use crate::definition_error::RuleDefinitionError;
use crate::device_actions::{DeviceAlarmAction, DeviceTelemetryAction};
use crate::ports::{OutputRow, OutputRowOrigin, SinkId, SinkPort, SinkPortOutcome};
use crate::producer_context::ProducerContext;
use crate::republish::RepublishAction;

/// One action and its fallback actions.
pub(crate) struct Action {
    operation: ActionOperation,
    fallback: Box<[ActionOperation]>,
}

enum ActionOperation {
    Republish(Box<RepublishAction>),
    Console,
    Sink(SinkAction),
    Telemetry(Box<DeviceTelemetryAction>),
    Alarm(Box<DeviceAlarmAction>),
}

struct SinkAction {
    name: Box<str>,
    /// The action's position in the rule. Set only if the action has fallback actions.
    origin: Option<u8>,
    /// The sink id plus one; 0 if the sink is not looked up yet.
    id: AtomicU64,
}

impl Action {
    pub(crate) fn compile(
        definition: &ActionDefinition,
        options: &CompileOptions,
        has_devices: bool,
        place: usize,
    ) -> Result<Self, RuleDefinitionError> {
        let path = &format!("actions[{place}]");
        let fallback = definition.fallback.iter().enumerate();
        let fallback = fallback.map(|(n, kind)| {
            ActionOperation::compile(kind, options, has_devices, &format!("{path}.fallback[{n}]"))
        });
        let mut action_operation =
            ActionOperation::compile(&definition.kind, options, has_devices, path)?;
        if let (ActionOperation::Sink(sink), false) =
            (&mut action_operation, definition.fallback.is_empty())
        {
            sink.origin = Some(place as u8);
        }
        Ok(Self {
            operation: action_operation,
            fallback: fallback.collect::<Result<_, _>>()?,
        })
    }

    /// Placeholder names in the templates that are always null for this rule.
    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        let operations = std::iter::once(&self.operation).chain(&self.fallback);
        let names = operations.map(|action_operation| match action_operation {
            ActionOperation::Republish(republish) => republish.unknown_names(rule),
            ActionOperation::Telemetry(telemetry) => telemetry.unknown_names(rule),
            ActionOperation::Alarm(alarm) => alarm.unknown_names(rule),
            ActionOperation::Console | ActionOperation::Sink(_) => Vec::new(),
        });
        names.flatten().collect()
    }

    /// Describes the effect outside the node without causing it.
    pub(crate) fn describe(&self) -> Option<serde_json::Value> {
        match &self.operation {
            ActionOperation::Republish(_) => None,
            ActionOperation::Console => Some(serde_json::json!({"kind": "console"})),
            ActionOperation::Sink(sink) => {
                Some(serde_json::json!({"kind": "sink", "sink": sink.name}))
            }
            ActionOperation::Telemetry(_) => Some(serde_json::json!({"kind": "telemetry"})),
            ActionOperation::Alarm(_) => Some(serde_json::json!({"kind": "alarm"})),
        }
    }

    /// Runs the action, or its fallback actions if it fails, and counts the result. The returned error is
    /// that of the action itself.
    pub(crate) fn run<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        stage: &mut ProducerContext,
        counters: &ProducerCounters,
    ) -> Result<(), ActionError> {
        let failure = match self.operation.run(made, stage, counters) {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        counters.increment(match failure {
            ActionError::SinkFull(_) => RuleCounter::ActionsDropped,
            _ => RuleCounter::ActionsFailed,
        });
        self.run_fallback(made, stage, counters);
        Err(failure)
    }

    /// Runs the fallback actions.
    pub(crate) fn run_fallback<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        stage: &mut ProducerContext,
        counters: &ProducerCounters,
    ) {
        for action_operation in &self.fallback {
            if let Err(failure) = action_operation.run(made, stage, counters) {
                counters.increment(RuleCounter::ActionsFailed);
                tracing::debug!(rule = made.rule.name, %failure, "fallback action failed");
            }
        }
    }
}

impl ActionOperation {
    fn compile(
        kind: &ActionKind,
        options: &CompileOptions,
        has_devices: bool,
        path: &str,
    ) -> Result<Self, RuleDefinitionError> {
        let is_of_devices = matches!(kind, ActionKind::Telemetry(_) | ActionKind::Alarm(_));
        if is_of_devices && !has_devices {
            let detail =
                "there are no devices on this node; expected republish, relay, console or sink";
            return Err(RuleDefinitionError::new(format!("{path}.kind"), detail));
        }
        Ok(match kind {
            ActionKind::Telemetry(action) => Self::Telemetry(Box::new(
                DeviceTelemetryAction::compile(action, options, path)?,
            )),
            ActionKind::Alarm(action) => {
                Self::Alarm(Box::new(DeviceAlarmAction::compile(action, options, path)?))
            }
            ActionKind::Console => Self::Console,
            ActionKind::Sink(name) => Self::Sink(SinkAction {
                name: name.as_str().into(),
                origin: None,
                id: AtomicU64::new(0),
            }),
            ActionKind::Relay(relay) => Self::Republish(Box::new(RepublishAction::compile(
                &relay.to_republish(),
                options,
                path,
            )?)),
            ActionKind::Republish(republish) => Self::Republish(Box::new(
                RepublishAction::compile(republish, options, path)?,
            )),
        })
    }

    fn run<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        stage: &mut ProducerContext,
        counters: &ProducerCounters,
    ) -> Result<(), ActionError> {
        match self {
            Self::Republish(republish) => {
                republish.run(made, stage)?;
                counters.increment(RuleCounter::ActionsSucceeded);
            }
            Self::Console => {
                if !stage.console_limiter.try_acquire(made.now_ms) {
                    return Err(ActionError::LogRateExceeded);
                }
                let mut json = std::mem::take(&mut stage.text);
                json.clear();
                made.output.write_json(&mut json);
                let output = String::from_utf8_lossy(&json);
                tracing::info!(
                    rule = made.rule.name,
                    topic = made.view.event().topic,
                    "{output}"
                );
                stage.text = json;
                counters.increment(RuleCounter::ActionsSucceeded);
            }
            Self::Sink(sink) => {
                sink.send(made, stage)?;
                counters.increment(RuleCounter::ActionsQueued);
            }
            Self::Telemetry(telemetry) => {
                telemetry.run(made, stage)?;
                counters.increment(RuleCounter::ActionsSucceeded);
            }
            Self::Alarm(alarm) => {
                alarm.run(made, stage)?;
                counters.increment(RuleCounter::ActionsSucceeded);
            }
        }
        Ok(())
    }
}

impl SinkAction {
    fn send(
        &self,
        made: &ActionInput<'_, '_>,
        stage: &mut ProducerContext,
    ) -> Result<(), ActionError> {
        let no_sink = || ActionError::NoSink(self.name.clone());
        let port = stage.sink_port().ok_or_else(no_sink)?.clone();
        let row = OutputRow {
            columns: made.output.value(),
            rule: made.rule.name,
            origin: self.origin.map(|action| OutputRowOrigin {
                action,
                depth: made.lineage.depth(),
            }),
        };
        // A sink that was deleted and created again has a new id.
        for known in [self.id.load(Relaxed), 0] {
            let id = match known {
                0 => self.resolve_id(&*port).ok_or_else(no_sink)?,
                known => SinkId((known - 1) as u32),
            };
            match port.send_row(id, stage.producer as u16, row) {
                SinkPortOutcome::Queued => {
                    stage.record_row_sent(&*port);
                    return Ok(());
                }
                SinkPortOutcome::Full => {
                    stage.record_row_sent(&*port);
                    stage.add_full_sink(id);
                    return Ok(());
                }
                SinkPortOutcome::Dropped => return Err(ActionError::SinkFull(self.name.clone())),
                SinkPortOutcome::Unknown => {}
            }
        }
        Err(no_sink())
    }

    fn resolve_id(&self, port: &dyn SinkPort) -> Option<SinkId> {
        let id = port.find_sink(&self.name)?;
        self.id.store(u64::from(id.0) + 1, Relaxed);
        Some(id)
    }
}
