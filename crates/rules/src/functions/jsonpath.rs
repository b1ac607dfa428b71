//! The subset of JSONPath that rules need: names, indexes, slices, `*` and `..`. Filters are rejected.

use bumpalo::collections::Vec;

use crate::value::{Arena, Value};

/// Maximum number of steps of a path.
const MAX_STEPS: usize = 64;
/// Maximum number of values that a path may select.
const MAX_SELECTED: usize = 100_000;

#[derive(Clone, Copy)]
enum JsonPathStep<'p> {
    Name(&'p str),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    All,
}

/// Checks the syntax of a path.
pub(crate) fn check(path: &str) -> Result<(), String> {
    let arena = Arena::new();
    // The syntax of all steps is checked, even if there is nothing to select.
    let path = arena.alloc_str(path);
    select(Value::Undefined, path, &arena).map(drop)
}

/// The selection of a path: one value or null, or an array if the path can select several values.
pub(super) fn select<'a>(
    root: Value<'a>,
    path: &'a str,
    arena: &'a Arena,
) -> Result<Value<'a>, String> {
    let mut rest = path.trim();
    rest = rest.strip_prefix('$').unwrap_or(rest);
    let mut selected = Vec::new_in(arena);
    selected.push(root);
    let mut several = false;
    for _ in 0..MAX_STEPS {
        if rest.is_empty() {
            return Ok(match (several, selected.first()) {
                (true, _) => Value::Array(selected.into_bump_slice()),
                (false, Some(value)) => *value,
                (false, None) => Value::Undefined,
            });
        }
        let (step, deep, behind) = read_step(rest)?;
        rest = behind;
        several |= deep || matches!(step, JsonPathStep::All | JsonPathStep::Slice(..));
        let from = if deep {
            descendants(&selected, arena)?
        } else {
            selected
        };
        selected = Vec::new_in(arena);
        for value in from {
            apply(value.parse_one_level(arena), step, &mut selected);
            if selected.len() > MAX_SELECTED {
                return Err(format!("the path selects more than {MAX_SELECTED} values"));
            }
        }
    }
    Err(format!("the path has more than {MAX_STEPS} steps"))
}

/// Parses a step. Returns it, whether `..` preceded it, and the rest.
fn read_step(text: &str) -> Result<(JsonPathStep<'_>, bool, &str), String> {
    let (deep, rest) = match text.strip_prefix("..") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dotted = if deep {
        Some(rest)
    } else {
        rest.strip_prefix('.')
    };
    if let Some(rest) = rest.strip_prefix('[') {
        let (step, behind) = read_bracket(rest)?;
        return Ok((step, deep, behind));
    }
    // The first name needs no prefix.
    let name = dotted.unwrap_or(rest);
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (name, behind) = name.split_at(end);
    match name {
        "" => Err(format!("expected a name at {text:?} of the path")),
        "*" => Ok((JsonPathStep::All, deep, behind)),
        _ => Ok((JsonPathStep::Name(name), deep, behind)),
    }
}

/// Parses the contents of brackets: a quoted name, a number, a slice or a star.
fn read_bracket(text: &str) -> Result<(JsonPathStep<'_>, &str), String> {
    let wrong = || {
        Err(format!(
            "expected a name in quotes, a number, a slice or * and ] at {text:?} of the path (there are no filters)"
        ))
    };
    let text = text.trim_start();
    if let Some(quote @ ('\'' | '"')) = text.chars().next() {
        let Some((name, rest)) = text[1..].split_once(quote) else {
            return wrong();
        };
        return match rest.trim_start().strip_prefix(']') {
            Some(rest) => Ok((JsonPathStep::Name(name), rest)),
            None => wrong(),
        };
    }
    let Some((inner, rest)) = text.split_once(']') else {
        return wrong();
    };
    let number = |text: &str| match text.trim() {
        "" => Some(None),
        digits => digits.parse().ok().map(Some),
    };
    let step = match inner.trim() {
        "*" => Some(JsonPathStep::All),
        inner => match inner.split_once(':') {
            Some((start, end)) => number(start)
                .zip(number(end))
                .map(|(start, end)| JsonPathStep::Slice(start, end)),
            None => number(inner).flatten().map(JsonPathStep::Index),
        },
    };
    match step {
        Some(step) => Ok((step, rest)),
        None => wrong(),
    }
}

fn apply<'a>(value: Value<'a>, step: JsonPathStep<'_>, selected: &mut Vec<'a, Value<'a>>) {
    match (value, step) {
        (Value::Map(fields), JsonPathStep::Name(name)) => {
            let field = fields.iter().rev().find(|(field, _)| *field == name);
            selected.extend(field.map(|(_, value)| *value));
        }
        (Value::Map(fields), JsonPathStep::All) => {
            selected.extend(fields.iter().map(|(_, value)| *value))
        }
        (Value::Array(items), JsonPathStep::All) => selected.extend_from_slice_copy(items),
        (Value::Array(items), JsonPathStep::Index(index)) => {
            let at = start_index(index, items.len());
            selected.extend(
                usize::try_from(at)
                    .ok()
                    .and_then(|at| items.get(at))
                    .copied(),
            );
        }
        (Value::Array(items), JsonPathStep::Slice(start, end)) => {
            let bound =
                |index: i64| start_index(index, items.len()).clamp(0, items.len() as i64) as usize;
            let (start, end) = (start.map_or(0, bound), end.map_or(items.len(), bound));
            selected.extend_from_slice_copy(items.get(start..end).unwrap_or_default());
        }
        _ => {}
    }
}

/// Converts a negative index, which counts from the end, to one from the start.
fn start_index(index: i64, length: usize) -> i64 {
    if index < 0 {
        index.saturating_add_unsigned(length as u64)
    } else {
        index
    }
}

/// The values and all their descendants in document order.
fn descendants<'a>(values: &[Value<'a>], arena: &'a Arena) -> Result<Vec<'a, Value<'a>>, String> {
    let mut all = Vec::new_in(arena);
    let mut waiting = Vec::new_in(arena);
    waiting.extend(values.iter().rev().copied());
    while let Some(value) = waiting.pop() {
        let value = value.parse_one_level(arena);
        match value {
            Value::Map(fields) => waiting.extend(fields.iter().rev().map(|(_, value)| *value)),
            Value::Array(items) => waiting.extend(items.iter().rev().copied()),
            _ => continue,
        }
        all.push(value);
        if all.len() + waiting.len() > MAX_SELECTED {
            return Err(format!("the path selects more than {MAX_SELECTED} values"));
        }
    }
    Ok(all)
}
