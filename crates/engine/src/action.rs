//! What is done with an output of a rule: published again, logged, handed to a sink.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use broker::hooks::Draft;
use mqtt::{PropertiesBuf, Property, QoS};
use rules::{Fault, Options, Output, RuleState, View};

use crate::bound::{Bound, Lineage};
use crate::counters::{Count, LaneCounters};
use crate::definition::{self, ActionDefinition, ActionKind};
use crate::error::Invalid;
use crate::on_devices::{OfAlarm, OfTelemetry};
use crate::outlet::{Outlet, Row, RowOrigin, Sent, SinkId};
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

struct Republish {
    topic: Template,
    /// `None`: the output as JSON.
    payload: Option<Template>,
    qos: Choice<QoS>,
    retain: Choice<bool>,
    user_properties: Box<[(Box<str>, Template)]>,
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

impl Republish {
    fn bind(
        republish: &definition::Republish,
        options: &Options,
        path: &str,
    ) -> Result<Self, Invalid> {
        let compile =
            |field: &str, text: &str| Template::compile(text, options, &format!("{path}.{field}"));
        let topic = compile("topic", &republish.topic)?;
        if let Some(constant) = topic.constant()
            && let Err(error) = mqtt::validate_topic_name(constant, &mqtt::TopicLimits::NONE)
        {
            return Err(Invalid::new(format!("{path}.topic"), error.to_string()));
        }
        let qos = match republish.qos.parse::<u8>().ok().map(QoS::try_from) {
            Some(Ok(qos)) => Choice::Fixed(qos),
            _ => Choice::Filled(compile("qos", &republish.qos)?),
        };
        let retain = match republish.retain.parse() {
            Ok(retain) => Choice::Fixed(retain),
            Err(_) => Choice::Filled(compile("retain", &republish.retain)?),
        };
        let properties = republish.user_properties.iter().map(|(name, value)| {
            let template = compile("user_properties", value)?;
            Ok((name.as_str().into(), template))
        });
        Ok(Self {
            topic,
            payload: republish
                .payload
                .as_deref()
                .map(|text| compile("payload", text))
                .transpose()?,
            qos,
            retain,
            user_properties: properties.collect::<Result<_, Invalid>>()?,
        })
    }

    fn perform<'a>(
        &'a self,
        bound: &'a Bound,
        made: &Made<'_, 'a>,
        stage: &mut Stage,
    ) -> Result<(), Failure> {
        let depth = made.lineage.depth().saturating_add(1);
        if made.lineage == Lineage::END {
            return Err(Failure::AboutOwn);
        }
        if depth > bound.max_republish_depth {
            return Err(Failure::TooDeep(depth));
        }
        if stage.outgoing.len_bytes() > stage.max_outgoing_bytes {
            return Err(Failure::TooMuchOutgoing);
        }
        let mut topic = std::mem::take(&mut stage.topic);
        let mut payload = std::mem::take(&mut stage.text);
        let result = self.push(bound, made, stage, (&mut topic, &mut payload), depth);
        (stage.topic, stage.text) = (topic, payload);
        result
    }

    fn push<'a>(
        &'a self,
        bound: &'a Bound,
        made: &Made<'_, 'a>,
        stage: &mut Stage,
        (topic, payload): (&mut Vec<u8>, &mut Vec<u8>),
        depth: u8,
    ) -> Result<(), Failure> {
        let state = &mut stage.spare;
        topic.clear();
        self.topic.fill(made, state, topic)?;
        let topic = checked_topic(topic)?;
        let qos = match &self.qos {
            Choice::Fixed(qos) => *qos,
            Choice::Filled(template) => {
                let text = filled(template, made, state, payload)?;
                let qos = text
                    .trim()
                    .parse()
                    .ok()
                    .and_then(|qos: u8| QoS::try_from(qos).ok());
                qos.ok_or_else(|| not("qos", text, "0, 1 or 2"))?
            }
        };
        let retain = match &self.retain {
            Choice::Fixed(retain) => *retain,
            Choice::Filled(template) => match filled(template, made, state, payload)?.trim() {
                "true" | "1" => true,
                "false" | "0" | "" | "null" => false,
                other => return Err(not("retain", other, "true or false")),
            },
        };
        let mut properties = PropertiesBuf::new();
        for (name, template) in &self.user_properties {
            let value = filled(template, made, state, payload)?;
            if value.len() > usize::from(u16::MAX) || value.contains('\0') {
                return Err(not(
                    "user_properties",
                    name,
                    "a text of at most 65,535 bytes",
                ));
            }
            properties.push(Property::UserProperty(name, value));
        }
        payload.clear();
        match &self.payload {
            Some(template) => template.fill(made, state, payload)?,
            None => made.output.write_json(payload),
        }
        let event = made.view.event();
        stage.outgoing.push(&Draft {
            topic,
            payload,
            properties: &properties,
            qos,
            retain,
            client_id: event.client_id,
            username: event.username.unwrap_or_default(),
            tag: Lineage::new(depth, bound.serial).0,
        });
        Ok(())
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

fn checked_topic(topic: &[u8]) -> Result<&str, Failure> {
    let refused = |topic: &str, why: String| Failure::Topic {
        topic: topic.chars().take(200).collect(),
        why,
    };
    let topic = std::str::from_utf8(topic)
        .map_err(|_| refused(&String::from_utf8_lossy(topic), "it is not UTF-8".into()))?;
    if let Err(error) = mqtt::validate_topic_name(topic, &mqtt::TopicLimits::NONE) {
        return Err(refused(topic, error.to_string()));
    }
    if topic.starts_with("$SYS/") || topic.starts_with("$delayed/") {
        return Err(refused(
            topic,
            "topics of the node itself are not for rules".into(),
        ));
    }
    Ok(topic)
}
