//! `sprintf` with the control sequences of Erlang's io:format: `~F.P.PadModC`.

use std::fmt::Write as _;

use bumpalo::collections::String as ArenaString;

use super::args::{Args, to_container};
use super::characters::{byte_at, characters};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::{Number, Value};

/// Maximum field width.
const MAX_WIDTH: usize = 10_000;
/// Maximum number of digits.
const MAX_PRECISION: usize = 253;

/// A control sequence: `~` up to its letter.
#[derive(Clone, Copy)]
struct FormatControl {
    width: Option<usize>,
    /// Negative width: the text is left-aligned.
    left: bool,
    precision: Option<usize>,
    pad: char,
    letter: char,
}

pub(super) fn sprintf<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
) -> Result<Value<'a>, EvaluationError> {
    let mut rest = args.text(0, context.arena)?;
    // `sprintf_s` takes its arguments as one array.
    let mut given = match to_container(args.get(1), context.arena) {
        Value::Array(items) if args.len() == 2 => items,
        _ => &args.values[1..],
    };
    let mut out = ArenaString::with_capacity_in(rest.len() * 2, context.arena);
    while let Some(tilde) = rest.find('~') {
        out.push_str(&rest[..tilde]);
        rest = &rest[tilde + 1..];
        let control = read_control(args, &mut rest, &mut given)?;
        match control.letter {
            '~' => out.push('~'),
            'n' => out.push('\n'),
            'i' => {
                next(args, &mut given)?;
            }
            _ => {
                let value = next(args, &mut given)?;
                let mut text = ArenaString::new_in(context.arena);
                write_value(context, args, control, value, &mut text)?;
                write_field(control, &text, &mut out);
            }
        }
        context.check_output_size(args.function, out.len())?;
    }
    out.push_str(rest);
    if given.is_empty() {
        Ok(Value::Str(out.into_bump_str()))
    } else {
        args.invalid(format!(
            "has {} more arguments than control sequences",
            given.len()
        ))
    }
}

fn next<'a>(args: Args<'_, 'a>, given: &mut &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    match given.split_first() {
        Some((first, others)) => {
            *given = others;
            Ok(*first)
        }
        None => args.invalid("more control sequences than arguments"),
    }
}

fn read_control<'a>(
    args: Args<'_, 'a>,
    rest: &mut &str,
    given: &mut &[Value<'a>],
) -> Result<FormatControl, EvaluationError> {
    let mut control = FormatControl {
        width: None,
        left: false,
        precision: None,
        pad: ' ',
        letter: ' ',
    };
    if let Some(behind) = rest.strip_prefix('-') {
        control.left = true;
        *rest = behind;
    }
    control.width = read_size(args, rest, given, MAX_WIDTH)?;
    if let Some(behind) = rest.strip_prefix('.') {
        *rest = behind;
        control.precision = read_size(args, rest, given, MAX_WIDTH)?;
        if let Some(behind) = rest.strip_prefix('.') {
            let mut letters = behind.chars();
            control.pad = letters.next().unwrap_or(' ');
            *rest = letters.as_str();
        }
    }
    // Modifiers: t for Unicode, l for lists. They are ignored, because all text is Unicode here.
    *rest = rest.strip_prefix(['t', 'l']).unwrap_or(rest);
    let mut letters = rest.chars();
    match letters.next() {
        Some(letter) => {
            control.letter = letter;
            *rest = letters.as_str();
            Ok(control)
        }
        None => args.invalid("the format ends within a control sequence; write ~~ for ~"),
    }
}

/// Reads a number from the format, or from the next argument for `*`.
fn read_size<'a>(
    args: Args<'_, 'a>,
    rest: &mut &str,
    given: &mut &[Value<'a>],
    max: usize,
) -> Result<Option<usize>, EvaluationError> {
    let size = if let Some(behind) = rest.strip_prefix('*') {
        *rest = behind;
        next(args, given)?
            .as_i64()
            .and_then(|size| usize::try_from(size).ok())
    } else {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Ok(None);
        }
        let (digits, behind) = rest.split_at(digits);
        *rest = behind;
        digits.parse().ok()
    };
    match size {
        Some(size) if size <= max => Ok(Some(size)),
        _ => args.invalid(format!("a width or precision is more than {max}")),
    }
}

