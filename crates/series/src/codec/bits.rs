//! Bit packing: numbers of a fixed bit width, and streams of single bits.

use disk::varint::VarintReader;

/// Numbers packed together.
pub(crate) const BLOCK: usize = 128;

/// Number of bits that the number needs.
#[inline]
pub(crate) fn width(number: u64) -> u32 {
    64 - number.leading_zeros()
}

/// Appends numbers of at most `width` bits.
#[inline]
pub(crate) fn pack(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>, width: u32) {
    if width == 0 {
        return;
    }
    out.reserve(numbers.len() * width as usize / 8 + 8);
    let (mut word, mut used) = (0_u64, 0_u32);
    for number in numbers {
        word |= number << used;
        used += width;
        if used >= 64 {
            out.extend_from_slice(&word.to_le_bytes());
            used -= 64;
            // The bits that did not fit into the word; zero if the word was filled exactly.
            word = if used == 0 {
                0
            } else {
                number >> (width - used)
            };
        }
    }
    let rest = used.div_ceil(8) as usize;
    out.extend_from_slice(&word.to_le_bytes()[..rest]);
}

/// Reads up to [`BLOCK`] numbers of `width` bits.
#[inline]
pub(crate) fn unpack(reader: &mut VarintReader<'_>, out: &mut [u64], width: u32) -> Option<()> {
    if width == 0 {
        out.fill(0);
        return Some(());
    }
    let bytes = reader.take((out.len() * width as usize).div_ceil(8))?;
    // Padding behind the bytes lets each number be read with whole words.
    let mut padded = [0_u8; BLOCK * 8 + 16];
    padded[..bytes.len()].copy_from_slice(bytes);
    let mask = u64::MAX >> (64 - width);
    let word = |at: usize| u64::from_le_bytes(padded[at..at + 8].try_into().expect("8 bytes"));
    if width <= 56 {
        for (at, number) in out.iter_mut().enumerate() {
            let bit = at * width as usize;
            *number = (word(bit / 8) >> (bit % 8)) & mask;
        }
    } else {
        for (at, number) in out.iter_mut().enumerate() {
            let bit = at * width as usize;
            let wide = u128::from(word(bit / 8)) | u128::from(padded[bit / 8 + 8]) << 64;
            *number = (wide >> (bit % 8)) as u64 & mask;
        }
    }
    Some(())
}

/// Writes single bits, low ones first.
#[derive(Default)]
pub(crate) struct BitWriter {
    pub(crate) bytes: Vec<u8>,
    word: u128,
    used: u32,
}

impl BitWriter {
    #[inline]
    pub(crate) fn put(&mut self, bits: u64, width: u32) {
        self.word |= u128::from(bits) << self.used;
        self.used += width;
        if self.used >= 64 {
            self.bytes
                .extend_from_slice(&(self.word as u64).to_le_bytes());
            self.word >>= 64;
            self.used -= 64;
        }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let rest = self.used.div_ceil(8) as usize;
        self.bytes
            .extend_from_slice(&(self.word as u64).to_le_bytes()[..rest]);
        self.bytes
    }
}

pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    bit: usize,
}

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, bit: 0 }
    }

    #[inline]
    pub(crate) fn take(&mut self, width: u32) -> Option<u64> {
        if width == 0 {
            return Some(0);
        }
        let end = self.bit + width as usize;
        if end > self.bytes.len() * 8 {
            return None;
        }
        let first = self.bit / 8;
        let mut wide = [0; 16];
        let last = (first + 9).min(self.bytes.len());
        wide[..last - first].copy_from_slice(&self.bytes[first..last]);
        let bits = (u128::from_le_bytes(wide) >> (self.bit % 8)) as u64;
        self.bit = end;
        Some(bits & (u64::MAX >> (64 - width)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(numbers in proptest::collection::vec(any::<u64>(), 0..=BLOCK), width in 0..=64_u32) {
            let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
            let numbers: Vec<u64> = numbers.iter().map(|number| number & mask).collect();
            let mut bytes = Vec::new();
            pack(&mut bytes, numbers.iter().copied(), width);
            prop_assert_eq!(bytes.len(), (numbers.len() * width as usize).div_ceil(8));
            let mut found = vec![0; numbers.len()];
            prop_assert!(unpack(&mut VarintReader::new(&bytes), &mut found, width).is_some());
            prop_assert_eq!(&found, &numbers);
        }

        #[test]
        fn bits_round_trip(numbers in proptest::collection::vec((any::<u64>(), 0..=64_u32), 0..100)) {
            let cut = |(number, width): (u64, u32)| if width == 0 { 0 } else { number & (u64::MAX >> (64 - width)) };
            let mut writer = BitWriter::default();
            numbers.iter().for_each(|&number| writer.put(cut(number), number.1));
            let bytes = writer.finish();
            let mut reader = BitReader::new(&bytes);
            for &number in &numbers {
                prop_assert_eq!(reader.take(number.1), Some(cut(number)));
            }
            prop_assert!(reader.take(8).is_none());
        }
    }
}
