//! Conversion between types and between bases.

use std::fmt::Write as _;

use bumpalo::collections::String as ArenaString;
use bumpalo::collections::Vec;
use data_encoding::{Encoding, HEXLOWER, HEXUPPER};

use super::args::{Args, to_container};
use super::function::{Function, line};
use crate::decimals::compact_decimals;
use crate::evaluation_error::EvaluationError;
use crate::function_context::{Dialect, FunctionContext};
use crate::value::{Number, Value, float_to_i64};

type Result<'a, T = Value<'a>> = std::result::Result<T, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("str", (1, 1), "x: any", "string", "Converts to text; arrays and maps become JSON.", "str(json_decode('{\"a\":1}'))", r#""{\"a\":1}""#, to_text).accepts_null().alias(&["toString"]).differing("EMQX rounds floats to 10 decimal places and writes `undefined` for a missing value and `null` for null; FluxMQ gives null"),
    line("int", (1, 1), "x: any", "int", "Converts to an integer: a float is rounded down, text of a number is converted, true is 1.", "int('3.1415e2')", "314", |_, args| to_int(args, f64::floor, i64::MIN, i64::MAX)).alias(&["toInt", "toInteger"]),
    line("int8", (1, 1), "x: any", "int", "Converts to an integer from -128 to 127.", "int8('127')", "127", |_, args| to_int(args, f64::trunc, i8::MIN.into(), i8::MAX.into())),
    line("int16", (1, 1), "x: any", "int", "Converts to a 16-bit integer.", "int16('32767')", "32767", |_, args| to_int(args, f64::trunc, i16::MIN.into(), i16::MAX.into())),
    line("int32", (1, 1), "x: any", "int", "Converts to a 32-bit integer.", "int32('123456')", "123456", |_, args| to_int(args, f64::trunc, i32::MIN.into(), i32::MAX.into())),
    line("int64", (1, 1), "x: any", "int", "Converts to a 64-bit integer; the fraction is cut off.", "int64('9223372036854775807')", "9223372036854775807", |_, args| to_int(args, f64::trunc, i64::MIN, i64::MAX)).alias(&["toLong"]),
    line("float", (1, 2), "x: any[, digits: int]", "float", "Converts to a float, rounded to at most this number of decimal places.", "float('3.1415926', 3)", "3.142", float),
    line("toFloat", (1, 1), "x: any", "float", "Converts to a float of single precision.", "toFloat('3.14')", "3.14", to_float),
    line("toDouble", (1, 1), "x: any", "float", "Converts to a float.", "toDouble('3.141592653589793')", "3.141592653589793", |_, args| Ok(Value::Float(args.float(0)?))),
    line("toDecimal", (1, 1), "x: any", "number | string", "Converts to a number, or to text if no number can represent all digits.", "toDecimal('123.456789')", "123.456789", to_decimal),
    line("bool", (1, 1), "x: any", "boolean", "True, 1 and 'true' are true; false, 0 and 'false' are false; any other value is an error.", "bool(0)", "false", to_bool),
    line("toBool", (1, 1), "x: any", "boolean", "Numbers other than 0 and the words true, yes, on, y, t and 1 are true; all other values are false.", "toBool('true')", "true", |_, args| Ok(Value::Bool(is_true(args.get(0))))),
    line("float2str", (2, 2), "x: number, digits: int", "string", "Converts a number to text with at most this number of decimal places.", "float2str(0.1, 20)", r#""0.10000000000000000555""#, float2str),
    line("hexStr", (1, 1), "x: any", "string", "The bytes as lower case hexadecimal digits.", "hexStr('hello')", r#""68656c6c6f""#, |context, args| hex(context, args, "", &HEXLOWER)),
    line("bin2hexstr", (1, 2), "x: bytes[, prefix: string]", "string", "The bytes as upper case hexadecimal digits.", "bin2hexstr('JK', '0x')", r#""0x4A4B""#, bin2hexstr),
    line("sqlserver_bin2hexstr", (1, 1), "x: bytes", "string", "The bytes as a binary constant of SQL Server.", "sqlserver_bin2hexstr('JK')", r#""0x4A4B""#, |context, args| hex(context, args, "0x", &HEXUPPER)),
    line("hexstr2bin", (1, 2), "digits: string[, prefix: string]", "bytes", "Converts hexadecimal digits to bytes.", "hexstr2bin('0x4a4B', '0x')", r#""JK""#, hexstr2bin),
    line("hexToInt", (1, 1), "digits: string", "int", "Converts hexadecimal digits to an integer.", "hexToInt('FF')", "255", |context, args| from_base(context, args, 16, "0x")),
    line("intToHex", (1, 1), "x: int", "string", "Converts to hexadecimal digits; negative numbers as 64 bits.", "intToHex(255)", r#""FF""#, |context, args| to_base(context, args, |out, number| write!(out, "{number:X}"))),
    line("binToInt", (1, 1), "digits: string", "int", "Converts binary digits to an integer.", "binToInt('1010')", "10", |context, args| from_base(context, args, 2, "0b")),
    line("intToBin", (1, 1), "x: int", "string", "Converts to binary digits; negative numbers as 64 bits.", "intToBin(10)", r#""1010""#, |context, args| to_base(context, args, |out, number| write!(out, "{number:b}"))),
    line("octToInt", (1, 1), "digits: string", "int", "Converts octal digits to an integer.", "octToInt('12')", "10", |context, args| from_base(context, args, 8, "0o")),
    line("intToOct", (1, 1), "x: int", "string", "Converts to octal digits; negative numbers as 64 bits.", "intToOct(10)", r#""12""#, |context, args| to_base(context, args, |out, number| write!(out, "{number:o}"))),
    line("bytes", (1, 1), "x: any", "bytes", "The bytes of the value's text.", "bytes('hello')", r#""hello""#, |context, args| Ok(Value::Bytes(args.bytes(0, context.arena)?))),
    line("str_utf8", (1, 1), "x: any", "string", "Converts to UTF-8 text; invalid bytes become the replacement character.", "str_utf8('höher')", r#""höher""#, to_text).accepts_null(),
    line("str_utf16_le", (1, 1), "x: any", "bytes", "Converts to UTF-16 text in little-endian byte order.", "bin2hexstr(str_utf16_le('hö'))", r#""6800F600""#, str_utf16_le),
    line("map", (1, 1), "x: string | array | map", "map", "Creates a map from JSON, or from pairs of names and values.", "map([['a', 1]])", r#"{"a":1}"#, map),
];

fn to_text<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    if args.get(0).is_null() && context.dialect == Dialect::Fluxmq {
        return Ok(Value::Undefined);
    }
    Ok(Value::Str(context.text(args.get(0))))
}

fn to_int<'a>(args: Args<'_, 'a>, rounding: fn(f64) -> f64, min: i64, max: i64) -> Result<'a> {
    let number = match args.get(0) {
        Value::Bool(truth) => Number::Int(truth.into()),
        _ => args.number(0)?,
    };
    let int = match number {
        Number::Int(number) => Some(number),
        Number::Float(number) => float_to_i64(rounding(number)),
    };
    match int {
        Some(int) if (min..=max).contains(&int) => Ok(Value::Int(int)),
        _ => Err(args.overflow()),
    }
}

fn float<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let number = args.float(0)?;
    if args.len() == 1 {
        return Ok(Value::Float(number));
    }
    let digits = precision(args)?;
    let text = compact_decimals(number, digits, context.arena);
    Ok(Value::Float(text.parse().unwrap_or(number)))
}

fn precision<'a>(args: Args<'_, 'a>) -> Result<'a, usize> {
    match args.size(1)? {
        digits @ 0..=253 => Ok(digits),
        _ => args.out_of_range(1, "0 to 253 digits"),
    }
}

/// The float that prints like its single-precision form: 3.14, not 3.140000104904175.
fn to_float<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let single = args.float(0)? as f32;
    if !single.is_finite() {
        return Err(args.overflow());
    }
    let text = zmij::Buffer::new().format_finite(single).parse();
    Ok(Value::Float(text.unwrap_or(f64::from(single))))
}

fn to_decimal<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let number = args.number(0)?;
    let (Number::Float(float), Some(text)) = (number, args.get(0).as_str()) else {
        return Ok(number.into());
    };
    let digits = |text: &str| -> String {
        let digits = text
            .chars()
            .filter(char::is_ascii_digit)
            .collect::<String>();
        digits
            .trim_start_matches('0')
            .trim_end_matches('0')
            .to_owned()
    };
    let plain = !text.contains(['e', 'E']);
    if plain
        && digits(text) != digits(compact_decimals(float, 17, context.arena))
        && digits(text).len() > 15
    {
        return Ok(Value::Str(text.trim()));
    }
    Ok(Value::Float(float))
}

fn to_bool<'a>(_: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let truth = match args.get(0) {
        Value::Bool(truth) => Some(truth),
        Value::Int(number @ (0 | 1)) => Some(number == 1),
        Value::Float(number) if number == 0.0 || number == 1.0 => Some(number == 1.0),
        text => match text.as_bytes() {
            Some(b"true") => Some(true),
            Some(b"false") => Some(false),
            _ => None,
        },
    };
    match truth {
        Some(truth) => Ok(Value::Bool(truth)),
        None => args.wrong_type(0, "true, false, 0 or 1"),
    }
}

fn is_true(value: Value<'_>) -> bool {
    match value {
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => value.is_truthy(),
        _ => value.as_str().is_some_and(|text| {
            ["true", "yes", "on", "y", "t", "1"]
                .iter()
                .any(|word| text.trim().eq_ignore_ascii_case(word))
        }),
    }
}

fn float2str<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    Ok(Value::Str(compact_decimals(
        args.float(0)?,
        precision(args)?,
        context.arena,
    )))
}

fn hex<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    prefix: &str,
    encoding: &Encoding,
) -> Result<'a> {
    let bytes = args.bytes(0, context.arena)?;
    context.check_output_size(args.function, bytes.len() * 2 + prefix.len())?;
    Ok(Value::Str(hex_text(context, prefix, bytes, encoding)))
}

/// Bytes in hexadecimal digits.
pub(super) fn hex_text<'a>(
    context: &FunctionContext<'a, '_>,
    prefix: &str,
    bytes: &[u8],
    encoding: &Encoding,
) -> &'a str {
    let mut out = Vec::with_capacity_in(bytes.len() * 2 + prefix.len(), context.arena);
    out.extend_from_slice_copy(prefix.as_bytes());
    out.resize(prefix.len() + bytes.len() * 2, 0);
    encoding.encode_mut(bytes, &mut out[prefix.len()..]);
    str::from_utf8(out.into_bump_slice()).expect("a text and digits")
}

fn bin2hexstr<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let prefix = if args.len() == 2 {
        args.text(1, context.arena)?
    } else {
        ""
    };
    hex(context, args, prefix, &HEXUPPER)
}

