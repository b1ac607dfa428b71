//! What is done with an output of a rule: published again, logged, handed to a sink.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rules::{Fault, Options, Output, Rule, RuleState, View};

use crate::bound::{Bound, Lineage};
use crate::counters::{Count, LaneCounters};
use crate::definition::{ActionDefinition, ActionKind};
use crate::error::Invalid;
use crate::on_devices::{OfAlarm, OfTelemetry};
use crate::outlet::{Outlet, Row, RowOrigin, Sent, SinkId};
use crate::republish::Republish;
use crate::stage::Stage;
use crate::template::Template;

/// One action, and what is done if it cannot be done.
pub(crate) struct Action {
    deed: Deed,
    fallback: Box<[Deed]>,
}

enum Deed {
    Republish(Box<Republish>),
    Console,
    Sink(Sink),
    Telemetry(Box<OfTelemetry>),
    Alarm(Box<OfAlarm>),
}

/// The same always, or what the output says.
pub(crate) enum Choice<T> {
    Fixed(T),
    Filled(Template),
}

struct Sink {
    name: Box<str>,
    /// The action's place, if it has fallback actions.
    origin: Option<u8>,
    /// The sink's id and one; 0: not known yet.
    id: AtomicU64,
}

/// Why an action was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("{what}: {found:?} is not {expected}")]
    Not {
        what: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("{what}: ${{{placeholder}}} is null")]
    Null {
        what: &'static str,
        placeholder: Box<str>,
    },
    #[error("the topic {topic:?} cannot be published to: {why}")]
    Topic { topic: String, why: String },
    #[error("the message would be the {0}th that comes of another; is there a loop of rules?")]
    TooDeep(u8),
    #[error("it is about a message that a rule has published; that would never end")]
    AboutOwn,
    #[error("there is no sink {0:?}")]
    NoSink(Box<str>),
    #[error("the sink {0:?} is full")]
    SinkFull(Box<str>),
    #[error("too much was logged in this second")]
    TooManyLines,
    #[error("too much waits to be published")]
    TooMuchOutgoing,
    #[error("there are no devices here")]
    NoDevices,
    #[error("{0}")]
    Refused(Box<str>),
}

/// An output with what it comes from.
pub(crate) struct Made<'o, 'a> {
    pub(crate) output: Output<'a>,
    pub(crate) view: &'o View<'a>,
    pub(crate) lineage: Lineage,
    pub(crate) now_ms: u64,
}

impl Action {
    pub(crate) fn bind(
        definition: &ActionDefinition,
        options: &Options,
        has_devices: bool,
        place: usize,
    ) -> Result<Self, Invalid> {
        let path = &format!("actions[{place}]");
        let fallback = definition.fallback.iter().enumerate();
        let fallback = fallback.map(|(n, kind)| {
            Deed::bind(kind, options, has_devices, &format!("{path}.fallback[{n}]"))
        });
        let mut deed = Deed::bind(&definition.kind, options, has_devices, path)?;
        if let (Deed::Sink(sink), false) = (&mut deed, definition.fallback.is_empty()) {
            sink.origin = Some(place as u8);
        }
        Ok(Self {
            deed,
            fallback: fallback.collect::<Result<_, _>>()?,
        })
    }

    /// Names in its templates that are always null for this rule.
    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        let deeds = std::iter::once(&self.deed).chain(&self.fallback);
        let names = deeds.map(|deed| match deed {
            Deed::Republish(republish) => republish.unknown_names(rule),
            Deed::Telemetry(telemetry) => telemetry.unknown_names(rule),
            Deed::Alarm(alarm) => alarm.unknown_names(rule),
            Deed::Console | Deed::Sink(_) => Vec::new(),
        });
        names.flatten().collect()
    }

    /// What it does outside the node, without doing it.
    pub(crate) fn describe(&self) -> Option<serde_json::Value> {
        match &self.deed {
            Deed::Republish(_) => None,
            Deed::Console => Some(serde_json::json!({"kind": "console"})),
            Deed::Sink(sink) => Some(serde_json::json!({"kind": "sink", "sink": sink.name})),
            Deed::Telemetry(_) => Some(serde_json::json!({"kind": "telemetry"})),
            Deed::Alarm(_) => Some(serde_json::json!({"kind": "alarm"})),
        }
    }

    /// Does it, or else what stands in for it, and counts what came of it. The error is the action's own.
    pub(crate) fn perform<'a>(
        &'a self,
        bound: &'a Bound,
        made: &Made<'_, 'a>,
        stage: &mut Stage,
        counters: &LaneCounters,
    ) -> Result<(), Failure> {
        let failure = match self.deed.perform(bound, made, stage, counters) {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        counters.inc(match failure {
            Failure::SinkFull(_) => Count::ActionsDropped,
            _ => Count::ActionsFailed,
        });
        self.fall_back(bound, made, stage, counters);
        Err(failure)
    }

    /// Does what stands in for it.
    pub(crate) fn fall_back<'a>(
        &'a self,
        bound: &'a Bound,
        made: &Made<'_, 'a>,
        stage: &mut Stage,
        counters: &LaneCounters,
    ) {
        for deed in &self.fallback {
            if let Err(failure) = deed.perform(bound, made, stage, counters) {
                counters.inc(Count::ActionsFailed);
                tracing::debug!(rule = &*bound.name, %failure, "a fallback action failed");
            }
        }
    }
}

