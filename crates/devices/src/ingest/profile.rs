//! Products and devices in the form the pipeline uses.

use std::sync::Arc;

use bumpalo::Bump;
use namespaces::NamespaceUsage;
use series::{DeviceNo, PointValue};

use crate::chain::Chain;
use crate::id::{DeviceId, ProductId};
use crate::protocol::{DeviceProtocols, RawValue};

/// Number of a product: dense, valid for the lifetime of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProductNo(pub u32);

/// When the messages of a product's devices are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PipelineMode {
    /// Immediately, on the thread that received the message: lowest latency.
    #[default]
    Sync,
    /// From a mailbox, in batches: highest throughput.
    Actor,
}

/// How a product treats a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    /// Any value is stored.
    Open,
    /// Any value is stored; texts that are numbers are stored as numbers.
    OpenNumbers,
    /// Values are dropped without being counted.
    Ignored,
    /// The key is not in the thing model, and the product accepts modelled keys only.
    Unknown,
    /// Checked and converted by [`TelemetryModel::convert`] with this number.
    Property(u32),
}

/// Checks and converts values as a thing model requires.
pub trait TelemetryModel: Send + Sync {
    fn key_rule(&self, name: &str) -> KeyRule;

    /// Returns the value in its stored form, or the reason for the rejection, which is shown to operators.
    ///
    /// # Errors
    /// If the value does not fit.
    fn convert<'a>(
        &self,
        property: u32,
        value: RawValue<'a>,
        arena: &'a Bump,
    ) -> Result<PointValue<'a>, Box<str>>;
}

/// No thing model: every value is accepted.
pub struct PermissiveModel;

impl TelemetryModel for PermissiveModel {
    fn key_rule(&self, _: &str) -> KeyRule {
        KeyRule::Open
    }

    fn convert<'a>(
        &self,
        _: u32,
        value: RawValue<'a>,
        _: &'a Bump,
    ) -> Result<PointValue<'a>, Box<str>> {
        untyped_value(value).ok_or_else(|| "null is not a value".into())
    }
}

/// Parses a text as a number in JSON notation. Codes such as `007` are not numbers.
pub(super) fn parse_number(text: &str) -> Option<RawValue<'_>> {
    const MAX_BYTES: usize = 40;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_written_so = match digits.as_bytes() {
        [b'0'] | [b'0', b'.' | b'e' | b'E', ..] | [b'1'..=b'9', ..] => digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte)),
        _ => false,
    };
    if !is_written_so || text.len() > MAX_BYTES {
        return None;
    }
    match text.parse::<i64>() {
        Ok(number) => Some(RawValue::Int(number)),
        Err(_) => {
            let number = text.parse::<f64>().ok();
            number
                .filter(|number| number.is_finite())
                .map(RawValue::Float)
        }
    }
}

/// Converts a value without a model. Returns `None` for null.
#[inline]
pub(super) fn untyped_value(value: RawValue<'_>) -> Option<PointValue<'_>> {
    Some(match value {
        RawValue::Null => return None,
        RawValue::Bool(value) => PointValue::Bool(value),
        RawValue::Int(value) => PointValue::Int(value),
        RawValue::Float(value) => PointValue::Float(value),
        RawValue::Text(text) => PointValue::Text(text),
        RawValue::Json(json) => PointValue::Json(json),
    })
}

/// A product as the pipeline sees it. Immutable; a changed product gets a new profile.
#[derive(Clone)]
pub struct ProductProfile {
    pub product: ProductId,
    /// Protocols that its devices may use.
    pub protocols: DeviceProtocols,
    pub mode: PipelineMode,
    pub model: Arc<dyn TelemetryModel>,
    pub chain: Arc<Chain>,
    /// Whether telemetry is stored in the node.
    pub is_stored: bool,
    /// Whether another node of the cluster gets a copy of what is stored.
    pub is_copied: bool,
    /// Whether messages are also logged as a document.
    pub is_logged: bool,
    /// Whether the product has alarm rules.
    pub has_alarms: bool,
    /// Names of the sinks that receive rows, and of those that receive messages.
    pub sinks: Arc<[Box<str>]>,
    pub log_sinks: Arc<[Box<str>]>,
    /// Bytes of a payload that are logged, at most.
    pub log_payload_bytes: usize,
    /// What the product's namespace has stored; `None`: it has no limits.
    pub namespace: Option<Arc<NamespaceUsage>>,
}

impl ProductProfile {
    /// Whether the namespace has stored as much telemetry as it may.
    #[inline]
    pub(super) fn is_over_quota(&self) -> bool {
        (self.namespace.as_ref()).is_some_and(|usage| usage.is_telemetry_full())
    }

    /// A profile that accepts every key and stores rows in sync mode.
    pub fn permissive(product: ProductId) -> Self {
        Self {
            product,
            protocols: DeviceProtocols::ALL,
            mode: PipelineMode::Sync,
            model: Arc::new(PermissiveModel),
            chain: Arc::new(Chain::root()),
            is_stored: true,
            is_copied: false,
            is_logged: false,
            has_alarms: false,
            sinks: Arc::default(),
            log_sinks: Arc::default(),
            log_payload_bytes: 0,
            namespace: None,
        }
    }
}

/// A registered device that sends or is the subject of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHandle {
    pub no: DeviceNo,
    pub product: ProductNo,
    pub id: DeviceId,
}

impl DeviceHandle {
    #[inline]
    pub fn as_device_ref(&self) -> DeviceRef<'_> {
        DeviceRef {
            no: self.no,
            product: self.product,
            id: self.id.as_str(),
        }
    }
}

/// A borrowed [`DeviceHandle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRef<'a> {
    pub no: DeviceNo,
    pub product: ProductNo,
    pub id: &'a str,
}
