//! Integers: an arithmetic sequence, runs of equal numbers, or blocks of 128, each packed in the smallest
//! way.
//!
//! A block begins with a byte for packing and bit width, and the difference of its first number to the last
//! one before. The minimum of the packed numbers follows, then the packed numbers less that minimum. Packed
//! are the numbers themselves, their differences, or the differences of differences. The times of a sensor
//! that reports every second thus take a few bytes per block, or none.

use disk::varint::{self, VarintReader, put, put_signed};

use super::bits::{BLOCK, pack, unpack, width};

const BLOCKS: u8 = 0;
const RUNS: u8 = 1;
const STEPS: u8 = 2;

const PLAIN: u8 = 0;
const DELTA: u8 = 1;
const DELTA_OF_DELTA: u8 = 2;

/// Appends integers; the reader has to know their count.
pub(crate) fn encode(out: &mut Vec<u8>, numbers: &[i64]) {
    let Some((&first, rest)) = numbers.split_first() else {
        return;
    };
    let step = rest.first().map_or(0, |second| second.wrapping_sub(first));
    if numbers
        .windows(2)
        .all(|two| two[1].wrapping_sub(two[0]) == step)
    {
        out.push(STEPS);
        put_signed(out, first);
        return put_signed(out, step);
    }
    let runs = 1 + numbers.windows(2).filter(|two| two[0] != two[1]).count();
    if numbers.len() >= 16 && runs <= numbers.len() / 12 {
        let (mut values, mut lengths) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
        for run in numbers.chunk_by(|left, right| left == right) {
            values.push(run[0]);
            lengths.push(run.len() as i64);
        }
        out.push(RUNS);
        put(out, runs as u64);
        encode_blocks(out, &values);
        return encode_blocks(out, &lengths);
    }
    out.push(BLOCKS);
    encode_blocks(out, numbers);
}

/// The packing and width that take the fewest bytes for a block, and the minimum of the packed numbers.
#[inline]
fn choose_packing(block: &[i64]) -> (u8, u32, i64) {
    let (mut least, mut most) = (block[0], block[0]);
    let (mut least_delta, mut most_delta) = (i64::MAX, i64::MIN);
    let (mut least_change, mut most_change) = (i64::MAX, i64::MIN);
    let mut before = block
        .get(1)
        .map_or(0, |second| second.wrapping_sub(block[0]));
    for two in block.windows(2) {
        let delta = two[1].wrapping_sub(two[0]);
        let change = delta.wrapping_sub(before);
        before = delta;
        (least, most) = (least.min(two[1]), most.max(two[1]));
        (least_delta, most_delta) = (least_delta.min(delta), most_delta.max(delta));
        (least_change, most_change) = (least_change.min(change), most_change.max(change));
    }
    let spread = |least: i64, most: i64| {
        if least > most {
            0
        } else {
            width(most.wrapping_sub(least) as u64)
        }
    };
    let plain = spread(least, most);
    let delta = spread(least_delta, most_delta);
    let change = spread(least_change, most_change);
    // Each step adds one number to the block's head: one bit less per number pays for it from about ten
    // numbers on.
    let head = (24 / block.len()) as u32;
    if plain <= delta + head && plain <= change + 2 * head {
        (PLAIN, plain, least)
    } else if delta <= change + head {
        (DELTA, delta, least_delta)
    } else {
        (DELTA_OF_DELTA, change, least_change)
    }
}

fn encode_blocks(out: &mut Vec<u8>, numbers: &[i64]) {
    let mut last = 0_i64;
    for block in numbers.chunks(BLOCK) {
        let (way, width, least) = choose_packing(block);
        // 63 bits are packed as 64, so that six bits can state the width.
        let width = if width == 63 { 64 } else { width };
        out.push(way << 6 | width.min(63) as u8);
        match way {
            PLAIN => {
                put_signed(out, least.wrapping_sub(last));
                let rest = block.iter().map(|number| number.wrapping_sub(least) as u64);
                pack(out, rest, width);
            }
            DELTA => {
                put_signed(out, block[0].wrapping_sub(last));
                put_signed(out, least);
                let delta = |two: &[i64]| two[1].wrapping_sub(two[0]);
                let rest = block
                    .windows(2)
                    .map(|two| delta(two).wrapping_sub(least) as u64);
                pack(out, rest, width);
            }
            _ => {
                let mut before = block[1].wrapping_sub(block[0]);
                put_signed(out, block[0].wrapping_sub(last));
                put_signed(out, before);
                put_signed(out, least);
                let rest = block[1..].windows(2).map(|two| {
                    let delta = two[1].wrapping_sub(two[0]);
                    let change = delta.wrapping_sub(before);
                    before = delta;
                    change.wrapping_sub(least) as u64
                });
                pack(out, rest, width);
            }
        }
        last = block[block.len() - 1];
    }
}

