//! Products: what all devices of a kind have in common. A product is a configuration object, read here.

use std::collections::BTreeSet;
use std::fmt;

use arc_swap::{ArcSwap, Guard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

use crate::alarm;
use crate::id::ProductId;
use crate::model::{ThingModel, UnknownKeys};

/// The kind of configuration objects that are products.
pub const KIND: &str = "product";

/// A topic dialect that devices of a product speak.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProductProtocol {
    Thingsboard,
    Jetlinks,
    /// `tg/{deviceId}/...`
    Own,
}

impl From<crate::protocol::DeviceProtocol> for ProductProtocol {
    fn from(dialect: crate::protocol::DeviceProtocol) -> Self {
        match dialect {
            crate::protocol::DeviceProtocol::ThingsBoard => Self::Thingsboard,
            crate::protocol::DeviceProtocol::JetLinks => Self::Jetlinks,
            crate::protocol::DeviceProtocol::Native => Self::Own,
        }
    }
}

/// A kind of credentials.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CredentialKind {
    /// An access token, sent as the user name.
    Token,
    /// User name and password.
    Password,
    /// JetLinks: `secureId|timestamp` and `md5(secureId|timestamp|secureKey)`.
    Secure,
    /// The common name of a verified client certificate.
    Certificate,
    /// A JWT as the password, signed with the device's key.
    Jwt,
}

impl fmt::Display for CredentialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "token",
            Self::Password => "password",
            Self::Secure => "secure",
            Self::Certificate => "certificate",
            Self::Jwt => "jwt",
        })
    }
}

/// How messages go through the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProductMode {
    /// A message is stored when its handling returns: the least latency.
    Sync,
    /// A bounded mailbox and batches: the most throughput.
    #[default]
    Actor,
}

/// What of the devices' telemetry is kept, and where else it goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProductStorage {
    /// Whether telemetry is stored in the node.
    pub enabled: bool,
    /// Only these keys are stored; empty: all.
    #[schemars(with = "Vec<String>", length(max = 4096))]
    pub keys: BTreeSet<String>,
    /// Days that points are kept; 0: the node's default.
    #[schemars(range(max = 36500))]
    pub retention_d: u32,
    /// From an age on, points are reduced to aggregates of intervals; ages ascend, and an interval is a multiple of the one before.
    #[schemars(length(max = 4))]
    pub downsampling: Vec<DownsamplingStep>,
    /// Names of sinks that get telemetry as well.
    #[schemars(length(max = 16))]
    pub sinks: Vec<String>,
    /// Whether each message, from a device or to it, goes to the sinks itself, too, as a second document.
    pub device_log: bool,
    /// Of a message's payload its document has no more bytes; 0: none.
    #[schemars(range(max = 1_048_576))]
    pub log_payload_bytes: u32,
    /// Names of sinks that get messages; empty: those that get telemetry.
    #[schemars(length(max = 16))]
    pub log_sinks: Vec<String>,
}

/// How fine old points are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DownsamplingStep {
    /// In days.
    #[schemars(range(min = 1, max = 36500))]
    pub after_d: u32,
    /// Seconds, so that a day has a whole number of intervals.
    #[schemars(range(min = 1, max = 86400))]
    pub interval_s: u32,
}

impl ProductStorage {
    /// Names of the sinks that get messages, if [`ProductStorage::device_log`] says so.
    pub fn log_sink_names(&self) -> &[String] {
        match self.log_sinks.is_empty() {
            true => &self.sinks,
            false => &self.log_sinks,
        }
    }
}

impl Default for ProductStorage {
    fn default() -> Self {
        Self {
            enabled: true,
            keys: BTreeSet::new(),
            retention_d: 0,
            downsampling: Vec::new(),
            sinks: Vec::new(),
            device_log: false,
            log_payload_bytes: 65_536,
            log_sinks: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProvisionMode {
    /// A device nobody knows is made.
    AllowNew,
    /// Only devices that were registered before, and have never connected, are given credentials.
    CheckExisting,
}

/// How devices of the product register themselves.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProductProvisioning {
    pub mode: ProvisionMode,
    /// What devices show to be of this product; unique in the node.
    #[schemars(length(min = 8, max = 64))]
    pub key: String,
    /// What they prove it with. Not shown again.
    #[schemars(length(min = 8, max = 64))]
    pub secret: String,
}

impl fmt::Debug for ProductProvisioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provisioning")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// `secureId` and `secureKey` of all devices that have none of their own.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharedSecure {
    #[schemars(length(min = 1, max = 128))]
    pub secure_id: String,
    /// Not shown again.
    #[schemars(length(min = 1, max = 128))]
    pub secure_key: String,
}

impl fmt::Debug for SharedSecure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSecure")
            .field("secure_id", &self.secure_id)
            .finish_non_exhaustive()
    }
}

