//! Incremental UTF-8 validation of text that arrives in pieces. An error is detected at the first invalid
//! byte.

/// The beginning of a character whose remaining bytes have not arrived.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Utf8Validator {
    pending: [u8; 4],
    pending_len: u8,
}

impl Utf8Validator {
    /// Whether the text so far, including `piece`, is a valid prefix of UTF-8.
    pub(crate) fn accept(&mut self, mut piece: &[u8]) -> bool {
        while self.pending_len > 0 {
            let Some((&byte, rest)) = piece.split_first() else {
                return true;
            };
            piece = rest;
            // A character has at most four bytes and the fourth always completes it, so the index stays in
            // bounds.
            self.pending[usize::from(self.pending_len)] = byte;
            let start = &self.pending[..usize::from(self.pending_len) + 1];
            match std::str::from_utf8(start) {
                Ok(_) => self.pending_len = 0,
                Err(error) if error.error_len().is_none() => self.pending_len += 1,
                Err(_) => return false,
            }
        }
        match std::str::from_utf8(piece) {
            Ok(_) => true,
            Err(error) if error.error_len().is_none() => {
                let tail = &piece[error.valid_up_to()..];
                self.pending[..tail.len()].copy_from_slice(tail);
                // At most three bytes: four would be a whole character or an error.
                self.pending_len = tail.len() as u8;
                true
            }
            Err(_) => false,
        }
    }

    /// Whether the text ends at a character boundary.
    pub(crate) fn is_complete(&self) -> bool {
        self.pending_len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pieces: &[&[u8]]) -> bool {
        let mut check = Utf8Validator::default();
        pieces.iter().all(|piece| check.accept(piece)) && check.is_complete()
    }

    proptest! {
        #[test]
        fn agrees_with_the_standard_library(
            data in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..12),
                any::<String>().prop_map(String::into_bytes),
            ],
            cut in 0usize..12,
        ) {
            let (left, right) = data.split_at(cut.min(data.len()));
            prop_assert_eq!(check(&[left, right]), std::str::from_utf8(&data).is_ok());
            let bytes: Vec<&[u8]> = data.chunks(1).collect();
            prop_assert_eq!(check(&bytes), std::str::from_utf8(&data).is_ok());
        }
    }

    #[test]
    fn an_invalid_character_is_rejected_at_once() {
        let mut check = Utf8Validator::default();
        assert!(check.accept(&[0xED]));
        assert!(!check.accept(&[0xA0]), "surrogates are not characters");
    }
}
