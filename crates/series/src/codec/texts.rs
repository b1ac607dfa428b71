//! Texts: a dictionary and indexes, or all texts in sequence; compressed with LZ4 where that saves space.

use std::collections::HashMap;

use disk::varint::{VarintReader, put};

use super::ints;
use crate::column_values::{TextPool, TextValues};

const ALL: u8 = 0;
const DICTIONARY: u8 = 1;

/// Maximum bytes of the texts in one column of a group.
const MAX_BYTES: usize = 1 << 26;

/// Fewer bytes are not worth compressing.
const MIN_PACKED: usize = 128;

pub(crate) fn encode(out: &mut Vec<u8>, texts: &TextValues) {
    if texts.are_distinct() {
        out.push(DICTIONARY);
        put(out, texts.words.len() as u64);
        encode_all(out, texts.words.iter());
        return ints::encode(out, &texts.numbers);
    }
    let len = texts.len();
    let mut known: HashMap<&str, i64, foldhash::fast::RandomState> = HashMap::default();
    let mut dictionary: Vec<&str> = Vec::new();
    let mut places: Vec<i64> = Vec::with_capacity(texts.words.len());
    for text in texts.words.iter() {
        let next = dictionary.len() as i64;
        places.push(*known.entry(text).or_insert_with(|| {
            dictionary.push(text);
            next
        }));
        if dictionary.len() > len / 2 + 1 {
            break;
        }
    }
    if places.len() == texts.words.len() {
        out.push(DICTIONARY);
        put(out, dictionary.len() as u64);
        encode_all(out, dictionary.iter().copied());
        let numbers = texts.numbers.iter().map(|&number| places[number as usize]);
        return ints::encode(out, &numbers.collect::<Vec<_>>());
    }
    out.push(ALL);
    encode_all(out, (0..len).map(|at| texts.get(at)));
}

fn encode_all<'a>(out: &mut Vec<u8>, texts: impl Iterator<Item = &'a str>) {
    let (mut lengths, mut bytes) = (Vec::new(), Vec::new());
    for text in texts {
        lengths.push(text.len() as i64);
        bytes.extend_from_slice(text.as_bytes());
    }
    ints::encode(out, &lengths);
    let packed = if bytes.len() >= MIN_PACKED {
        lz4_flex::block::compress(&bytes)
    } else {
        Vec::new()
    };
    if !packed.is_empty() && packed.len() < bytes.len() {
        put(out, packed.len() as u64);
        out.extend_from_slice(&packed);
    } else {
        out.push(0);
        out.extend_from_slice(&bytes);
    }
}

fn decode_all(reader: &mut VarintReader<'_>, len: usize) -> Option<TextPool> {
    let lengths = ints::decode(reader, len)?;
    let mut total = 0_usize;
    let mut ends = Vec::with_capacity(len);
    for length in lengths {
        total = total
            .checked_add(usize::try_from(length).ok()?)
            .filter(|&total| total <= MAX_BYTES)?;
        ends.push(total as u32);
    }
    let bytes = match reader.number_up_to(MAX_BYTES)? {
        0 => reader.take(total)?.to_vec(),
        packed => {
            let packed = reader.take(packed)?;
            // LZ4 expands one byte to at most 255.
            if total / 255 > packed.len() {
                return None;
            }
            let bytes = lz4_flex::block::decompress(packed, total).ok()?;
            (bytes.len() == total).then_some(bytes)?
        }
    };
    let bytes = String::from_utf8(bytes).ok()?;
    let is_boundary = |&end: &u32| bytes.is_char_boundary(end as usize);
    ends.iter()
        .all(is_boundary)
        .then_some(TextPool { ends, bytes })
}

pub(crate) fn decode(reader: &mut VarintReader<'_>, len: usize) -> Option<TextValues> {
    match reader.byte()? {
        ALL => {
            let words = decode_all(reader, len)?;
            Some(TextValues::new((0..len as i64).collect(), words))
        }
        DICTIONARY => {
            let count = reader.number_up_to(len)?;
            let words = decode_all(reader, count)?;
            let numbers = ints::decode(reader, len)?;
            let is_known = |&number: &i64| (0..count as i64).contains(&number);
            numbers
                .iter()
                .all(is_known)
                .then(|| TextValues::new(numbers, words))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip<'a>(list: impl Iterator<Item = &'a str>) -> usize {
        let mut texts = TextValues::default();
        list.for_each(|text| texts.push(text));
        let mut bytes = Vec::new();
        encode(&mut bytes, &texts);
        let mut reader = VarintReader::new(&bytes);
        let found = decode(&mut reader, texts.len()).unwrap();
        assert!(reader.is_empty());
        assert!(
            (0..found.len())
                .map(|at| found.get(at))
                .eq((0..texts.len()).map(|at| texts.get(at)))
        );
        bytes.len()
    }

    #[test]
    fn repeated_states_take_few_bytes() {
        let states = [
            "running",
            "idle",
            "a longer state that is told now and then",
        ];
        assert!(round_trip((0..8000).map(|at| states[at / 2000 % 3])) < 100);
        round_trip(["", "", "", "ü", ""].into_iter());
    }

    proptest! {
        #[test]
        fn texts_round_trip(texts in proptest::collection::vec(".{0,30}", 0..80)) {
            round_trip(texts.iter().map(String::as_str));
            round_trip(texts.iter().chain(&texts).chain(&texts).map(String::as_str));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0..2000_usize) {
            let _ = decode(&mut VarintReader::new(&bytes), len);
        }
    }
}
