//! JSON functions: conversion between text and values, paths, and contents of documents.

use bumpalo::collections::Vec;

use super::args::{Args, to_container};
use super::function::{Function, line};
use super::jsonpath;
use super::maps::{keys, values};
use crate::evaluation_error::EvaluationError;
use crate::function_context::{FunctionContext, UNDEFINED};
use crate::json;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("json", (1, 1), "x: any", "string", "Converts to JSON; text that is already JSON is unchanged.", "json('[1, 2]')", r#""[1, 2]""#, to_json),
    line("json_encode", (1, 1), "x: any", "string", "Converts to JSON; text is quoted.", "json_encode(['a', 1.0, null])", r#""[\"a\",1.0,null]""#, json_encode).accepts_null_in_emqx().differing("EMQX writes the text `undefined` for a missing value and `null` for null; in FluxMQ either makes the result null"),
    line("json_decode", (1, 1), "text: string", "any", "Parses JSON.", "json_decode('{\"a\": [1, 2]}')", r#"{"a": [1, 2]}"#, json_decode).alias(&["parseJson"]),
    line("jsonPath", (2, 2), "x: any, path: string", "any", "Selects by a JSONPath ($.a.b[0], [-1], [1:3], *, ..name): one value, or an array if the path contains * : or ..; null if nothing is found.", "jsonPath('{\"user\":{\"name\":\"tom\"}}', '$.user.name')", r#""tom""#, json_path),
    line("jsonKeys", (1, 1), "x: map", "array", "The field names of an object; null if it is not an object.", "jsonKeys('{\"a\":1,\"b\":2}')", r#"["a","b"]"#, |context, args| map_object(context, args, keys)),
    line("jsonValues", (1, 1), "x: map", "array", "The field values of an object; null if it is not an object.", "jsonValues('{\"a\":1,\"b\":2}')", "[1,2]", |context, args| map_object(context, args, values)),
    line("jsonSize", (1, 1), "x: map | array", "int", "The number of fields or items; null if it is neither object nor array.", "jsonSize('{\"a\":1,\"b\":2}')", "2", size),
    line("isJson", (1, 1), "x: any", "boolean", "Whether it is JSON text, an array or a map.", "isJson('{\"name\":\"test\"}')", "true", |_, args| Ok(Value::Bool(is_json(args.get(0))))).accepts_null(),
    line("isJsonArray", (1, 1), "x: any", "boolean", "Whether it is an array or the JSON text of one.", "isJsonArray('[1,2,3]')", "true", |_, args| Ok(Value::Bool(is_kind(args.get(0), b'[')))).accepts_null(),
    line("isJsonObject", (1, 1), "x: any", "boolean", "Whether it is a map or the JSON text of one.", "isJsonObject('{\"a\":1}')", "true", |_, args| Ok(Value::Bool(is_kind(args.get(0), b'{')))).accepts_null(),
    line("join_to_sql_values_string", (1, 1), "items: array", "string", "The items as SQL constants separated by commas. Prefer a template, which binds values instead of inserting them into the statement.", "join_to_sql_values_string([1, 'a', null])", r#""1, 'a', NULL""#, sql_values),
];

fn to_json<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let value = args.get(0);
    Ok(Value::Str(match value.as_str() {
        Some(text) if json::check(text).is_ok() => text,
        _ => json::text(&value, context.arena),
    }))
}

fn json_encode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let value = match args.get(0) {
        // Only in EMQX's dialect, which encodes the atom.
        Value::Undefined => Value::Str(UNDEFINED),
        value => value,
    };
    Ok(Value::Str(json::text(&value, context.arena)))
}

fn json_decode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match args.get(0) {
        value @ (Value::Array(_) | Value::Map(_) | Value::Json(_)) => Ok(value),
        _ => {
            let text = args.text(0, context.arena)?;
            json::parse_lazy(text, context.arena).or_else(|error| args.invalid(error.to_string()))
        }
    }
}

fn json_path<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let path = args.text(1, context.arena)?;
    let root = to_container(args.get(0), context.arena);
    jsonpath::select(root, path, context.arena).or_else(|why| args.invalid(why))
}

fn map_object<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    part: for<'x, 'y> fn(&FunctionContext<'a, 'x>, Args<'y, 'a>) -> Result<'a>,
) -> Result<'a> {
    match to_container(args.get(0), context.arena) {
        Value::Map(_) => part(context, args),
        _ => Ok(Value::Undefined),
    }
}

fn size<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    Ok(match to_container(args.get(0), context.arena) {
        Value::Map(fields) => Value::Int(fields.len() as i64),
        Value::Array(items) => Value::Int(items.len() as i64),
        _ => Value::Undefined,
    })
}

fn is_json(value: Value<'_>) -> bool {
    match value {
        Value::Array(_) | Value::Map(_) | Value::Json(_) => true,
        _ => value.as_str().is_some_and(|text| json::check(text).is_ok()),
    }
}

fn is_kind(value: Value<'_>, first: u8) -> bool {
    match value {
        Value::Array(_) => first == b'[',
        Value::Map(_) => first == b'{',
        _ => {
            let bytes = value.as_bytes().unwrap_or_default().trim_ascii_start();
            bytes.first() == Some(&first) && is_json(value)
        }
    }
}

fn sql_values<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let items = args.array(0, context.arena)?;
    let mut out: Vec<'a, u8> = Vec::new_in(context.arena);
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice_copy(b", ");
        }
        match item {
            Value::Undefined | Value::Null => out.extend_from_slice_copy(b"NULL"),
            Value::Int(_) | Value::Float(_) | Value::Bool(_) => {
                out.extend_from_slice_copy(item.text(context.arena).as_bytes());
            }
            _ => {
                out.push(b'\'');
                for byte in item.text(context.arena).bytes() {
                    if matches!(byte, b'\'' | b'\\') {
                        out.push(byte);
                    }
                    out.push(byte);
                }
                out.push(b'\'');
            }
        }
        context.check_output_size(args.function, out.len())?;
    }
    Ok(Value::Str(
        str::from_utf8(out.into_bump_slice()).expect("whole texts and ASCII"),
    ))
}
