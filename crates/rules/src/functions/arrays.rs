//! Array functions. The text of a JSON array is accepted as an array.

use bumpalo::collections::Vec;

use super::args::{Args, to_container};
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::{Dialect, FunctionContext};
use crate::value::{Number, Value};

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("arrayLength", (1, 1), "items: array", "int", "The number of items.", "arrayLength([1, 2, 3])", "3", |context, args| Ok(Value::Int(args.array(0, context.arena)?.len() as i64))),
    line("first", (1, 1), "items: array", "any", "The first item.", "first(['John', 'David'])", r#""John""#, |context, args| { let items = args.array(0, context.arena)?; array_end(context, args, items.first()) }).differing("an empty array is an error in EMQX and gives null in FluxMQ"),
    line("last", (1, 1), "items: array", "any", "The last item.", "last(['John', 'David'])", r#""David""#, |context, args| { let items = args.array(0, context.arena)?; array_end(context, args, items.last()) }).differing("an empty array is an error in EMQX and gives null in FluxMQ"),
    line("nth", (2, 2), "number: int, items: array | items: array, index: int", "any", "The item at a position counted from 1, or at an index counted from 0 if the array is the first argument.", "nth(1, ['a', 'b'])", r#""a""#, nth).differing("EMQX writes nth(1, array), counts from 1, and a missing position is an error; FluxMQ writes nth(array, 0), counts from 0, and a missing index gives null; the order of arguments decides"),
    line("get", (2, 2), "x: array | map, index: int | string", "any", "The item at an index counted from 0 (negative: from the end), or the field of this name; null if it does not exist.", "get(split('a/b', '/'), 1)", r#""b""#, get).alias(&["elementAt"]),
    line("sublist", (2, 3), "[start: int, ]length: int, items: array", "array", "A number of items from the start, or from a position counted from 1.", "sublist(2, 10, [1, 2, 3, 4])", "[2,3,4]", sublist),
    line("sum", (1, 1), "items: array", "number", "The sum of the items.", "sum([1, 2, 3])", "6", sum),
    line("avg", (1, 1), "items: array", "float", "The mean of the items; null if there are none.", "avg([1, 2, 6])", "3.0", avg),
    line("distinct", (1, 1), "items: array", "array", "The items without duplicates, in order of first occurrence.", "distinct([1, 1, 2, 3, 2])", "[1,2,3]", distinct),
    line("sort", (1, 2), "items: array[, 'asc' | 'desc']", "array", "The items in ascending or descending order.", "sort([3, 1, 2])", "[1,2,3]", sort),
];

fn array_end<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    item: Option<&Value<'a>>,
) -> Result<'a> {
    match (item, context.dialect) {
        (Some(item), _) => Ok(*item),
        (None, Dialect::Fluxmq) => Ok(Value::Undefined),
        (None, Dialect::Emqx) => args.out_of_range(0, "an array that is not empty"),
    }
}

fn nth<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let arena = context.arena;
    if let Value::Array(items) = to_container(args.get(0), arena) {
        let index = args.int(1)?;
        return Ok(usize::try_from(index)
            .ok()
            .and_then(|index| items.get(index).copied())
            .unwrap_or(Value::Undefined));
    }
    let number = args.int(0)?;
    let items = args.array(1, arena)?;
    let item = number
        .checked_sub(1)
        .and_then(|index| items.get(usize::try_from(index).ok()?));
    match item {
        Some(item) => Ok(*item),
        None => args.out_of_range(0, "1 to the length of the array"),
    }
}

fn get<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match to_container(args.get(0), context.arena) {
        array @ Value::Array(_) => Ok(array.item(args.int(1)?, context.arena)),
        map @ Value::Map(_) => Ok(map.field(args.text(1, context.arena)?, context.arena)),
        _ => args.wrong_type(0, "an array or a map"),
    }
}

fn sublist<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let (start, length_at) = match args.len() {
        2 => (1, 0),
        _ => (args.size(0)?, 1),
    };
    let length = args.size(length_at)?;
    let items = args.array(length_at + 1, context.arena)?;
    let Some(start) = start.checked_sub(1) else {
        return args.out_of_range(0, "1 or more");
    };
    let rest = items.get(start..).unwrap_or_default();
    Ok(Value::Array(&rest[..length.min(rest.len())]))
}

/// Sum and number of the items that are not null.
fn sum_and_count<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
) -> std::result::Result<(Number, usize), EvaluationError> {
    let mut sum = Number::Int(0);
    let mut count = 0;
    for item in args
        .array(0, context.arena)?
        .iter()
        .filter(|item| !item.is_null())
    {
        let Some(number) = item.as_number() else {
            return args.wrong_type(0, "an array of numbers");
        };
        sum = match (sum, number) {
            (Number::Int(sum), Number::Int(number)) => {
                Number::Int(sum.checked_add(number).ok_or_else(|| args.overflow())?)
            }
            (sum, number) => Number::Float(sum.as_f64() + number.as_f64()),
        };
        count += 1;
    }
    Ok((sum, count))
}

fn sum<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    Ok(sum_and_count(context, args)?.0.into())
}

fn avg<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let (sum, count) = sum_and_count(context, args)?;
    Ok(if count == 0 {
        Value::Undefined
    } else {
        Value::Float(sum.as_f64() / count as f64)
    })
}

/// Maximum number of comparisons of unordered items (arrays, maps) in `distinct`; beyond it the call fails.
const MAX_COMPARISONS: usize = 250_000;

fn distinct<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let items = args.array(0, context.arena)?;
    let mut order = Vec::with_capacity_in(items.len(), context.arena);
    order.extend(0..items.len());
    // Sorts equal items next to each other, the first occurrence first.
    order.sort_by(|left, right| items[*left].total_order(&items[*right]));
    let mut comparisons = 0;
    let mut kept: Vec<'_, usize> = Vec::with_capacity_in(items.len(), context.arena);
    for index in order {
        let item = &items[index];
        let rivals = kept
            .iter()
            .rev()
            .take_while(|other| items[**other].total_order(item).is_eq());
        let mut known = false;
        for rival in rivals {
            comparisons += 1;
            known = items[*rival].is_not_distinct(item);
            if known {
                break;
            }
        }
        if comparisons > MAX_COMPARISONS {
            return Err(EvaluationError::TooLarge {
                function: args.function,
                limit: MAX_COMPARISONS,
                unit: "comparisons",
            });
        }
        if !known {
            kept.push(index);
        }
    }
    kept.sort_unstable();
    Ok(Value::Array(context.arena.alloc_slice_fill_iter(
        kept.iter().map(|index| items[*index]),
    )))
}

fn sort<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let descending = args.len() == 2
        && args.keyword(
            1,
            context.arena,
            &[("asc", false), ("desc", true)],
            "'asc' or 'desc'",
        )?;
    let items = context
        .arena
        .alloc_slice_copy(args.array(0, context.arena)?);
    if descending {
        items.sort_by(|left, right| right.total_order(left));
    } else {
        items.sort_by(Value::total_order);
    }
    Ok(Value::Array(items))
}
