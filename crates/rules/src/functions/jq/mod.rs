//! `jq`: programs of the jq language, run by jaq on values of our own that know their size.

#[cfg(feature = "jq")]
mod meter;
#[cfg(feature = "jq")]
mod natives;
#[cfg(feature = "jq")]
mod number;
#[cfg(feature = "jq")]
mod program;
#[cfg(feature = "jq")]
mod tree;
#[cfg(feature = "jq")]
mod value;

use super::{Args, Function, line};
use crate::context::Context;
use crate::fault::Fault;
use crate::value::Value;

#[cfg(feature = "jq")]
use meter::{Abort, Stop};
#[cfg(feature = "jq")]
use program::Failure;
#[cfg(feature = "jq")]
pub(crate) use program::Program;

/// How many steps of a program are about a millisecond.
#[cfg(feature = "jq")]
const STEPS_PER_MS: u64 = 10_000;

type Result<'a> = std::result::Result<Value<'a>, Fault>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("jq", (2, 3), "program: string, x: any[, timeout_ms: int]", "array", "What a program of the jq language gives for JSON or a value. Time is counted in steps, 10,000 for a millisecond. All programs of one evaluation share `rules.max_jq_steps` (50,000 by default, about 5 ms); a timeout can only lower it. No modules, no environment, no dates but todate and fromdate.", "jq('.a[] | . + 1', '{\"a\":[1,2]}')", "[2,3]", jq).passes_null(),
];

#[cfg(not(feature = "jq"))]
fn jq<'a>(_: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    args.invalid("this program was built without jq")
}

#[cfg(feature = "jq")]
fn jq<'a>(context: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
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
        other => other,
    };
    let limits = &mut context.limits;
    let program = context.tools.programs.get(text, |text| {
        limits.count_compilation()?;
        Program::compile(text).map(std::sync::Arc::new)
    });
    let program = program.or_else(|why: Box<str>| args.invalid(why))?;
    let left = context.limits.jq_steps;
    let timeout_steps = timeout_ms.map(|ms| (ms as u64).saturating_mul(STEPS_PER_MS));
    let steps = timeout_steps.map_or(left, |steps| steps.min(left));
    let max_bytes = context.limits.max_output_bytes;
    let regexes = context.tools.take_regexes();
    let host = natives::Host::new(context.now_ms, regexes);
    let limits = meter::Limits { steps, max_bytes };
    let (result, taken) = program.run(input, &host, limits, context.arena);
    context.tools.give_regexes(host.into_regexes());
    context.limits.jq_steps = left - taken;
    match result {
        Ok(value) => Ok(value),
        Err(Failure::Program(why)) => args.invalid(why),
        Err(Failure::Abort(Abort::Panicked)) => {
            args.invalid("the interpreter failed at this program")
        }
        Err(Failure::Abort(Abort::Stopped(stop))) => args.beyond(match stop {
            Stop::Steps if steps < left => format!(
                "the program took longer than its timeout of {} ms",
                timeout_ms.unwrap_or(0)
            ),
            Stop::Steps => format!(
                "the programs of this evaluation took more than {} steps (rules.max_jq_steps); \
                 expected programs that do less, or a smaller input",
                context.limits.max_jq_steps
            ),
            Stop::Bytes => "the program made a value that is too large".to_owned(),
            Stop::Depth => "the program made a value that nests too deep".to_owned(),
            Stop::Stack => "the program recurses too deep".to_owned(),
        }),
    }
}
