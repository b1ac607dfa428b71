//! Text functions: find, replace, split, and regular expressions.

use bumpalo::collections::String as ArenaString;
use bumpalo::collections::Vec;

use super::args::Args;
use super::characters::{byte_at, characters};
use super::function::{Function, line};
use super::strings::character_set;
use crate::compiled_regex::CompiledRegex;
use crate::evaluation_error::EvaluationError;
use crate::function_context::{Dialect, FunctionContext};
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("find", (2, 3), "text: string, part: string[, direction: 'leading' | 'trailing']", "string", "The text from the first (or last) occurrence of the part.", "find('Front, Middle, End', ', ', 'trailing')", r#"", End""#, find).differing("if nothing is found, EMQX gives an empty text and FluxMQ null"),
    line("indexOf", (2, 3), "x: string | array, part: any[, from: int]", "int", "The index of the first occurrence (at or after a position), counted from 0; -1 if not found.", "indexOf('hello', 'ell')", "1", |context, args| index_of(context, args, false)).alias(&["indexOfArray"]),
    line("lastIndexOf", (2, 3), "x: string | array, part: any[, from: int]", "int", "The index of the last occurrence (at or before a position), counted from 0; -1 if not found.", "lastIndexOf('hello hello', 'ello')", "7", |context, args| index_of(context, args, true)),
    line("contains", (2, 2), "x: string | array, part: any", "boolean", "Whether a text contains the part, or an array the item.", "contains('hello', 'ell')", "true", contains).differing("EMQX writes the item first, contains(2, [1,2,3]), FluxMQ the array; either order works in both unless both arguments are arrays; EMQX finds only values of the same type, also null, FluxMQ compares like `=`").accepts_null_in_emqx(),
    line("startsWith", (2, 3), "text: string, prefix: string[, from: int]", "boolean", "Whether the text starts with the part, or contains it at a position counted from 0.", "startsWith('hello', 'he')", "true", starts_with),
    line("endsWith", (2, 2), "text: string, suffix: string", "boolean", "Whether the text ends with the part.", "endsWith('hello', 'lo')", "true", |context, args| Ok(Value::Bool(args.text(0, context.arena)?.ends_with(args.text(1, context.arena)?)))),
    line("replace", (3, 4), "text: string, part: string, by: string[, which: 'all' | 'leading' | 'trailing']", "string", "Replaces occurrences of the part.", "replace('ab..cd..ef', '..', '*', 'trailing')", r#""ab..cd*ef""#, replace).differing("without the fourth argument EMQX replaces all, FluxMQ only the first"),
    line("replaceAll", (3, 3), "text: string, part: string, by: string", "string", "Replaces all occurrences of the part.", "replaceAll('hello', 'l', 'x')", r#""hexxo""#, |context, args| replace_scoped(context, args, ReplaceScope::All)),
    line("replaceFirst", (3, 3), "text: string, expression: string, by: string", "string", "Replaces the first match of the regular expression.", "replaceFirst('a1b2', '[0-9]', '-')", r#""a-b2""#, |context, args| regex_replace(context, args, 1)).differing("in the replacement EMQX writes & for the match, FluxMQ $0"),
    line("split", (2, 3), "text: string, separator: string[, option: 'notrim' | 'leading' | 'trailing' | 'leading_notrim' | 'trailing_notrim']", "array", "The parts between separators. With 'leading' or 'trailing' it splits only at the first or last separator; 'notrim' keeps empty parts.", "split('a,b,c', ',', 'leading')", r#"["a","b,c"]"#, split).differing("without 'notrim' EMQX omits empty parts, FluxMQ keeps them: split('/a', '/') is ['a'] or ['', 'a']"),
    line("tokens", (2, 3), "text: string, separators: string[, 'nocrlf']", "array", "The non-empty parts between any of the characters; with 'nocrlf' also split at line ends.", "tokens('a,b;;c', ',;')", r#"["a","b","c"]"#, tokens),
    line("regex_match", (2, 2), "text: string, expression: string", "boolean", "Whether the regular expression matches a part of the text.", "regex_match('a23', '[0-9]+')", "true", regex_match),
    line("matches", (2, 2), "text: string, expression: string", "boolean", "Whether the regular expression matches the whole text.", "matches('a23', '[0-9]+')", "false", matches),
    line("regex_replace", (3, 3), "text: string, expression: string, by: string", "string", "Replaces all matches.", r"regex_replace('a;b; c', ';\s*', ',')", r#""a,b,c""#, |context, args| regex_replace(context, args, usize::MAX)).differing(r"in the replacement EMQX writes & for the match and \1 or \g{1} for a group, FluxMQ $0 and $1"),
    line("regex_extract", (2, 2), "text: string, expression: string", "array", "The groups captured by the first match.", "regex_extract('2021-05-20', '([0-9]+)-([0-9]+)')", r#"["2021","05"]"#, regex_extract),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplaceScope {
    All,
    First,
    Last,
}

fn find<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let part = args.text(1, context.arena)?;
    let last = args.len() == 3
        && args.keyword(
            2,
            context.arena,
            &[("leading", false), ("trailing", true)],
            "'leading' or 'trailing'",
        )?;
    Ok(match position(text, part, last) {
        Some(at) => Value::Str(&text[at..]),
        None if context.dialect == Dialect::Fluxmq => Value::Undefined,
        None => Value::Str(""),
    })
}

fn position(text: &str, part: &str, last: bool) -> Option<usize> {
    match (last, part.as_bytes()) {
        (false, [byte]) => memchr::memchr(*byte, text.as_bytes()),
        (true, [byte]) => memchr::memrchr(*byte, text.as_bytes()),
        (false, _) => text.find(part),
        (true, _) => text.rfind(part),
    }
}

fn index_of<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    last: bool,
) -> Result<'a> {
    let from = match args.len() {
        3 => Some(usize::try_from(args.int(2)?.max(-1)).ok()),
        _ => None,
    };
    let index = if let Value::Array(items) = args.get(0).parse_one_level(context.arena) {
        let wanted = args.get(1).parse_one_level(context.arena);
        let is_it = |item: &Value<'a>| item.is_not_distinct(&wanted);
        match (last, from) {
            (true, None) => items.iter().rposition(is_it),
            (true, Some(None)) => None,
            (true, Some(Some(from))) => {
                let end = from.saturating_add(1).min(items.len());
                items[..end].iter().rposition(is_it)
            }
            (false, from) => {
                let from = from.flatten().unwrap_or(0);
                let rest = items.get(from..).unwrap_or_default();
                rest.iter().position(is_it).map(|at| from + at)
            }
        }
    } else {
        let text = args.text(0, context.arena)?;
        let part = args.text(1, context.arena)?;
        let at = match (last, from) {
            (true, None) => position(text, part, true),
            // As in Java: nothing is found before the start of the text.
            (true, Some(None)) => None,
            (true, Some(Some(from))) => {
                let end = byte_at(text, from).saturating_add(part.len());
                position(char_boundary_prefix(text, end), part, true)
            }
            (false, from) => {
                let start = byte_at(text, from.flatten().unwrap_or(0));
                position(&text[start..], part, false).map(|at| start + at)
            }
        };
        at.map(|at| characters(&text[..at]))
    };
    Ok(Value::Int(index.map_or(-1, |index| index as i64)))
}

/// The start of a text up to this byte, or up to the last character boundary before it.
fn char_boundary_prefix(text: &str, end: usize) -> &str {
    let mut end = end.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn starts_with<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let prefix = args.text(1, context.arena)?;
    let rest = match args.len() {
        2 => Some(text),
        // As in Java: nothing starts at a position beyond the text.
        _ => usize::try_from(args.int(2)?)
            .ok()
            .filter(|from| *from <= characters(text))
            .map(|from| &text[byte_at(text, from)..]),
    };
    Ok(Value::Bool(
        rest.is_some_and(|rest| rest.starts_with(prefix)),
    ))
}

fn contains<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let (first, second) = (
        args.get(0).parse_one_level(context.arena),
        args.get(1).parse_one_level(context.arena),
    );
    let is_same = |item: &Value<'a>, wanted: &Value<'a>| match context.dialect {
        Dialect::Fluxmq => item.is_not_distinct(wanted),
        // As IN matches them in this dialect.
        Dialect::Emqx => item.is_strictly_equal(wanted),
    };
    let found = match (first, second) {
        (Value::Array(items), Value::Array(others)) => match context.dialect {
            Dialect::Fluxmq => items.iter().any(|item| is_same(item, &second)),
            Dialect::Emqx => others.iter().any(|item| is_same(item, &first)),
        },
        (Value::Array(items), wanted) | (wanted, Value::Array(items)) => {
            items.iter().any(|item| is_same(item, &wanted))
        }
        // `text` rejects null, which only an array can contain.
        _ => position(
            args.text(0, context.arena)?,
            args.text(1, context.arena)?,
            false,
        )
        .is_some(),
    };
    Ok(Value::Bool(found))
}

fn replace<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let which = match (args.len(), context.dialect) {
        (3, Dialect::Emqx) => ReplaceScope::All,
        (3, Dialect::Fluxmq) => ReplaceScope::First,
        _ => args.keyword(
            3,
            context.arena,
            &[
                ("all", ReplaceScope::All),
                ("leading", ReplaceScope::First),
                ("trailing", ReplaceScope::Last),
            ],
            "'all', 'leading' or 'trailing'",
        )?,
    };
    replace_scoped(context, args, which)
}

fn replace_scoped<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    which: ReplaceScope,
) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let part = args.text(1, context.arena)?;
    let by = args.text(2, context.arena)?;
    let Some(mut at) =
        position(text, part, which == ReplaceScope::Last).filter(|_| !part.is_empty())
    else {
        return Ok(Value::Str(text));
    };
    let mut out = ArenaString::with_capacity_in(text.len() + by.len(), context.arena);
    let mut rest = text;
    loop {
        out.push_str(&rest[..at]);
        out.push_str(by);
        context.check_output_size(args.function, out.len())?;
        rest = &rest[at + part.len()..];
        match position(rest, part, false) {
            Some(next) if which == ReplaceScope::All => at = next,
            _ => break,
        }
    }
    out.push_str(rest);
    context.check_output_size(args.function, out.len())?;
    Ok(Value::Str(out.into_bump_str()))
}

