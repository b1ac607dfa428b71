//! The context of a function call: the arena, the message, the time, random numbers and the rule's key-value
//! store. Functions have access to nothing else.

use crate::decimals::compact_decimals;
use crate::evaluation_error::EvaluationError;
use crate::evaluation_resources::EvaluationResources;
use crate::function_limits::FunctionLimits;
use crate::kv_store::KvStore;
use crate::value::{Arena, Value};
use crate::zone::Zone;

/// The product whose semantics apply where EMQX and FluxMQ differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    Fluxmq,
    #[default]
    Emqx,
}

impl Dialect {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Fluxmq => "fluxmq",
            Dialect::Emqx => "emqx",
        }
    }
}

/// The text of an undefined value, as EMQX writes it.
pub(crate) const UNDEFINED: &str = "undefined";

/// A part of the message that functions of the family "message" return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePart {
    Topic,
    Payload,
    Qos,
    /// A map of flags by name.
    Flags,
    ClientId,
    Username,
    PeerHost,
    MessageId,
}

/// The event under evaluation, as functions see it.
pub trait MessageSource<'a> {
    /// A part of the message; null if this event does not have it.
    fn message_part(&self, part: MessagePart, arena: &'a Arena) -> Value<'a>;
}

/// The argument of every function call besides its values.
pub struct FunctionContext<'a, 'e> {
    pub arena: &'a Arena,
    pub resources: &'e mut EvaluationResources,
    /// The rule's key-value store.
    pub kv: &'e mut KvStore,
    pub message: Option<&'e dyn MessageSource<'a>>,
    /// The rule's time zone.
    pub zone: &'e Zone,
    pub dialect: Dialect,
    pub now_ms: u64,
    pub limits: FunctionLimits,
}

impl<'a> FunctionContext<'a, '_> {
    /// Checks that a result of this size is allowed.
    pub(crate) fn check_output_size(
        &self,
        function: &'static str,
        bytes: usize,
    ) -> Result<(), EvaluationError> {
        if bytes <= self.limits.max_output_bytes {
            return Ok(());
        }
        Err(EvaluationError::TooLarge {
            function,
            limit: self.limits.max_output_bytes,
            unit: "bytes",
        })
    }

    /// The text of a value as `str` returns it in this dialect. EMQX rounds floats to 10 decimal places and
    /// writes `undefined` for missing values.
    pub(crate) fn text(&self, value: Value<'a>) -> &'a str {
        match value {
            Value::Undefined if self.dialect == Dialect::Emqx => UNDEFINED,
            Value::Float(number) if self.dialect == Dialect::Emqx && number.is_finite() => {
                compact_decimals(number, 10, self.arena)
            }
            other => other.text(self.arena),
        }
    }
}