fn hexstr2bin<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let mut digits = args.text(0, context.arena)?;
    if args.len() == 2 {
        let prefix = args.text(1, context.arena)?;
        match digits.strip_prefix(prefix) {
            Some(rest) => digits = rest,
            None => return args.out_of_range(0, "the prefix at the start"),
        }
    }
    let digit = |letter: u8| char::from(letter).to_digit(16).map(|digit| digit as u8);
    let digits = digits.as_bytes();
    let mut out = Vec::with_capacity_in(digits.len() / 2 + 1, context.arena);
    // With an odd number of digits the first digit is a byte of its own.
    let (first, pairs) = digits.split_at(digits.len() % 2);
    for pair in first.chunks(1).chain(pairs.chunks_exact(2)) {
        let byte = pair
            .iter()
            .try_fold(0_u8, |byte, letter| Some(byte << 4 | digit(*letter)?));
        match byte {
            Some(byte) => out.push(byte),
            None => return args.out_of_range(0, "hexadecimal digits"),
        }
    }
    Ok(Value::Bytes(out.into_bump_slice()))
}

fn from_base<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    base: u32,
    prefix: &str,
) -> Result<'a> {
    let text = args.text(0, context.arena)?.trim();
    let digits = text.strip_prefix(prefix).unwrap_or(text);
    match i64::from_str_radix(digits, base) {
        Ok(number) => Ok(Value::Int(number)),
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => Err(args.overflow()),
        Err(_) => args.out_of_range(0, "digits of this base"),
    }
}

fn to_base<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    write: fn(&mut ArenaString<'a>, i64) -> std::fmt::Result,
) -> Result<'a> {
    let mut out = ArenaString::new_in(context.arena);
    write(&mut out, args.int(0)?).expect("writing to memory");
    Ok(Value::Str(out.into_bump_str()))
}

fn str_utf16_le<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = context.text(args.get(0));
    context.check_output_size(args.function, text.len() * 2)?;
    let mut out = Vec::with_capacity_in(text.len() * 2, context.arena);
    out.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
    Ok(Value::Bytes(out.into_bump_slice()))
}

fn map<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let arena = context.arena;
    let items = match to_container(args.get(0), arena) {
        map @ Value::Map(_) => return Ok(map),
        Value::Array(items) => items,
        _ => return args.wrong_type(0, "a map, JSON of one or an array of pairs"),
    };
    let mut fields = Vec::with_capacity_in(items.len(), arena);
    for item in items {
        match item.parse_one_level(arena) {
            Value::Array([name, value]) => fields.push((name.text(arena), *value)),
            _ => return args.out_of_range(0, "an array of pairs"),
        }
    }
    Ok(Value::Map(fields.into_bump_slice()))
}
