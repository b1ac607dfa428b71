//! The context of a function call: the arena, the message, the time, random numbers and the rule's key-value
//! store. Functions have access to nothing else.

use crate::evaluation_error::EvaluationError;
use crate::evaluation_resources::EvaluationResources;
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

/// Limits of function calls, per call or per evaluation.
#[derive(Clone, Copy, Debug)]
pub struct FunctionLimits {
    /// Maximum length of a text or byte string created by a function.
    pub max_output_bytes: usize,
    /// Maximum number of items of an array or map created by a function.
    pub max_items: usize,
    /// Maximum number of steps of all jq programs in one evaluation together; 10,000 steps take about a
    /// millisecond.
    pub max_jq_steps: u64,
    /// Remaining jq steps.
    pub jq_steps: u64,
    /// Remaining compilations of regular expressions and jq programs that are not cached.
    pub compilations: u32,
    /// Steps of the call in addition to those for its arguments and its result.
    pub extra_steps: u32,
}

/// Default of `rules.max_jq_steps`: a shard serves other clients again after about 5 ms.
pub(crate) const MAX_JQ_STEPS: u64 = 50_000;
/// A statement has at most 256 items, so a statement with constant patterns never needs more for long.
const MAX_COMPILATIONS: u32 = 32;

impl FunctionLimits {
    /// Limits of one evaluation.
    pub(crate) fn new(max_output_bytes: usize, max_jq_steps: u64) -> Self {
        FunctionLimits {
            max_output_bytes,
            max_jq_steps,
            jq_steps: max_jq_steps,
            ..FunctionLimits::default()
        }
    }

    /// Counts a compilation whose text may come from the event.
    pub(crate) fn count_compilation(&mut self) -> Result<(), Box<str>> {
        match self.compilations.checked_sub(1) {
            Some(left) => {
                self.compilations = left;
                Ok(())
            }
            None => Err(format!(
                "one event may use at most {MAX_COMPILATIONS} new regular expressions and jq programs"
            )
            .into()),
        }
    }
}

impl Default for FunctionLimits {
    fn default() -> Self {
        FunctionLimits {
            max_output_bytes: 1 << 20,
            max_items: 100_000,
            max_jq_steps: MAX_JQ_STEPS,
            jq_steps: MAX_JQ_STEPS,
            compilations: MAX_COMPILATIONS,
            extra_steps: 0,
        }
    }
}

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
    pub tools: &'e mut EvaluationResources,
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
                crate::functions::compact_decimals(number, 10, self.arena)
            }
            other => other.text(self.arena),
        }
    }
}
