//! What the pipeline has to know of products and devices, ready for use.

use std::sync::Arc;

use bumpalo::Bump;
use series::{DeviceNo, Value};

use crate::chain::Chain;
use crate::dialect::{Dialects, Raw};
use crate::{DeviceId, ProductId};

/// A product's number: dense, for as long as the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProductNo(pub u32);

/// When a message of a product's devices is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
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
    /// Checked and converted by [`Model::convert`] with this number.
    Property(u32),
}

/// What a thing model says of values.
pub trait Model: Send + Sync {
    fn key(&self, name: &str) -> KeyRule;

    /// The value as it is to be stored, or why it is not: said to whoever looks after the device.
    ///
    /// # Errors
    /// If it does not fit.
    fn convert<'a>(
        &self,
        property: u32,
        value: Raw<'a>,
        arena: &'a Bump,
    ) -> Result<Value<'a>, Box<str>>;
}

/// No thing model: whatever comes is right.
pub struct OpenModel;

impl Model for OpenModel {
    fn key(&self, _: &str) -> KeyRule {
        KeyRule::Open
    }

    fn convert<'a>(&self, _: u32, value: Raw<'a>, _: &'a Bump) -> Result<Value<'a>, Box<str>> {
        as_it_is(value).ok_or_else(|| "null is no value".into())
    }
}

/// The number that a text is, written as JSON has numbers; codes such as `007` are none.
pub(super) fn number_in(text: &str) -> Option<Raw<'_>> {
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
        Ok(number) => Some(Raw::Int(number)),
        Err(_) => {
            let number = text.parse::<f64>().ok();
            number.filter(|number| number.is_finite()).map(Raw::Float)
        }
    }
}

/// A value that no model says anything of. `None`: null.
#[inline]
pub(super) fn as_it_is(value: Raw<'_>) -> Option<Value<'_>> {
    Some(match value {
        Raw::Null => return None,
        Raw::Bool(value) => Value::Bool(value),
        Raw::Int(value) => Value::Int(value),
        Raw::Float(value) => Value::Float(value),
        Raw::Text(text) => Value::Text(text),
        Raw::Json(json) => Value::Json(json),
    })
}

/// A product, as the pipeline sees it. Immutable; a changed product gets a new one.
#[derive(Clone)]
pub struct Profile {
    pub product: ProductId,
    /// What its devices may speak.
    pub dialects: Dialects,
    pub mode: Mode,
    pub model: Arc<dyn Model>,
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

impl Profile {
    /// Takes what comes, at once, and stores it.
    pub fn open(product: ProductId) -> Self {
        Self {
            product,
            dialects: Dialects::ALL,
            mode: Mode::Sync,
            model: Arc::new(OpenModel),
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
pub struct Speaker {
    pub no: DeviceNo,
    pub product: ProductNo,
    pub id: DeviceId,
}

impl Speaker {
    #[inline]
    pub fn voice(&self) -> Voice<'_> {
        Voice {
            no: self.no,
            product: self.product,
            id: self.id.as_str(),
        }
    }
}

/// A [`Speaker`], borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voice<'a> {
    pub no: DeviceNo,
    pub product: ProductNo,
    pub id: &'a str,
}
