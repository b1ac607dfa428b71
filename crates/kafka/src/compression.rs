//! Compression of record batches, in pure Rust; the decompressed size is limited, whatever the input claims.

use std::io::{self, Read, Write as _};

use schemars::JsonSchema;
use serde::Deserialize;

/// Larger than any batch that brokers accept.
const MAX_BYTES: usize = 256 << 20;
/// Prefix that common clients put before Snappy blocks.
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_BLOCK_BYTES: usize = 32 << 10;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Compression {
    /// The compression in the lowest bits of a batch's attributes.
    pub(crate) fn from_attributes(attributes: i16) -> Result<Self, String> {
        Ok(match attributes & 7 {
            0 => Self::None,
            1 => Self::Gzip,
            2 => Self::Snappy,
            3 => Self::Lz4,
            4 => Self::Zstd,
            other => return Err(format!("unknown compression {other}")),
        })
    }

    pub(crate) fn attributes(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    pub(crate) fn compress(self, plain: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(plain.to_vec()),
            Self::Gzip => {
                let out = Vec::with_capacity(plain.len() / 2);
                let level = flate2::Compression::default();
                let mut encoder = flate2::write::GzEncoder::new(out, level);
                encoder.write_all(plain)?;
                encoder.finish()
            }
            Self::Snappy => {
                let mut out = Vec::with_capacity(plain.len() / 2);
                out.extend_from_slice(SNAPPY_MAGIC);
                // Version, and the oldest compatible version.
                out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
                let mut encoder = snap::raw::Encoder::new();
                for block in plain.chunks(SNAPPY_BLOCK_BYTES) {
                    let packed = encoder.compress_vec(block).map_err(io::Error::other)?;
                    let length = packed.len() as u32;
                    out.extend_from_slice(&length.to_be_bytes());
                    out.extend_from_slice(&packed);
                }
                Ok(out)
            }
            Self::Lz4 => {
                // The Java client does not support linked blocks.
                let info = lz4_flex::frame::FrameInfo::new()
                    .block_mode(lz4_flex::frame::BlockMode::Independent)
                    .block_size(lz4_flex::frame::BlockSize::Max64KB);
                let out = Vec::with_capacity(plain.len() / 2);
                let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, out);
                encoder.write_all(plain)?;
                encoder.finish().map_err(io::Error::other)
            }
            Self::Zstd => {
                let level = ruzstd::encoding::CompressionLevel::Fastest;
                Ok(ruzstd::encoding::compress_to_vec(plain, level))
            }
        }
    }

    pub(crate) fn decompress(self, packed: &[u8]) -> Result<Vec<u8>, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{self:?}: {error}");
        match self {
            Self::None => Ok(packed.to_vec()),
            Self::Gzip => read(flate2::read::MultiGzDecoder::new(packed)).map_err(|e| wrong(&e)),
            Self::Snappy => decompress_snappy(packed).map_err(|e| wrong(&e)),
            Self::Lz4 => read(lz4_flex::frame::FrameDecoder::new(packed)).map_err(|e| wrong(&e)),
            Self::Zstd => {
                let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
                read(decoder.map_err(|e| wrong(&e))?).map_err(|e| wrong(&e))
            }
        }
    }
}

fn read(decoder: impl Read) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    decoder.take(MAX_BYTES as u64 + 1).read_to_end(&mut plain)?;
    match plain.len() <= MAX_BYTES {
        true => Ok(plain),
        false => Err(io::Error::other(too_long())),
    }
}

fn too_long() -> String {
    format!("more than {MAX_BYTES} bytes")
}

/// Decompresses blocks as common clients write them, or a single block without a prefix.
fn decompress_snappy(packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoder = snap::raw::Decoder::new();
    let mut plain = Vec::new();
    let mut add = |block: &[u8]| {
        let length = snap::raw::decompress_len(block).map_err(|e| e.to_string())?;
        let start = plain.len();
        if start + length > MAX_BYTES {
            return Err(too_long());
        }
        plain.resize(start + length, 0);
        let written = decoder.decompress(block, &mut plain[start..]);
        written.map(drop).map_err(|error| error.to_string())
    };
    match packed.strip_prefix(SNAPPY_MAGIC) {
        None => add(packed)?,
        Some(rest) => {
            let mut rest = rest.get(8..).ok_or("too short")?;
            while let Some((length, behind)) = rest.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                let (block, behind) = behind.split_at_checked(length).ok_or("too short")?;
                add(block)?;
                rest = behind;
            }
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];

    #[test]
    fn what_was_compressed_comes_back() {
        let long: Vec<u8> = (0..200_000_u32)
            .flat_map(|n| [(n / 100) as u8, (n % 7) as u8])
            .collect();
        for kind in ALL {
            for plain in [&b""[..], b"x", &long] {
                let packed = kind.compress(plain).unwrap();
                assert!(kind.decompress(&packed).unwrap() == plain, "{kind:?}");
                let attributes = Compression::from_attributes(kind.attributes() | 16);
                assert_eq!(attributes, Ok(kind));
            }
            let packed = kind.compress(&long).unwrap();
            assert!(kind == Compression::None || packed.len() < long.len() / 4);
        }
        assert!(Compression::from_attributes(5).is_err());
    }

    #[test]
    fn snappy_without_blocks_is_read_too() {
        let raw = snap::raw::Encoder::new().compress_vec(b"hello").unwrap();
        assert_eq!(Compression::Snappy.decompress(&raw).unwrap(), b"hello");
    }

    #[test]
    fn damaged_bytes_are_an_error_and_no_danger() {
        let plain = vec![7; 100_000];
        for kind in &ALL[1..] {
            let packed = kind.compress(&plain).unwrap();
            for end in [1, 3, 9, packed.len() / 2] {
                let read = kind.decompress(&packed[..end]);
                assert!(read.is_err() || read.unwrap() != plain, "{kind:?} {end}");
            }
            assert!(kind.decompress(b"no such thing").is_err(), "{kind:?}");
        }
        // Claims to be 4 GiB large.
        assert!(
            Compression::Snappy
                .decompress(b"\xff\xff\xff\xff\x0f\0")
                .is_err()
        );
    }
}
