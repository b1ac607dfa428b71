//! The definition of an endpoint, as stored and as shown by the API.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access_key::AccessKeyHash;

/// The kind of the configuration objects that define endpoints.
pub const KIND: &str = "endpoint";
/// Maximum number of endpoints of a node.
pub const MAX_ENDPOINTS: usize = 100_000;
pub const DEFAULT_MAX_BACKLOG_BYTES: u32 = 1024 * 1024;

const MAX_ID_BYTES: usize = 64;
const MAX_NAME_CHARS: usize = 100;
const MAX_HEADER_CHARS: usize = 255;
const MAX_REASON_CHARS: usize = 255;
const MAX_ORIGINS: usize = 64;
const MAX_UNITS: usize = 256;
const MAX_UNIT_KEY_CHARS: usize = 100;
const MAX_UNIT_CHARS: usize = 20;
const MIN_ACCESS_KEY_CHARS: usize = 16;
const MAX_ACCESS_KEY_CHARS: usize = 128;

/// The form in which receivers get messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RelayMode {
    /// As they were sent.
    Direct,
    /// `{"type":"message","data":...,"timestamp":...}`. `data` and `timestamp` of a JSON object with `type` and `data` are
    /// taken over; of other JSON, `data` is the whole value; of other text, it is the text. Binary messages are
    /// unchanged.
    #[default]
    Json,
    /// The text of `header`, directly followed by the message.
    CustomHeader,
}

/// What happens to receivers that are too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SlowReceivers {
    /// They lose their oldest waiting messages, and are told how many when they have caught up.
    #[default]
    DropOldest,
    /// They are disconnected with close code 1013.
    Disconnect,
}

/// A relay endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointDefinition {
    /// Display name; default: the id.
    #[schemars(length(max = 100))]
    pub name: String,
    /// The namespace that it belongs to.
    #[serde(default = "namespaces::default_id")]
    pub namespace: String,
    /// The form in which receivers get messages. A change applies to the next message.
    pub mode: RelayMode,
    /// The text in front of each message; for mode `custom_header` only.
    #[schemars(length(max = 255))]
    pub header: Option<String>,
    /// SHA-256 of the access key in hexadecimal digits. Not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub access_key_sha256: Option<String>,
    /// Origins of web pages that may connect, such as `https://example.org`; empty: all.
    #[schemars(length(max = 64))]
    pub allowed_origins: Vec<String>,
    /// Connections at a time.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections: u32,
    /// Length of a message in bytes, over all its fragments. Applies to new connections.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_message_bytes: u32,
    /// Messages per second and connection; 0: no limit. A client over it is not read for a while. Applies to new
    /// connections.
    pub max_messages_per_s: u32,
    /// Bytes per second and connection; 0: no limit. Applies to new connections.
    pub max_bytes_per_s: u32,
    /// Bytes of messages that may wait for a receiver.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub max_backlog_bytes: u32,
    pub slow_receivers: SlowReceivers,
    /// Product of the devices that identify themselves here; default: a product of the endpoint's own, `relay-` and the
    /// endpoint's id, which is created for the first device. Applies to new devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub product: Option<String>,
    /// Units of keys that the thing model describes without a unit or not at all, in addition to the usual ones of common
    /// names such as `temperature`; an empty text: none. Upper and lower case of keys are the same.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 256))]
    pub units: BTreeMap<String, String>,
    /// Seconds between pings. A client that has not answered two of them is disconnected with the next.
    #[schemars(range(min = 1, max = 3600))]
    pub ping_interval_s: u16,
    /// Last messages kept for the API; 0: none.
    #[schemars(range(max = 1000))]
    pub history_messages: u16,
    /// Bytes of the last messages kept. Longer texts are cut at 5000 characters.
    #[schemars(range(max = 16_777_216))]
    pub history_bytes: u32,
    /// If set, nobody can connect, and clients are told this reason.
    #[schemars(length(max = 255))]
    pub disabled_reason: Option<String>,
}

