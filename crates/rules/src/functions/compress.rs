//! Compression: gzip, raw DEFLATE, and zlib. The output size is limited for any input.

use std::io::Read;

use bumpalo::collections::Vec;
use flate2::Compression;
use flate2::bufread::{
    DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder, ZlibDecoder, ZlibEncoder,
};

use super::args::Args;
use super::function::{Function, line};
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::Value;

type Result<'a> = std::result::Result<Value<'a>, EvaluationError>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("gzip", (1, 1), "x: bytes", "bytes", "Compresses with gzip.", "gunzip(gzip('hello'))", r#""hello""#, |context, args| { let bytes = args.bytes(0, context.arena)?; read_bounded(context, args, GzEncoder::new(bytes, Compression::default())) }),
    line("gunzip", (1, 1), "x: bytes", "bytes", "Decompresses gzip.", "gunzip(hexstr2bin('1F8B0800000000000013CB48CDC9C9070086A6103605000000'))", r#""hello""#, |context, args| { let bytes = args.bytes(0, context.arena)?; read_bounded(context, args, GzDecoder::new(bytes)) }),
    line("zip", (1, 1), "x: bytes", "bytes", "Compresses with DEFLATE, without header and checksum.", "bin2hexstr(zip('hello'))", r#""CB48CDC9C90700""#, |context, args| { let bytes = args.bytes(0, context.arena)?; read_bounded(context, args, DeflateEncoder::new(bytes, Compression::default())) }),
    line("unzip", (1, 1), "x: bytes", "bytes", "Decompresses the output of `zip`.", "unzip(hexstr2bin('CB48CDC9C90700'))", r#""hello""#, |context, args| { let bytes = args.bytes(0, context.arena)?; read_bounded(context, args, DeflateDecoder::new(bytes)) }),
    line("zip_compress", (1, 1), "x: bytes", "bytes", "Compresses with DEFLATE, with the header and checksum of zlib.", "bin2hexstr(zip_compress('hello'))", r#""789CCB48CDC9C90700062C0215""#, |context, args| { let bytes = args.bytes(0, context.arena)?; read_bounded(context, args, ZlibEncoder::new(bytes, Compression::default())) }),
    line("zip_uncompress", (1, 1), "x: bytes", "bytes", "Decompresses the output of `zip_compress`.", "zip_uncompress(hexstr2bin('789CCB48CDC9C90700062C0215'))", r#""hello""#, |context, args| { let bytes = args.bytes(0, context.arena)?; read_bounded(context, args, ZlibDecoder::new(bytes)) }),
];

/// Reads to the end, up to the output limit of functions.
fn read_bounded<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    mut source: impl Read,
) -> Result<'a> {
    let mut out: Vec<'a, u8> = Vec::new_in(context.arena);
    let mut chunk = [0; 4096];
    loop {
        match source.read(&mut chunk) {
            Ok(0) => return Ok(Value::Bytes(out.into_bump_slice())),
            Ok(count) => {
                context.check_output_size(args.function, out.len() + count)?;
                out.extend_from_slice_copy(&chunk[..count]);
            }
            Err(error) => return args.invalid(format!("not compressed in this way: {error}")),
        }
    }
}
