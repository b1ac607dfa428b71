//! Functions for types of values and for choosing between values.

use super::args::{Args, to_container};
use super::function::{Function, UNLIMITED_ARGS, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::{Dialect, FunctionContext};
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("isNull", (1, 1), "x: any", "boolean", "Whether the value is null or the field does not exist.", "isNull(null)", "true", |context, args| Ok(Value::Bool(is_absent(context, args.get(0))))).accepts_null().differing("EMQX distinguishes null from missing: a JSON null is not null here, use is_null_var"),
    line("isNotNull", (1, 1), "x: any", "boolean", "Whether the value is not null.", "isNotNull('test')", "true", |context, args| Ok(Value::Bool(!is_absent(context, args.get(0))))).accepts_null().differing("EMQX distinguishes null from missing, see isNull"),
    line("is_null_var", (1, 1), "x: any", "boolean", "Whether the value is a JSON null or the field does not exist, in either dialect.", "is_null_var(null)", "true", |_, args| type_test(args, |value| value.is_null())).accepts_null(),
    line("is_not_null_var", (1, 1), "x: any", "boolean", "Whether the value is neither a JSON null nor a missing field.", "is_not_null_var('test')", "true", |_, args| type_test(args, |value| !value.is_null())).accepts_null(),
    line("isEmpty", (1, 1), "x: any", "boolean", "Whether the value is null, or an empty text, array or map.", "isEmpty('')", "true", |context, args| Ok(Value::Bool(is_empty(context, args.get(0))))).accepts_null().differing("EMQX reads text as JSON: '{}' is empty"),
    line("isNotEmpty", (1, 1), "x: any", "boolean", "Whether the value is neither null nor an empty text, array or map.", "isNotEmpty('test')", "true", |context, args| Ok(Value::Bool(!is_empty(context, args.get(0))))).accepts_null(),
    line("isNumber", (1, 1), "x: any", "boolean", "Whether the value is a number or the text of one.", "isNumber('123')", "true", |_, args| type_test(args, |value| value.as_f64().is_some())).accepts_null().alias(&["is_numeric"]),
    line("is_num", (1, 1), "x: any", "boolean", "Whether the value is a number; the text of one is not.", "is_num('123')", "false", |_, args| type_test(args, |value| matches!(value, Value::Int(_) | Value::Big(_) | Value::Float(_)))).accepts_null(),
    line("is_int", (1, 1), "x: any", "boolean", "Whether the value is an integer.", "is_int(123.4)", "false", |_, args| type_test(args, |value| matches!(value, Value::Int(_) | Value::Big(_)))).accepts_null(),
    line("is_float", (1, 1), "x: any", "boolean", "Whether the value is a float.", "is_float(123.4)", "true", |_, args| type_test(args, |value| matches!(value, Value::Float(_)))).accepts_null(),
    line("isString", (1, 1), "x: any", "boolean", "Whether the value is text, or bytes that are valid UTF-8.", "isString('123')", "true", |_, args| type_test(args, |value| value.as_str().is_some())).accepts_null().alias(&["is_str"]),
    line("isBoolean", (1, 1), "x: any", "boolean", "Whether the value is true or false.", "isBoolean(true)", "true", |_, args| type_test(args, |value| matches!(value, Value::Bool(_)))).accepts_null().alias(&["is_bool"]),
    line("isArray", (1, 1), "x: any", "boolean", "Whether the value is an array; the JSON text of one is not.", "isArray([1, 2])", "true", |_, args| type_test(args, |value| value.type_name() == "array")).accepts_null(),
    line("isMap", (1, 1), "x: any", "boolean", "Whether the value is a map; the JSON text of one is not.", "isMap(json_decode('{\"a\":1}'))", "true", |_, args| type_test(args, |value| value.type_name() == "map")).accepts_null().alias(&["isObject"]),
    line("isBytes", (1, 1), "x: any", "boolean", "Whether the value is bytes, such as a payload or a result of `bytes`.", "isBytes(bytes('test'))", "true", |_, args| type_test(args, |value| matches!(value, Value::Bytes(_)))).accepts_null(),
    line("coalesce", (1, UNLIMITED_ARGS), "x: any, ...", "any", "The first argument, or item of a single array, that is not null.", "coalesce(null, 'default')", r#""default""#, |context, args| first_present(context, args, |_| true)).accepts_null().differing("in EMQX a JSON null is a value, only missing values are skipped"),
    line("coalesce_ne", (1, UNLIMITED_ARGS), "x: any, ...", "any", "The first argument, or item of a single array, that is neither null nor an empty text.", "coalesce_ne('', 'default')", r#""default""#, |context, args| first_present(context, args, |value| value.as_bytes() != Some(b""))).accepts_null().differing("in EMQX a JSON null is a value"),
    line("ifNull", (2, 2), "x: any, default: any", "any", "The first argument, or the second if the first is null.", "ifNull(null, 'default')", r#""default""#, |_, args| Ok(if args.get(0).is_null() { args.get(1) } else { args.get(0) })).accepts_null().alias(&["nvl"]),
    line("ifCondition", (3, 3), "condition: any, then: any, else: any", "any", "The second argument if the condition is true, else the third.", "ifCondition(true, 'yes', 'no')", r#""yes""#, |_, args| Ok(args.get(if args.get(0).is_truthy() { 1 } else { 2 }))).accepts_null().alias(&["iif"]),
    line("decode", (3, UNLIMITED_ARGS), "x: any, search: any, result: any, ...[, default: any]", "any", "The result that follows the first search value equal to x; otherwise the default or null.", "decode(2, 1, 'one', 2, 'two', 'other')", r#""two""#, decode_case).accepts_null(),
    line("null", (0, 0), "", "null", "The null value.", "null()", "null", |_, _| Ok(Value::Undefined)),
];

fn type_test<'a>(args: Args<'_, 'a>, test: fn(&Value<'a>) -> bool) -> Result<'a> {
    Ok(Value::Bool(test(&args.get(0))))
}

fn is_empty<'a>(context: &mut FunctionContext<'a, '_>, value: Value<'a>) -> bool {
    let opened = match context.dialect {
        Dialect::Emqx => to_container(value, context.arena),
        Dialect::Fluxmq => value.parse_one_level(context.arena),
    };
    match opened {
        Value::Undefined | Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Map(fields) => fields.is_empty(),
        other => other.as_bytes() == Some(b""),
    }
}

fn first_present<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    test: fn(&Value<'a>) -> bool,
) -> Result<'a> {
    let candidates = match args.get(0).parse_one_level(context.arena) {
        Value::Array(items) if args.len() == 1 => items,
        _ => args.values,
    };
    let found = candidates.iter().copied();
    Ok(found
        .filter(|value| !is_absent(context, *value))
        .find(test)
        .unwrap_or(Value::Undefined))
}

/// Whether `isNull` treats the value as null.
fn is_absent(context: &FunctionContext<'_, '_>, value: Value<'_>) -> bool {
    match context.dialect {
        Dialect::Fluxmq => value.is_null(),
        Dialect::Emqx => value.is_undefined(),
    }
}

fn decode_case<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let (wanted, rest) = (args.get(0), &args.values[1..]);
    let mut pairs = rest.chunks_exact(2);
    let default = pairs
        .remainder()
        .first()
        .copied()
        .unwrap_or(Value::Undefined);
    Ok(pairs
        .find(|pair| pair[0].is_not_distinct(&wanted))
        .map_or(default, |pair| pair[1]))
}
