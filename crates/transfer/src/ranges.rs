//! A set of byte ranges: what of a file was received.

use std::ops::Range;

/// Disjoint, non-adjacent, non-empty ranges in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<u64>>,
    len: u64,
}

impl RangeSet {
    /// Number of bytes in the set.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// End of the last range; 0: the set is empty.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |last| last.end)
    }

    /// Length of the range that begins at 0.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        match self.ranges.first() {
            Some(first) if first.start == 0 => first.end,
            _ => 0,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().cloned()
    }

    /// Index of the first range that ends at `at` or later.
    fn first_reaching(&self, at: u64) -> usize {
        self.ranges.partition_point(|range| range.end < at)
    }

    pub fn insert(&mut self, added: Range<u64>) {
        if added.is_empty() {
            return;
        }
        let first = self.first_reaching(added.start);
        let touched = self.ranges[first..].partition_point(|range| range.start <= added.end);
        let last = first + touched;
        let mut merged = added;
        for range in &self.ranges[first..last] {
            merged.start = merged.start.min(range.start);
            merged.end = merged.end.max(range.end);
            self.len -= range.end - range.start;
        }
        self.len += merged.end - merged.start;
        self.ranges.splice(first..last, [merged]);
    }

    /// Whether all bytes of a range are in the set.
    #[must_use]
    pub fn contains(&self, wanted: &Range<u64>) -> bool {
        if wanted.is_empty() {
            return true;
        }
        let range = self.ranges.get(self.first_reaching(wanted.end));
        range.is_some_and(|range| range.start <= wanted.start)
    }

    /// The parts of a range that are in the set.
    pub fn overlaps(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.first_reaching(within.start);
        let ranges = self.ranges[first..].iter();
        ranges
            .take_while({
                let end = within.end;
                move |range| range.start < end
            })
            .map(move |range| range.start.max(within.start)..range.end.min(within.end))
            .filter(|range| !range.is_empty())
    }

    /// The ranges below `size` that are not in the set.
    pub fn missing(&self, size: u64) -> impl Iterator<Item = Range<u64>> {
        let ends = std::iter::once(0).chain(self.ranges.iter().map(|range| range.end));
        let starts = self.ranges.iter().map(|range| range.start);
        let starts = starts.chain(std::iter::once(u64::MAX));
        ends.zip(starts)
            .map(move |(end, start)| end.min(size)..start.min(size))
            .filter(|range| !range.is_empty())
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Self {
        let mut set = Self::default();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn adjacent_ranges_become_one() {
        let mut set = RangeSet::default();
        set.insert(10..20);
        set.insert(30..40);
        assert_eq!((set.count(), set.len(), set.prefix()), (2, 20, 0));
        set.insert(20..30);
        assert_eq!((set.count(), set.iter().next()), (1, Some(10..40)));
        set.insert(0..10);
        assert_eq!((set.prefix(), set.end()), (40, 40));
        set.insert(5..5);
        assert_eq!(set.len(), 40);
    }

    proptest! {
        #[test]
        fn it_equals_a_set_of_numbers(
            added in prop::collection::vec((0..64_u64, 0..16_u64), 0..24),
            (start, len) in (0..64_u64, 0..20_u64),
            size in 0..90_u64,
        ) {
            let mut bits = [false; 128];
            let mut set = RangeSet::default();
            for (start, len) in added {
                set.insert(start..start + len);
                bits[start as usize..(start + len) as usize].fill(true);
            }
            let bit = |at: u64| bits[at as usize];
            prop_assert_eq!(set.len(), (0..128).filter(|at| bit(*at)).count() as u64);
            let wanted = start..start + len;
            prop_assert_eq!(set.contains(&wanted), wanted.clone().all(bit));
            let overlaps: Vec<u64> = set.overlaps(wanted.clone()).flatten().collect();
            prop_assert_eq!(overlaps, wanted.filter(|at| bit(*at)).collect::<Vec<_>>());
            let missing: Vec<u64> = set.missing(size).flatten().collect();
            prop_assert_eq!(missing, (0..size).filter(|at| !bit(*at)).collect::<Vec<_>>());
            let ranges: Vec<_> = set.iter().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(set.prefix(), (0..128).take_while(|at| bit(*at)).count() as u64);
        }
    }
}
