//! Searches for forbidden bytes in texts, eight bytes at a time. Topics are some twenty bytes long, too short for
//! the vector loops that the compiler generates for a byte-wise search.

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGH_BITS: u64 = ONES << 7;

/// Whether a UTF-8 text contains U+0000.
#[inline]
pub(crate) fn has_nul(bytes: &[u8]) -> bool {
    any_word(bytes, has_zero_byte)
}

/// Whether a UTF-8 text contains U+0000, `+` or `#`.
#[inline]
pub(crate) fn has_nul_or_wildcard(bytes: &[u8]) -> bool {
    // `+` is `#` with one more bit set, so that one comparison finds both.
    const BIT: u64 = ONES * (b'+' ^ b'#') as u64;
    const PLUS: u64 = ONES * b'+' as u64;
    any_word(bytes, |word| {
        has_zero_byte(word) | has_zero_byte((word | BIT) ^ PLUS)
    })
}

/// Nonzero if one of the eight bytes is 0.
#[inline]
fn has_zero_byte(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH_BITS
}

#[inline]
fn any_word(bytes: &[u8], test: impl Fn(u64) -> u64) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut found = 0;
    for word in words {
        found |= test(u64::from_ne_bytes(*word));
    }
    if let Some(last) = bytes.last_chunk::<8>() {
        // This chunk overlaps the previous one, which is harmless.
        found |= test(u64::from_ne_bytes(*last));
    } else {
        for &byte in rest {
            found |= test(ONES * u64::from(byte));
        }
    }
    found != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_at_each_place_of_each_length() {
        for len in 0..40 {
            for at in 0..len {
                for byte in 0..=255 {
                    // Neighbours that differ by one from the bytes searched for, to test the borrow of the
                    // subtraction.
                    for neighbour in [b'a', 1, b'*', b'"', b',', b'$', 0x80, 0xff] {
                        let mut bytes = vec![neighbour; len];
                        bytes[at] = byte;
                        let is_nul = byte == 0;
                        assert_eq!(has_nul(&bytes), is_nul);
                        let is_wildcard = byte == b'+' || byte == b'#';
                        assert_eq!(has_nul_or_wildcard(&bytes), is_nul || is_wildcard);
                    }
                }
            }
        }
        assert!(!has_nul(&[]) && !has_nul_or_wildcard(&[]));
    }
}