impl Deed {
    fn bind(
        kind: &ActionKind,
        options: &Options,
        has_devices: bool,
        path: &str,
    ) -> Result<Self, Invalid> {
        let is_of_devices = matches!(kind, ActionKind::Telemetry(_) | ActionKind::Alarm(_));
        if is_of_devices && !has_devices {
            let detail = "this node keeps no devices; there are republish, console and sink";
            return Err(Invalid::new(format!("{path}.kind"), detail));
        }
        Ok(match kind {
            ActionKind::Telemetry(action) => {
                Self::Telemetry(Box::new(OfTelemetry::bind(action, options, path)?))
            }
            ActionKind::Alarm(action) => {
                Self::Alarm(Box::new(OfAlarm::bind(action, options, path)?))
            }
            ActionKind::Console => Self::Console,
            ActionKind::Sink(name) => Self::Sink(Sink {
                name: name.as_str().into(),
                origin: None,
                id: AtomicU64::new(0),
            }),
            ActionKind::Republish(republish) => {
                Self::Republish(Box::new(Republish::bind(republish, options, path)?))
            }
        })
    }

    fn perform<'a>(
        &'a self,
        bound: &'a Bound,
        made: &Made<'_, 'a>,
        stage: &mut Stage,
        counters: &LaneCounters,
    ) -> Result<(), Failure> {
        match self {
            Self::Republish(republish) => {
                republish.perform(bound, made, stage)?;
                counters.inc(Count::ActionsSucceeded);
            }
            Self::Console => {
                if !stage.console.take(made.now_ms) {
                    return Err(Failure::TooManyLines);
                }
                let mut json = std::mem::take(&mut stage.text);
                json.clear();
                made.output.write_json(&mut json);
                let output = String::from_utf8_lossy(&json);
                tracing::info!(
                    rule = &*bound.name,
                    topic = made.view.event().topic,
                    "{output}"
                );
                stage.text = json;
                counters.inc(Count::ActionsSucceeded);
            }
            Self::Sink(sink) => {
                sink.send(bound, made, stage)?;
                counters.inc(Count::ActionsQueued);
            }
            Self::Telemetry(telemetry) => {
                telemetry.perform(bound, made, stage)?;
                counters.inc(Count::ActionsSucceeded);
            }
            Self::Alarm(alarm) => {
                alarm.perform(bound, made, stage)?;
                counters.inc(Count::ActionsSucceeded);
            }
        }
        Ok(())
    }
}

impl Sink {
    fn send(&self, bound: &Bound, made: &Made<'_, '_>, stage: &mut Stage) -> Result<(), Failure> {
        let no_sink = || Failure::NoSink(self.name.clone());
        let outlet = stage.outlet().ok_or_else(no_sink)?.clone();
        let row = Row {
            columns: made.output.value(),
            rule: &bound.name,
            origin: self.origin.map(|action| RowOrigin {
                action,
                depth: made.lineage.depth(),
            }),
        };
        // A sink that was taken away and made again has another id.
        for known in [self.id.load(Relaxed), 0] {
            let id = match known {
                0 => self.find(&*outlet).ok_or_else(no_sink)?,
                known => SinkId((known - 1) as u32),
            };
            match outlet.send(id, stage.lane as u16, row) {
                Sent::Queued => {
                    stage.note_sent(&*outlet);
                    return Ok(());
                }
                Sent::Full => {
                    stage.note_sent(&*outlet);
                    stage.note_full(id);
                    return Ok(());
                }
                Sent::Dropped => return Err(Failure::SinkFull(self.name.clone())),
                Sent::Unknown => {}
            }
        }
        Err(no_sink())
    }

    fn find(&self, outlet: &dyn Outlet) -> Option<SinkId> {
        let id = outlet.sink(&self.name)?;
        self.id.store(u64::from(id.0) + 1, Relaxed);
        Some(id)
    }
}

pub(crate) fn filled<'t, 'a>(
    template: &'a Template,
    made: &Made<'_, 'a>,
    state: &mut RuleState,
    text: &'t mut Vec<u8>,
) -> Result<&'t str, Failure> {
    text.clear();
    template.fill(made, state, text)?;
    std::str::from_utf8(text).map_err(|_| not("a template", "bytes", "text"))
}

pub(crate) fn not(what: &'static str, found: &str, expected: &'static str) -> Failure {
    Failure::Not {
        what,
        found: found.chars().take(100).collect(),
        expected,
    }
}