impl Default for EndpointDefinition {
    fn default() -> Self {
        Self {
            name: String::new(),
            namespace: namespaces::default_id(),
            mode: RelayMode::default(),
            header: None,
            access_key_sha256: None,
            allowed_origins: Vec::new(),
            max_connections: 1000,
            max_message_bytes: 1024 * 1024,
            max_messages_per_s: 0,
            max_bytes_per_s: 0,
            max_backlog_bytes: DEFAULT_MAX_BACKLOG_BYTES,
            slow_receivers: SlowReceivers::default(),
            product: None,
            units: BTreeMap::new(),
            ping_interval_s: 15,
            history_messages: 50,
            history_bytes: 256 * 1024,
            disabled_reason: None,
        }
    }
}

/// A field of an endpoint with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct EndpointError {
    /// Path of the field; empty: the endpoint as a whole.
    pub field: String,
    pub detail: String,
}

fn invalid(field: &str, detail: impl Into<String>) -> EndpointError {
    EndpointError {
        field: field.to_owned(),
        detail: detail.into(),
    }
}

impl EndpointDefinition {
    /// Checks an id: it is part of a topic and of an address.
    ///
    /// # Errors
    /// Says which characters are expected.
    pub fn check_id(id: &str) -> Result<(), EndpointError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !(1..=MAX_ID_BYTES).contains(&id.len()) || !id.bytes().all(is_allowed) {
            let detail = format!(
                "expected 1 to {MAX_ID_BYTES} of the characters A-Z, a-z, 0-9, '-' and '_', found {id:?}"
            );
            return Err(invalid("id", detail));
        }
        Ok(())
    }

    /// Reads the JSON of a request or of the configuration. The field `access_key` is replaced by its hash; if it is omitted or `***`,
    /// the hash of `current` stays, and `null` removes it.
    ///
    /// # Errors
    /// Returns the path of the invalid field and what is wrong with it.
    pub fn read(mut value: Value, current: Option<&Value>) -> Result<Self, EndpointError> {
        if let Some(fields) = value.as_object_mut() {
            let hash_field = "access_key_sha256";
            if fields.contains_key(hash_field) {
                let detail = "unknown field; give `access_key`, of which the node stores a hash";
                return Err(invalid(hash_field, detail));
            }
            // Part of the answers, which clients change and send back.
            fields.remove("has_access_key");
            let key = fields.remove("access_key");
            match key.filter(|key| *key != secret::MASK) {
                None => {
                    let kept = current.and_then(|current| current.get(hash_field));
                    if let Some(kept) = kept {
                        fields.insert(hash_field.into(), kept.clone());
                    }
                }
                Some(Value::Null) => {}
                Some(Value::String(key)) => {
                    check_access_key(&key)?;
                    let hash = AccessKeyHash::new(&key);
                    fields.insert(hash_field.into(), hash.as_hex().into());
                }
                Some(_) => return Err(invalid("access_key", "expected a text")),
            }
        }
        let read: Result<Self, _> = definition::read_definition(value);
        // People write the key, and never its hash.
        let endpoint = read.map_err(|error| {
            let detail = error.detail.replace("`access_key_sha256`", "`access_key`");
            invalid(&error.field, detail)
        })?;
        endpoint.check()?;
        Ok(endpoint)
    }

    /// Reads a stored object, which contains the hash of the access key.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_stored(mut value: Value) -> Result<Self, EndpointError> {
        let stored = value.clone();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("access_key_sha256");
        }
        Self::read(value, Some(&stored))
    }

    fn check(&self) -> Result<(), EndpointError> {
        let texts = [
            ("name", Some(&self.name), MAX_NAME_CHARS),
            ("header", self.header.as_ref(), MAX_HEADER_CHARS),
            (
                "disabled_reason",
                self.disabled_reason.as_ref(),
                MAX_REASON_CHARS,
            ),
        ];
        for (field, text, most) in texts {
            if text.is_some_and(|text| text.chars().count() > most) {
                return Err(invalid(
                    field,
                    format!("expected at most {most} characters"),
                ));
            }
        }
        if let Some(product) = &self.product
            && !(1..=MAX_ID_BYTES).contains(&product.len())
        {
            let detail = format!(
                "expected the id of a product, 1 to {MAX_ID_BYTES} bytes; omit it for a product of its own"
            );
            return Err(invalid("product", detail));
        }
        self.check_units()?;
        match (self.mode, &self.header) {
            (RelayMode::CustomHeader, None) => {
                return Err(invalid(
                    "header",
                    "mode \"custom_header\" needs a header; it may be empty",
                ));
            }
            (RelayMode::Direct | RelayMode::Json, Some(_)) => {
                return Err(invalid(
                    "header",
                    "only for mode \"custom_header\"; omit it, or change the mode",
                ));
            }
            _ => {}
        }
        if let Some(hash) = &self.access_key_sha256
            && AccessKeyHash::from_hex(hash).is_none()
        {
            return Err(invalid(
                "access_key_sha256",
                "expected 64 hexadecimal digits",
            ));
        }
        if self.allowed_origins.len() > MAX_ORIGINS {
            let detail = format!("expected at most {MAX_ORIGINS} origins");
            return Err(invalid("allowed_origins", detail));
        }
        for origin in &self.allowed_origins {
            if !ws::is_origin(origin) {
                let detail = format!(
                    "expected an origin such as https://example.org, without a path, found {origin:?}"
                );
                return Err(invalid("allowed_origins", detail));
            }
        }
        let ranges = [
            ("max_connections", self.max_connections, 1, 1_000_000),
            ("max_message_bytes", self.max_message_bytes, 1, 16 << 20),
            ("max_backlog_bytes", self.max_backlog_bytes, 1024, 64 << 20),
            ("ping_interval_s", self.ping_interval_s.into(), 1, 3600),
            ("history_messages", self.history_messages.into(), 0, 1000),
            ("history_bytes", self.history_bytes, 0, 16 << 20),
        ];
        for (field, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                let detail = format!("expected a number from {least} to {most}, found {value}");
                return Err(invalid(field, detail));
            }
        }
        Ok(())
    }

    fn check_units(&self) -> Result<(), EndpointError> {
        if self.units.len() > MAX_UNITS {
            let detail = format!("expected at most {MAX_UNITS} units");
            return Err(invalid("units", detail));
        }
        for (at, (key, unit)) in self.units.iter().enumerate() {
            let field = format!("units.{key}");
            if !(1..=MAX_UNIT_KEY_CHARS).contains(&key.chars().count())
                || unit.chars().count() > MAX_UNIT_CHARS
            {
                let detail = format!(
                    "expected a key of 1 to {MAX_UNIT_KEY_CHARS} characters and a unit of at most {MAX_UNIT_CHARS}"
                );
                return Err(invalid(&field, detail));
            }
            let mut before = self.units.keys().take(at);
            if let Some(same) = before.find(|other| other.eq_ignore_ascii_case(key)) {
                let detail = format!("the same key as {same:?}; omit one of them");
                return Err(invalid(&field, detail));
            }
        }
        Ok(())
    }

    pub(crate) fn access_key(&self) -> Option<AccessKeyHash> {
        AccessKeyHash::from_hex(self.access_key_sha256.as_deref()?)
    }

    /// The stored object as shown by the API: whether there is an access key, instead of its hash.
    pub fn public_view(stored: &Value) -> Value {
        let mut view = stored.clone();
        if let Some(fields) = view.as_object_mut() {
            let has_key = fields.remove("access_key_sha256").is_some();
            fields.insert("has_access_key".into(), has_key.into());
        }
        view
    }
}

