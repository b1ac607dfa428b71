//! An alarm rule as products and the API have it: JSON, with every field explained in its schema.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::AlarmDefinitionError;

/// How bad it is, from the worst on.
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

/// What is wrong with a device, when, and how bad that is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmRule {
    /// The type of the alarm, such as `overheated`. A device has at most one alarm of a type that is not cleared.
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default = "yes")]
    pub enabled: bool,
    /// What raises it. Of several that hold, the worst severity counts; it goes up and down with them.
    pub raise: Vec<RaiseTrigger>,
    /// What clears it. Without it, somebody has to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear: Option<AlarmTrigger>,
    /// Whether it also counts as an alarm of the device's parents, up to the topmost.
    #[serde(default, skip_serializing_if = "is_false")]
    pub propagate: bool,
    /// A template for people: `${temperature} °C at ${deviceId}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// Names of notifications. Those that ask for all alarms need not be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<String>,
}

/// One severity and what raises it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Map<String, Value>")]
pub struct RaiseTrigger {
    pub severity: Severity,
    #[serde(flatten)]
    pub when: AlarmTrigger,
}

/// A condition, and for how long or how often it has to hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlarmTrigger {
    pub when: AlarmCondition,
    /// Seconds for which it has to hold without a break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u32>,
    /// How many messages it has to hold for: one after the other, or within `within_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u32>,
    /// When it counts; at any time if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<SchedulePeriod>,
}

/// A part of the week.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulePeriod {
    /// An IANA name such as `Europe/Berlin`; UTC if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// 1 is Monday, 7 is Sunday; every day if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<u8>,
    /// `HH:MM`; midnight if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// `HH:MM`, not included; before `from` it is on the next day. Midnight if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// What has to hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected {\"key\", \"is\", ..}, {\"all\": [..]} or {\"any\": [..]}"
)]
pub enum AlarmCondition {
    All(AllConditions),
    Any(AnyCondition),
    Test(ConditionTest),
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

/// A test of the latest value of one key. A key that the device has not sent holds for no test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionTest {
    /// A key of telemetry; `$online` is whether the device is connected.
    pub key: String,
    pub is: TestOperator,
    /// What it is compared with; `[from, to]` for `between`, both included; seconds for `silent_for`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// A server attribute of the device to compare with instead; `value` is then for devices without it.
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
    /// Of text: it is in it.
    #[serde(rename = "contains")]
    Contains,
    #[serde(rename = "between")]
    Between,
    /// Nothing came of this key for so many seconds, counted from the last value on.
    #[serde(rename = "silent_for")]
    SilentFor,
}

/// By hand, because serde does not refuse unknown fields beside a flattened struct.
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

/// By hand, because of an untagged enum serde cannot say what is wrong with it.
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

pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    value: Value,
) -> Result<T, AlarmDefinitionError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "" } else { &path };
        AlarmDefinitionError::new(field, error.inner().to_string())
    })
}

/// The alarm rules of a product, from JSON.
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

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}
