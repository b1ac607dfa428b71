//! Hashes, checksums, and text encodings of bytes: base64, URLs, HTML.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bumpalo::collections::String as ArenaString;
use bumpalo::collections::Vec;
use data_encoding::HEXLOWER;
use sha2::Digest;

use super::args::Args;
use super::convert::hex_text;
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("md5", (1, 1), "x: bytes", "string", "The MD5 hash as 32 hexadecimal digits.", "md5('hello')", r#""5d41402abc4b2a76b9719d911017c592""#, |context, args| digest::<md5::Md5>(context, args, 0)),
    line("sha1", (1, 1), "x: bytes", "string", "The SHA-1 hash as 40 hexadecimal digits.", "sha1('hello')", r#""aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d""#, |context, args| digest::<sha1::Sha1>(context, args, 0)).alias(&["sha"]),
    line("sha256", (1, 1), "x: bytes", "string", "The SHA-256 hash as 64 hexadecimal digits.", "sha256('hello')", r#""2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824""#, |context, args| digest::<sha2::Sha256>(context, args, 0)),
    line("sha512", (1, 1), "x: bytes", "string", "The SHA-512 hash as 128 hexadecimal digits.", "left(sha512('hello'), 16)", r#""9b71d224bd62f378""#, |context, args| digest::<sha2::Sha512>(context, args, 0)),
    line("hash", (2, 2), "algorithm: string, x: bytes", "string", "The hash by 'md5', 'sha1', 'sha224', 'sha256', 'sha384' or 'sha512' as hexadecimal digits.", "hash('sha224', '')", r#""d14a028c2a3a2bc9476102bb288234c415a2b01f828ea62ac5b3e42f""#, hash),
    line("crc32", (1, 1), "x: bytes", "string", "The CRC-32 as decimal text.", "crc32('hello')", r#""907060870""#, crc32),
    line("base64Encode", (1, 3), "x: bytes[, 'no_padding' | 'urlsafe', ...]", "string", "Encodes bytes as base64.", "base64Encode('hello')", r#""aGVsbG8=""#, base64_encode),
    line("base64Decode", (1, 3), "text: string[, 'no_padding' | 'urlsafe', ...]", "bytes", "Decodes base64, with or without padding.", "base64Decode('aGVsbG8=')", r#""hello""#, base64_decode),
    line("urlEncode", (1, 1), "text: string", "string", "Escapes everything except letters, digits and - . _ ~ as %XX.", "urlEncode('hello world')", r#""hello%20world""#, url_encode),
    line("urlDecode", (1, 1), "text: string", "string", "Decodes %XX, and + as a blank.", "urlDecode('hello%20world')", r#""hello world""#, url_decode),
    line("htmlEncode", (1, 1), "text: string", "string", "With & < > \" and ' as entities.", "htmlEncode('<div>')", r#""&lt;div&gt;""#, html_encode),
    line("htmlDecode", (1, 1), "text: string", "string", "Decodes these entities, &nbsp; and numeric entities.", "htmlDecode('&lt;div&gt; &#xe9;')", r#""<div> é""#, html_decode),
];

fn digest<'a, D: Digest>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    at: usize,
) -> Result<'a> {
    let hash = D::digest(args.bytes(at, context.arena)?);
    Ok(Value::Str(hex_text(context, "", &hash, &HEXLOWER)))
}

fn hash<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    match args.text(0, context.arena)? {
        "md5" => digest::<md5::Md5>(context, args, 1),
        "sha" | "sha1" => digest::<sha1::Sha1>(context, args, 1),
        "sha224" => digest::<sha2::Sha224>(context, args, 1),
        "sha256" => digest::<sha2::Sha256>(context, args, 1),
        "sha384" => digest::<sha2::Sha384>(context, args, 1),
        "sha512" => digest::<sha2::Sha512>(context, args, 1),
        _ => args.out_of_range(0, "'md5', 'sha1', 'sha224', 'sha256', 'sha384' or 'sha512'"),
    }
}

fn crc32<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let sum = crc32fast::hash(args.bytes(0, context.arena)?);
    Ok(Value::Str(
        context.arena.alloc_str(itoa::Buffer::new().format(sum)),
    ))
}

/// The alphabet and padding selected by the arguments after the first. Unknown words are ignored, as in EMQX.
fn base64_engine<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
) -> std::result::Result<GeneralPurpose, EvaluationError> {
    let (mut alphabet, mut padding) = (&alphabet::STANDARD, true);
    for at in 1..args.len() {
        match args.text(at, context.arena)? {
            "urlsafe" => alphabet = &alphabet::URL_SAFE,
            "no_padding" => padding = false,
            _ => {}
        }
    }
    let config = GeneralPurposeConfig::new()
        .with_encode_padding(padding)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    Ok(GeneralPurpose::new(alphabet, config))
}

fn base64_encode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let bytes = args.bytes(0, context.arena)?;
    let engine = base64_engine(context, args)?;
    let length = bytes.len().div_ceil(3) * 4;
    context.check_output_size(args.function, length)?;
    let out = context.arena.alloc_slice_fill_copy(length, 0);
    let written = engine
        .encode_slice(bytes, out)
        .expect("room for four letters for each three bytes");
    Ok(Value::Str(
        str::from_utf8(&out[..written]).expect("base64 is ASCII"),
    ))
}

fn base64_decode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.bytes(0, context.arena)?.trim_ascii();
    let engine = base64_engine(context, args)?;
    let out = context
        .arena
        .alloc_slice_fill_copy(text.len().div_ceil(4) * 3, 0);
    match engine.decode_slice(text, out) {
        Ok(written) => Ok(Value::Bytes(&out[..written])),
        Err(error) => args.invalid(format!("no base64: {error}")),
    }
}

fn url_encode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let bytes = args.bytes(0, context.arena)?;
    context.check_output_size(args.function, bytes.len().saturating_mul(3))?;
    let mut out = ArenaString::with_capacity_in(bytes.len() * 2, context.arena);
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    Ok(Value::Str(out.into_bump_str()))
}

fn url_decode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let mut rest = args.text(0, context.arena)?.as_bytes();
    let mut out = Vec::with_capacity_in(rest.len(), context.arena);
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digit = |at: usize| char::from(*behind.get(at)?).to_digit(16);
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return args.out_of_range(0, "two hexadecimal digits behind each %");
                };
                out.push((high << 4 | low) as u8);
                rest = &behind[2..];
            }
            _ => out.push(*byte),
        }
    }
    let bytes = out.into_bump_slice();
    Ok(str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Str))
}

fn html_encode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let text = args.text(0, context.arena)?;
    context.check_output_size(args.function, text.len().saturating_mul(6))?;
    let mut out = ArenaString::with_capacity_in(text.len() + 16, context.arena);
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(letter),
        }
    }
    Ok(Value::Str(out.into_bump_str()))
}

fn html_decode<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let mut rest = args.text(0, context.arena)?;
    let mut out = ArenaString::with_capacity_in(rest.len(), context.arena);
    while let Some(at) = memchr::memchr(b'&', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        // The longest entity is &#x10FFFF;
        let end = rest.bytes().take(10).position(|byte| byte == b';');
        match end.and_then(|end| Some((html_entity(&rest[..end])?, end))) {
            Some((letter, end)) => {
                out.push(letter);
                rest = &rest[end + 1..];
            }
            None => out.push('&'),
        }
    }
    out.push_str(rest);
    Ok(Value::Str(out.into_bump_str()))
}

fn html_entity(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        "nbsp" => Some('\u{a0}'),
        _ => {
            let number = name.strip_prefix('#')?;
            let number = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(number.ok()?)
        }
    }
}
