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
pub(crate) use program::Program;

type Result<'a> = std::result::Result<Value<'a>, Fault>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("jq", (2, 3), "program: string, x: any[, timeout_ms: int]", "array", "What a program of the jq language gives for JSON or a value. Time is counted in steps, 10,000 for a millisecond, 50 ms without a timeout, 1000 ms at most. No modules, no environment, no dates but todate and fromdate.", "jq('.a[] | . + 1', '{\"a\":[1,2]}')", "[2,3]", jq),
];

#[cfg(not(feature = "jq"))]
fn jq<'a>(_: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    args.invalid("this program was built without jq")
}

#[cfg(feature = "jq")]
fn jq<'a>(context: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let timeout_ms = if args.len() == 3 { args.size(2)? } else { 50 };
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
    let program = context
        .tools
        .programs
        .get(text, |text| Program::compile(text).map(std::sync::Arc::new));
    let program = program.or_else(|why: Box<str>| args.invalid(why))?;
    let steps = timeout_ms.clamp(1, 1_000) as u64 * 10_000;
    let max_bytes = context.limits.max_output_bytes;
    let regexes = context.tools.take_regexes();
    let host = natives::Host::new(context.now_ms, regexes);
    let result = program.run(
        input,
        &host,
        meter::Limits { steps, max_bytes },
        context.arena,
    );
    context.tools.give_regexes(host.into_regexes());
    result.or_else(|why| args.invalid(why))
}
