//! Floats in one of four encodings: decimals as integers of one scale, with exceptions; their bits as
//! integers; the changed bits of each; or uncompressed. The third encoding suits floats of which many repeat
//! the one before.

use disk::varint::{VarintReader, put};

use super::bits::{BitReader, BitWriter};
use super::ints;
use crate::column_values::FloatValues;
use crate::decimal;

const DECIMAL: u8 = 0;
const EXCEPTIONS: u8 = 1;
const CHANGES: u8 = 2;
const PLAIN: u8 = 3;
const BITS: u8 = 4;

/// Number of floats sampled to find a scale, and of the first ones checked: without a short decimal among
/// these, few will follow.
const SAMPLE: usize = 64;
const FIRST_SAMPLE: usize = 8;

pub(crate) fn encode(out: &mut Vec<u8>, floats: &FloatValues) {
    match floats {
        FloatValues::Decimal { scale, numbers } => {
            out.push(DECIMAL);
            out.push(*scale);
            ints::encode(out, numbers);
        }
        FloatValues::Plain(floats) => encode_plain(out, floats),
    }
}

/// The common scale of the sample's decimals, if most of its floats are decimals.
fn find_common_scale(floats: &[f64], sample: usize) -> Option<u8> {
    let step = floats.len().div_ceil(sample).max(1);
    let (mut decimals, mut looked_at, mut most) = (0, 0, 0);
    for &float in floats.iter().step_by(step) {
        looked_at += 1;
        if let Some((scale, _)) = decimal::find_scale(float) {
            decimals += 1;
            most = most.max(scale);
        }
    }
    let are_most = match sample {
        FIRST_SAMPLE => decimals > 0,
        _ => decimals * 4 >= looked_at * 3,
    };
    are_most.then_some(most)
}

fn encode_plain(out: &mut Vec<u8>, floats: &[f64]) {
    let start = out.len();
    let scale =
        find_common_scale(floats, FIRST_SAMPLE).and_then(|_| find_common_scale(floats, SAMPLE));
    if let Some(scale) = scale {
        encode_exceptions(out, floats, scale);
        if out.len() - start <= floats.len() * 6 {
            return;
        }
        out.truncate(start);
    }
    let is_same = |two: &&[f64]| two[0].to_bits() == two[1].to_bits();
    let repeats = floats.windows(2).filter(is_same).count();
    if repeats * 4 >= floats.len() {
        let changes = encode_changes(floats);
        out.push(CHANGES);
        put(out, changes.len() as u64);
        out.extend_from_slice(&changes);
    } else {
        encode_bits(out, floats);
    }
    if out.len() - start > 1 + floats.len() * 8 {
        out.truncate(start);
        out.push(PLAIN);
        floats
            .iter()
            .for_each(|float| out.extend_from_slice(&float.to_le_bytes()));
    }
}

/// Floats of one sign sort like their bits, and floats of similar size differ in the lower bits only.
/// Trailing zeros common to all are left out: single-precision floats have 29.
fn encode_bits(out: &mut Vec<u8>, floats: &[f64]) {
    let all = floats.iter().fold(0, |all, float| all | float.to_bits());
    let shift = if all == 0 { 0 } else { all.trailing_zeros() };
    let bits = floats.iter().map(|float| (float.to_bits() >> shift) as i64);
    out.push(BITS);
    out.push(shift as u8);
    ints::encode(out, &bits.collect::<Vec<_>>());
}

fn encode_exceptions(out: &mut Vec<u8>, floats: &[f64], scale: u8) {
    let mut numbers = Vec::with_capacity(floats.len());
    let (mut places, mut exceptions) = (Vec::new(), Vec::new());
    for (at, &float) in floats.iter().enumerate() {
        let number = decimal::scale(float, scale);
        if number.is_none() {
            places.push(at as i64);
            exceptions.push(float);
        }
        // An exception repeats the number before it, so that it widens no number.
        numbers.push(number.or_else(|| numbers.last().copied()).unwrap_or(0));
    }
    out.push(EXCEPTIONS);
    out.push(scale);
    put(out, places.len() as u64);
    ints::encode(out, &numbers);
    ints::encode(out, &places);
    exceptions
        .iter()
        .for_each(|float| out.extend_from_slice(&float.to_le_bytes()));
}

/// The first float, then one of these for each following float:
/// - a zero bit, if it equals the one before;
/// - 01 and the changed bits, if these are within those that changed last;
/// - 11, the number of leading zeros, the number of bits less one, and these bits.
fn encode_changes(floats: &[f64]) -> Vec<u8> {
    let mut writer = BitWriter::default();
    let mut before = 0_u64;
    let (mut leading, mut len) = (0, 0);
    for float in floats {
        let change = float.to_bits() ^ before;
        before = float.to_bits();
        if change == 0 {
            writer.put(0, 1);
            continue;
        }
        let zeros = change.leading_zeros();
        let ends = change.trailing_zeros();
        if len > 0 && zeros >= leading && ends >= 64 - leading - len && len < 64 - zeros - ends + 12
        {
            writer.put(0b01, 2);
        } else {
            (leading, len) = (zeros, 64 - zeros - ends);
            writer.put(0b11 | u64::from(leading) << 2 | u64::from(len - 1) << 8, 14);
        }
        writer.put(change >> (64 - leading - len), len);
    }
    writer.finish()
}

