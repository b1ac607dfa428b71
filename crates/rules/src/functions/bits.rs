//! Functions on bits and bytes of byte strings.

use bumpalo::collections::Vec;

use super::args::Args;
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("bitsize", (1, 1), "x: bytes", "int", "The length in bits.", "bitsize('abc')", "24", |context, args| Ok(Value::Int(args.bytes(0, context.arena)?.len() as i64 * 8))),
    line("bytesize", (1, 1), "x: bytes", "int", "The length in bytes.", "bytesize('hö')", "3", |context, args| Ok(Value::Int(args.bytes(0, context.arena)?.len() as i64))).alias(&["byteszie"]),
    line("subbits", (2, 6), "x: bytes, [start: int, ]length: int[, type: 'integer' | 'float' | 'bits'[, sign: 'unsigned' | 'signed'[, order: 'big' | 'little']]]", "int | float | bytes", "A number of bits from a position counted from 1, as an integer of at most 64 bits, a float of 16, 32 or 64 bits, or bytes.", "subbits(hexstr2bin('9F4E58'), 9, 8)", "78", subbits),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum BitsType {
    Integer,
    Float,
    Bits,
}

fn subbits<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let arena = context.arena;
    let bytes = args.bytes(0, arena)?;
    let length_at = if args.len() == 2 { 1 } else { 2 };
    let start = if args.len() == 2 { 1 } else { args.size(1)? };
    let kinds = [
        ("integer", BitsType::Integer),
        ("float", BitsType::Float),
        ("bits", BitsType::Bits),
    ];
    let kind = match args.len() {
        0..=3 => BitsType::Integer,
        _ => args.keyword(3, arena, &kinds, "'integer', 'float' or 'bits'")?,
    };
    let signs = [("unsigned", false), ("signed", true)];
    let signed = args.len() > 4 && args.keyword(4, arena, &signs, "'unsigned' or 'signed'")?;
    let orders = [("big", false), ("little", true)];
    let little = args.len() > 5 && args.keyword(5, arena, &orders, "'big' or 'little'")?;

    let Some(start) = start.checked_sub(1) else {
        return args.out_of_range(1, "1 or more");
    };
    let Some(left) = (bytes.len() * 8)
        .checked_sub(start)
        .filter(|left| *left > 0)
    else {
        return Ok(Value::Undefined);
    };
    // The available length, if less than requested.
    let length = args.size(length_at)?.min(left);
    match kind {
        BitsType::Bits => Ok(Value::Bytes(cut(context, bytes, start, length))),
        _ if length > 64 => args.out_of_range(length_at, "at most 64 bits"),
        _ if length == 0 => Ok(Value::Int(0)),
        BitsType::Integer if signed => {
            let unused = 64 - length;
            Ok(Value::Int(
                (number(bytes, start, length, little) << unused) as i64 >> unused,
            ))
        }
        BitsType::Integer => match i64::try_from(number(bytes, start, length, little)) {
            Ok(number) => Ok(Value::Int(number)),
            Err(_) => Err(args.overflow()),
        },
        BitsType::Float => {
            let bits = number(bytes, start, length, little);
            let float = match length {
                64 => f64::from_bits(bits),
                32 => f64::from(f32::from_bits(bits as u32)),
                16 => half(bits as u16),
                _ => return args.out_of_range(length_at, "16, 32 or 64 bits for a float"),
            };
            if float.is_finite() {
                Ok(Value::Float(float))
            } else {
                Err(EvaluationError::NotANumber {
                    function: args.function,
                })
            }
        }
    }
}

fn bit(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 8] >> (7 - at % 8) & 1
}

/// Reads up to 64 bits. Little-endian: the last byte is the most significant and may be incomplete.
fn number(bytes: &[u8], start: usize, length: usize, little: bool) -> u64 {
    let group = |from: usize, count: usize| {
        (from..from + count).fold(0_u64, |number, at| number << 1 | u64::from(bit(bytes, at)))
    };
    if !little {
        return group(start, length);
    }
    let mut number = 0;
    let mut done = 0;
    while done < length {
        let count = (length - done).min(8);
        number |= group(start + done, count) << done;
        done += count;
    }
    number
}

/// Extracts bits as bytes, padded with zeros at the front.
fn cut<'a>(
    context: &FunctionContext<'a, '_>,
    bytes: &'a [u8],
    start: usize,
    length: usize,
) -> &'a [u8] {
    if start.is_multiple_of(8) && length.is_multiple_of(8) {
        return &bytes[start / 8..(start + length) / 8];
    }
    let mut out = Vec::with_capacity_in(length / 8 + 1, context.arena);
    let (mut byte, mut missing) = (0, (length + 7) % 8 + 1);
    for at in start..start + length {
        byte = byte << 1 | bit(bytes, at);
        missing -= 1;
        if missing == 0 {
            out.push(byte);
            (byte, missing) = (0, 8);
        }
    }
    out.into_bump_slice()
}

/// A 16-bit float: 1 sign bit, 5 exponent bits, 10 fraction bits.
fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let size = match bits >> 10 & 0x1f {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (fraction / 1024.0 + 1.0) * 2_f64.powi(i32::from(exponent) - 15),
    };
    if bits >> 15 == 1 { -size } else { size }
}
