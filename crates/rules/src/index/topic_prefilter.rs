//! Rejects most topics without rules by their first bytes alone, so that a message without rules costs
//! little.

/// Maximum number of bytes of a topic that are examined.
const MAX_PREFIX: usize = 8;
const COUNTERS: usize = 1024;

/// Counts the topic prefixes of the rules.
#[derive(Clone)]
pub(super) struct TopicPrefilter {
    /// For each prefix length, the number of rules with a prefix of this length.
    lengths: [u32; MAX_PREFIX + 1],
    /// Bitmap of the lengths with a count other than 0.
    used: u16,
    counters: [u32; COUNTERS],
}

impl Default for TopicPrefilter {
    fn default() -> Self {
        Self {
            lengths: [0; MAX_PREFIX + 1],
            used: 0,
            counters: [0; COUNTERS],
        }
    }
}

/// The bytes with which every topic begins that matches the filter.
fn prefix_of(filter: &str) -> &[u8] {
    let bytes = filter.as_bytes();
    match bytes.iter().position(|&byte| byte == b'+' || byte == b'#') {
        // `a/#` also matches `a`.
        Some(at) if bytes[at] == b'#' => &bytes[..at.saturating_sub(1)],
        Some(at) => &bytes[..at],
        None => bytes,
    }
}

#[inline]
fn prefix_word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<MAX_PREFIX>() {
        Some(first) => u64::from_le_bytes(*first),
        None => {
            let fold = |word: u64, &byte: &u8| word << 8 | u64::from(byte);
            bytes.iter().rev().fold(0, fold)
        }
    }
}

/// The counter of the first `len` bytes of a word.
#[inline]
fn counter_slot(word: u64, len: usize) -> usize {
    let kept = match len {
        0 => 0,
        len => word & (u64::MAX >> (64 - 8 * len)),
    };
    let mixed = (kept ^ len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 54) as usize % COUNTERS
}

impl TopicPrefilter {
    fn prefix_slot(filter: &str) -> (usize, usize) {
        let prefix = prefix_of(filter);
        let len = prefix.len().min(MAX_PREFIX);
        (len, counter_slot(prefix_word(&prefix[..len]), len))
    }

    pub(super) fn add(&mut self, filter: &str) {
        let (len, slot) = Self::prefix_slot(filter);
        self.lengths[len] += 1;
        self.used |= 1 << len;
        self.counters[slot] += 1;
    }

    pub(super) fn remove(&mut self, filter: &str) {
        let (len, slot) = Self::prefix_slot(filter);
        self.lengths[len] -= 1;
        if self.lengths[len] == 0 {
            self.used &= !(1 << len);
        }
        self.counters[slot] -= 1;
    }

    /// Returns false if no filter matches the topic.
    #[inline]
    pub(super) fn may_match(&self, topic: &str) -> bool {
        let word = prefix_word(topic.as_bytes());
        let mut left = self.used;
        while left != 0 {
            let len = left.trailing_zeros() as usize;
            left &= left - 1;
            if len <= topic.len() && self.counters[counter_slot(word, len)] != 0 {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_topics_pass_and_most_others_do_not() {
        let filters = ["sensor/+/data", "ab/#", "x", "sensor/temperature", "y/+"];
        let mut prefilter = TopicPrefilter::default();
        assert!(!prefilter.may_match("x"));
        filters.iter().for_each(|filter| prefilter.add(filter));
        for topic in [
            "sensor/1/data",
            "ab",
            "ab/c",
            "x",
            "sensor/temperature",
            "y/",
        ] {
            assert!(prefilter.may_match(topic), "{topic}");
        }
        let others = (0..1000).map(|n| format!("other{n}/topic"));
        let passed = others.filter(|topic| prefilter.may_match(topic)).count();
        assert!(passed < 50, "{passed} of 1000 unwanted topics pass");
        filters.iter().for_each(|filter| prefilter.remove(filter));
        assert!(!prefilter.may_match("sensor/1/data"));
        prefilter.add("+/everything");
        assert!(prefilter.may_match("sensor/1/data"));
    }
}
