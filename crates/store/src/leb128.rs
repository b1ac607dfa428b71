//! Numbers as LEB128: seven bits a byte, the lowest first; the highest bit says that more follow.

/// Appends a number.
#[inline]
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number off the front; `None`: it ends too early, or never.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    *bytes = rest;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    let mut number = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// How many bytes a number takes.
#[inline]
pub fn len(number: u64) -> usize {
    (63 - (number | 1).leading_zeros() as usize) / 7 + 1
}

/// Bytes that [`pack`] has room for: six numbers of ten bytes and four single ones.
pub const ROOM: usize = 64;

/// Appends a few bytes and numbers with one check for room. They are written where they stay: put together elsewhere and
/// copied, the processor would have to wait for the single bytes before it could read them as a whole.
#[inline]
pub fn pack(out: &mut Vec<u8>, fill: impl FnOnce(&mut Packed<'_>)) {
    let start = out.len();
    out.extend_from_slice(&[0; ROOM]);
    let bytes = out[start..].first_chunk_mut();
    let mut packed = Packed {
        bytes: bytes.expect("it was appended just now"),
        len: 0,
    };
    fill(&mut packed);
    let end = start + packed.len;
    out.truncate(end);
}

/// What [`pack`] fills.
pub struct Packed<'a> {
    bytes: &'a mut [u8; ROOM],
    len: usize,
}

impl Packed<'_> {
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

    /// Bytes so far.
    #[inline]
    pub fn size(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn numbers_come_back() {
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
    fn a_number_that_does_not_end_is_none() {
        assert_eq!(take(&mut &[0x80, 0x80][..]), None);
        assert_eq!(take(&mut &[0xff; 11][..]), None);
    }
}
