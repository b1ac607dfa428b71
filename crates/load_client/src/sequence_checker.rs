//! Checks the sequence one subscriber sees of one publisher: what was lost, what came twice, what came late.
//!
//! Invariant: every number below `next` was received, is listed in `gaps`, or was given up into `lost`.

use std::collections::VecDeque;

/// Gaps remembered for each pair; beyond it the oldest is given up as lost for good.
const MAX_GAPS: usize = 1024;

/// What went wrong in one or many sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SequenceFaults {
    /// Sent but never received.
    pub lost: u64,
    /// Received more than once.
    pub repeated: u64,
    /// Received after a message that was sent later.
    pub reordered: u64,
}

impl SequenceFaults {
    /// Adds the faults of another sequence.
    pub fn add(&mut self, other: SequenceFaults) {
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.reordered += other.reordered;
    }
}

/// The state of one (subscriber, publisher) pair: 16 bytes while nothing goes wrong.
#[derive(Debug, Default)]
pub struct SequenceChecker {
    next: u64,
    trouble: Option<Box<SequenceGaps>>,
}

#[derive(Debug, Default)]
struct SequenceGaps {
    /// Missing numbers as half-open ranges, oldest first.
    gaps: VecDeque<(u64, u64)>,
    faults: SequenceFaults,
}

impl SequenceGaps {
    fn limit_gaps(&mut self) {
        if self.gaps.len() > MAX_GAPS
            && let Some((from, to)) = self.gaps.pop_front()
        {
            self.faults.lost += to - from;
        }
    }
}

impl SequenceChecker {
    /// Takes the next received number; false if it came before.
    #[inline]
    pub fn record(&mut self, sequence: u64) -> bool {
        if sequence == self.next {
            self.next += 1;
            true
        } else {
            self.record_unexpected(sequence)
        }
    }

    /// One more than the highest number received.
    #[inline]
    pub fn next_expected(&self) -> u64 {
        self.next
    }

    #[cold]
    fn record_unexpected(&mut self, sequence: u64) -> bool {
        let trouble = self.trouble.get_or_insert_default();
        if sequence > self.next {
            trouble.gaps.push_back((self.next, sequence));
            trouble.limit_gaps();
            self.next = sequence + 1;
            return true;
        }
        let found = trouble
            .gaps
            .iter()
            .position(|&(from, to)| from <= sequence && sequence < to);
        let Some(at) = found else {
            trouble.faults.repeated += 1;
            return false;
        };
        trouble.faults.reordered += 1;
        let (from, to) = trouble.gaps[at];
        match (from == sequence, sequence + 1 == to) {
            (true, true) => {
                trouble.gaps.remove(at);
            }
            (true, false) => trouble.gaps[at].0 = sequence + 1,
            (false, true) => trouble.gaps[at].1 = sequence,
            (false, false) => {
                trouble.gaps[at].1 = sequence;
                trouble.gaps.insert(at + 1, (sequence + 1, to));
                trouble.limit_gaps();
            }
        }
        true
    }

    /// The faults seen so far, counting as lost whatever of the first `sent` messages is still missing.
    pub fn faults(&self, sent: u64) -> SequenceFaults {
        let mut faults = SequenceFaults::default();
        if let Some(trouble) = &self.trouble {
            faults = trouble.faults;
            faults.lost += trouble.gaps.iter().map(|(from, to)| to - from).sum::<u64>();
        }
        faults.lost += sent.saturating_sub(self.next);
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(numbers: &[u64], sent: u64) -> (u64, u64, u64) {
        let mut checker = SequenceChecker::default();
        for &number in numbers {
            checker.record(number);
        }
        let faults = checker.faults(sent);
        (faults.lost, faults.repeated, faults.reordered)
    }

    #[test]
    fn in_order_is_without_fault() {
        assert_eq!(check(&[0, 1, 2, 3], 4), (0, 0, 0));
    }

    #[test]
    fn a_gap_and_a_missing_tail_are_lost() {
        assert_eq!(check(&[0, 1, 4, 5], 6), (2, 0, 0));
        assert_eq!(check(&[0, 1], 5), (3, 0, 0));
        assert_eq!(check(&[], 2), (2, 0, 0));
    }

    #[test]
    fn twice_is_repeated_even_when_late() {
        assert_eq!(check(&[0, 1, 1, 2, 0], 3), (0, 2, 0));
        assert_eq!(check(&[0, 2, 1, 1], 3), (0, 1, 1));
    }

    #[test]
    fn late_is_reordered_and_not_lost() {
        assert_eq!(check(&[0, 4, 2, 3, 1, 5], 6), (0, 0, 3));
        assert_eq!(check(&[3, 1], 4), (2, 0, 1));
    }

    #[test]
    fn gaps_are_bounded() {
        let mut checker = SequenceChecker::default();
        let holes = MAX_GAPS as u64 + 10;
        for number in 0..holes {
            checker.record(number * 2 + 1);
        }
        assert_eq!(checker.faults(holes * 2).lost, holes);
        // The first gaps were given up: a message that fills one is taken for a repeated one.
        checker.record(0);
        assert_eq!(checker.faults(holes * 2).repeated, 1);
        assert!(checker.trouble.expect("there were gaps").gaps.len() <= MAX_GAPS);
    }
}
