//! Numbers of one to ten bytes, low bits first.

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, zigzag(number));
}

/// Writes a number at `at`, where ten bytes have room; returns where it ends.
#[inline]
pub(crate) fn write(out: &mut [u8], mut at: usize, mut number: u64) -> usize {
    while number >= 0x80 {
        out[at] = number as u8 | 0x80;
        at += 1;
        number >>= 7;
    }
    out[at] = number as u8;
    at + 1
}

#[inline]
pub(crate) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

#[inline]
pub(crate) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Reads bytes in order; `None` where they end too early or are no number.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
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

    #[inline]
    pub(crate) fn signed(&mut self) -> Option<i64> {
        self.number().map(unzigzag)
    }

    /// A number that has to be no more than `max`.
    pub(crate) fn bounded(&mut self, max: usize) -> Option<usize> {
        let number = usize::try_from(self.number()?).ok()?;
        (number <= max).then_some(number)
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let bytes = self.take(8)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("8 were taken")))
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
            let mut reader = Reader::new(&bytes);
            for &number in &numbers {
                prop_assert_eq!(reader.signed(), Some(number));
                prop_assert_eq!(reader.number(), Some(number as u64));
            }
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        assert_eq!(Reader::new(&[0x80]).number(), None);
        assert_eq!(Reader::new(&[0xff; 11]).number(), None);
        assert_eq!(Reader::new(&[]).number(), None);
    }
}
