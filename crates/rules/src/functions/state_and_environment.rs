//! The key-value store of a rule, and information about the node.

use super::args::Args;
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("kv_store_put", (2, 2), "key: any, value: any", "boolean", "Stores a value for later messages of this rule; an error if the rule's store is full.", "kv_store_put('seen', 1)", "true", put).impure().accepts_null().alias(&["proc_dict_put"]),
    line("getenv", (1, 1), "name: string", "string", "An environment variable of the node that the setting `rules.environment_variables` lists; empty if it is not set.", "getenv('SITE')", r#""north""#, getenv).impure(),
    line("kv_store_get", (1, 2), "key: any[, default: any]", "any", "The stored value, or the default.", "kv_store_get('seen', 0)", "0", get).impure().accepts_null().alias(&["proc_dict_get"]),
    line("kv_store_del", (1, 1), "key: any", "boolean", "Deletes a stored value; returns whether it existed.", "kv_store_del('seen')", "false", del).impure().alias(&["proc_dict_del"]),
];

fn getenv<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let name = args.text(0, context.arena)?;
    match context.resources.environment_variable(name) {
        Some(value) => Ok(Value::Str(context.arena.alloc_str(value))),
        None => args.invalid(format!(
            "rules may not read the environment variable {name:?}; add it to the setting rules.environment_variables"
        )),
    }
}

fn put<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() {
        return Ok(Value::Undefined);
    }
    let key = args.text(0, context.arena)?;
    match context.kv.put(key, args.get(1).into_owned()) {
        Ok(()) => Ok(Value::Bool(true)),
        Err(crate::kv_store::KvStoreFullError) => {
            let limits = context.kv.limits();
            args.invalid(format!(
                "the rule's memory is full ({} entries or {} bytes); remove entries with kv_store_del",
                limits.max_entries, limits.max_bytes
            ))
        }
    }
}

fn get<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() {
        return Ok(args.get(1));
    }
    let key = args.text(0, context.arena)?;
    Ok(context
        .kv
        .get(key)
        .map_or(args.get(1), |value| value.to_value(context.arena)))
}

fn del<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let key = args.text(0, context.arena)?;
    Ok(Value::Bool(context.kv.remove(key)))
}
