//! Batches of rows to be written to a system, and the ids of rows.

use crate::row::SinkRow;

/// Identifies a row permanently: it is the same for each attempt and, for rows of a disk queue, after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowId {
    /// Epoch of the queue; each new queue has a new one.
    pub epoch: u64,
    pub number: u64,
}

impl std::fmt::Display for RowId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{}", self.epoch, self.number)
    }
}

/// Rows that are written together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SinkBatch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    numbers: Vec<u64>,
    epoch: u64,
}

impl SinkBatch {
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            ..Self::default()
        }
    }

    pub fn push(&mut self, number: u64, row: SinkRow<'_>) {
        self.bytes.extend_from_slice(row.as_bytes());
        self.ends.push(self.bytes.len());
        self.numbers.push(number);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Size of all packed rows in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// # Panics
    /// If `at` is out of range.
    pub fn row(&self, at: usize) -> SinkRow<'_> {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        SinkRow::from_bytes(&self.bytes[start..self.ends[at]])
    }

    pub fn rows(&self) -> impl ExactSizeIterator<Item = SinkRow<'_>> {
        (0..self.len()).map(|at| self.row(at))
    }

    pub fn id(&self, at: usize) -> RowId {
        RowId {
            epoch: self.epoch,
            number: self.numbers[at],
        }
    }

    /// The rows at these positions, in this order.
    pub fn select_rows(&self, places: impl IntoIterator<Item = usize>) -> SinkBatch {
        let mut picked = SinkBatch::new(self.epoch);
        for at in places {
            picked.push(self.numbers[at], self.row(at));
        }
        picked
    }
}
