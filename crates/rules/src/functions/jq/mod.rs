//! The function `jq`: runs programs of the jq language with jaq, on values that track their own size.

#[cfg(feature = "jq")]
mod arithmetic;
#[cfg(feature = "jq")]
mod execution_meter;
#[cfg(feature = "jq")]
mod native_filters;
#[cfg(feature = "jq")]
mod program;
#[cfg(feature = "jq")]
mod value;
#[cfg(feature = "jq")]
mod value_access;

use super::args::Args;
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::Value;

#[cfg(feature = "jq")]
use execution_meter::{AbortError, StopReason};
#[cfg(feature = "jq")]
use program::JqError;
#[cfg(feature = "jq")]
pub(crate) use program::JqProgram;

/// Number of program steps that take about a millisecond.
#[cfg(feature = "jq")]
const STEPS_PER_MS: u64 = 10_000;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("jq", (2, 3), "program: string, x: any[, timeout_ms: int]", "array", "Runs a jq program on JSON or a value. Time is limited in steps, 10,000 per millisecond. All programs of one evaluation share `rules.max_jq_steps` (50,000 by default, about 5 ms); a timeout can only lower it. Modules, environment and dates are not available, except todate and fromdate.", "jq('.a[] | . + 1', '{\"a\":[1,2]}')", "[2,3]", jq).accepts_null_in_emqx().differing("in EMQX the input may be null, and a missing value is the text `undefined`; in FluxMQ either makes the result null"),
];

#[cfg(not(feature = "jq"))]
fn jq<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    args.invalid("this program was built without jq")
}

#[cfg(feature = "jq")]
fn jq<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let timeout_ms = match args.len() {
        3 => Some(args.size(2)?.max(1)),
        _ => None,
    };
    let input = match args.get(1) {
        value @ (Value::Str(_) | Value::Bytes(_)) => match value
            .as_str()
            .map(|text| crate::json::parse(text, context.arena))
        {
            Some(Ok(value)) => value,
            Some(Err(error)) => return args.invalid(error.to_string()),
            None => return args.wrong_type(1, "JSON"),
        },
        // Only in EMQX's dialect, which encodes the atom.
        Value::Undefined => Value::Str(crate::function_context::UNDEFINED),
        other => other,
    };
    let limits = &mut context.limits;
    let program = context.resources.programs.get_or_compile(text, |text| {
        limits.count_compilation()?;
        JqProgram::compile(text).map(std::sync::Arc::new)
    });
    let program = program.or_else(|why: Box<str>| args.invalid(why))?;
    let left = context.limits.jq_steps;
    let timeout_steps = timeout_ms.map(|ms| (ms as u64).saturating_mul(STEPS_PER_MS));
    let steps = timeout_steps.map_or(left, |steps| steps.min(left));
    let max_bytes = context.limits.max_output_bytes;
    let regexes = context.resources.take_regexes();
    let host = native_filters::JqContext::new(context.now_ms, regexes);
    let limits = execution_meter::JqLimits { steps, max_bytes };
    let (result, taken) = program.run(input, &host, limits, context.arena);
    context.resources.return_regexes(host.into_regexes());
    context.limits.jq_steps = left - taken;
    match result {
        Ok(value) => Ok(value),
        Err(JqError::Program(why)) => args.invalid(why),
        Err(JqError::Abort(AbortError::Panicked)) => {
            args.invalid("the interpreter failed on this program")
        }
        Err(JqError::Abort(AbortError::Stopped(stop))) => args.limit_exceeded(match stop {
            StopReason::Steps if steps < left => format!(
                "the program took longer than its timeout of {} ms",
                timeout_ms.unwrap_or(0)
            ),
            StopReason::Steps => format!(
                "the programs of this evaluation took more than {} steps (rules.max_jq_steps); \
                 expected programs that do less, or a smaller input",
                context.limits.max_jq_steps
            ),
            StopReason::Bytes => "the program made a value that is too large".to_owned(),
            StopReason::Depth => "the program made a value that nests too deep".to_owned(),
            StopReason::Stack => "the program recurses too deep".to_owned(),
        }),
    }
}
