//! Map functions. The text of a JSON object is accepted as a map.

use bumpalo::collections::Vec;

use super::args::{Args, to_container};
use super::function::{Function, line};
use crate::decimals::compact_decimals;
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::{Arena, Value};

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;
type Fields<'a> = &'a [(&'a str, Value<'a>)];

/// Maximum number of names in a path.
const MAX_PATH: usize = 128;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("map_new", (0, 0), "", "map", "An empty map.", "map_new()", "{}", |_, _| Ok(Value::Map(&[]))),
    line("map_get", (2, 3), "path: string, x: map[, default: any]", "any", "The field at a path of names separated by dots, or the default.", "map_get('a.b', '{\"a\":{\"b\":1}}')", "1", map_get).accepts_null(),
    line("map_put", (3, 3), "path: string, value: any, x: map", "map", "A copy with a field set at a path of names separated by dots; missing maps are created.", "map_put('a.b', 1, map_new())", r#"{"a":{"b":1}}"#, map_put).accepts_null(),
    line("mget", (2, 3), "name: string | array, x: map[, default: any]", "any", "The field of this name, or at a path given as an array, or the default.", "mget(['a', 'b'], '{\"a\":{\"b\":1}}')", "1", mget).accepts_null(),
    line("mput", (3, 3), "name: string | array, value: any, x: map", "map", "A copy with a field set, by name or at a path given as an array; missing maps are created.", "mput('a.b', 2, map_new())", r#"{"a.b":2}"#, mput).accepts_null(),
    line("map_keys", (1, 1), "x: map", "array", "The names of the fields.", "map_keys('{\"a\":1,\"b\":2}')", r#"["a","b"]"#, |context, args| keys(context, args)),
    line("map_values", (1, 1), "x: map", "array", "The values of the fields.", "map_values('{\"a\":1,\"b\":2}')", "[1,2]", |context, args| values(context, args)),
    line("map_to_entries", (1, 1), "x: map", "array", "The fields as maps with `key` and `value`.", "map_to_entries('{\"a\":1}')", r#"[{"key":"a","value":1}]"#, to_entries),
    line("map_size", (1, 1), "x: map", "int", "The number of fields.", "map_size('{\"a\":1}')", "1", map_size),
    line("containsKey", (2, 2), "x: map, name: string", "boolean", "Whether the map has a field of this name, null or not.", "containsKey('{\"a\":null}', 'a')", "true", contains_key),
    line("map_to_redis_hset_args", (1, 1), "x: map", "array", "Names and values alternating, as arguments of Redis HSET; only fields that are text, numbers or booleans are included. Empty if it is no map.", "map_to_redis_hset_args('{\"a\":1,\"b\":\"x\"}')", r#"["a","1","b","x"]"#, redis_args).accepts_null_in_emqx(),
];

fn map_get<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() || args.get(1).is_null() {
        return Ok(args.get(2));
    }
    let path = args.text(0, context.arena)?;
    let map = Value::Map(args.map(1, context.arena)?);
    Ok(find_by_path(map, path.split('.'), context.arena).unwrap_or(args.get(2)))
}

fn find_by_path<'a, 'n>(
    map: Value<'a>,
    mut path: impl Iterator<Item = &'n str>,
    arena: &'a Arena,
) -> Option<Value<'a>> {
    path.try_fold(map, |map, name| map.find_field(name, arena))
}

fn map_put<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() {
        return Ok(Value::Undefined);
    }
    let path = args.text(0, context.arena)?;
    put(context, args, path.split('.'))
}

fn put<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    path: impl Iterator<Item = &'a str>,
) -> Result<'a> {
    let mut names = Vec::new_in(context.arena);
    names.extend(path.take(MAX_PATH + 1));
    if names.is_empty() || names.len() > MAX_PATH {
        return args.out_of_range(0, "a path of 1 to 128 names");
    }
    let fields = match args.get(2) {
        map if map.is_null() => &[],
        _ => args.map(2, context.arena)?,
    };
    Ok(with_field(fields, &names, args.get(1), context.arena))
}

/// A copy with one field set; an existing field keeps its position.
fn with_field<'a>(
    fields: Fields<'a>,
    path: &[&'a str],
    value: Value<'a>,
    arena: &'a Arena,
) -> Value<'a> {
    let Some((name, deeper)) = path.split_first() else {
        return value;
    };
    let old = fields.iter().rposition(|(field, _)| field == name);
    let below = match old.map(|at| fields[at].1.parse_one_level(arena)) {
        Some(Value::Map(fields)) => fields,
        _ => &[],
    };
    let value = with_field(below, deeper, value, arena);
    let mut copy = Vec::with_capacity_in(fields.len() + 1, arena);
    copy.extend_from_slice_copy(fields);
    match old {
        Some(at) => copy[at].1 = value,
        None => copy.push((name, value)),
    }
    Value::Map(copy.into_bump_slice())
}

fn mget<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() || args.get(1).is_null() {
        return Ok(args.get(2));
    }
    let arena = context.arena;
    let map = Value::Map(args.map(1, arena)?);
    let found = match args.get(0).parse_one_level(arena) {
        Value::Array(names) => find_by_path(map, names.iter().map(|name| name.text(arena)), arena),
        _ => map.find_field(args.text(0, arena)?, arena),
    };
    Ok(found.unwrap_or(args.get(2)))
}

fn mput<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() {
        return Ok(Value::Undefined);
    }
    let arena = context.arena;
    match args.get(0).parse_one_level(arena) {
        Value::Array(names) => put(context, args, names.iter().map(|name| name.text(arena))),
        _ => put(context, args, std::iter::once(args.text(0, arena)?)),
    }
}

pub(super) fn keys<'a>(context: &FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let fields = args.map(0, context.arena)?;
    let names = fields.iter().map(|(name, _)| Value::Str(name));
    Ok(Value::Array(context.arena.alloc_slice_fill_iter(names)))
}

pub(super) fn values<'a>(context: &FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let fields = args.map(0, context.arena)?;
    Ok(Value::Array(context.arena.alloc_slice_fill_iter(
        fields.iter().map(|(_, value)| *value),
    )))
}

fn to_entries<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let arena = context.arena;
    let entries = args.map(0, arena)?.iter().map(|(name, value)| {
        Value::Map(arena.alloc_slice_copy(&[("key", Value::Str(name)), ("value", *value)]))
    });
    let mut items = Vec::new_in(arena);
    items.extend(entries);
    Ok(Value::Array(items.into_bump_slice()))
}

/// A list of pairs has a size, too, as in EMQX.
fn map_size<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match to_container(args.get(0), context.arena) {
        Value::Map(fields) => Ok(Value::Int(fields.len() as i64)),
        Value::Array(items) => Ok(Value::Int(items.len() as i64)),
        _ => args.wrong_type(0, "a map"),
    }
}

fn contains_key<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let map = Value::Map(args.map(0, context.arena)?);
    let name = args.text(1, context.arena)?;
    Ok(Value::Bool(map.find_field(name, context.arena).is_some()))
}

fn redis_args<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let fields = match to_container(args.get(0), context.arena) {
        Value::Map(fields) => fields,
        _ => &[],
    };
    let mut items = Vec::with_capacity_in(fields.len() * 2, context.arena);
    for (name, value) in fields {
        let text = match value {
            Value::Float(number) => compact_decimals(*number, 6, context.arena),
            Value::Str(_) | Value::Int(_) | Value::Bool(_) => value.text(context.arena),
            _ => continue,
        };
        items.extend([Value::Str(name), Value::Str(text)]);
    }
    Ok(Value::Array(items.into_bump_slice()))
}
