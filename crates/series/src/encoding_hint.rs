//! What the encoding of a key's next value takes from the previous ones.

use crate::decimal;

/// Statistics of the previous values of a key: the decimal places of its floats, so that searches are rare,
/// and the last word.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EncodingHint {
    scale: u8,
    /// Number of values to encode plainly before the next search for a decimal or a word.
    skip: u16,
    penalty: u16,
    /// The number of the last word.
    pub(crate) word: u32,
}

impl EncodingHint {
    #[inline]
    pub(crate) fn find_decimal(&mut self, value: f64) -> Option<(u8, i64)> {
        if self.should_skip() {
            return None;
        }
        match decimal::scale(value, self.scale) {
            Some(number) => Some((self.scale, number)),
            None => self.search_decimal(value),
        }
    }

    #[cold]
    fn search_decimal(&mut self, value: f64) -> Option<(u8, i64)> {
        match decimal::find_scale(value) {
            Some((scale, number)) => {
                self.record_search(true);
                // The scale only grows: a value with fewer places can also be written with more.
                self.scale = self.scale.max(scale);
                Some((scale, number))
            }
            None => {
                self.record_search(false);
                None
            }
        }
    }

    #[inline]
    pub(crate) fn should_skip(&mut self) -> bool {
        let is_skipped = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        is_skipped
    }

    pub(crate) fn record_search(&mut self, found: bool) {
        if found {
            self.penalty /= 2;
        } else {
            self.penalty = (self.penalty * 2 + 1).min(1023);
            self.skip = self.penalty;
        }
    }
}
