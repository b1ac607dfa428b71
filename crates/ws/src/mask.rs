//! Masking (RFC 6455 section 5.3): exclusive-or with a four-byte key, a word at a time.

use ring::rand::{SecureRandom, SystemRandom};

/// Masks or unmasks `data` in place. Returns the key rotated for the bytes that follow, so that a payload
/// may be processed in pieces of any length.
#[inline]
pub fn apply_mask(data: &mut [u8], key: [u8; 4]) -> [u8; 4] {
    let word = u64::from(u32::from_ne_bytes(key));
    let word = word << 32 | word;
    // Eight bytes are two repetitions of the key, so the key starts anew at each word and at the tail.
    let (words, tail) = data.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (byte, key) in tail.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
    let mut key = key;
    key.rotate_left(tail.len() % 4);
    key
}

/// Generates masking keys for a client. Keys are unpredictable, as section 10.3 requires, and cost one
/// system call per 256 keys.
pub struct MaskKeys {
    random: SystemRandom,
    block: Box<[u8; MaskKeys::BLOCK_BYTES]>,
    used: usize,
}

impl MaskKeys {
    const BLOCK_BYTES: usize = 1024;

    pub fn new() -> Self {
        Self {
            random: SystemRandom::new(),
            block: Box::new([0; Self::BLOCK_BYTES]),
            used: Self::BLOCK_BYTES,
        }
    }

    pub fn next_key(&mut self) -> [u8; 4] {
        if self.used == self.block.len() {
            self.random
                .fill(self.block.as_mut_slice())
                .expect("the operating system provides random bytes");
            self.used = 0;
        }
        let mut key = [0; 4];
        key.copy_from_slice(&self.block[self.used..self.used + 4]);
        self.used += 4;
        key
    }
}

impl Default for MaskKeys {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn masking_in_pieces_is_masking_byte_by_byte(
            data in proptest::collection::vec(any::<u8>(), 0..200),
            key: [u8; 4],
            cut in 0usize..200,
        ) {
            let expected: Vec<u8> = data.iter().zip(key.iter().cycle()).map(|(d, k)| d ^ k).collect();
            let mut masked = data.clone();
            let (left, right) = masked.split_at_mut(cut.min(data.len()));
            let rest = apply_mask(left, key);
            apply_mask(right, rest);
            prop_assert_eq!(&masked, &expected);
        }
    }

    #[test]
    fn keys_differ_from_block_to_block() {
        let mut keys = MaskKeys::new();
        let drawn: std::collections::HashSet<_> = (0..1000).map(|_| keys.next_key()).collect();
        assert!(drawn.len() > 990);
    }
}