fn split<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let separator = args.text(1, context.arena)?;
    let (which, keep_empty) = match args.len() {
        2 => (ReplaceScope::All, context.dialect == Dialect::Fluxmq),
        _ => args.keyword(
            2,
            context.arena,
            &[
                ("notrim", (ReplaceScope::All, true)),
                ("leading", (ReplaceScope::First, false)),
                ("trailing", (ReplaceScope::Last, false)),
                ("leading_notrim", (ReplaceScope::First, true)),
                ("trailing_notrim", (ReplaceScope::Last, true)),
            ],
            "'notrim', 'leading', 'trailing', 'leading_notrim' or 'trailing_notrim'",
        )?,
    };
    if separator.is_empty() {
        return args.out_of_range(1, "a separator that is not empty");
    }
    let mut parts = SplitParts {
        items: Vec::new_in(context.arena),
        keep_empty,
        limit: context.limits.max_items,
    };
    let mut rest = text;
    while let Some(at) = position(rest, separator, which == ReplaceScope::Last) {
        parts.push(args, &rest[..at])?;
        rest = &rest[at + separator.len()..];
        if which != ReplaceScope::All {
            break;
        }
    }
    parts.push(args, rest)?;
    Ok(Value::Array(parts.items.into_bump_slice()))
}

/// The parts of a text, limited in number.
struct SplitParts<'a> {
    items: Vec<'a, Value<'a>>,
    keep_empty: bool,
    limit: usize,
}

