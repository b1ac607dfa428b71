//! Messages of devices on the connections of endpoints: which messages are meant for the node, and its answers.

use std::borrow::Cow;

use memchr::memmem;
use serde::Deserialize;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::envelope::JsonText;

/// Limits of what devices name themselves, in characters.
const MAX_DEVICE_ID_CHARS: usize = 64;
const MAX_DEVICE_NAME_CHARS: usize = 100;
const MAX_REQUEST_ID_CHARS: usize = 128;

/// What the service does with a message.
#[derive(Debug, PartialEq)]
pub(crate) enum MessageClass {
    /// It is only relayed.
    Relay,
    /// It is relayed, and its values belong to the device.
    Data,
    Identify(Identity),
    ControlAck,
    Request(DeviceRequest),
    /// It is meant for the node and invalid.
    Invalid(String),
}

/// `{"type":"identify","deviceId","deviceName"?}`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The id of the device at this endpoint.
    pub device_id: String,
    pub device_name: Option<String>,
}

/// `{"type":"request","requestId","requestType","params"?}`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRequest {
    /// A text or a number, repeated in the response.
    pub request_id: Value,
    pub request_type: String,
    #[serde(default)]
    pub params: Value,
}

/// The member `type` of an object.
#[derive(Debug, PartialEq)]
enum FrameType<'a> {
    None,
    Text(Cow<'a, str>),
    Other,
}

impl<'de> Deserialize<'de> for FrameType<'de> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = FrameType<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FrameType<'de>, A::Error> {
                let mut found = FrameType::None;
                while let Some(name) = map.next_key::<JsonText<'de>>()? {
                    if name.0 == "type" {
                        found = map.next_value::<TypeValue<'de>>()?.0;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(found)
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct TypeValue<'a>(FrameType<'a>);

impl<'de> Deserialize<'de> for TypeValue<'de> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&serde_json::value::RawValue>::deserialize(deserializer)?;
        let text = serde_json::from_str::<JsonText<'de>>(raw.get());
        Ok(Self(
            text.map_or(FrameType::Other, |text| FrameType::Text(text.0)),
        ))
    }
}

/// Whether a message of a connection that is not a device can be meant for the node. Others are not parsed.
fn may_concern_node(payload: &[u8]) -> bool {
    ["identify", "request", "control_ack"]
        .iter()
        .any(|word| memmem::find(payload, word.as_bytes()).is_some())
}

/// Classifies a text message. Members other than `type` are skipped without recursion, however deep they are.
pub(crate) fn classify(payload: &[u8], is_device: bool) -> MessageClass {
    let is_object = payload.trim_ascii_start().first() == Some(&b'{');
    if !is_object || !is_device && !may_concern_node(payload) {
        return MessageClass::Relay;
    }
    let Ok(text) = std::str::from_utf8(payload) else {
        return MessageClass::Relay;
    };
    let Ok(frame_type) = serde_json::from_str::<FrameType<'_>>(text) else {
        return MessageClass::Relay;
    };
    match frame_type {
        FrameType::None if is_device => MessageClass::Data,
        FrameType::Text(kind) => match &*kind {
            "data" if is_device => MessageClass::Data,
            "identify" => read_identify(text),
            "control_ack" => MessageClass::ControlAck,
            "request" => read_request(text),
            _ => MessageClass::Relay,
        },
        FrameType::None | FrameType::Other => MessageClass::Relay,
    }
}

fn read_identify(text: &str) -> MessageClass {
    let identity: Identity = match serde_json::from_str(text) {
        Ok(identity) => identity,
        Err(error) => return MessageClass::Invalid(format!("identify: {error}")),
    };
    let has_length = |text: &str, most| (1..=most).contains(&text.chars().count());
    let has_control = |text: &str| text.chars().any(char::is_control);
    let id = &identity.device_id;
    if !has_length(id, MAX_DEVICE_ID_CHARS) || has_control(id) {
        return MessageClass::Invalid(format!(
            "identify: deviceId: expected a text of 1 to {MAX_DEVICE_ID_CHARS} characters without control characters"
        ));
    }
    if (identity.device_name.as_deref())
        .is_some_and(|name| name.chars().count() > MAX_DEVICE_NAME_CHARS || has_control(name))
    {
        return MessageClass::Invalid(format!(
            "identify: deviceName: expected a text of at most {MAX_DEVICE_NAME_CHARS} characters without control characters"
        ));
    }
    MessageClass::Identify(identity)
}

fn read_request(text: &str) -> MessageClass {
    let request: DeviceRequest = match serde_json::from_str(text) {
        Ok(request) => request,
        Err(error) => return MessageClass::Invalid(format!("request: {error}")),
    };
    let is_valid = match &request.request_id {
        Value::String(id) => id.chars().count() <= MAX_REQUEST_ID_CHARS,
        Value::Number(_) => true,
        _ => false,
    };
    match is_valid {
        true => MessageClass::Request(request),
        false => MessageClass::Invalid(format!(
            "request: requestId: expected a text of at most {MAX_REQUEST_ID_CHARS} characters, or a number"
        )),
    }
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// Such as `INVALID_REQUEST_TYPE`.
    pub code: &'static str,
    pub message: String,
}

