//! Unique ids, provided that the seed of the random numbers is unique.

use bumpalo::collections::String as ArenaString;
use data_encoding::{HEXLOWER, HEXUPPER};

use super::args::Args;
use super::convert::hex_text;
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

/// Letters that need no escaping in a URL.
const NANOID: &[u8; 64] = b"useandom-26T198340PX75pxJACKVERYMINDBUSHWOLF_GQZbfghjklqvwyzrict";

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("uuid", (0, 0), "", "string", "A random UUID as 32 lower case hexadecimal digits.", "length(uuid())", "32", |context, _| { let id = random_uuid_bytes(context); Ok(Value::Str(hex_text(context, "", &id, &HEXLOWER))) }).impure().alias(&["uuid_v4_no_hyphen"]),
    line("uuidUpper", (0, 0), "", "string", "A random UUID as 32 upper case hexadecimal digits.", "regex_match(uuidUpper(), '^[0-9A-F]{32}$')", "true", |context, _| { let id = random_uuid_bytes(context); Ok(Value::Str(hex_text(context, "", &id, &HEXUPPER))) }).impure(),
    line("uuidWithHyphen", (0, 0), "", "string", "A random UUID with hyphens.", "length(uuidWithHyphen())", "36", |context, _| { let id = random_uuid_bytes(context); Ok(hyphenated(context, id)) }).impure().alias(&["uuid_v4"]),
    line("uuid_v7", (0, 0), "", "string", "A UUID that begins with the time, so that UUIDs sort by time.", "left(uuid_v7(), 15)", r#""01899f9c-9927-7""#, uuid_v7).impure(),
    line("snowflakeId", (0, 0), "", "int", "An increasing number: 41 bits of milliseconds since 2010-11-04, 10 bits of node, 12 bits of counter.", "bitsr(snowflakeId(), 22)", "401765012838", |context, _| Ok(Value::Int(context.resources.ids.snowflake(context.now_ms)))).impure(),
    line("nanoid", (0, 1), "[length: int]", "string", "A random text of 21 letters, or of the given length, that needs no escaping in a URL.", "length(nanoid(10))", "10", nanoid).impure(),
];

/// 16 random bytes marked as version 4.
fn random_uuid_bytes(context: &mut FunctionContext<'_, '_>) -> [u8; 16] {
    let rng = &mut context.resources.rng;
    let bits = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
    set_version_bits(bits, 4)
}

fn set_version_bits(bits: u128, version: u128) -> [u8; 16] {
    let bits = bits & !(0xf << 76) | version << 76;
    let bits = bits & !(3 << 62) | 2 << 62;
    bits.to_be_bytes()
}

fn hyphenated<'a>(context: &FunctionContext<'a, '_>, id: [u8; 16]) -> Value<'a> {
    let digits = hex_text(context, "", &id, &HEXLOWER);
    let mut out = ArenaString::with_capacity_in(36, context.arena);
    for (at, part) in [0..8, 8..12, 12..16, 16..20, 20..32]
        .into_iter()
        .enumerate()
    {
        if at > 0 {
            out.push('-');
        }
        out.push_str(&digits[part]);
    }
    Value::Str(out.into_bump_str())
}

/// RFC 9562: 48 bits of milliseconds, a 12-bit counter within the millisecond, 62 random bits.
fn uuid_v7<'a>(context: &mut FunctionContext<'a, '_>, _: Args<'_, 'a>) -> Result<'a> {
    let (ms, count) = context.resources.ids.uuid_v7(context.now_ms);
    let random = u128::from(context.resources.rng.next_u64());
    let bits = u128::from(ms) << 80 | u128::from(count) << 64 | random;
    Ok(hyphenated(context, set_version_bits(bits, 7)))
}

fn nanoid<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let length = if args.len() == 1 { args.size(0)? } else { 21 };
    if !(1..=1024).contains(&length) {
        return args.out_of_range(0, "1 to 1024");
    }
    let mut out = ArenaString::with_capacity_in(length, context.arena);
    let mut bits = 0;
    for at in 0..length {
        // Each random number yields ten letters of 6 bits.
        if at % 10 == 0 {
            bits = context.resources.rng.next_u64();
        }
        out.push(char::from(NANOID[(bits & 63) as usize]));
        bits >>= 6;
    }
    Ok(Value::Str(out.into_bump_str()))
}