/// A product as somebody writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProductDefinition {
    /// For people; the id, if there is none.
    #[schemars(length(max = 256))]
    pub name: String,
    #[schemars(length(max = 1000))]
    pub description: String,
    /// A disabled product lets none of its devices in.
    pub enabled: bool,
    /// The thing model: JetLinks' metadata, as an object or as text of one.
    pub model: Value,
    /// What becomes of reported keys that the model does not have.
    pub unknown_keys: UnknownKeys,
    /// Texts that are numbers, such as `"21.5"`, are stored as numbers, unless the thing model says what their key is.
    pub text_numbers: bool,
    /// The topics its devices speak; empty: all.
    #[schemars(with = "Vec<ProductProtocol>")]
    pub dialects: BTreeSet<ProductProtocol>,
    /// The credentials its devices may have; empty: all.
    #[schemars(with = "Vec<CredentialKind>")]
    pub credentials: BTreeSet<CredentialKind>,
    pub secure: Option<SharedSecure>,
    /// How old or early the timestamp of `secureId|timestamp` may be.
    #[schemars(range(min = 1, max = 86400))]
    pub secure_window_s: u32,
    /// Devices may have other devices behind them.
    pub gateway: bool,
    /// Devices without a connection count as online for so long after they were heard of.
    #[schemars(range(min = 1, max = 31536000))]
    pub inactivity_timeout_s: u32,
    /// The rule chain its messages go through; `null`: the root chain.
    pub chain: Option<String>,
    pub mode: ProductMode,
    pub storage: ProductStorage,
    /// Rules of alarms.
    #[schemars(with = "Vec<alarm::AlarmRule>", length(max = 64))]
    pub alarms: Vec<Value>,
    pub provisioning: Option<ProductProvisioning>,
}

impl Default for ProductDefinition {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            enabled: true,
            model: Value::Null,
            unknown_keys: UnknownKeys::Keep,
            text_numbers: false,
            dialects: BTreeSet::new(),
            credentials: BTreeSet::new(),
            secure: None,
            secure_window_s: 300,
            gateway: false,
            inactivity_timeout_s: 600,
            chain: None,
            mode: ProductMode::Actor,
            storage: ProductStorage::default(),
            alarms: Vec::new(),
            provisioning: None,
        }
    }
}

/// Something about a product that cannot stay as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ProductError {
    pub field: String,
    pub message: String,
}

/// A product, ready to be used.
#[derive(Debug)]
pub struct Product {
    pub id: ProductId,
    pub definition: ProductDefinition,
    /// Compiled.
    pub model: ThingModel,
    /// Of the configuration object; grows with each change.
    pub version: u64,
}

impl Product {
    /// Reads a product; every message names its field.
    pub fn read(id: &str, value: &Value, version: u64) -> Result<Self, Vec<ProductError>> {
        let one = |field: &str, message: String| {
            vec![ProductError {
                field: field.to_owned(),
                message,
            }]
        };
        let id = ProductId::new(id).map_err(|error| one("id", error.to_string()))?;
        let definition: ProductDefinition = serde_json::from_value(value.clone())
            .map_err(|error| one("product", error.to_string()))?;
        // JetLinks keeps metadata as text.
        let parsed: Value;
        let metadata = match &definition.model {
            Value::String(text) => {
                parsed = serde_json::from_str(text)
                    .map_err(|error| one("model", format!("its text is no JSON: {error}")))?;
                &parsed
            }
            other => other,
        };
        let model = ThingModel::read(metadata, definition.unknown_keys).map_err(|errors| {
            let errors = errors.into_iter().map(|error| ProductError {
                field: format!("model.{}", error.place),
                message: error.message,
            });
            errors.collect::<Vec<_>>()
        })?;
        let numbers = [
            ("secure_window_s", definition.secure_window_s, 1, 86_400),
            (
                "inactivity_timeout_s",
                definition.inactivity_timeout_s,
                1,
                31_536_000,
            ),
            (
                "storage.retention_d",
                definition.storage.retention_d,
                0,
                36_500,
            ),
            (
                "storage.log_payload_bytes",
                definition.storage.log_payload_bytes,
                0,
                1 << 20,
            ),
        ];
        for (field, found, least, most) in numbers {
            if !(least..=most).contains(&found) {
                return Err(one(
                    field,
                    format!("expected {least} to {most}, found {found}"),
                ));
            }
        }
        let chars = |text: &str| text.chars().count();
        let mut lengths = vec![
            ("name", chars(&definition.name), 0, 256, "characters"),
            (
                "description",
                chars(&definition.description),
                0,
                1000,
                "characters",
            ),
            (
                "storage.keys",
                definition.storage.keys.len(),
                0,
                4096,
                "keys",
            ),
            (
                "storage.sinks",
                definition.storage.sinks.len(),
                0,
                16,
                "names",
            ),
            (
                "storage.log_sinks",
                definition.storage.log_sinks.len(),
                0,
                16,
                "names",
            ),
            (
                "storage.downsampling",
                definition.storage.downsampling.len(),
                0,
                4,
                "steps",
            ),
        ];
        if let Some(provisioning) = &definition.provisioning {
            let ProductProvisioning { key, secret, .. } = provisioning;
            lengths.push(("provisioning.key", chars(key), 8, 64, "characters"));
            lengths.push(("provisioning.secret", chars(secret), 8, 64, "characters"));
        }
        if let Some(SharedSecure {
            secure_id,
            secure_key,
        }) = &definition.secure
        {
            let (id, key) = (chars(secure_id), chars(secure_key));
            lengths.push(("secure.secure_id", id, 1, 128, "characters"));
            lengths.push(("secure.secure_key", key, 1, 128, "characters"));
        }
        for (field, found, least, most, what) in lengths {
            if !(least..=most).contains(&found) {
                let message = format!("expected {least} to {most} {what}, found {found}");
                return Err(one(field, message));
            }
        }
        check_steps(&definition.storage.downsampling)
            .map_err(|(field, message)| one(&format!("storage.downsampling{field}"), message))?;
        alarm::check_rules(&Value::Array(definition.alarms.clone()))
            .map_err(|problem| one(&problem.field, problem.detail))?;
        Ok(Self {
            id,
            definition,
            model,
            version,
        })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        match self.definition.name.as_str() {
            "" => self.id.as_str(),
            name => name,
        }
    }

