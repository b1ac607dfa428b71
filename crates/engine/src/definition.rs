//! Rule definitions: the JSON form of a rule in the store, the API and the configuration, read with errors
//! that name the field.

use hooks::relay::RELAY_TOPIC_PREFIX;
use rules::Dialect;
use serde_json::{Map, Value, json};

use crate::definition_error::RuleDefinitionError;
use crate::field_reader::{FieldReader, unknown_value_error};

/// Kind of the rule objects in the store.
pub const RULE_KIND: &str = "rule";
const MAX_NAME_BYTES: usize = 128;
const MAX_ACTIONS: usize = 16;
const MAX_DESCRIPTION_CHARS: usize = 1000;
/// The longest window: 31 days.
const MAX_WINDOW_MS: u64 = 31 * 86_400_000;

/// A rule before its statement is compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleDefinition {
    pub sql: String,
    pub description: String,
    pub enabled: bool,
    /// `None`: the dialect follows from the FROM clause.
    pub dialect: Option<Dialect>,
    /// An IANA time zone name or an offset.
    pub timezone: Option<String>,
    pub actions: Vec<ActionDefinition>,
    pub limits: RuleLimits,
    pub window: WindowLimits,
}

/// Limits of this rule that are lower than the settings of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleLimits {
    pub max_steps: Option<u32>,
    pub max_output_bytes: Option<usize>,
    /// Longest chain of messages in which a rule publishes each because of the one before.
    pub max_republish_depth: Option<u8>,
}

/// Limits of the windows of this rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowLimits {
    /// An expression for the event's timestamp; `None`: the time at which the event arrived.
    pub event_time: Option<String>,
    pub lateness_ms: Option<u64>,
    /// Only valid with `event_time`.
    pub max_ahead_ms: Option<u64>,
    pub idle_ms: Option<u64>,
    pub max_groups: Option<usize>,
    pub max_bytes: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ActionDefinition {
    pub kind: ActionKind,
    /// Actions that run if this action fails.
    pub fallback: Vec<ActionKind>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ActionKind {
    Republish(RepublishDefinition),
    /// Sends a text to the connections of a relay endpoint.
    Relay(RelayActionDefinition),
    /// Writes to the node's log.
    Console,
    /// Sends a row to the sink with this name.
    Sink(String),
    /// Writes the output as telemetry of a device.
    Telemetry(TelemetryActionDefinition),
    /// Raises or clears an alarm of a device.
    Alarm(AlarmActionDefinition),
}

/// Templates for telemetry of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetryActionDefinition {
    pub device: String,
    /// Yields milliseconds since 1970. `None`: the timestamp of the event.
    pub timestamp: Option<String>,
}

/// Templates for an alarm.
#[derive(Debug, Clone, PartialEq)]
pub struct AlarmActionDefinition {
    pub device: String,
    pub name: String,
    pub severity: String,
    /// `true`, `false`, or a template that yields one of them.
    pub clear: String,
    /// `None`: the whole output as JSON.
    pub details: Option<String>,
}

/// Templates for a message to a relay endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayActionDefinition {
    /// Yields the id of the endpoint.
    pub endpoint: String,
    /// `None`: the whole output as JSON.
    pub payload: Option<String>,
}

impl RelayActionDefinition {
    fn read(fields: &mut FieldReader<'_>) -> Result<Self, RuleDefinitionError> {
        let endpoint = fields.take_text("endpoint")?;
        let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
        Ok(Self {
            endpoint: endpoint
                .ok_or_else(|| fields.missing_error("endpoint", "the id of a relay endpoint"))?,
            payload: fields.take_text("payload")?,
        })
    }

    /// The equivalent message on the topic of the endpoint. Receivers get text.
    pub(crate) fn to_republish(&self) -> RepublishDefinition {
        RepublishDefinition {
            topic: format!("{RELAY_TOPIC_PREFIX}{}", self.endpoint),
            payload: self.payload.clone(),
            qos: "0".to_owned(),
            retain: "false".to_owned(),
            user_properties: Vec::new(),
            user_property_map: None,
            mqtt_properties: Vec::new(),
            direct_dispatch: false,
        }
    }
}

