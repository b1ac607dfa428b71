//! What a function may ask: the arena, the message, the clock's reading, random numbers, the rule's memory. Nothing else.

use crate::evaluation_error::EvaluationError;
use crate::evaluation_resources::EvaluationResources;
use crate::kv_store::KvStore;
use crate::value::{Arena, Value};
use crate::zone::Zone;

/// Whose meaning counts where the two products disagree.
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

/// The text of what is not there, as EMQX writes it.
pub(crate) const UNDEFINED: &str = "undefined";

/// What bounds function calls, each of them or all of one evaluation.
#[derive(Clone, Copy, Debug)]
pub struct FunctionLimits {
    /// The longest text or bytes a function may make.
    pub max_output_bytes: usize,
    /// The most items an array or map made by a function may have.
    pub max_items: usize,
    /// What all programs of jq in one evaluation may do together; 10,000 steps take about a millisecond.
    pub max_jq_steps: u64,
    /// How many of these steps are left.
    pub jq_steps: u64,
    /// How many regular expressions and programs of jq that no earlier event used may still be compiled.
    pub compilations: u32,
    /// Steps that the call takes beyond those that its arguments and its result count for.
    pub extra_steps: u32,
}

/// The default of `rules.max_jq_steps`: a shard serves other clients again after about 5 ms.
pub(crate) const MAX_JQ_STEPS: u64 = 50_000;
/// A statement has at most 256 items, so that one whose expressions are all constant never needs more for long.
const MAX_COMPILATIONS: u32 = 32;

impl FunctionLimits {
    /// Those of one evaluation.
    pub(crate) fn new(max_output_bytes: usize, max_jq_steps: u64) -> Self {
        FunctionLimits {
            max_output_bytes,
            max_jq_steps,
            jq_steps: max_jq_steps,
            ..FunctionLimits::default()
        }
    }

    /// Notes that something is compiled which may have come with the event.
    pub(crate) fn count_compilation(&mut self) -> Result<(), Box<str>> {
        match self.compilations.checked_sub(1) {
            Some(left) => {
                self.compilations = left;
                Ok(())
            }
            None => Err(format!(
                "one event may bring at most {MAX_COMPILATIONS} new regular expressions and programs of jq"
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

/// What the functions of the family "message" ask for.
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

/// The event under evaluation, as far as functions see it.
pub trait MessageSource<'a> {
    /// A part of it; null if this event has none.
    fn message_part(&self, part: MessagePart, arena: &'a Arena) -> Value<'a>;
}

/// Handed to every function call.
pub struct FunctionContext<'a, 'e> {
    pub arena: &'a Arena,
    pub tools: &'e mut EvaluationResources,
    /// The rule's memory.
    pub kv: &'e mut KvStore,
    pub message: Option<&'e dyn MessageSource<'a>>,
    /// The rule's time zone.
    pub zone: &'e Zone,
    pub dialect: Dialect,
    pub now_ms: u64,
    pub limits: FunctionLimits,
}

impl<'a> FunctionContext<'a, '_> {
    /// Whether a result of so many bytes is allowed.
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

    /// The text of a value as `str` means it in this dialect: EMQX rounds floats to 10 digits behind the point, and writes
    /// `undefined` for what is not there.
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
