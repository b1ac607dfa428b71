//! Text functions: length, case, trimming, parts, joining. Positions and lengths count characters, not bytes.

use bumpalo::collections::String as ArenaString;
use bumpalo::collections::Vec;

use super::args::Args;
use super::characters::{byte_at, characters};
use super::function::{Function, UNLIMITED_ARGS, line};
use super::sprintf::sprintf;
use crate::evaluation_error::EvaluationError;
use crate::function_context::{Dialect, FunctionContext};
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("length", (1, 1), "x: string | array | map", "int", "The number of characters of a text, items of an array, or fields of a map.", "length('höher')", "5", length).alias(&["size"]),
    line("strlen", (1, 1), "text: string", "int", "The number of characters.", "strlen('hello')", "5", strlen),
    line("upper", (1, 1), "text: string", "string", "Converts to upper case.", "upper('hello')", r#""HELLO""#, upper).alias(&["toUpperCase"]),
    line("lower", (1, 1), "text: string", "string", "Converts to lower case.", "lower('HELLO')", r#""hello""#, lower).alias(&["toLowerCase"]),
    line("trim", (1, 2), "text: string[, characters: string]", "string", "Removes blanks, or these characters, at both ends.", "trim(' hello ')", r#""hello""#, |context, args| trim(context, args, true, true)),
    line("ltrim", (1, 2), "text: string[, characters: string]", "string", "Removes blanks, or these characters, at the start.", "ltrim(' hello ')", r#""hello ""#, |context, args| trim(context, args, true, false)).alias(&["trimLeft"]),
    line("rtrim", (1, 2), "text: string[, characters: string]", "string", "Removes blanks, or these characters, at the end.", "rtrim(' hello ')", r#"" hello""#, |context, args| trim(context, args, false, true)).alias(&["trimRight"]),
    line("reverse", (1, 1), "x: string | array", "string | array", "The characters or items in reverse order.", "reverse('hello')", r#""olleh""#, reverse),
    line("repeat", (2, 2), "text: string, count: int", "string", "Repeats the text.", "repeat('hi', 3)", r#""hihihi""#, repeat),
    line("substring", (2, 3), "text: string, start: int[, end: int]", "string", "The text from one position (inclusive) to another (exclusive), counted from 0.", "substring('hello', 1, 4)", r#""ell""#, substring),
    line("substr", (2, 3), "text: string, start: int[, length: int]", "string", "A number of characters from a position counted from 0.", "substr('hello world!', 6, 5)", r#""world""#, substr),
    line("left", (2, 2), "text: string, length: int", "string", "A number of characters from the start.", "left('hello', 3)", r#""hel""#, left),
    line("right", (2, 2), "text: string, length: int", "string", "A number of characters from the end.", "right('hello', 3)", r#""llo""#, right),
    line("charAt", (2, 2), "text: string, index: int", "string", "The character at a position counted from 0; null after the end.", "charAt('hello', 1)", r#""e""#, char_at),
    line("concat", (1, UNLIMITED_ARGS), "x: any, ...", "string", "Concatenates the texts of all arguments, or of the items of a single array.", "concat('Name:', 'John', 7)", r#""Name:John7""#, concat).accepts_null().differing("EMQX writes `undefined` for a missing value and `null` for null; in FluxMQ either makes the result null"),
    line("join_to_string", (1, 2), "[separator: string, ]items: array", "string", "Joins the texts of the items with a separator (', ').", "join_to_string('-', ['a', 1, true])", r#""a-1-true""#, join_to_string),
    line("format", (1, UNLIMITED_ARGS), "template: string, x: any, ...", "string", "Replaces {0}, {1}, ... (or {} in order) in the template by the other arguments.", "format('Hello {0}, {1}', 'world', 5)", r#""Hello world, 5""#, format).passes_null(),
    line("sprintf", (1, UNLIMITED_ARGS), "format: string, x: any, ...", "string", "Formats with Erlang's control sequences: ~s ~p ~w ~b ~x ~f ~e ~g ~c ~n ~~, with width, precision and padding.", "sprintf('hello, ~s! ~3..0b', 'steve', 7)", r#""hello, steve! 007""#, sprintf).alias(&["sprintf_s"]).accepts_null_in_emqx().differing("EMQX writes `undefined` for a missing value and `null` for null; in FluxMQ either makes the result null"),
    line("padLeft", (2, 3), "text: string, length: int[, character: string]", "string", "Pads at the start to a length, with blanks or this text.", "padLeft('5', 3, '0')", r#""005""#, |context, args| pad_simple(context, args, TrimSide::Leading)).alias(&["lpad"]),
    line("padRight", (2, 3), "text: string, length: int[, character: string]", "string", "Pads at the end to a length, with blanks or this text.", "padRight('5', 3, '0')", r#""500""#, |context, args| pad_simple(context, args, TrimSide::Trailing)).alias(&["rpad"]),
    line("pad", (2, 4), "text: string, length: int[, side: 'leading' | 'trailing' | 'both'[, character: string]]", "string", "Pads to a length; the padding text counts as one character.", "pad('hello', 8, 'both', '!')", r#""!hello!!""#, pad),
    line("ascii", (1, 1), "text: string", "int", "The number of the first byte.", "ascii('abc')", "97", ascii),
    line("rm_prefix", (2, 2), "text: string, prefix: string", "string", "Removes the prefix, if present.", "rm_prefix('foo/bar', 'foo/')", r#""bar""#, rm_prefix).passes_null(),
    line("unescape", (1, 1), "text: string", "string", r"Escapes of C (\n \t \\ ...) and \xH... for a character by its number replaced by what they mean.", r"unescape('a\x41')", r#""aA""#, unescape),
    line("compareTo", (2, 2), "a: string, b: string", "int", "Less than 0, 0 or greater than 0 if the first text sorts before, equal to or after the second. As in Java: the difference of the first characters that differ, or of the lengths.", "compareTo('abc', 'abd')", "-1", compare_to),
    line("isBlank", (1, 1), "text: string", "boolean", "Whether a text is empty or only blanks.", "isBlank('  ')", "true", |context, args| Ok(Value::Bool(args.text(0, context.arena)?.trim().is_empty()))),
    line("toCharArray", (1, 1), "text: string", "array", "The characters of a text.", "toCharArray('höh')", r#"["h","ö","h"]"#, to_char_array),
    line("equals", (2, 2), "a: any, b: any", "boolean", "Whether they are equal, as `=` means it.", "equals('a', 'A')", "false", |_, args| Ok(Value::Bool(args.get(0).equals(&args.get(1))))).alias(&["eq"]),
    line("equalsIgnoreCase", (2, 2), "a: string, b: string", "boolean", "Whether two texts are equal, ignoring case.", "equalsIgnoreCase('a', 'A')", "true", equals_ignore_case),
];

/// A position in a text; a negative one is 0.
fn position(args: Args<'_, '_>, at: usize) -> std::result::Result<usize, EvaluationError> {
    let number = args.int(at)?;
    Ok(usize::try_from(number.max(0)).unwrap_or(usize::MAX))
}

fn length<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let length = match args.get(0).parse_one_level(context.arena) {
        Value::Array(items) => items.len(),
        Value::Map(fields) => fields.len(),
        Value::Bytes(bytes) => str::from_utf8(bytes).map_or(bytes.len(), characters),
        _ => characters(args.text(0, context.arena)?),
    };
    Ok(Value::Int(length as i64))
}

fn strlen<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    Ok(Value::Int(characters(args.text(0, context.arena)?) as i64))
}

fn upper<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    if !text.is_ascii() {
        let letters = text.chars().flat_map(char::to_uppercase);
        return Ok(Value::Str(
            ArenaString::from_iter_in(letters, context.arena).into_bump_str(),
        ));
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Ok(Value::Str(text));
    }
    let copy = context.arena.alloc_str(text);
    copy.make_ascii_uppercase();
    Ok(Value::Str(copy))
}

fn lower<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    if !text.is_ascii() {
        let letters = text.chars().flat_map(char::to_lowercase);
        return Ok(Value::Str(
            ArenaString::from_iter_in(letters, context.arena).into_bump_str(),
        ));
    }
    if !text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Ok(Value::Str(text));
    }
    let copy = context.arena.alloc_str(text);
    copy.make_ascii_lowercase();
    Ok(Value::Str(copy))
}

/// Maximum length of a character set, because the set is searched at each character of the text.
const MAX_CHARACTER_SET_BYTES: usize = 256;

/// A set of individual characters to search for.
pub(super) fn character_set<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    at: usize,
) -> std::result::Result<&'a str, EvaluationError> {
    let characters = args.text(at, context.arena)?;
    match characters.len() <= MAX_CHARACTER_SET_BYTES {
        true => Ok(characters),
        false => args.out_of_range(at, "at most 256 bytes of characters"),
    }
}

fn trim<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    start: bool,
    end: bool,
) -> Result<'a> {
    let mut text = args.text(0, context.arena)?;
    let characters = match args.len() {
        1 => None,
        _ => Some(character_set(context, args, 1)?),
    };
    let goes = |letter: char| match characters {
        Some(characters) => characters.contains(letter),
        None => letter.is_whitespace(),
    };
    if start {
        text = text.trim_start_matches(goes);
    }
    if end {
        text = text.trim_end_matches(goes);
    }
    Ok(Value::Str(text))
}

fn reverse<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let arena = context.arena;
    if let Value::Array(items) = args.get(0).parse_one_level(arena) {
        return Ok(Value::Array(
            arena.alloc_slice_fill_iter(items.iter().rev().copied()),
        ));
    }
    let text = args.text(0, arena)?;
    Ok(Value::Str(
        ArenaString::from_iter_in(text.chars().rev(), arena).into_bump_str(),
    ))
}

fn repeat<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let count = args.size(1)?;
    context.check_output_size(args.function, text.len().saturating_mul(count))?;
    let mut out = ArenaString::with_capacity_in(text.len() * count, context.arena);
    if !text.is_empty() {
        (0..count).for_each(|_| out.push_str(text));
    }
    Ok(Value::Str(out.into_bump_str()))
}

fn substring<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let start = position(args, 1)?;
    let rest = &text[byte_at(text, start)..];
    if args.len() == 2 {
        return Ok(Value::Str(rest));
    }
    let length = position(args, 2)?.saturating_sub(start);
    Ok(Value::Str(&rest[..byte_at(rest, length)]))
}

fn substr<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let rest = &text[byte_at(text, args.size(1)?)..];
    if args.len() == 2 {
        return Ok(Value::Str(rest));
    }
    Ok(Value::Str(&rest[..byte_at(rest, args.size(2)?)]))
}

fn left<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    Ok(Value::Str(&text[..byte_at(text, position(args, 1)?)]))
}

fn right<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let skipped = characters(text).saturating_sub(position(args, 1)?);
    Ok(Value::Str(&text[byte_at(text, skipped)..]))
}

fn char_at<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let rest = &text[byte_at(text, args.size(1)?)..];
    let character = &rest[..byte_at(rest, 1)];
    Ok(if character.is_empty() {
        Value::Undefined
    } else {
        Value::Str(character)
    })
}

fn concat<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let parts = match args.get(0).parse_one_level(context.arena) {
        Value::Array(items) if args.len() == 1 => items,
        _ if args.values.iter().any(Value::is_null) && context.dialect == Dialect::Fluxmq => {
            return Ok(Value::Undefined);
        }
        _ => args.values,
    };
    join(context, args, "", parts)
}

fn join_to_string<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match args.len() {
        1 => join(context, args, ", ", args.array(0, context.arena)?),
        _ => {
            let separator = args.text(0, context.arena)?;
            join(context, args, separator, args.array(1, context.arena)?)
        }
    }
}

fn join<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    separator: &str,
    parts: &[Value<'a>],
) -> Result<'a> {
    let arena = context.arena;
    let mut texts = Vec::with_capacity_in(parts.len(), arena);
    texts.extend(parts.iter().map(|part| context.text(*part)));
    let length = texts.iter().map(|text| text.len() + separator.len()).sum();
    context.check_output_size(args.function, length)?;
    let mut out = ArenaString::with_capacity_in(length, arena);
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::Str(out.into_bump_str()))
}

/// Text that is not a placeholder stays unchanged.
fn format<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let mut rest = args.text(0, context.arena)?;
    let mut out = ArenaString::with_capacity_in(rest.len() * 2, context.arena);
    let mut next = 0;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        // A number and its braces are short. Limiting the search avoids scanning the rest of a long text for
        // each brace.
        let close = rest.bytes().take(5).position(|byte| byte == b'}');
        let number = close.and_then(|close| match &rest[1..close] {
            "" => Some((next, close)),
            digits if digits.len() <= 3 => Some((digits.parse().ok()?, close)),
            _ => None,
        });
        match number {
            Some((number, close)) if number + 1 < args.len() => {
                out.push_str(context.text(args.get(number + 1)));
                context.check_output_size(args.function, out.len())?;
                next = number + 1;
                rest = &rest[close + 1..];
            }
            _ => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    context.check_output_size(args.function, out.len())?;
    Ok(Value::Str(out.into_bump_str()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TrimSide {
    Leading,
    Trailing,
    Both,
}

fn pad_simple<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    side: TrimSide,
) -> Result<'a> {
    let fill = if args.len() == 3 {
        args.text(2, context.arena)?
    } else {
        " "
    };
    padded(context, args, side, fill)
}

fn pad<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let side = match args.len() {
        2 => TrimSide::Trailing,
        _ => args.keyword(
            2,
            context.arena,
            &[
                ("leading", TrimSide::Leading),
                ("trailing", TrimSide::Trailing),
                ("both", TrimSide::Both),
            ],
            "'leading', 'trailing' or 'both'",
        )?,
    };
    let fill = if args.len() == 4 {
        args.text(3, context.arena)?
    } else {
        " "
    };
    padded(context, args, side, fill)
}

fn padded<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    side: TrimSide,
    fill: &str,
) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let missing = position(args, 1)?.saturating_sub(characters(text));
    if missing == 0 {
        return Ok(Value::Str(text));
    }
    let length = fill
        .len()
        .saturating_mul(missing)
        .saturating_add(text.len());
    context.check_output_size(args.function, length)?;
    // Counts, because an empty fill may be requested more often than there are bytes.
    if fill.is_empty() {
        return Ok(Value::Str(text));
    }
    let before = match side {
        TrimSide::Leading => missing,
        TrimSide::Trailing => 0,
        TrimSide::Both => missing / 2,
    };
    let mut out = ArenaString::with_capacity_in(length, context.arena);
    (0..before).for_each(|_| out.push_str(fill));
    out.push_str(text);
    (before..missing).for_each(|_| out.push_str(fill));
    Ok(Value::Str(out.into_bump_str()))
}

