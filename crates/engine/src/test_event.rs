//! The event that a rule is tested on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::definition_error::RuleDefinitionError;
use crate::rule_json::RuleJson;

/// Event of the kind that FROM names first.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestEventInput {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Payload: a text, or any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub payload: Option<RuleJson>,
    /// Payload in base64, instead of `payload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(default)]
    #[schemars(range(max = 2))]
    pub qos: u8,
    #[serde(default)]
    pub retain: bool,
    /// Additional fields: those of the output of another rule, of a bridge, or of a device.
    #[serde(default)]
    pub fields: Map<String, Value>,
}

/// A valid event to test a rule on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TestEvent {
    pub(crate) topic: Option<String>,
    pub(crate) payload: Vec<u8>,
    pub(crate) client_id: String,
    pub(crate) username: Option<String>,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    /// The fields of `$rule/`, `$bridges/` and device events. For other events they replace fields that the
    /// event does not set.
    pub(crate) fields: Map<String, Value>,
}

impl TryFrom<TestEventInput> for TestEvent {
    type Error = RuleDefinitionError;

    fn try_from(input: TestEventInput) -> Result<Self, RuleDefinitionError> {
        if input.qos > 2 {
            return Err(RuleDefinitionError::new("qos", "expected 0, 1 or 2"));
        }
        let payload = match (input.payload, input.payload_base64) {
            (None, None) => Vec::new(),
            (None, Some(base64)) => STANDARD
                .decode(base64)
                .map_err(|_| RuleDefinitionError::new("payload_base64", "expected base64"))?,
            (Some(json), None) => payload_bytes(&json)?,
            (Some(_), Some(_)) => {
                let detail = "expected either payload or payload_base64";
                return Err(RuleDefinitionError::new("payload_base64", detail));
            }
        };
        Ok(Self {
            topic: input.topic,
            payload,
            client_id: input.client_id.unwrap_or_else(|| "test".to_owned()),
            username: input.username,
            qos: input.qos,
            retain: input.retain,
            fields: input.fields,
        })
    }
}

/// The bytes of a text. Other JSON is the payload itself, as it is written.
fn payload_bytes(json: &RuleJson) -> Result<Vec<u8>, RuleDefinitionError> {
    let text = json.get();
    if !text.starts_with('"') {
        return Ok(text.as_bytes().to_vec());
    }
    serde_json::from_str::<String>(text)
        .map(String::into_bytes)
        .map_err(|error| RuleDefinitionError::new("payload", error.to_string()))
}