/// `{"type":"response","requestId","status","data"|"error","timestamp"}`
pub(crate) fn response(
    request_id: &Value,
    result: Result<Value, RequestError>,
    now_ms: u64,
) -> String {
    let mut response = json!({
        "type": "response",
        "requestId": request_id,
        "timestamp": now_ms,
    });
    match result {
        Ok(data) => {
            response["status"] = "success".into();
            response["data"] = data;
        }
        Err(error) => {
            response["status"] = "error".into();
            response["error"] = json!({"code": error.code, "message": error.message});
        }
    }
    response.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(text: &str, is_device: bool) -> MessageClass {
        classify(text.as_bytes(), is_device)
    }

    fn invalid(text: &str) -> String {
        match classified(text, false) {
            MessageClass::Invalid(reason) => reason,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn only_objects_of_devices_are_data_and_other_types_are_not() {
        for (text, expected) in [
            (r#"{"type":"data","data":{"t":1}}"#, MessageClass::Data),
            (r#"{"data":{"t":1}}"#, MessageClass::Data),
            (r#" {"t":1,"timestamp":5}"#, MessageClass::Data),
            (r#"{"type":"heartbeat","uptime":5}"#, MessageClass::Relay),
            (r#"{"t":1,"type":5}"#, MessageClass::Relay),
            (r#"{"t":1,"type":null}"#, MessageClass::Relay),
            (r#"{"t":1"#, MessageClass::Relay),
            (r#"[{"t":1}]"#, MessageClass::Relay),
            ("t=1", MessageClass::Relay),
        ] {
            assert_eq!(classified(text, true), expected, "{text}");
            assert_eq!(classified(text, false), MessageClass::Relay, "{text}");
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(500), "}".repeat(500));
        // Whoever reads the values limits their depth.
        assert_eq!(classified(&deep, true), MessageClass::Data);
        let deep =
            format!(r#"{{"type":"request","requestId":1,"requestType":"x","params":{deep}}}"#);
        assert!(matches!(classified(&deep, true), MessageClass::Invalid(_)));
    }

    #[test]
    fn identify_names_device_and_its_first_name() {
        let identity = |name: Option<&str>| {
            MessageClass::Identify(Identity {
                device_id: "d1".to_owned(),
                device_name: name.map(str::to_owned),
            })
        };
        for is_device in [true, false] {
            let text = r#"{"deviceId":"d1","type":"identify","other":[1]}"#;
            assert_eq!(classified(text, is_device), identity(None));
            let text = r#"{"type":"identify","deviceId":"d1","deviceName":"Pump"}"#;
            assert_eq!(classified(text, is_device), identity(Some("Pump")));
        }
        assert!(invalid(r#"{"type":"identify"}"#).contains("deviceId"));
        assert!(invalid(r#"{"type":"identify","deviceId":5}"#).contains("expected a string"));
        assert!(invalid(r#"{"type":"identify","deviceId":""}"#).contains("1 to 64"));
        let long = "ü".repeat(65);
        assert!(invalid(&format!(r#"{{"type":"identify","deviceId":"{long}"}}"#)).contains("64"));
        let long = "ü".repeat(101);
        let text = format!(r#"{{"type":"identify","deviceId":"d","deviceName":"{long}"}}"#);
        assert!(invalid(&text).contains("deviceName"));
        let text = r#"{"type":"message","data":"identify yourself"}"#;
        assert_eq!(classified(text, false), MessageClass::Relay);
    }

    #[test]
    fn requests_need_an_id_that_can_be_repeated() {
        let text = r#"{"type":"request","requestId":"r1","requestType":"config_query"}"#;
        let MessageClass::Request(request) = classified(text, false) else {
            panic!("a request");
        };
        assert_eq!(request.request_type, "config_query");
        assert_eq!(request.params, Value::Null);
        for id in ["null", "{}", "[1]", "true"] {
            let text = format!(r#"{{"type":"request","requestId":{id},"requestType":"x"}}"#);
            assert!(invalid(&text).contains("requestId"), "{text}");
        }
        assert!(invalid(r#"{"type":"request","requestId":1}"#).contains("requestType"));
    }

    #[test]
    fn responses_have_data_or_an_error() {
        let read = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        assert_eq!(
            read(response(&json!("r"), Ok(json!({"a": 1})), 7)),
            json!({"type": "response", "requestId": "r", "status": "success", "data": {"a": 1}, "timestamp": 7})
        );
        let error = RequestError {
            code: "INVALID_REQUEST_TYPE",
            message: "m".to_owned(),
        };
        assert_eq!(
            read(response(&json!(5), Err(error), 7)),
            json!({
                "type": "response", "requestId": 5, "status": "error", "timestamp": 7,
                "error": {"code": "INVALID_REQUEST_TYPE", "message": "m"},
            })
        );
    }
}