fn ascii<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match args.bytes(0, context.arena)?.first() {
        Some(byte) => Ok(Value::Int(i64::from(*byte))),
        None => args.out_of_range(0, "a text that is not empty"),
    }
}

fn rm_prefix<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let prefix = args.text(1, context.arena)?;
    Ok(Value::Str(text.strip_prefix(prefix).unwrap_or(text)))
}

fn unescape<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let mut rest = args.text(0, context.arena)?;
    let mut out = ArenaString::with_capacity_in(rest.len(), context.arena);
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(escape) = rest.chars().next() else {
            return args.invalid(r"the text ends with a backslash, expected \\");
        };
        rest = &rest[escape.len_utf8()..];
        out.push(match escape {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            'a' => '\u{7}',
            '\\' | '\'' | '"' | '?' => escape,
            'x' => {
                let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
                let (digits, behind) = rest.split_at(digits);
                rest = behind;
                match u32::from_str_radix(digits, 16)
                    .ok()
                    .and_then(char::from_u32)
                {
                    Some(character) => character,
                    None => return args.invalid(format!(r"\x{digits} is no character")),
                }
            }
            other => return args.invalid(format!(r"\{other} is no escape, see \\")),
        });
    }
    out.push_str(rest);
    Ok(Value::Str(out.into_bump_str()))
}