fn write_value<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    control: FormatControl,
    value: Value<'a>,
    out: &mut ArenaString<'a>,
) -> Result<(), EvaluationError> {
    let wrong = |expected: &str| -> Result<(), EvaluationError> {
        args.invalid(format!(
            "~{} expects {expected}, not {}",
            control.letter,
            value.type_name()
        ))
    };
    match control.letter {
        's' => {
            let text = context.text(value);
            out.push_str(match control.precision {
                Some(precision) => &text[..byte_at(text, precision)],
                None => text,
            });
        }
        'p' | 'w' | 'P' | 'W' => out.push_str(context.text(value)),
        'c' => {
            let code = value.as_i64().and_then(|code| u32::try_from(code).ok());
            let Some(character) = code.and_then(char::from_u32) else {
                return wrong("the number of a character");
            };
            let count = control.precision.or(control.width).unwrap_or(1);
            (0..count).for_each(|_| out.push(character));
        }
        'b' | 'B' | 'x' | 'X' | '#' | '+' => match value.as_number() {
            Some(Number::Int(number)) => write_int(number, control, out),
            _ => return wrong("an integer"),
        },
        'f' | 'e' | 'g' => match value.as_number() {
            Some(number) => write_float(number.as_f64(), control, out),
            None => return wrong("a number"),
        },
        other => return args.invalid(format!("~{other} is no control sequence; write ~~ for ~")),
    }
    Ok(())
}

/// Writes an integer in the base given by the precision.
fn write_int(number: i64, control: FormatControl, out: &mut ArenaString<'_>) {
    let base = control
        .precision
        .filter(|base| (2..=36).contains(base))
        .unwrap_or(10) as u64;
    let mut digits = [0_u8; 64];
    let mut at = digits.len();
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        let digit = (left % base) as u8;
        digits[at] = match digit {
            0..=9 => b'0' + digit,
            _ if matches!(control.letter, 'B' | 'X' | '#') => b'A' + digit - 10,
            _ => b'a' + digit - 10,
        };
        left /= base;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push('-');
    }
    if matches!(control.letter, '#' | '+') {
        write!(out, "{base}#").expect("writing to memory");
    }
    digits[at..]
        .iter()
        .for_each(|digit| out.push(char::from(*digit)));
}

fn write_float(number: f64, control: FormatControl, out: &mut ArenaString<'_>) {
    let digits = control.precision.unwrap_or(6).min(MAX_PRECISION);
    let plain = |out: &mut ArenaString<'_>| write!(out, "{number:.digits$}");
    let exponent = |out: &mut ArenaString<'_>| -> std::fmt::Result {
        // Erlang's precision counts all digits; the exponent has a sign and two digits.
        let mut text = String::new();
        write!(text, "{number:.*e}", digits.max(2) - 1)?;
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        write!(out, "{mantissa}e{sign}{exponent:0>2}")
    };
    match control.letter {
        'f' => plain(out),
        'e' => exponent(out),
        _ if number.abs() >= 0.1 && number.abs() < 10_000.0 => plain(out),
        _ => exponent(out),
    }
    .expect("writing to memory");
}

/// Writes text into its field; text longer than the field becomes stars.
fn write_field(control: FormatControl, text: &str, out: &mut ArenaString<'_>) {
    let length = characters(text);
    let width = match control.width {
        Some(width) if control.letter != 'c' => width,
        _ => length,
    };
    if length > width {
        if control.letter == 's' {
            out.push_str(&text[..byte_at(text, width)]);
        } else {
            (0..width).for_each(|_| out.push('*'));
        }
        return;
    }
    let fill = |out: &mut ArenaString<'_>| (length..width).for_each(|_| out.push(control.pad));
    if !control.left {
        fill(out);
    }
    out.push_str(text);
    if control.left {
        fill(out);
    }
}
