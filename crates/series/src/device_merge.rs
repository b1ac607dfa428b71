//! Merges one device's rows from several files.

use std::sync::Arc;

use crate::codec::row_group;
use crate::column_table::ColumnTable;
use crate::deletions::Deletion;
use crate::downsample::downsample;
use crate::error::SeriesError;
use crate::segment::{GroupLocation, Segment, SegmentReader, SegmentWriter};

/// Groups with at least this many rows are copied unchanged.
const COPY_GROUP_ROWS: u32 = 2048;

/// Iterates over the groups of a file.
pub(crate) struct GroupCursor {
    reader: SegmentReader,
    block: usize,
    at: usize,
    /// The next group.
    pub(crate) head: Option<GroupLocation>,
}

impl GroupCursor {
    pub(crate) fn open(segment: &Arc<Segment>) -> Result<Self, SeriesError> {
        let mut cursor = Self {
            reader: SegmentReader::open(segment)?,
            block: 0,
            at: 0,
            head: None,
        };
        cursor.load()?;
        Ok(cursor)
    }

    fn load(&mut self) -> Result<(), SeriesError> {
        self.head = match self.reader.index_block(self.block)? {
            Some(places) => places.get(self.at).copied(),
            None => None,
        };
        Ok(())
    }

    pub(crate) fn advance(&mut self) -> Result<(), SeriesError> {
        self.at += 1;
        self.load()?;
        if self.head.is_none() && self.at > 0 {
            self.block += 1;
            self.at = 0;
            self.load()?;
        }
        Ok(())
    }
}

/// The rows of one device in the files to merge.
pub(crate) struct DeviceMerge<'a> {
    pub(crate) cursors: &'a mut [GroupCursor],
    /// For each file, the deletions that its rows precede.
    pub(crate) deletions: Vec<Vec<Deletion>>,
    pub(crate) device: u32,
}

impl DeviceMerge<'_> {
    fn read(
        &mut self,
        age: usize,
        place: &GroupLocation,
        bytes: &mut Vec<u8>,
    ) -> Result<(ColumnTable, i64), SeriesError> {
        let reader = &mut self.cursors[age].reader;
        reader.read_next(place, bytes)?;
        let (mut table, interval_ms) = reader.decode_table(place, None, bytes)?;
        self.deletions[age]
            .iter()
            .for_each(|deletion| deletion.apply(&mut table));
        Ok((table, interval_ms))
    }

    /// Writes original rows in order of their times; each time occurs once.
    pub(crate) fn write_merged(
        &mut self,
        mut places: Vec<(usize, GroupLocation)>,
        writer: &mut SegmentWriter,
        bytes: &mut Vec<u8>,
    ) -> Result<(), SeriesError> {
        places.sort_by_key(|(_, place)| place.first_ts);
        // The rows waiting to be written, and their interval.
        let mut pending = (ColumnTable::default(), 0);
        let mut at = 0;
        while at < places.len() {
            let mut last_ts = places[at].1.last_ts;
            let mut end = at + 1;
            while end < places.len() && places[end].1.first_ts <= last_ts {
                last_ts = last_ts.max(places[end].1.last_ts);
                end += 1;
            }
            let cluster = &mut places[at..end];
            at = end;
            if let [(age, place)] = cluster
                && place.rows >= COPY_GROUP_ROWS
                && self.deletions[*age].is_empty()
            {
                self.flush(&mut pending, writer)?;
                let reader = &mut self.cursors[*age].reader;
                reader.read_next(place, bytes)?;
                let group =
                    row_group::parse_group(bytes).ok_or_else(|| reader.group_error(place))?;
                let points = group.points();
                writer.put_group(place, points, bytes)?;
                continue;
            }
            cluster.sort_by_key(|(age, _)| *age);
            // Original and downsampled rows cannot share a group.
            let mut by_interval: Vec<(i64, Vec<ColumnTable>)> = Vec::new();
            for (age, place) in cluster.iter() {
                let (table, interval_ms) = self.read(*age, place, bytes)?;
                match by_interval.iter_mut().find(|(of, _)| *of == interval_ms) {
                    Some((_, tables)) => tables.push(table),
                    None => by_interval.push((interval_ms, vec![table])),
                }
            }
            for (interval_ms, mut tables) in by_interval {
                let table = match tables.len() {
                    1 => tables.swap_remove(0),
                    _ => ColumnTable::merge(&tables),
                };
                let has_more = pending
                    .0
                    .ts
                    .last()
                    .is_none_or(|last| table.ts.first().is_some_and(|first| first > last));
                if pending.1 != interval_ms
                    || !has_more
                    || pending.0.ts.len() + table.ts.len() > row_group::MAX_ROWS
                {
                    self.flush(&mut pending, writer)?;
                }
                pending.1 = interval_ms;
                pending.0.append(&table);
            }
        }
        self.flush(&mut pending, writer)
    }

    fn flush(
        &self,
        pending: &mut (ColumnTable, i64),
        writer: &mut SegmentWriter,
    ) -> Result<(), SeriesError> {
        let (mut table, interval_ms) = std::mem::take(pending);
        table.finish();
        if table.is_empty() {
            return Ok(());
        }
        writer.put(self.device, &table, interval_ms)
    }

    pub(crate) fn write_downsampled(
        &mut self,
        places: &[(usize, GroupLocation)],
        interval_ms: i64,
        writer: &mut SegmentWriter,
        bytes: &mut Vec<u8>,
    ) -> Result<(), SeriesError> {
        let (mut raw, mut before) = (Vec::new(), Vec::new());
        let mut places = places.to_vec();
        places.sort_by_key(|(age, place)| (*age, place.first_ts));
        for (age, place) in &places {
            let (table, of) = self.read(*age, place, bytes)?;
            if of == 0 {
                raw.push(table)
            } else {
                before.push(table)
            }
        }
        let table = downsample(&ColumnTable::merge(&raw), &before, interval_ms);
        if table.is_empty() {
            return Ok(());
        }
        writer.put(self.device, &table, interval_ms)
    }
}
