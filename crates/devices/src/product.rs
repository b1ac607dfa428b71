//! Products: what all devices of one type have in common. A product is a configuration object, which this module
//! parses.

use std::collections::BTreeSet;
use std::fmt;

use arc_swap::{ArcSwap, Guard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::alarm;
use crate::id::ProductId;
use crate::model::{ThingModel, UnknownKeys};
use crate::protocol::DeviceProtocol;

/// The kind of the configuration objects that define products.
pub const KIND: &str = "product";

/// The type of a credential.
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

/// How messages pass through the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProductMode {
    /// A message is stored before its handling returns: lowest latency.
    Sync,
    /// Messages pass through a bounded mailbox and are stored in batches: highest throughput.
    #[default]
    Actor,
}

/// Which telemetry of the devices is stored, and which sinks receive it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProductStorage {
    /// Whether the node stores telemetry.
    pub enabled: bool,
    /// Whether another node of the cluster keeps a copy of the stored telemetry, so that it can be read while the node of the
    /// device is down, and after it was lost. Without effect outside of clusters.
    pub replicated: bool,
    /// Keys that are stored; empty: all keys.
    #[schemars(with = "Vec<String>", length(max = 4096))]
    pub keys: BTreeSet<String>,
    /// Retention of points in days; 0: the default of the node.
    #[schemars(range(max = 36500))]
    pub retention_days: u32,
    /// Steps that reduce old points to one aggregate per interval. Ages ascend, and each interval is a multiple of
    /// the one before.
    #[schemars(length(max = 4))]
    pub downsampling: Vec<DownsamplingStep>,
    /// Names of sinks that also receive telemetry.
    #[schemars(length(max = 16))]
    pub sinks: Vec<String>,
    /// Whether the sinks also receive each message from or to a device as a second document.
    pub device_log: bool,
    /// Maximum payload bytes in the document of a message; 0: no payload.
    #[schemars(range(max = 1_048_576))]
    pub log_payload_bytes: u32,
    /// Names of sinks that receive messages; empty: the sinks of telemetry.
    #[schemars(length(max = 16))]
    pub log_sinks: Vec<String>,
}

/// Resolution of points older than an age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DownsamplingStep {
    /// Age of the points in days.
    #[schemars(range(min = 1, max = 36500))]
    pub after_days: u32,
    /// Interval in seconds; a day must contain a whole number of intervals.
    #[schemars(range(min = 1, max = 86400))]
    pub interval_s: u32,
}

impl ProductStorage {
    /// Names of the sinks that receive messages. Used only if [`ProductStorage::device_log`] is set.
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
            replicated: false,
            keys: BTreeSet::new(),
            retention_days: 0,
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
    /// An unknown device is created.
    AllowNew,
    /// Only devices that were registered before and have never connected receive credentials.
    CheckExisting,
}

/// How devices of the product register themselves.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProductProvisioning {
    pub mode: ProvisionMode,
    /// Key by which devices name this product; unique in the node.
    #[schemars(length(min = 8, max = 64))]
    pub key: String,
    /// Secret that authorises registration. Shown as `***`.
    #[schemars(length(min = 8, max = 64), extend("writeOnly" = true))]
    pub secret: String,
}

impl fmt::Debug for ProductProvisioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provisioning")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// `secureId` and `secureKey` for all devices that have no secure credential of their own.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharedSecure {
    #[schemars(length(min = 1, max = 128))]
    pub secure_id: String,
    /// Secure key. Shown as `***`.
    #[schemars(length(min = 1, max = 128), extend("writeOnly" = true))]
    pub secure_key: String,
}

impl fmt::Debug for SharedSecure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSecure")
            .field("secure_id", &self.secure_id)
            .finish_non_exhaustive()
    }
}

/// A product as written by the operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProductDefinition {
    /// Display name; default: the id.
    #[schemars(length(max = 256))]
    pub name: String,
    #[schemars(length(max = 1000))]
    pub description: String,
    /// Namespace of the product and its devices; cannot change.
    #[schemars(length(min = 1, max = 64))]
    pub namespace: String,
    /// Whether devices of the product may connect.
    pub enabled: bool,
    /// Thing model: JetLinks metadata as an object, or as a text that contains the object.
    pub model: Value,
    /// How reported keys that are not in the thing model are handled.
    pub unknown_keys: UnknownKeys,
    /// Whether texts that are numbers, such as `"21.5"`, are stored as numbers, unless the thing model defines the
    /// type of the key.
    pub parse_numeric_text: bool,
    /// Device protocols that devices may use; empty: all.
    #[schemars(with = "Vec<DeviceProtocol>")]
    pub protocols: BTreeSet<DeviceProtocol>,
    /// Types of credentials that devices may have; empty: all.
    #[schemars(with = "Vec<CredentialKind>")]
    pub credentials: BTreeSet<CredentialKind>,
    pub secure: Option<SharedSecure>,
    /// Maximum difference in seconds between the timestamp in `secureId|timestamp` and the clock of the node.
    #[schemars(range(min = 1, max = 86400))]
    pub secure_max_clock_skew_s: u32,
    /// Whether devices may have child devices.
    pub gateway: bool,
    /// Seconds for which a device without a connection counts as online after its last activity.
    #[schemars(range(min = 1, max = 31536000))]
    pub inactivity_timeout_s: u32,
    /// Name of the rule chain that processes the messages; `null`: the root chain.
    pub rule_chain: Option<String>,
    pub mode: ProductMode,
    pub storage: ProductStorage,
    /// Alarm rules.
    #[schemars(with = "Vec<alarm::AlarmRule>", length(max = 64))]
    pub alarms: Vec<Value>,
    pub provisioning: Option<ProductProvisioning>,
}

