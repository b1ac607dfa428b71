//! What the pipeline has to know of products and devices, ready for use.

use std::sync::Arc;

use bumpalo::Bump;
use series::{DeviceNo, PointValue};

use crate::chain::Chain;
use crate::protocol::{DeviceProtocols, RawValue};
use crate::{DeviceId, ProductId};

/// A product's number: dense, for as long as the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProductNo(pub u32);

/// When a message of a product's devices is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PipelineMode {
    /// At once, on the thread that has it: least latency.
    #[default]
    Sync,
    /// From a mailbox, many at a time: most throughput.
    Actor,
}

/// What a product says of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    /// Any value goes.
    Open,
    /// The same, and texts that are numbers are kept as numbers.
    OpenNumbers,
    /// Its values are left out, and nobody minds.
    Ignored,
    /// Nobody has said that there is such a key, and that is not enough.
    Unknown,
    /// Checked and converted by `ThingModel::convert` with this number.
    Property(u32),
}

/// What a thing model says of values.
pub trait TelemetryModel: Send + Sync {
    fn key_rule(&self, name: &str) -> KeyRule;

    /// The value as it is to be stored, or why it is not: said to whoever looks after the device.
    ///
    /// # Errors
    /// If it does not fit.
    fn convert<'a>(
        &self,
        property: u32,
        value: RawValue<'a>,
        arena: &'a Bump,
    ) -> Result<PointValue<'a>, Box<str>>;
}

/// No thing model: whatever comes is right.
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
        untyped_value(value).ok_or_else(|| "null is no value".into())
    }
}

/// The number that a text is, written as JSON has numbers; codes such as `007` are none.
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

/// A value that no model says anything of. `None`: null.
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

/// A product, as the pipeline sees it. Immutable; a changed product gets a new one.
#[derive(Clone)]
pub struct ProductProfile {
    pub product: ProductId,
    /// What its devices may speak.
    pub dialects: DeviceProtocols,
    pub mode: PipelineMode,
    pub model: Arc<dyn TelemetryModel>,
    pub chain: Arc<Chain>,
    /// Whether telemetry is stored in the node.
    pub is_stored: bool,
    /// Whether messages are logged as a second document.
    pub is_logged: bool,
    /// Whether it has alarm rules.
    pub has_alarms: bool,
    /// Names of sinks that get rows, and of those that get messages.
    pub sinks: Arc<[Box<str>]>,
    pub log_sinks: Arc<[Box<str>]>,
    /// Of a payload so much is logged.
    pub log_payload_bytes: usize,
}

impl ProductProfile {
    /// Takes what comes, at once, and stores it.
    pub fn permissive(product: ProductId) -> Self {
        Self {
            product,
            dialects: DeviceProtocols::ALL,
            mode: PipelineMode::Sync,
            model: Arc::new(PermissiveModel),
            chain: Arc::new(Chain::root()),
            is_stored: true,
            is_logged: false,
            has_alarms: false,
            sinks: Arc::default(),
            log_sinks: Arc::default(),
            log_payload_bytes: 0,
        }
    }
}

/// Who says something: a registered device.
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

/// A [`DeviceHandle`], borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRef<'a> {
    pub no: DeviceNo,
    pub product: ProductNo,
    pub id: &'a str,
}
