//! The JSON definition of an alarm rule in products and the API. The JSON schema explains every field.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::definition_error::AlarmDefinitionError;

/// Severity of an alarm, the worst first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    Critical,
    Major,
    Minor,
    Warning,
    Indeterminate,
}

impl Severity {
    pub const ALL: [Self; 5] = [
        Self::Critical,
        Self::Major,
        Self::Minor,
        Self::Warning,
        Self::Indeterminate,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "CRITICAL",
            Self::Major => "MAJOR",
            Self::Minor => "MINOR",
            Self::Warning => "WARNING",
            Self::Indeterminate => "INDETERMINATE",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

/// An alarm rule: the condition, its duration, and the severity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmRule {
    /// Type of the alarm, such as `overheated`. A device has at most one alarm of each type that is not cleared.
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default = "default_enabled")]
    pub enabled: bool,
    /// Conditions that raise the alarm. If several hold, the worst severity applies; it follows later changes of the
    /// conditions.
    pub raise: Vec<RaiseTrigger>,
    /// Condition that clears the alarm. Without it, an operator has to clear the alarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear: Option<AlarmTrigger>,
    /// Whether the alarm also counts for the gateway of the device, and for further gateways up to the topmost.
    #[serde(default, skip_serializing_if = "is_false")]
    pub propagate: bool,
    /// Template of a readable text: `${temperature} °C at ${deviceId}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// Names of notifications to send. Notifications that cover all alarms need not be listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<String>,
}

/// A severity and the condition that raises it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Map<String, Value>")]
pub struct RaiseTrigger {
    pub severity: Severity,
    #[serde(flatten)]
    pub when: AlarmTrigger,
}

/// A condition, and the duration or number of messages for which it must hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmTrigger {
    pub when: AlarmCondition,
    /// Seconds for which the condition must hold without interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u32>,
    /// Number of messages for which the condition must hold: consecutive, or within `within_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u32>,
    /// Periods in which the condition is evaluated; empty: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<SchedulePeriod>,
}

/// A recurring part of the week.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulePeriod {
    /// IANA time zone such as `Europe/Berlin`; default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Days of the week, from 1 (Monday) to 7 (Sunday); empty: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<u8>,
    /// Start as `HH:MM`; default: midnight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Exclusive end as `HH:MM`; an end before `from` is on the next day. Default: midnight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// A condition: one test, or a combination of conditions.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum AlarmCondition {
    All(AllConditions),
    Any(AnyCondition),
    Test(ConditionTest),
}

impl<'de> Deserialize<'de> for AlarmCondition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllConditions {
    pub all: Vec<AlarmCondition>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnyCondition {
    pub any: Vec<AlarmCondition>,
}

/// A test of the latest value of one key. No test holds for a key that the device has not sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionTest {
    /// Telemetry key; `$online` is true while the device is connected.
    pub key: String,
    pub is: TestOperator,
    /// Operand: `[from, to]` for `between`, both inclusive; seconds for `silent_for`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Name of a server attribute to use as operand; `value` then applies to devices without the attribute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attribute: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TestOperator {
    #[serde(rename = "=")]
    Equal,
    #[serde(rename = "!=")]
    NotEqual,
    #[serde(rename = ">")]
    Greater,
    #[serde(rename = ">=")]
    GreaterOrEqual,
    #[serde(rename = "<")]
    Less,
    #[serde(rename = "<=")]
    LessOrEqual,
    /// The text contains the operand.
    #[serde(rename = "contains")]
    Contains,
    #[serde(rename = "between")]
    Between,
    /// No value of the key has arrived for the given number of seconds since the last one.
    #[serde(rename = "silent_for")]
    SilentFor,
}

/// Parsed manually, because serde does not reject unknown fields next to a flattened struct.
impl TryFrom<Map<String, Value>> for RaiseTrigger {
    type Error = AlarmDefinitionError;

    fn try_from(mut fields: Map<String, Value>) -> Result<Self, AlarmDefinitionError> {
        let severity = fields.remove("severity").unwrap_or_default();
        let severity = severity.as_str().and_then(Severity::parse);
        Ok(Self {
            severity: severity.ok_or_else(|| {
                let names = Severity::ALL.map(Severity::as_str).join(", ");
                AlarmDefinitionError::new("severity", format!("expected one of {names}"))
            })?,
            when: from_json(Value::Object(fields))?,
        })
    }
}

/// Parsed manually, because serde's errors for untagged enums do not name the problem.
impl TryFrom<Value> for AlarmCondition {
    type Error = AlarmDefinitionError;

    fn try_from(value: Value) -> Result<Self, AlarmDefinitionError> {
        let has = |field: &str| value.get(field).is_some();
        match value {
            _ if has("all") => from_json(value).map(Self::All),
            _ if has("any") => from_json(value).map(Self::Any),
            _ if has("key") => from_json(value).map(Self::Test),
            other => {
                let found = match &other {
                    Value::Object(fields) if fields.is_empty() => "an empty object".to_owned(),
                    Value::Object(fields) => {
                        let names: Vec<_> = fields.keys().map(|name| format!("{name:?}")).collect();
                        format!("an object with {}", names.join(", "))
                    }
                    other => {
                        let mut text = other.to_string();
                        text.truncate(text.floor_char_boundary(100));
                        text
                    }
                };
                Err(AlarmDefinitionError::new(
                    "",
                    format!(
                        "expected {{\"key\", \"is\", \"value\"}}, {{\"all\": [..]}} or {{\"any\": [..]}}; found {found}"
                    ),
                ))
            }
        }
    }
}

pub(super) fn from_json<T: serde::de::DeserializeOwned + JsonSchema>(
    value: Value,
) -> Result<T, AlarmDefinitionError> {
    definition::read_definition(value)
        .map_err(|error| AlarmDefinitionError::new(&error.field, error.detail))
}

/// Parses the alarm rules of a product.
pub fn rules_from_json(value: &Value) -> Result<Vec<AlarmRule>, AlarmDefinitionError> {
    from_json(value.clone()).map_err(|problem| {
        let dot = if problem.field.is_empty() || problem.field.starts_with('[') {
            ""
        } else {
            "."
        };
        AlarmDefinitionError::new(&format!("alarms{dot}{}", problem.field), problem.detail)
    })
}

fn default_enabled() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_false(value: &bool) -> bool {
    !value
}