fn decode_changes(bytes: &[u8], count: usize) -> Option<Vec<f64>> {
    let mut reader = BitReader::new(bytes);
    let mut floats = Vec::with_capacity(count);
    let mut bits = 0_u64;
    let (mut leading, mut len) = (0, 0);
    for _ in 0..count {
        if reader.take(1)? == 1 {
            if reader.take(1)? == 1 {
                leading = reader.take(6)? as u32;
                len = reader.take(6)? as u32 + 1;
            }
            let behind = 64_u32.checked_sub(leading + len).filter(|_| len > 0)?;
            bits ^= reader.take(len)? << behind;
        }
        floats.push(f64::from_bits(bits));
    }
    Some(floats)
}

fn read_scale(reader: &mut VarintReader<'_>) -> Option<u8> {
    reader.byte().filter(|&scale| scale <= decimal::MAX_SCALE)
}

pub(crate) fn decode(reader: &mut VarintReader<'_>, len: usize) -> Option<FloatValues> {
    match reader.byte()? {
        DECIMAL => {
            let scale = read_scale(reader)?;
            let numbers = ints::decode(reader, len)?;
            Some(FloatValues::Decimal { scale, numbers })
        }
        EXCEPTIONS => {
            let scale = read_scale(reader)?;
            let exceptions = reader.number_up_to(len)?;
            let numbers = ints::decode(reader, len)?;
            let places = ints::decode(reader, exceptions)?;
            let mut floats: Vec<f64> = numbers
                .iter()
                .map(|&number| decimal::unscale(number, scale))
                .collect();
            for place in places {
                *floats.get_mut(usize::try_from(place).ok()?)? =
                    f64::from_bits(reader.fixed_u64()?);
            }
            Some(FloatValues::Plain(floats))
        }
        CHANGES => {
            let bytes = reader.number_up_to(usize::MAX)?;
            decode_changes(reader.take(bytes)?, len).map(FloatValues::Plain)
        }
        BITS => {
            let shift = u32::from(reader.byte().filter(|&shift| shift < 64)?);
            let bits = ints::decode(reader, len)?;
            let float = |bits| f64::from_bits((bits as u64) << shift);
            Some(FloatValues::Plain(bits.into_iter().map(float).collect()))
        }
        PLAIN => {
            let bytes = reader.take(len.checked_mul(8)?)?;
            let word = |bytes: &[u8]| {
                f64::from_bits(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
            };
            Some(FloatValues::Plain(
                bytes.chunks_exact(8).map(word).collect(),
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(floats: Vec<f64>) -> usize {
        let mut bytes = Vec::new();
        encode(&mut bytes, &FloatValues::Plain(floats.clone()));
        let mut reader = VarintReader::new(&bytes);
        let found = decode(&mut reader, floats.len()).unwrap();
        assert!(reader.is_empty());
        for (at, float) in floats.iter().enumerate() {
            assert_eq!(found.get(at).to_bits(), float.to_bits(), "{float}");
        }
        bytes.len()
    }

    #[test]
    fn extremes_round_trip() {
        let odd = [
            0.0,
            -0.0,
            f64::NAN,
            -f64::NAN,
            f64::INFINITY,
            -f64::INFINITY,
            f64::MIN_POSITIVE,
            5e-324,
            f64::MAX,
        ];
        round_trip(odd.to_vec());
        round_trip(vec![]);
        round_trip(vec![f64::NAN; 1000]);
        // Decimals with some floats that are not.
        let mixed: Vec<f64> = (0..5000)
            .map(|at| {
                if at % 97 == 0 {
                    odd[at % 9]
                } else {
                    f64::from(at as u32 % 300) / 10.0
                }
            })
            .collect();
        assert!(round_trip(mixed) < 5000 * 2);
        let slow: Vec<f64> = (0..5000).map(|at| (f64::from(at) / 1000.0).sin()).collect();
        assert!(round_trip(slow) < 5000 * 8);
    }

    proptest! {
        #[test]
        fn floats_round_trip(bits in proptest::collection::vec(any::<u64>(), 0..300), places in 0..6_i32) {
            round_trip(bits.iter().map(|&bits| f64::from_bits(bits)).collect());
            round_trip(bits.iter().map(|&bits| (bits % 100_000) as f64 / 10_f64.powi(places)).collect());
            round_trip(bits.iter().map(|&bits| f64::from_bits(bits >> (bits % 60))).collect());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0..2000_usize) {
            let _ = decode(&mut VarintReader::new(&bytes), len);
        }
    }
}
