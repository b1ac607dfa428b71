//! Mathematics and integer bit operations. Integer overflow is checked, and a result that is not a number is
//! an error rather than NaN.

use super::args::Args;
use super::function::{Function, UNLIMITED_ARGS, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::{Number, Value, float_to_i64};

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("abs", (1, 1), "x: number", "number", "The absolute value.", "abs(-1.2)", "1.2", abs),
    line("max", (1, UNLIMITED_ARGS), "x: any, ...", "any", "The greatest argument, or the greatest item of a single array.", "max(1, 5, 3)", "5", greatest).alias(&["greatest", "maxArray"]),
    line("min", (1, UNLIMITED_ARGS), "x: any, ...", "any", "The least argument, or the least item of a single array.", "min(1, 5, 3)", "1", least).alias(&["least", "minArray"]),
    line("round", (1, 2), "x: number[, digits: int]", "number", "Rounds to the nearest integer, halves away from zero; or to a number of decimal places.", "round(3.14159, 2)", "3.14", round),
    line("floor", (1, 1), "x: number", "int", "Rounds down to an integer.", "floor(-3.1)", "-4", floor),
    line("ceil", (1, 1), "x: number", "int", "Rounds up to an integer.", "ceil(0.8)", "1", ceil).alias(&["ceiling"]),
    line("truncate", (1, 2), "x: number[, digits: int]", "number", "Cuts off the fraction, or all digits after a number of decimal places.", "truncate(-3.9)", "-3", truncate).alias(&["trunc"]),
    line("sqrt", (1, 1), "x: number", "float", "The square root.", "sqrt(9)", "3.0", |_, args| float(args, f64::sqrt)),
    line("power", (2, 2), "base: number, exponent: number", "float", "The base to the power of the exponent.", "power(2, 3)", "8.0", power).alias(&["pow"]),
    line("exp", (1, 1), "x: number", "float", "e to the power of x.", "exp(0)", "1.0", |_, args| float(args, f64::exp)),
    line("log", (1, 1), "x: number", "float", "The natural logarithm.", "log(1)", "0.0", |_, args| float(args, f64::ln)).alias(&["ln"]),
    line("log2", (1, 1), "x: number", "float", "The logarithm to base 2.", "log2(8)", "3.0", |_, args| float(args, f64::log2)),
    line("log10", (1, 1), "x: number", "float", "The logarithm to base 10.", "log10(100)", "2.0", |_, args| float(args, f64::log10)),
    line("sin", (1, 1), "x: number", "float", "The sine of an angle in radians.", "sin(0)", "0.0", |_, args| float(args, f64::sin)),
    line("cos", (1, 1), "x: number", "float", "The cosine of an angle in radians.", "cos(0)", "1.0", |_, args| float(args, f64::cos)),
    line("tan", (1, 1), "x: number", "float", "The tangent of an angle in radians.", "tan(0)", "0.0", |_, args| float(args, f64::tan)),
    line("asin", (1, 1), "x: number", "float", "The angle with this sine.", "asin(0)", "0.0", |_, args| float(args, f64::asin)),
    line("acos", (1, 1), "x: number", "float", "The angle with this cosine.", "acos(1)", "0.0", |_, args| float(args, f64::acos)),
    line("atan", (1, 1), "x: number", "float", "The angle with this tangent.", "atan(0)", "0.0", |_, args| float(args, f64::atan)),
    line("sinh", (1, 1), "x: number", "float", "The hyperbolic sine.", "sinh(0)", "0.0", |_, args| float(args, f64::sinh)),
    line("cosh", (1, 1), "x: number", "float", "The hyperbolic cosine.", "cosh(0)", "1.0", |_, args| float(args, f64::cosh)),
    line("tanh", (1, 1), "x: number", "float", "The hyperbolic tangent.", "tanh(0)", "0.0", |_, args| float(args, f64::tanh)),
    line("asinh", (1, 1), "x: number", "float", "The inverse of `sinh`.", "asinh(0)", "0.0", |_, args| float(args, f64::asinh)),
    line("acosh", (1, 1), "x: number", "float", "The inverse of `cosh`.", "acosh(1)", "0.0", |_, args| float(args, f64::acosh)),
    line("atanh", (1, 1), "x: number", "float", "The inverse of `tanh`.", "atanh(0)", "0.0", |_, args| float(args, f64::atanh)),
    line("mod", (2, 2), "x: number, y: number", "number", "The remainder of x divided by y, with the sign of x.", "mod(-7, 3)", "-1", remainder),
    line("fmod", (2, 2), "x: number, y: number", "float", "The remainder of x divided by y, as a float.", "fmod(6.5, 2.5)", "1.5", fmod),
    line("random", (0, 0), "", "float", "A random number from 0 (inclusive) to 1 (exclusive).", "is_float(random())", "true", |context, _| Ok(Value::Float(context.resources.rng.next_f64()))).impure(),
    line("randomInt", (2, 2), "min: int, max: int", "int", "A random integer from min to max, both included.", "randomInt(7, 7)", "7", random_int).impure(),
    line("bitand", (2, 2), "x: int, y: int", "int", "The bits that are set in both.", "bitand(10, 8)", "8", |_, args| bitwise(args, |x, y| x & y)),
    line("bitor", (2, 2), "x: int, y: int", "int", "The bits that are set in either.", "bitor(10, 5)", "15", |_, args| bitwise(args, |x, y| x | y)),
    line("bitxor", (2, 2), "x: int, y: int", "int", "The bits that are set in one only.", "bitxor(10, 8)", "2", |_, args| bitwise(args, |x, y| x ^ y)),
    line("bitnot", (1, 1), "x: int", "int", "Inverts all bits.", "bitnot(10)", "-11", |_, args| Ok(Value::Int(!args.int(0)?))),
    line("bitsl", (2, 2), "x: int, count: int", "int", "Shifts bits to the left; losing a set bit is an error.", "bitsl(8, 2)", "32", |_, args| shift(args, false)),
    line("bitsr", (2, 2), "x: int, count: int", "int", "Shifts bits to the right, preserving the sign.", "bitsr(-8, 2)", "-2", |_, args| shift(args, true)),
];