    #[must_use]
    pub fn allows_protocol(&self, dialect: ProductProtocol) -> bool {
        let dialects = &self.definition.dialects;
        dialects.is_empty() || dialects.contains(&dialect)
    }

    #[must_use]
    pub fn allows_credential(&self, kind: CredentialKind) -> bool {
        let kinds = &self.definition.credentials;
        kinds.is_empty() || kinds.contains(&kind)
    }

    #[must_use]
    pub fn mode(&self) -> ProductMode {
        self.definition.mode
    }

    /// `None`: the root chain.
    #[must_use]
    pub fn chain(&self) -> Option<&str> {
        self.definition.chain.as_deref()
    }

    #[must_use]
    pub fn storage(&self) -> &ProductStorage {
        &self.definition.storage
    }
}

/// The field behind `downsampling` of what is wrong, and what it is.
fn check_steps(steps: &[DownsamplingStep]) -> Result<(), (String, String)> {
    const DAY_S: u32 = 86_400;
    let mut before: Option<&DownsamplingStep> = None;
    for (at, step) in steps.iter().enumerate() {
        let DownsamplingStep {
            after_d,
            interval_s,
        } = *step;
        let wrong = |field: &str, message: String| Err((format!("[{at}].{field}"), message));
        let least_d = before.map_or(1, |before| before.after_d.saturating_add(1));
        if !(least_d..=36_500).contains(&after_d) {
            return wrong(
                "after_d",
                format!("expected {least_d} to 36500, found {after_d}"),
            );
        }
        if !DAY_S.is_multiple_of(interval_s) {
            let message =
                format!("expected a divisor of a day, such as 60, 900 or 3600, found {interval_s}");
            return wrong("interval_s", message);
        }
        if let Some(before) = before
            && !interval_s.is_multiple_of(before.interval_s)
        {
            let message = format!(
                "expected a multiple of {}, the interval of the step before, found {interval_s}",
                before.interval_s
            );
            return wrong("interval_s", message);
        }
        before = Some(step);
    }
    Ok(())
}

/// Where a product is found in its newest version; devices hold it.
#[derive(Debug)]
pub struct ProductSlot {
    id: ProductId,
    current: ArcSwap<Product>,
}

impl ProductSlot {
    pub(crate) fn new(product: Product) -> Self {
        Self {
            id: product.id.clone(),
            current: ArcSwap::from_pointee(product),
        }
    }

    #[must_use]
    pub fn id(&self) -> &ProductId {
        &self.id
    }

    /// The product as it is now. Cheap: looked at for each message.
    #[inline]
    pub fn get(&self) -> Guard<Arc<Product>> {
        self.current.load()
    }

    pub(crate) fn set(&self, product: Product) {
        self.current.store(Arc::new(product));
    }
}

impl From<ProductProtocol> for crate::protocol::DeviceProtocol {
    fn from(dialect: ProductProtocol) -> Self {
        match dialect {
            ProductProtocol::Thingsboard => Self::ThingsBoard,
            ProductProtocol::Jetlinks => Self::JetLinks,
            ProductProtocol::Own => Self::Native,
        }
    }
}