/// Reads `len` integers.
pub(crate) fn decode(reader: &mut VarintReader<'_>, len: usize) -> Option<Vec<i64>> {
    if len == 0 {
        return Some(Vec::new());
    }
    match reader.byte()? {
        STEPS => {
            let first = reader.signed()?;
            let step = reader.signed()?;
            Some(
                (0..len as i64)
                    .map(|at| first.wrapping_add(step.wrapping_mul(at)))
                    .collect(),
            )
        }
        RUNS => {
            let runs = reader.number_up_to(len)?;
            let values = decode_blocks(reader, runs)?;
            let lengths = decode_blocks(reader, runs)?;
            let mut numbers = Vec::with_capacity(len);
            for (value, length) in values.into_iter().zip(lengths) {
                let length = usize::try_from(length).ok()?;
                let end = numbers
                    .len()
                    .checked_add(length)
                    .filter(|&end| end <= len)?;
                numbers.resize(end, value);
            }
            (numbers.len() == len).then_some(numbers)
        }
        BLOCKS => decode_blocks(reader, len),
        _ => None,
    }
}

fn decode_blocks(reader: &mut VarintReader<'_>, len: usize) -> Option<Vec<i64>> {
    let mut numbers = vec![0_i64; len];
    let mut packed = [0_u64; BLOCK];
    let mut last = 0_i64;
    for block in numbers.chunks_mut(BLOCK) {
        let head = reader.byte()?;
        let width = match head & 63 {
            63 => 64,
            width => u32::from(width),
        };
        let first = last.wrapping_add(varint::unzigzag(reader.number()?));
        match head >> 6 {
            PLAIN => {
                let packed = &mut packed[..block.len()];
                unpack(reader, packed, width)?;
                for (to, number) in block.iter_mut().zip(packed) {
                    *to = first.wrapping_add(*number as i64);
                }
            }
            DELTA => {
                let least = reader.signed()?;
                let packed = &mut packed[..block.len() - 1];
                unpack(reader, packed, width)?;
                let mut number = first;
                block[0] = first;
                for (to, delta) in block[1..].iter_mut().zip(packed) {
                    number = number.wrapping_add(least).wrapping_add(*delta as i64);
                    *to = number;
                }
            }
            DELTA_OF_DELTA if block.len() > 1 => {
                let mut delta = reader.signed()?;
                let least = reader.signed()?;
                let packed = &mut packed[..block.len() - 2];
                unpack(reader, packed, width)?;
                let mut number = first.wrapping_add(delta);
                (block[0], block[1]) = (first, number);
                for (to, change) in block[2..].iter_mut().zip(packed) {
                    delta = delta.wrapping_add(least).wrapping_add(*change as i64);
                    number = number.wrapping_add(delta);
                    *to = number;
                }
            }
            _ => return None,
        }
        last = block[block.len() - 1];
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(numbers: &[i64]) -> usize {
        let mut bytes = Vec::new();
        encode(&mut bytes, numbers);
        let mut reader = VarintReader::new(&bytes);
        assert_eq!(decode(&mut reader, numbers.len()).unwrap(), numbers);
        assert!(reader.is_empty());
        bytes.len()
    }

    #[test]
    fn regular_times_take_few_bytes() {
        let times: Vec<i64> = (0..86_400)
            .map(|second| 1_760_000_000_000 + second * 1000)
            .collect();
        assert!(round_trip(&times) < 12);
        let jittered: Vec<i64> = times.iter().map(|time| time + time % 7).collect();
        assert!(round_trip(&jittered) < 86_400 * 5 / 8);
        let gaps: Vec<i64> = times
            .iter()
            .map(|time| time + time / 5_000_000 * 3)
            .collect();
        assert!(round_trip(&gaps) < 6000);
    }

    #[test]
    fn extremes_round_trip() {
        round_trip(&[]);
        round_trip(&[i64::MIN]);
        round_trip(&[i64::MIN, i64::MAX, 0, i64::MAX, i64::MIN, -1]);
        let alternating: Vec<i64> = (0..300)
            .map(|at| if at % 2 == 0 { i64::MIN } else { i64::MAX })
            .collect();
        round_trip(&alternating);
        let bools: Vec<i64> = (0..5000).map(|at| i64::from(at % 1000 < 900)).collect();
        assert!(round_trip(&bools) < 30);
    }

    proptest! {
        #[test]
        fn integers_round_trip(numbers in proptest::collection::vec(any::<i64>(), 0..300), shift in 0..64_u32) {
            let small: Vec<i64> = numbers.iter().map(|number| number >> shift).collect();
            round_trip(&small);
            let sums: Vec<i64> = small.iter().scan(0_i64, |sum, number| { *sum = sum.wrapping_add(*number); Some(*sum) }).collect();
            round_trip(&sums);
            let runs: Vec<i64> = small.iter().flat_map(|&number| std::iter::repeat_n(number, (number & 31) as usize)).collect();
            round_trip(&runs);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0..2000_usize) {
            let _ = decode(&mut VarintReader::new(&bytes), len);
        }
    }
}
