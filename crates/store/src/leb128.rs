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

/// A few bytes and numbers put together before they go anywhere: as one copy of a fixed size, which costs less than a
/// check for room, or a call that copies, for each of them.
pub struct Packed {
    bytes: [u8; Self::ROOM],
    len: usize,
}

impl Packed {
    /// Bytes it holds: six numbers of ten bytes and four single ones.
    const ROOM: usize = 64;

    #[inline]
    pub fn new() -> Self {
        Self {
            bytes: [0; Self::ROOM],
            len: 0,
        }
    }

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

    /// Bytes that are left.
    #[inline]
    pub fn room(&self) -> usize {
        Self::ROOM - self.len
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.len;
        out.extend_from_slice(&self.bytes);
        out.truncate(end);
    }
}

impl Default for Packed {
    fn default() -> Self {
        Self::new()
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
            let mut packed = Packed::new();
            let mut bytes = Vec::new();
            for &number in numbers {
                packed.number(number);
                put(&mut bytes, number);
            }
            let mut out = vec![7];
            packed.append_to(&mut out);
            assert_eq!(out[1..], bytes);
            assert_eq!(packed.as_bytes(), bytes);
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
