//! Reads a segment file: its index and its groups.

use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use disk::varint::VarintReader;

use super::{GroupLocation, IndexBlock, Segment, damaged_error};
use crate::codec::row_group;
use crate::column_table::ColumnTable;
use crate::error::{SeriesError, io_error};
use crate::point::KeyId;

/// Bytes read at once when groups are read in sequence.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// Reads groups of one file; visiting devices in ascending order reads each index block once.
pub(crate) struct SegmentReader {
    segment: Arc<Segment>,
    file: File,
    /// The index block in `places`.
    block: usize,
    places: Vec<GroupLocation>,
    /// Bytes from this offset on, for sequential reads.
    ahead: Vec<u8>,
    ahead_at: u64,
}

impl SegmentReader {
    pub(crate) fn open(segment: &Arc<Segment>) -> Result<Self, SeriesError> {
        let file = segment.open_file()?;
        Ok(Self {
            segment: Arc::clone(segment),
            file,
            block: usize::MAX,
            places: Vec::new(),
            ahead: Vec::new(),
            ahead_at: 0,
        })
    }

    /// Reads a group's rows, with these keys, and the interval to which they were downsampled.
    pub(crate) fn read_table(
        &self,
        place: &GroupLocation,
        keys: Option<&[KeyId]>,
        bytes: &mut Vec<u8>,
    ) -> Result<(ColumnTable, i64), SeriesError> {
        self.read(place, bytes)?;
        self.decode_table(place, keys, bytes)
    }

    /// Like `read_table`, from bytes already read.
    pub(crate) fn decode_table(
        &self,
        place: &GroupLocation,
        keys: Option<&[KeyId]>,
        bytes: &[u8],
    ) -> Result<(ColumnTable, i64), SeriesError> {
        let group = row_group::parse_group(bytes).ok_or_else(|| self.group_error(place))?;
        let table = group
            .decode_table(keys)
            .ok_or_else(|| self.group_error(place))?;
        Ok((table, group.interval_ms))
    }