/// Applies a function to a float. A NaN result is an error.
fn float<'a>(args: Args<'_, 'a>, function: fn(f64) -> f64) -> Result<'a> {
    finite(args, function(args.float(0)?))
}

fn finite<'a>(args: Args<'_, 'a>, number: f64) -> Result<'a> {
    if number.is_finite() {
        Ok(Value::Float(number))
    } else {
        Err(EvaluationError::NotANumber {
            function: args.function,
        })
    }
}

/// Converts a float without a fraction to an integer.
fn integer_of<'a>(args: Args<'_, 'a>, number: f64) -> Result<'a> {
    float_to_i64(number)
        .map(Value::Int)
        .ok_or_else(|| args.overflow())
}

fn abs<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match args.number(0)? {
        Number::Int(number) => number
            .checked_abs()
            .map(Value::Int)
            .ok_or_else(|| args.overflow()),
        Number::Float(number) => Ok(Value::Float(number.abs())),
    }
}

fn greatest<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    select_extreme(context, args, |left, right| right.total_order(left).is_gt())
}

fn least<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    select_extreme(context, args, |left, right| right.total_order(left).is_lt())
}

/// The smallest or greatest value; nulls in an array are skipped.
fn select_extreme<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    beats: fn(&Value<'a>, &Value<'a>) -> bool,
) -> Result<'a> {
    let opened = args.get(0).parse_one_level(context.arena);
    let candidates = match opened {
        Value::Array(items) if args.len() == 1 => items,
        _ => args.values,
    };
    let numeric = |value: &Value<'a>| value.as_number().map_or(*value, Value::from);
    let best = candidates
        .iter()
        .filter(|value| !value.is_null())
        .copied()
        .reduce(|best, value| {
            // The text of a number is compared as a number.
            if beats(&numeric(&best), &numeric(&value)) {
                value
            } else {
                best
            }
        });
    Ok(best.unwrap_or(Value::Undefined))
}

