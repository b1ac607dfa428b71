//! What a rule remembers from one message to the next, and what it is told of the node.

use super::{Args, Function, line};
use crate::context::Context;
use crate::fault::Fault;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, Fault>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("kv_store_put", (2, 2), "key: any, value: any", "boolean", "Remembers a value for later messages of this rule; a fault if the rule remembers too much.", "kv_store_put('seen', 1)", "true", put).impure().nulls().alias(&["proc_dict_put"]),
    line("getenv", (1, 1), "name: string", "string", "A variable of the node's environment that the setting `rules.getenv` lists; empty if it is not set.", "getenv('SITE')", r#""north""#, getenv).impure(),
    line("kv_store_get", (1, 2), "key: any[, default: any]", "any", "What the rule remembers, or the default.", "kv_store_get('seen', 0)", "0", get).impure().nulls().alias(&["proc_dict_get"]),
    line("kv_store_del", (1, 1), "key: any", "boolean", "Forgets a value; whether there was one.", "kv_store_del('seen')", "false", del).impure().alias(&["proc_dict_del"]),
];

fn getenv<'a>(context: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let name = args.text(0, context.arena)?;
    match context.tools.variable(name) {
        Some(value) => Ok(Value::Str(context.arena.alloc_str(value))),
        None => args.invalid(format!(
            "rules may not read the environment variable {name:?}; add it to the setting rules.getenv"
        )),
    }
}

fn put<'a>(context: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() {
        return Ok(Value::Undefined);
    }
    let key = args.text(0, context.arena)?;
    match context.kv.put(key, args.get(1).into_owned()) {
        Ok(()) => Ok(Value::Bool(true)),
        Err(crate::kv::Full) => {
            let limits = context.kv.limits();
            args.invalid(format!(
                "the rule's memory is full ({} entries or {} bytes); remove entries with kv_store_del",
                limits.max_entries, limits.max_bytes
            ))
        }
    }
}

fn get<'a>(context: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() {
        return Ok(args.get(1));
    }
    let key = args.text(0, context.arena)?;
    Ok(context
        .kv
        .get(key)
        .map_or(args.get(1), |value| value.borrow(context.arena)))
}

fn del<'a>(context: &mut Context<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let key = args.text(0, context.arena)?;
    Ok(Value::Bool(context.kv.remove(key)))
}
