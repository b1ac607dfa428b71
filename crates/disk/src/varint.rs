//! Variable-length integers (LEB128) of one to ten bytes: seven bits per byte, lowest first; the highest bit says that
//! more bytes follow. The functions are meant to be inlined.

/// Appends a number.
#[inline]
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
pub fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, zigzag(number));
}

/// Writes a number at `at`, where ten bytes must be available; returns the end position.
#[inline]
pub fn write(out: &mut [u8], mut at: usize, mut number: u64) -> usize {
    while number >= 0x80 {
        out[at] = number as u8 | 0x80;
        at += 1;
        number >>= 7;
    }
    out[at] = number as u8;
    at + 1
}

#[inline]
pub fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

#[inline]
pub fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Takes a number off the front; `None` if it is truncated or too large.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    read(|| bytes.split_off_first().copied())
}

#[inline]
fn read(mut next: impl FnMut() -> Option<u8>) -> Option<u64> {
    let first = next()?;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    let mut number = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let byte = next()?;
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Encoded length of a number in bytes.
#[inline]
pub fn len(number: u64) -> usize {
    (63 - (number | 1).leading_zeros() as usize) / 7 + 1
}

/// Capacity of [`pack`] in bytes: six numbers of ten bytes and four single bytes.
pub const PACK_BUFFER_BYTES: usize = 64;

/// Appends a few bytes and numbers with a single capacity check. They are written in place. If they were assembled
/// elsewhere and copied, the wide load of the copy would stall on the single-byte stores before it.
#[inline]
pub fn pack(out: &mut Vec<u8>, fill: impl FnOnce(&mut PackBuffer<'_>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PACK_BUFFER_BYTES]);
    let bytes = out[start..].first_chunk_mut();
    let mut packed = PackBuffer {
        bytes: bytes.expect("the buffer was just appended"),
        len: 0,
    };
    fill(&mut packed);
    let end = start + packed.len;
    out.truncate(end);
}

/// The buffer that the callback of [`pack`] fills.
pub struct PackBuffer<'a> {
    bytes: &'a mut [u8; PACK_BUFFER_BYTES],
    len: usize,
}

impl PackBuffer<'_> {
    #[inline]
    pub fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline]
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    /// Number of bytes written so far.
    #[inline]
    pub fn size(&self) -> usize {
        self.len
    }
}

/// Reads bytes in order; returns `None` at the end of the input or for an invalid number.
#[derive(Clone, Copy)]
pub struct VarintReader<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> VarintReader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    pub fn number(&mut self) -> Option<u64> {
        read(|| self.byte())
    }

    #[inline]
    pub fn signed(&mut self) -> Option<i64> {
        self.number().map(unzigzag)
    }

    /// A number of at most `max`; `None` if it is larger.
    #[inline]
    pub fn number_up_to(&mut self, max: usize) -> Option<usize> {
        let number = usize::try_from(self.number()?).ok()?;
        (number <= max).then_some(number)
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    #[inline]
    pub fn fixed_u64(&mut self) -> Option<u64> {
        let bytes = self.take(8)?;
        Some(u64::from_le_bytes(
            bytes.try_into().expect("take returned 8 bytes"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(numbers in proptest::collection::vec(any::<i64>(), 0..20)) {
            let mut bytes = Vec::new();
            for &number in &numbers {
                put_signed(&mut bytes, number);
                put(&mut bytes, number as u64);
                let mut room = [0; 10];
                let end = write(&mut room, 0, number as u64);
                assert!(bytes.ends_with(&room[..end]));
            }
            let mut reader = VarintReader::new(&bytes);
            for &number in &numbers {
                prop_assert_eq!(reader.signed(), Some(number));
                prop_assert_eq!(reader.number(), Some(number as u64));
            }
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn invalid_numbers_are_refused() {
        assert_eq!(VarintReader::new(&[0x80]).number(), None);
        assert_eq!(VarintReader::new(&[0xff; 11]).number(), None);
        assert_eq!(VarintReader::new(&[]).number(), None);
        let too_large = [[0xff; 9].as_slice(), &[2]].concat();
        assert_eq!(VarintReader::new(&too_large).number(), None);
        assert_eq!(take(&mut &too_large[..]), None);
    }

    #[test]
    fn numbers_of_every_length_come_back() {
        let edges = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit]);
        let numbers: Vec<u64> = edges.chain([u64::MAX]).collect();
        for numbers in numbers.chunks(6) {
            let mut bytes = Vec::new();
            let mut out = vec![7];
            pack(&mut out, |packed| {
                for &number in numbers {
                    packed.number(number);
                    put(&mut bytes, number);
                }
                assert_eq!(packed.size(), bytes.len());
            });
            assert_eq!(out[1..], bytes);
            let lens = numbers.iter().map(|&number| len(number));
            assert_eq!(lens.sum::<usize>(), bytes.len());
            let mut rest = &bytes[..];
            for &number in numbers {
                assert_eq!(take(&mut rest), Some(number));
            }
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn an_unterminated_number_is_refused() {
        assert_eq!(take(&mut &[0x80, 0x80][..]), None);
        assert_eq!(take(&mut &[0xff; 11][..]), None);
    }
}
