//! Fields of payloads: reading with checks, and appending.

use content::RangeSet;
use disk::varint::{self, VarintReader};

use crate::error_code::ProtocolError;

/// Most ranges in one list. An end with more sends several frames, or only the first ranges.
pub const MAX_RANGES: usize = 1024;

pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// Appends the first [`MAX_RANGES`] ranges: their number, then for each the distance from the end of the previous one
/// and the length.
pub(crate) fn put_ranges(out: &mut Vec<u8>, ranges: &RangeSet) {
    varint::put(out, ranges.range_count().min(MAX_RANGES) as u64);
    let mut end = 0;
    for range in ranges.iter().take(MAX_RANGES) {
        varint::put(out, range.start - end);
        varint::put(out, range.end - range.start);
        end = range.end;
    }
}

/// Removes and returns as many ranges as fit into one list.
pub(crate) fn take_ranges(ranges: &mut RangeSet) -> RangeSet {
    let taken: RangeSet = ranges.iter().take(MAX_RANGES).collect();
    *ranges = ranges.iter().skip(MAX_RANGES).collect();
    taken
}

/// Reads the fields of a payload in order; errors name the frame.
pub(crate) struct PayloadReader<'a> {
    reader: VarintReader<'a>,
    truncated: ProtocolError,
}

impl<'a> PayloadReader<'a> {
    /// `truncated` is the text of the error for a field that is missing or not valid.
    pub(crate) fn new(bytes: &'a [u8], truncated: &'static str) -> Self {
        Self {
            reader: VarintReader::new(bytes),
            truncated: ProtocolError::violation(truncated),
        }
    }

    pub(crate) fn number(&mut self) -> Result<u64, ProtocolError> {
        self.reader.number().ok_or(self.truncated)
    }

    pub(crate) fn number_u32(&mut self) -> Result<u32, ProtocolError> {
        u32::try_from(self.number()?).map_err(|_| self.truncated)
    }

    pub(crate) fn number_up_to(&mut self, max: usize) -> Result<usize, ProtocolError> {
        self.reader.number_up_to(max).ok_or(self.truncated)
    }

    /// Whether all has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, ProtocolError> {
        self.reader.byte().ok_or(self.truncated)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let bytes = self.reader.take(N).ok_or(self.truncated)?;
        bytes.try_into().map_err(|_| self.truncated)
    }

    /// Bytes with their length in front, at most `max`.
    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], ProtocolError> {
        let len = self.reader.number_up_to(max).ok_or(self.truncated)?;
        self.reader.take(len).ok_or(self.truncated)
    }

    pub(crate) fn text(&mut self, max: usize) -> Result<&'a str, ProtocolError> {
        std::str::from_utf8(self.bytes(max)?).map_err(|_| self.truncated)
    }

    pub(crate) fn ranges(&mut self) -> Result<RangeSet, ProtocolError> {
        let count = self.reader.number_up_to(MAX_RANGES).ok_or(self.truncated)?;
        let mut end = 0_u64;
        let mut ranges = RangeSet::new();
        for index in 0..count {
            let (gap, len) = (self.number()?, self.number()?);
            let start = end.checked_add(gap).ok_or(self.truncated)?;
            end = start.checked_add(len).ok_or(self.truncated)?;
            if len == 0 || (gap == 0 && index > 0) {
                return Err(self.truncated);
            }
            ranges.insert(start..end);
        }
        Ok(ranges)
    }

    /// Fields that a later version may have appended are ignored.
    pub(crate) fn finish(self) {}
}