    fn load_index_block(&mut self, block: usize) -> Result<(), SeriesError> {
        if self.block == block {
            return Ok(());
        }
        let IndexBlock {
            first_device,
            offset,
            len,
        } = self.segment.index[block];
        let segment = Arc::clone(&self.segment);
        let path = &segment.path;
        let mut bytes = vec![0; len as usize];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(io_error("read", path))?;
        self.block = usize::MAX;
        self.places.clear();
        let Some((rest, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(damaged_error(path, offset, "an index block is damaged"));
        };
        if crc32c::crc32c(rest) != u32::from_le_bytes(*crc)
            || self.parse_index_block(rest, first_device).is_none()
        {
            return Err(damaged_error(path, offset, "an index block is damaged"));
        }
        self.block = block;
        Ok(())
    }

    fn parse_index_block(&mut self, bytes: &[u8], first_device: u32) -> Option<()> {
        let mut reader = VarintReader::new(bytes);
        let mut offset = reader.number()?;
        let mut device = first_device;
        while !reader.is_empty() {
            device = device.checked_add(u32::try_from(reader.number()?).ok()?)?;
            let len = u32::try_from(reader.number()?).ok()?;
            let first_ts = self.segment.window_begin.wrapping_add(reader.signed()?);
            let last_ts = first_ts.wrapping_add(reader.number()? as i64);
            let rows = u32::try_from(reader.number()?).ok()?;
            self.places.push(GroupLocation {
                device,
                offset,
                len,
                first_ts,
                last_ts,
                rows,
            });
            offset = offset
                .checked_add(u64::from(len))
                .filter(|&end| end <= self.segment.bytes)?;
        }
        Some(())
    }

    /// Passes the locations of a device's groups to the caller, in order of their times.
    pub(crate) fn find_groups(
        &mut self,
        device: u32,
        each: &mut dyn FnMut(GroupLocation),
    ) -> Result<(), SeriesError> {
        let segment = Arc::clone(&self.segment);
        let index = &segment.index;
        if index.is_empty() || device > segment.last_device {
            return Ok(());
        }
        // Groups of one device may begin at the end of the previous block.
        let begin = index
            .partition_point(|block| block.first_device < device)
            .saturating_sub(1);
        let end = index.partition_point(|block| block.first_device <= device);
        for block in begin..end {
            self.load_index_block(block)?;
            let from = self
                .places
                .partition_point(|place| place.device.cmp(&device) == Ordering::Less);
            let of_device = self.places[from..]
                .iter()
                .take_while(|place| place.device == device);
            of_device.for_each(|place| each(*place));
        }
        Ok(())
    }

    /// Passes all locations to the caller, in order of devices and times.
    pub(crate) fn for_each_group(
        &mut self,
        each: &mut dyn FnMut(GroupLocation) -> Result<(), SeriesError>,
    ) -> Result<(), SeriesError> {
        for block in 0..self.segment.index.len() {
            self.load_index_block(block)?;
            for at in 0..self.places.len() {
                each(self.places[at])?;
            }
        }
        Ok(())
    }

    /// The index block with this number, `None` behind the last one.
    pub(crate) fn index_block(
        &mut self,
        block: usize,
    ) -> Result<Option<&[GroupLocation]>, SeriesError> {
        if block >= self.segment.index.len() {
            return Ok(None);
        }
        self.load_index_block(block)?;
        Ok(Some(&self.places))
    }

    /// Reads the bytes of a group and checks their checksum.
    pub(crate) fn read(
        &self,
        place: &GroupLocation,
        into: &mut Vec<u8>,
    ) -> Result<(), SeriesError> {
        into.resize(place.len as usize, 0);
        self.read_bytes(place.offset, into)?;
        self.check(place, into)
    }

    /// Like [`read`](Self::read), for groups read in sequence: with few system calls.
    pub(crate) fn read_next(
        &mut self,
        place: &GroupLocation,
        into: &mut Vec<u8>,
    ) -> Result<(), SeriesError> {
        let len = place.len as usize;
        if len > READ_AHEAD_BYTES / 2 {
            return self.read(place, into);
        }
        let ahead = |reader: &Self| {
            let start = usize::try_from(place.offset.checked_sub(reader.ahead_at)?).ok()?;
            let end = start.checked_add(len)?;
            (end <= reader.ahead.len()).then_some(start..end)
        };
        if ahead(self).is_none() {
            let left = self.segment.bytes - place.offset.min(self.segment.bytes);
            let mut bytes = std::mem::take(&mut self.ahead);
            bytes.resize(left.min(READ_AHEAD_BYTES as u64) as usize, 0);
            self.read_bytes(place.offset, &mut bytes)?;
            (self.ahead, self.ahead_at) = (bytes, place.offset);
        }
        let Some(range) = ahead(self) else {
            return Err(damaged_error(
                &self.segment.path,
                place.offset,
                "it is truncated",
            ));
        };
        into.clear();
        into.extend_from_slice(&self.ahead[range]);
        self.check(place, into)
    }

    fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), SeriesError> {
        let path = &self.segment.path;
        match self.file.read_exact_at(into, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(damaged_error(path, offset, "it is truncated"))
            }
            read => read.map_err(io_error("read", path)),
        }
    }

    fn check(&self, place: &GroupLocation, bytes: &[u8]) -> Result<(), SeriesError> {
        match row_group::is_intact(bytes) {
            true => Ok(()),
            false => {
                let detail = "a group is damaged";
                Err(damaged_error(&self.segment.path, place.offset, detail))
            }
        }
    }

    pub(crate) fn group_error(&self, place: &GroupLocation) -> SeriesError {
        let detail = "a group with a valid checksum has invalid content";
        damaged_error(&self.segment.path, place.offset, detail)
    }
}
