//! Sets of numbers as ranges: received bytes of a file, acknowledged messages of a link.

use std::ops::Range;

/// A set of numbers, kept as sorted ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<u64>>,
    /// How many numbers the ranges contain.
    count: u64,
}

impl RangeSet {
    pub const fn new() -> Self {
        Self {
            ranges: Vec::new(),
            count: 0,
        }
    }

    /// The set of all numbers below `end`.
    pub fn up_to(end: u64) -> Self {
        Self::from(0..end)
    }

    /// Adds a range; an empty one changes nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // The usual case: numbers arrive in order.
        if let Some(last) = self.ranges.last_mut()
            && last.start <= range.start
            && range.start <= last.end
        {
            let end = last.end.max(range.end);
            self.count += end - last.end;
            last.end = end;
            return;
        }
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let end = self.ranges.partition_point(|r| r.start <= range.end);
        let mut merged = range;
        for range in &self.ranges[first..end] {
            merged.start = merged.start.min(range.start);
            merged.end = merged.end.max(range.end);
            self.count -= range.end - range.start;
        }
        self.count += merged.end - merged.start;
        self.ranges.splice(first..end, [merged]);
    }

    pub fn insert_all(&mut self, other: &Self) {
        for range in other.iter() {
            self.insert(range);
        }
    }

    #[inline]
    pub fn contains(&self, number: u64) -> bool {
        let at = self.ranges.partition_point(|r| r.end <= number);
        self.ranges.get(at).is_some_and(|r| r.start <= number)
    }

    /// Whether the set contains all numbers of `range`.
    pub fn covers(&self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let at = self.ranges.partition_point(|r| r.end <= range.start);
        self.ranges
            .get(at)
            .is_some_and(|r| r.start <= range.start && range.end <= r.end)
    }

    /// The first range of `within` that the set does not contain.
    pub fn first_missing(&self, within: Range<u64>) -> Option<Range<u64>> {
        if within.is_empty() {
            return None;
        }
        let at = self.ranges.partition_point(|r| r.end <= within.start);
        let (start, next) = match self.ranges.get(at) {
            Some(r) if r.start <= within.start => (r.end, self.ranges.get(at + 1)),
            next => (within.start, next),
        };
        let end = next.map_or(within.end, |r| r.start.min(within.end));
        (start < end).then_some(start..end)
    }

    /// The ranges of `within` that the set does not contain.
    pub fn missing(&self, within: Range<u64>) -> Self {
        let mut missing = Self::new();
        let mut rest = within;
        while let Some(range) = self.first_missing(rest.clone()) {
            rest.start = range.end;
            missing.insert(range);
        }
        missing
    }

    /// The end of the range that contains `start`, or `start`.
    pub fn contiguous_end(&self, start: u64) -> u64 {
        let at = self.ranges.partition_point(|r| r.end <= start);
        match self.ranges.get(at) {
            Some(r) if r.start <= start => r.end,
            _ => start,
        }
    }

    /// How many numbers the set contains.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number after the largest one, 0 for an empty set.
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |r| r.end)
    }

    /// Removes the lowest ranges if there are more than `max_ranges`.
    pub fn keep_last_ranges(&mut self, max_ranges: usize) {
        if let Some(excess) = self.ranges.len().checked_sub(max_ranges) {
            let removed = self.ranges.drain(..excess);
            self.count -= removed.map(|range| range.end - range.start).sum::<u64>();
        }
    }

    pub fn clear(&mut self) {
        self.count = 0;
        self.ranges.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().cloned()
    }
}

impl From<Range<u64>> for RangeSet {
    fn from(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(
            inserts in proptest::collection::vec((0u64..60, 0u64..12), 0..30),
            query in (0u64..70, 0u64..20),
        ) {
            let mut set = RangeSet::new();
            let mut model = BTreeSet::new();
            for (start, len) in inserts {
                set.insert(start..start + len);
                model.extend(start..start + len);
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
            }
            for number in 0..80 {
                prop_assert_eq!(set.contains(number), model.contains(&number));
            }
            prop_assert_eq!(set.count(), model.len() as u64);
            prop_assert_eq!(set.end(), model.last().map_or(0, |last| last + 1));
            let query = query.0..query.0 + query.1;
            prop_assert_eq!(set.covers(query.clone()), query.clone().all(|n| model.contains(&n)));
            let missing: Vec<u64> = set.missing(query.clone()).iter().flatten().collect();
            let expected: Vec<u64> = query.clone().filter(|n| !model.contains(n)).collect();
            prop_assert_eq!(missing, expected);
            let end = (query.start..).find(|n| !model.contains(n)).unwrap();
            prop_assert_eq!(set.contiguous_end(query.start), end);
        }
    }
}