fn round<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match (args.number(0)?, args.len()) {
        (Number::Int(number), _) => Ok(Value::Int(number)),
        (Number::Float(number), 1) => integer_of(args, number.round()),
        (Number::Float(number), _) => round_to_digits(args, number, f64::round),
    }
}

fn truncate<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match (args.number(0)?, args.len()) {
        (Number::Int(number), _) => Ok(Value::Int(number)),
        (Number::Float(number), 1) => integer_of(args, number.trunc()),
        (Number::Float(number), _) => round_to_digits(args, number, f64::trunc),
    }
}

/// Applies a rounding function at this number of decimal places.
fn round_to_digits<'a>(args: Args<'_, 'a>, number: f64, rounding: fn(f64) -> f64) -> Result<'a> {
    let digits = args.size(1)?;
    if digits > 15 {
        return args.out_of_range(1, "0 to 15 digits");
    }
    let scale = 10_f64.powi(digits as i32);
    let scaled = number * scale;
    if scaled.abs() >= 4_503_599_627_370_496.0 {
        // No digits remain to be rounded.
        return finite(args, number);
    }
    // 1.005 is stored slightly too small, and 1.005 * 100 is slightly below 100.5. A value this close to a
    // half is treated as a half.
    let nudged = scaled + scaled.signum() * scaled.abs() * f64::EPSILON;
    finite(args, rounding(nudged) / scale)
}

fn floor<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match args.number(0)? {
        Number::Int(number) => Ok(Value::Int(number)),
        Number::Float(number) => integer_of(args, number.floor()),
    }
}

fn ceil<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match args.number(0)? {
        Number::Int(number) => Ok(Value::Int(number)),
        Number::Float(number) => integer_of(args, number.ceil()),
    }
}

fn power<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    finite(args, args.float(0)?.powf(args.float(1)?))
}

fn remainder<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match (args.number(0)?, args.number(1)?) {
        (Number::Int(_), Number::Int(0)) => args.out_of_range(1, "a number other than 0"),
        (Number::Int(left), Number::Int(right)) => Ok(Value::Int(left.wrapping_rem(right))),
        (left, right) => finite(args, left.as_f64() % right.as_f64()),
    }
}

fn fmod<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    finite(args, args.float(0)? % args.float(1)?)
}

fn random_int<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let (min, max) = (args.int(0)?, args.int(1)?);
    if min > max {
        return args.out_of_range(1, "a maximum that is not less than the minimum");
    }
    let span = max.abs_diff(min);
    let offset = match span.checked_add(1) {
        Some(count) => context.resources.rng.next_below(count),
        None => context.resources.rng.next_u64(),
    };
    Ok(Value::Int(min.wrapping_add_unsigned(offset)))
}

fn bitwise<'a>(args: Args<'_, 'a>, function: fn(i64, i64) -> i64) -> Result<'a> {
    Ok(Value::Int(function(args.int(0)?, args.int(1)?)))
}

/// A negative count shifts the other way.
fn shift<'a>(args: Args<'_, 'a>, right: bool) -> Result<'a> {
    let (number, count) = (args.int(0)?, args.int(1)?);
    let right = right != (count < 0);
    let count = count.unsigned_abs();
    if right {
        return Ok(Value::Int(number >> count.min(63)));
    }
    if number == 0 {
        return Ok(Value::Int(0));
    }
    let shifted = u32::try_from(count)
        .ok()
        .and_then(|count| number.checked_shl(count));
    match shifted {
        Some(shifted) if shifted >> count == number => Ok(Value::Int(shifted)),
        _ => Err(args.overflow()),
    }
}