impl<'a> SplitParts<'a> {
    fn push(
        &mut self,
        args: Args<'_, 'a>,
        part: &'a str,
    ) -> std::result::Result<(), EvaluationError> {
        if part.is_empty() && !self.keep_empty {
            return Ok(());
        }
        if self.items.len() == self.limit {
            return Err(EvaluationError::TooLarge {
                function: args.function,
                limit: self.limit,
                unit: "items",
            });
        }
        self.items.push(Value::Str(part));
        Ok(())
    }
}

fn tokens<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let separators = character_set(context, args, 1)?;
    let lines =
        args.len() == 3 && args.keyword(2, context.arena, &[("nocrlf", true)], "'nocrlf'")?;
    let separates =
        |letter: char| separators.contains(letter) || (lines && matches!(letter, '\r' | '\n'));
    let mut parts = SplitParts {
        items: Vec::new_in(context.arena),
        keep_empty: false,
        limit: context.limits.max_items,
    };
    for part in text.split(separates) {
        parts.push(args, part)?;
    }
    Ok(Value::Array(parts.items.into_bump_slice()))
}

/// Limit of the regular expression work of one call: bytes of the compiled expression times bytes of the
/// text. An expression of 8 KiB may search 2 MiB of text, one of 1 MiB may search 16 KiB.
const MAX_REGEX_WORK: u64 = 1 << 34;
/// The amount of this work that counts as one step.
const REGEX_WORK_PER_STEP: u64 = 1 << 19;