fn compare_to<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let (left, right) = (args.text(0, context.arena)?, args.text(1, context.arena)?);
    let (mut left, mut right) = (left.encode_utf16(), right.encode_utf16());
    let difference = loop {
        match (left.next(), right.next()) {
            (Some(own), Some(other)) if own != other => break i64::from(own) - i64::from(other),
            (Some(_), Some(_)) => {}
            (None, None) => break 0,
            (Some(_), None) => break 1 + left.count() as i64,
            (None, Some(_)) => break -1 - right.count() as i64,
        }
    };
    Ok(Value::Int(difference))
}

fn to_char_array<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    let limit = context.limits.max_items;
    if characters(text) > limit {
        return Err(EvaluationError::TooLarge {
            function: args.function,
            limit,
            unit: "items",
        });
    }
    let mut items = Vec::with_capacity_in(characters(text), context.arena);
    items.extend(
        text.char_indices()
            .map(|(at, letter)| Value::Str(&text[at..at + letter.len_utf8()])),
    );
    Ok(Value::Array(items.into_bump_slice()))
}

fn equals_ignore_case<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let left = args
        .text(0, context.arena)?
        .chars()
        .flat_map(char::to_lowercase);
    let right = args
        .text(1, context.arena)?
        .chars()
        .flat_map(char::to_lowercase);
    Ok(Value::Bool(left.eq(right)))
}