/// Templates for a message.
#[derive(Debug, Clone, PartialEq)]
pub struct RepublishDefinition {
    pub topic: String,
    /// `None`: the whole output as JSON.
    pub payload: Option<String>,
    /// A number, or a template that yields one.
    pub qos: String,
    /// `true`, `false`, or a template that yields one of them.
    pub retain: String,
    pub user_properties: Vec<(String, String)>,
    /// A template consisting of one placeholder, which yields a map of additional user properties.
    pub user_property_map: Option<String>,
    /// Templates for the other MQTT 5 properties, by the name in the specification with hyphens, such as
    /// `Content-Type`.
    pub mqtt_properties: Vec<(String, String)>,
    /// Rules do not see the message.
    pub direct_dispatch: bool,
}

/// Property names allowed in `RepublishDefinition::mqtt_properties`.
pub(crate) const MQTT_PROPERTIES: [&str; 5] = [
    "Payload-Format-Indicator",
    "Message-Expiry-Interval",
    "Content-Type",
    "Response-Topic",
    "Correlation-Data",
];

/// Fields of an EMQX rule object that do not affect the rule. They are ignored.
pub(crate) const IGNORED_EMQX_FIELDS: [&str; 6] = [
    "metadata",
    "created_at",
    "last_modified_at",
    "from",
    "tags",
    "node_metrics",
];
const DIALECTS: [&str; 2] = ["fluxmq", "emqx"];
const ACTION_KINDS: [&str; 6] = [
    "republish",
    "relay",
    "console",
    "sink",
    "telemetry",
    "alarm",
];

impl RuleDefinition {
    /// Reads a rule object. Accepts the form of EMQX too.
    pub fn from_json(value: &Value) -> Result<Self, RuleDefinitionError> {
        let mut fields = FieldReader::new(value, "")?;
        // The id is the rule's name, which the caller knows already.
        let title = [fields.take_emqx_text("id")?, fields.take_emqx_text("name")?].into_iter();
        let title = title.flatten().next_back();
        for note in IGNORED_EMQX_FIELDS {
            fields.take_emqx(note);
        }
        let enable = fields.take_emqx_bool("enable")?;
        let definition = Self {
            sql: fields.take_text("sql")?.ok_or_else(|| {
                fields.missing_error("sql", "a statement such as SELECT * FROM \"t/#\"")
            })?,
            description: (fields.take_text("description")?)
                .filter(|text| !text.is_empty())
                .or(title)
                .unwrap_or_default(),
            enabled: fields.take_bool("enabled")?.or(enable).unwrap_or(true),
            dialect: fields.take_dialect()?,
            timezone: fields.take_text("timezone")?,
            actions: fields.take_actions()?,
            limits: fields.take_limits()?,
            window: fields.take_window()?,
        };
        fields.reject_unknown()?;
        if definition.description.chars().count() > MAX_DESCRIPTION_CHARS {
            let detail = format!("expected at most {MAX_DESCRIPTION_CHARS} characters");
            return Err(RuleDefinitionError::new("description", detail));
        }
        Ok(definition)
    }

    /// Writes the rule in the form that [`RuleDefinition::from_json`] reads, with all defaults.
    pub fn to_json(&self) -> Value {
        json!({
            "sql": self.sql,
            "description": self.description,
            "enabled": self.enabled,
            "dialect": self.dialect.map(Dialect::name),
            "timezone": self.timezone,
            "actions": self.actions.iter().map(ActionDefinition::to_json).collect::<Vec<_>>(),
            "limits": {
                "max_steps": self.limits.max_steps,
                "max_output_bytes": self.limits.max_output_bytes,
                "max_republish_depth": self.limits.max_republish_depth,
            },
            "window": {
                "event_time": self.window.event_time,
                "lateness_ms": self.window.lateness_ms,
                "max_ahead_ms": self.window.max_ahead_ms,
                "idle_ms": self.window.idle_ms,
                "max_groups": self.window.max_groups,
                "max_bytes": self.window.max_bytes,
            },
        })
    }
}