fn check_access_key(key: &str) -> Result<(), EndpointError> {
    // Browsers can send it only as a query parameter or as a sub-protocol, which is a token (RFC 9110 section 5.6.2).
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !(MIN_ACCESS_KEY_CHARS..=MAX_ACCESS_KEY_CHARS).contains(&key.len())
        || !key.bytes().all(is_allowed)
    {
        let detail = format!(
            "expected {MIN_ACCESS_KEY_CHARS} to {MAX_ACCESS_KEY_CHARS} of the characters A-Z, a-z, 0-9, '-', '_' and '.'"
        );
        return Err(invalid("access_key", detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(value: Value) -> String {
        EndpointDefinition::read(value, None)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn invalid_fields_are_named_with_what_is_expected() {
        assert!(error(json!({"mode": "jason"})).contains("mode: unknown value `jason`"));
        assert!(error(json!({"mode": "custom_header"})).starts_with("header: "));
        assert!(error(json!({"header": "x"})).contains("only for mode"));
        let with_header = |length: usize| {
            let header = "ä".repeat(length);
            EndpointDefinition::read(json!({"mode": "custom_header", "header": header}), None)
        };
        assert!(with_header(255).is_ok());
        assert!(with_header(256).unwrap_err().to_string().contains("255"));
        assert!(error(json!({"max_connections": 0})).contains("from 1 to 1000000"));
        assert!(error(json!({"allowed_origins": ["example.org"]})).contains("https://example.org"));
        assert!(error(json!({"allowed_origins": ["https://a/"]})).contains("without a path"));
        let origins = json!(["https://a:8443", "file://", "null", "app://x"]);
        assert!(EndpointDefinition::read(json!({"allowed_origins": origins}), None).is_ok());
        assert!(
            error(json!({"access_key": "short"})).starts_with("access_key: expected 16 to 128")
        );
        assert!(error(json!({"product": ""})).starts_with("product: expected the id"));
        assert!(error(json!({"units": {"t": "x".repeat(21)}})).starts_with("units.t: expected"));
        assert!(error(json!({"units": {"T": "K", "t": "K"}})).contains("the same key as \"T\""));
        let unknown = error(json!({"acess_key": "x"}));
        assert!(
            unknown.contains("unknown field") && unknown.contains("`access_key`"),
            "{unknown}"
        );
        let hash = "ab".repeat(32);
        let internal = error(json!({"access_key_sha256": hash}));
        assert!(
            internal.starts_with("access_key_sha256: unknown field; give `access_key`"),
            "{internal}"
        );
        let stored = EndpointDefinition::read_stored(json!({"access_key_sha256": hash})).unwrap();
        assert!(stored.access_key().is_some());
        assert!(EndpointDefinition::check_id("a/b").is_err());
        assert!(EndpointDefinition::check_id("Aa0_-").is_ok());
    }

    #[test]
    fn the_access_key_is_hashed_kept_and_removed() {
        let key = "0123456789abcdef";
        let first = EndpointDefinition::read(json!({"access_key": key}), None).unwrap();
        assert!(first.access_key().unwrap().matches(key));
        assert!(!first.access_key().unwrap().matches("0123456789abcdeF"));
        let stored = serde_json::to_value(&first).unwrap();
        assert!(!stored.to_string().contains(key));
        let view = EndpointDefinition::public_view(&stored);
        assert_eq!(view["has_access_key"], true);
        assert!(view.get("access_key_sha256").is_none());
        let shown = EndpointDefinition::read(view, Some(&stored)).unwrap();
        assert_eq!(shown, first);
        for unchanged in [json!({"name": "n"}), json!({"access_key": "***"})] {
            let kept = EndpointDefinition::read(unchanged, Some(&stored)).unwrap();
            assert!(kept.access_key().is_some());
        }
        let none = EndpointDefinition::read(json!({"access_key": null}), Some(&stored)).unwrap();
        assert!(none.access_key().is_none());
    }
}