impl Default for ProductDefinition {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            namespace: namespaces::default_id(),
            enabled: true,
            model: Value::Null,
            unknown_keys: UnknownKeys::Keep,
            parse_numeric_text: false,
            protocols: BTreeSet::new(),
            credentials: BTreeSet::new(),
            secure: None,
            secure_max_clock_skew_s: 300,
            gateway: false,
            inactivity_timeout_s: 600,
            rule_chain: None,
            mode: ProductMode::Actor,
            storage: ProductStorage::default(),
            alarms: Vec::new(),
            provisioning: None,
        }
    }
}

/// A field of a product with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ProductError {
    pub field: String,
    pub message: String,
}

/// A product with its compiled thing model.
#[derive(Debug)]
pub struct Product {
    pub id: ProductId,
    pub definition: ProductDefinition,
    /// The compiled thing model.
    pub model: ThingModel,
    /// Version of the configuration object; increases with each change.
    pub version: u64,
}

impl Product {
    /// The unit of a key in the thing model.
    #[must_use]
    pub fn unit_of(&self, key: &str) -> Option<&str> {
        self.model.property(key)?.unit.as_deref()
    }

    /// Parses and validates a product; each error names its field.
    pub fn read(id: &str, value: &Value, version: u64) -> Result<Self, Vec<ProductError>> {
        let one = |field: &str, message: String| {
            vec![ProductError {
                field: field.to_owned(),
                message,
            }]
        };
        let id = ProductId::new(id).map_err(|error| one("id", error.to_string()))?;
        let definition: ProductDefinition =
            definition::read_definition(value).map_err(|error| match error.field.as_str() {
                "" => one("product", error.detail),
                field => one(field, error.detail.clone()),
            })?;
        // JetLinks stores metadata as text.
        let parsed: Value;
        let metadata = match &definition.model {
            Value::String(text) => {
                parsed = serde_json::from_str(text)
                    .map_err(|error| one("model", format!("expected JSON text: {error}")))?;
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
        check_numbers(&definition)
            .and_then(|()| check_lengths(&definition))
            .map_err(|(field, message)| one(field, message))?;
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

    /// The namespace of the product and its devices.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.definition.namespace
    }

    #[must_use]
    pub fn allows_protocol(&self, protocol: DeviceProtocol) -> bool {
        let protocols = &self.definition.protocols;
        protocols.is_empty() || protocols.contains(&protocol)
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

    /// The rule chain of the product; `None`: the root chain.
    #[must_use]
    pub fn rule_chain(&self) -> Option<&str> {
        self.definition.rule_chain.as_deref()
    }

    #[must_use]
    pub fn storage(&self) -> &ProductStorage {
        &self.definition.storage
    }
}

/// Checks the bounds of numbers; an error names the field.
fn check_numbers(definition: &ProductDefinition) -> Result<(), (&'static str, String)> {
    let numbers = [
        (
            "secure_max_clock_skew_s",
            definition.secure_max_clock_skew_s,
            1,
            86_400,
        ),
        (
            "inactivity_timeout_s",
            definition.inactivity_timeout_s,
            1,
            31_536_000,
        ),
        (
            "storage.retention_days",
            definition.storage.retention_days,
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
            return Err((field, format!("expected {least} to {most}, found {found}")));
        }
    }
    Ok(())
}

/// Checks the lengths of texts and lists; an error names the field.
fn check_lengths(definition: &ProductDefinition) -> Result<(), (&'static str, String)> {
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
            return Err((field, message));
        }
    }
    Ok(())
}

/// Checks the steps of `downsampling`. An error holds the field path behind `downsampling` and the message.
fn check_steps(steps: &[DownsamplingStep]) -> Result<(), (String, String)> {
    const DAY_S: u32 = 86_400;
    let mut before: Option<&DownsamplingStep> = None;
    for (at, step) in steps.iter().enumerate() {
        let DownsamplingStep {
            after_days,
            interval_s,
        } = *step;
        let wrong = |field: &str, message: String| Err((format!("[{at}].{field}"), message));
        let least_d = before.map_or(1, |before| before.after_days.saturating_add(1));
        if !(least_d..=36_500).contains(&after_days) {
            return wrong(
                "after_days",
                format!("expected {least_d} to 36500, found {after_days}"),
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

/// Holds the newest version of a product; devices refer to the slot.
#[derive(Debug)]
pub struct ProductSlot {
    id: ProductId,
    current: ArcSwap<Product>,
    is_namespace_active: AtomicBool,
}

impl ProductSlot {
    pub(crate) fn new(product: Product) -> Self {
        Self {
            id: product.id.clone(),
            current: ArcSwap::from_pointee(product),
            is_namespace_active: AtomicBool::new(true),
        }
    }

    #[must_use]
    pub fn id(&self) -> &ProductId {
        &self.id
    }

    /// The current version of the product. Cheap, because it is read for each message.
    #[inline]
    pub fn get(&self) -> Guard<Arc<Product>> {
        self.current.load()
    }

    pub(crate) fn set(&self, product: Product) {
        self.current.store(Arc::new(product));
    }

    /// Whether devices of the product may connect: the product is enabled, and its namespace is not disabled.
    #[must_use]
    pub fn admits_devices(&self) -> bool {
        self.is_namespace_active.load(Relaxed) && self.get().definition.enabled
    }

    pub(crate) fn set_namespace_active(&self, is_active: bool) {
        self.is_namespace_active.store(is_active, Relaxed);
    }
}