/// Checks that a name is usable in a FROM clause, a file name and a metric label.
pub(crate) fn check_name(name: &str) -> Result<(), RuleDefinitionError> {
    let is_good = |c: char| c.is_alphanumeric() || "_-.:".contains(c);
    if name == "test" {
        return Err(RuleDefinitionError::new(
            "name",
            "this name is reserved for an API route; expected another",
        ));
    }
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_good) {
        let detail = format!(
            "expected a name of 1 to {MAX_NAME_BYTES} bytes of letters, digits and _ - . :"
        );
        return Err(RuleDefinitionError::new("name", detail));
    }
    Ok(())
}

impl ActionDefinition {
    fn from_json(value: &Value, path: &str) -> Result<Self, RuleDefinitionError> {
        if let Some(kind) = ActionKind::from_text(value) {
            return Ok(Self {
                kind,
                fallback: Vec::new(),
            });
        }
        let mut fields = FieldReader::new(value, path)?;
        let fallback = match fields.take("fallback") {
            None => Vec::new(),
            Some(Value::Array(actions)) if actions.len() <= MAX_ACTIONS => {
                let read = |(n, action): (usize, &Value)| {
                    let path = format!("{path}.fallback[{n}]");
                    match ActionKind::from_text(action) {
                        Some(kind) => Ok(kind),
                        None => {
                            let mut fields = FieldReader::new(action, &path)?;
                            let kind = ActionKind::read(&mut fields)?;
                            fields.reject_unknown()?;
                            Ok(kind)
                        }
                    }
                };
                actions
                    .iter()
                    .enumerate()
                    .map(read)
                    .collect::<Result<_, _>>()?
            }
            Some(_) => {
                let detail = format!("expected a list of at most {MAX_ACTIONS} actions");
                return Err(fields.field_error("fallback", detail));
            }
        };
        let kind = ActionKind::read(&mut fields)?;
        fields.reject_unknown()?;
        Ok(Self { kind, fallback })
    }

    fn to_json(&self) -> Value {
        let mut value = self.kind.to_json();
        if let (Value::Object(fields), false) = (&mut value, self.fallback.is_empty()) {
            let fallback = self.fallback.iter().map(ActionKind::to_json).collect();
            fields.insert("fallback".into(), Value::Array(fallback));
        }
        value
    }
}

impl ActionKind {
    /// Reads `"console"`, or a sink in the form of EMQX: `"mysql:NAME"`.
    fn from_text(value: &Value) -> Option<Self> {
        let text = value.as_str()?;
        Some(match text {
            "console" | "log" => Self::Console,
            text => Self::Sink(
                text.split_once(':')
                    .map_or(text, |(_, name)| name)
                    .to_owned(),
            ),
        })
    }

    fn read(fields: &mut FieldReader<'_>) -> Result<Self, RuleDefinitionError> {
        // The form of EMQX: `{"function": "republish", "args": {..}}`.
        let function = fields.take_emqx_text("function")?;
        let is_emqx = function.is_some();
        let kind = match function {
            Some(function) => {
                if let Some(args) = fields.take_emqx("args") {
                    let Value::Object(args) = args else {
                        return Err(fields.field_error("args", "expected an object"));
                    };
                    fields.extend(args);
                }
                Some(function)
            }
            None => fields.take_text("kind")?,
        };
        match kind.as_deref() {
            Some("republish") => Ok(Self::Republish(RepublishDefinition::read(fields, is_emqx)?)),
            Some("relay") => Ok(Self::Relay(RelayActionDefinition::read(fields)?)),
            Some("console" | "log") => Ok(Self::Console),
            Some("sink") => match fields.take_text("sink")? {
                Some(name) => Ok(Self::Sink(name)),
                None => Err(fields.missing_error("sink", "the name of a sink")),
            },
            Some("telemetry") => Ok(Self::Telemetry(TelemetryActionDefinition::read(fields)?)),
            Some("alarm") => Ok(Self::Alarm(AlarmActionDefinition::read(fields)?)),
            Some(other) => {
                let field = if is_emqx { "function" } else { "kind" };
                let detail = unknown_value_error("unknown kind", other, &ACTION_KINDS);
                Err(fields.field_error(field, detail))
            }
            None => {
                let detail = format!("is missing; there are {}", ACTION_KINDS.join(", "));
                Err(fields.field_error("kind", detail))
            }
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Relay(relay) => json!({
                "kind": "relay",
                "endpoint": relay.endpoint,
                "payload": relay.payload,
            }),
            Self::Console => json!({"kind": "console"}),
            Self::Sink(name) => json!({"kind": "sink", "sink": name}),
            Self::Telemetry(action) => json!({
                "kind": "telemetry",
                "device": action.device,
                "timestamp": action.timestamp,
            }),
            Self::Alarm(action) => json!({
                "kind": "alarm",
                "device": action.device,
                "name": action.name,
                "severity": action.severity,
                "clear": bool_or_text(&action.clear),
                "details": action.details,
            }),
            Self::Republish(republish) => {
                let object = |pairs: &[(String, String)]| -> Value {
                    let pairs = pairs.iter();
                    pairs
                        .map(|(name, value)| (name.clone(), value.clone().into()))
                        .collect::<Map<String, Value>>()
                        .into()
                };
                let user_properties = match &republish.user_property_map {
                    Some(template) => template.clone().into(),
                    None => object(&republish.user_properties),
                };
                json!({
                    "kind": "republish",
                    "topic": republish.topic,
                    "payload": republish.payload,
                    "qos": number_or_text(&republish.qos),
                    "retain": bool_or_text(&republish.retain),
                    "user_properties": user_properties,
                    "mqtt_properties": object(&republish.mqtt_properties),
                    "direct_dispatch": republish.direct_dispatch,
                })
            }
        }
    }
}