fn with_regex<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    pattern: &str,
    text: &str,
) -> std::result::Result<std::sync::Arc<CompiledRegex>, EvaluationError> {
    let pattern = context
        .resources
        .compiled_regex(pattern, &mut context.limits);
    let pattern = pattern.or_else(|why| args.invalid(why))?;
    let work = pattern.matching_cost(text.len());
    if work > MAX_REGEX_WORK {
        return args.limit_exceeded(format!(
            "the text of {} bytes is too long for a regular expression of this size; expected at most {} bytes",
            text.len(),
            MAX_REGEX_WORK / pattern.matching_cost(1).max(1)
        ));
    }
    context.limits.extra_steps += (work / REGEX_WORK_PER_STEP) as u32;
    Ok(pattern)
}

fn regex_match<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let pattern = args.text(1, context.arena)?;
    let pattern = with_regex(context, args, pattern, text)?;
    Ok(Value::Bool(pattern.regex.is_match(text)))
}

fn matches<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let whole = bumpalo::format!(in context.arena, "^(?:{})$", args.text(1, context.arena)?);
    let pattern = with_regex(context, args, &whole, text)?;
    Ok(Value::Bool(pattern.regex.is_match(text)))
}

fn regex_replace<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    most: usize,
) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let pattern = args.text(1, context.arena)?;
    let by = args.text(2, context.arena)?;
    let pattern = with_regex(context, args, pattern, text)?;
    let mut out = ArenaString::with_capacity_in(text.len() + by.len(), context.arena);
    let mut end = 0;
    for caught in pattern.regex.captures_iter(text).take(most) {
        let Some(whole) = caught.get(0) else { continue };
        out.push_str(&text[end..whole.start()]);
        expand_groups(context.dialect, by, &caught, &mut out);
        context.check_output_size(args.function, out.len())?;
        end = whole.end();
    }
    out.push_str(&text[end..]);
    context.check_output_size(args.function, out.len())?;
    Ok(Value::Str(out.into_bump_str()))
}

/// Appends the replacement with its group references resolved.
fn expand_groups(
    dialect: Dialect,
    by: &str,
    caught: &regex::Captures<'_>,
    out: &mut ArenaString<'_>,
) {
    let group = |number: usize| caught.get(number).map_or("", |group| group.as_str());
    let mut rest = by;
    let special: &[char] = if dialect == Dialect::Emqx {
        &['&', '\\']
    } else {
        &['$', '\\']
    };
    while let Some(at) = rest.find(special) {
        out.push_str(&rest[..at]);
        let mark = rest.as_bytes()[at];
        rest = &rest[at + 1..];
        match mark {
            b'&' => out.push_str(group(0)),
            b'\\' if dialect == Dialect::Fluxmq || !is_group(rest) => {
                // An escaped character stands for itself.
                let mut letters = rest.chars();
                out.push(letters.next().unwrap_or('\\'));
                rest = letters.as_str();
            }
            _ => {
                let (number, behind) = group_number(rest);
                match number {
                    Some(number) => out.push_str(group(number)),
                    None => out.push(char::from(mark)),
                }
                rest = behind;
            }
        }
    }
    out.push_str(rest);
}

fn is_group(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_digit())
        || text.starts_with("g{")
        || text.starts_with('g')
}

/// Parses `1`, `{1}`, `g1` or `g{1}` at the start of a text. Returns the group and the rest.
fn group_number(text: &str) -> (Option<usize>, &str) {
    let inner = text.strip_prefix('g').unwrap_or(text);
    let braced = inner.strip_prefix('{');
    let digits = braced.unwrap_or(inner);
    let count = digits
        .bytes()
        .take(2)
        .take_while(u8::is_ascii_digit)
        .count();
    let (number, behind) = digits.split_at(count);
    let behind = match braced {
        Some(_) => behind.strip_prefix('}'),
        None => Some(behind),
    };
    match (number.parse().ok(), behind) {
        (Some(number), Some(behind)) => (Some(number), behind),
        _ => (None, text),
    }
}

fn regex_extract<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let pattern = args.text(1, context.arena)?;
    let pattern = with_regex(context, args, pattern, text)?;
    let Some(caught) = pattern.regex.captures(text) else {
        return Ok(Value::Array(&[]));
    };
    let mut groups = Vec::with_capacity_in(caught.len(), context.arena);
    groups.extend(
        caught
            .iter()
            .skip(1)
            .map(|group| Value::Str(group.map_or("", |group| group.as_str()))),
    );
    Ok(Value::Array(groups.into_bump_slice()))
}