fn number_or_text(text: &str) -> Value {
    text.parse::<u8>().map_or_else(|_| text.into(), Into::into)
}

fn bool_or_text(text: &str) -> Value {
    text.parse::<bool>()
        .map_or_else(|_| text.into(), Into::into)
}

/// The device of a device event, or the client id.
const DEFAULT_DEVICE_TEMPLATE: &str = "${coalesce(deviceId, clientid)}";

impl TelemetryActionDefinition {
    fn read(fields: &mut FieldReader<'_>) -> Result<Self, RuleDefinitionError> {
        Ok(Self {
            device: fields
                .take_text("device")?
                .unwrap_or_else(|| DEFAULT_DEVICE_TEMPLATE.to_owned()),
            timestamp: fields.take_text("timestamp")?,
        })
    }
}

impl AlarmActionDefinition {
    fn read(fields: &mut FieldReader<'_>) -> Result<Self, RuleDefinitionError> {
        let name = fields.take_text("name")?.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| fields.missing_error("name", "a text such as too_hot"))?;
        Ok(Self {
            device: fields
                .take_text("device")?
                .unwrap_or_else(|| DEFAULT_DEVICE_TEMPLATE.to_owned()),
            name,
            severity: fields
                .take_text("severity")?
                .unwrap_or_else(|| "MAJOR".to_owned()),
            clear: fields.take_bool_or_template("clear")?,
            details: fields.take_text("details")?,
        })
    }
}

impl RepublishDefinition {
    /// Reads the templates. The form of EMQX has the defaults of EMQX: payload `${payload}` and QoS `${qos}`.
    fn read(fields: &mut FieldReader<'_>, is_emqx: bool) -> Result<Self, RuleDefinitionError> {
        let topic = fields.take_text("topic")?;
        let topic = topic
            .filter(|topic| !topic.is_empty())
            .ok_or_else(|| fields.missing_error("topic", "a topic such as alarms/${clientid}"))?;
        let qos = match fields.take("qos") {
            None if is_emqx => "${qos}".to_owned(),
            None => "0".to_owned(),
            Some(Value::Number(number)) if number.as_u64().is_some_and(|qos| qos <= 2) => {
                number.to_string()
            }
            Some(Value::String(template)) if !template.is_empty() => template.clone(),
            Some(_) => {
                return Err(
                    fields.field_error("qos", "expected 0, 1, 2 or a template such as ${qos}")
                );
            }
        };
        let retain = fields.take_bool_or_template("retain")?;
        let payload = match fields.take_text("payload")? {
            None if is_emqx => Some("${payload}".to_owned()),
            // In EMQX an empty template means the whole output.
            Some(text) if is_emqx && text.is_empty() => None,
            payload => payload,
        };
        let (user_properties, user_property_map) = fields.take_user_properties()?;
        Ok(Self {
            topic,
            payload,
            qos,
            retain,
            user_properties,
            user_property_map,
            mqtt_properties: fields.take_mqtt_properties()?,
            direct_dispatch: fields.take_bool("direct_dispatch")?.unwrap_or(false),
        })
    }
}

impl FieldReader<'_> {
    fn take_dialect(&mut self) -> Result<Option<Dialect>, RuleDefinitionError> {
        match self.take_text("dialect")?.as_deref() {
            None => Ok(None),
            Some("fluxmq") => Ok(Some(Dialect::Fluxmq)),
            Some("emqx") => Ok(Some(Dialect::Emqx)),
            Some(other) => {
                let detail = unknown_value_error("unknown dialect", other, &DIALECTS);
                Err(self.field_error("dialect", detail))
            }
        }
    }

    fn take_mqtt_properties(&mut self) -> Result<Vec<(String, String)>, RuleDefinitionError> {
        const FIELD: &str = "mqtt_properties";
        let Some(value) = self.take(FIELD) else {
            return Ok(Vec::new());
        };
        let properties = self.template_entries(FIELD, value)?;
        for (name, _) in &properties {
            if !MQTT_PROPERTIES.contains(&name.as_str()) {
                let detail = unknown_value_error("unknown property", name, &MQTT_PROPERTIES);
                return Err(self.field_error(&format!("{FIELD}.{name}"), detail));
            }
        }
        Ok(properties)
    }

    fn take_actions(&mut self) -> Result<Vec<ActionDefinition>, RuleDefinitionError> {
        let actions = match self.take("actions") {
            None => return Ok(Vec::new()),
            Some(Value::Array(actions)) if actions.len() <= MAX_ACTIONS => actions,
            Some(_) => {
                let detail = format!("expected a list of at most {MAX_ACTIONS} actions");
                return Err(self.field_error("actions", detail));
            }
        };
        let read = |(n, action)| ActionDefinition::from_json(action, &format!("actions[{n}]"));
        actions.iter().enumerate().map(read).collect()
    }

    fn take_limits(&mut self) -> Result<RuleLimits, RuleDefinitionError> {
        let Some(value) = self.take("limits") else {
            return Ok(RuleLimits::default());
        };
        let mut fields = FieldReader::new(value, "limits")?;
        let limits = RuleLimits {
            max_steps: fields
                .take_number("max_steps", 1, 1 << 30)?
                .map(|steps| steps as u32),
            max_output_bytes: fields
                .take_number("max_output_bytes", 1, 1 << 28)?
                .map(|bytes| bytes as usize),
            max_republish_depth: fields
                .take_number("max_republish_depth", 1, 64)?
                .map(|depth| depth as u8),
        };
        fields.reject_unknown()?;
        Ok(limits)
    }

    fn take_window(&mut self) -> Result<WindowLimits, RuleDefinitionError> {
        let Some(value) = self.take("window") else {
            return Ok(WindowLimits::default());
        };
        let mut fields = FieldReader::new(value, "window")?;
        let limits = WindowLimits {
            event_time: fields.take_text("event_time")?,
            lateness_ms: fields.take_number("lateness_ms", 0, MAX_WINDOW_MS)?,
            max_ahead_ms: fields.take_number("max_ahead_ms", 0, MAX_WINDOW_MS)?,
            idle_ms: fields.take_number("idle_ms", 1, MAX_WINDOW_MS)?,
            max_groups: fields
                .take_number("max_groups", 1, 100_000_000)?
                .map(|groups| groups as usize),
            max_bytes: fields
                .take_number("max_bytes", 1024, 1 << 36)?
                .map(|bytes| bytes as usize),
        };
        fields.reject_unknown()?;
        let of_event_time = [
            ("max_ahead_ms", limits.max_ahead_ms),
            ("idle_ms", limits.idle_ms),
        ];
        for (name, value) in of_event_time {
            if value.is_some() && limits.event_time.is_none() {
                let detail = "applies only with event_time; expected event_time, too";
                return Err(fields.field_error(name, detail));
            }
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests;
