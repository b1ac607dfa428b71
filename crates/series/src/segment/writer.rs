//! Writes a segment file.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

use disk::varint::{put, put_signed};

use super::{GroupLocation, IndexBlock, MAGIC, Segment, SegmentMeta, TAIL, unfinished_path};
use crate::codec::row_group;
use crate::column_table::ColumnTable;
use crate::error::{SeriesError, io_error};

/// Groups per index block.
const INDEX_GROUPS: usize = 128;
/// Maximum text bytes in one group, unless one row has more.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// Writes a file; groups must be added in order of device and time.
pub(crate) struct SegmentWriter {
    path: PathBuf,
    unfinished: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    window_begin: i64,
    pub(crate) meta: SegmentMeta,
    block: Vec<u8>,
    in_block: usize,
    block_first: u32,
    last_device: u32,
    blocks: Vec<u8>,
    index: Vec<IndexBlock>,
    buffer: Vec<u8>,
    columns: Vec<u8>,
}

impl SegmentWriter {
    pub(crate) fn create(
        dir: &Path,
        meta: SegmentMeta,
        window_ms: i64,
    ) -> Result<Self, SeriesError> {
        let path = dir.join(meta.file_name_for_id(meta.id));
        let unfinished = unfinished_path(&path);
        let file = File::create(&unfinished).map_err(io_error("make", &unfinished))?;
        let mut file = BufWriter::with_capacity(256 << 10, file);
        file.write_all(MAGIC)
            .map_err(io_error("write", &unfinished))?;
        Ok(Self {
            window_begin: meta.window.saturating_mul(window_ms),
            path,
            unfinished,
            file,
            offset: MAGIC.len() as u64,
            meta,
            block: Vec::new(),
            in_block: 0,
            block_first: 0,
            last_device: 0,
            blocks: Vec::new(),
            index: Vec::new(),
            buffer: Vec::new(),
            columns: Vec::new(),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.meta.rows == 0
    }

    /// Appends sorted rows of a device, none of them before its present rows.
    pub(crate) fn put(
        &mut self,
        device: u32,
        table: &ColumnTable,
        interval_ms: i64,
    ) -> Result<(), SeriesError> {
        let rows = table.ts.len();
        let texts: usize = table
            .columns
            .iter()
            .map(|column| column.values.text_bytes())
            .sum();
        let most = match texts / MAX_TEXT_BYTES {
            0 => row_group::MAX_ROWS,
            parts => (rows / (parts + 1)).clamp(1, row_group::MAX_ROWS),
        };
        // Groups of similar size rather than a small last one.
        let size = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        let mut start = 0;
        while start < rows {
            let end = (start + size).min(rows);
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            let (first_ts, last_ts) = (table.ts[start], table.ts[end - 1]);
            let points = if start == 0 && end == rows {
                row_group::encode(&mut buffer, table, interval_ms, &mut self.columns);
                table.points()
            } else {
                let part = table.slice(start..end);
                row_group::encode(&mut buffer, &part, interval_ms, &mut self.columns);
                part.points()
            };
            let place = GroupLocation {
                device,
                offset: 0,
                len: buffer.len() as u32,
                first_ts,
                last_ts,
                rows: (end - start) as u32,
            };
            let put = self.put_group(&place, points, &buffer);
            self.buffer = buffer;
            put?;
            start = end;
        }
        Ok(())
    }

    /// Appends an encoded group unchanged.
    pub(crate) fn put_group(
        &mut self,
        place: &GroupLocation,
        points: u64,
        bytes: &[u8],
    ) -> Result<(), SeriesError> {
        debug_assert!(
            place.device >= self.last_device || self.meta.rows == 0,
            "devices ascend"
        );
        self.file
            .write_all(bytes)
            .map_err(io_error("write", &self.unfinished))?;
        if self.in_block == 0 {
            self.block_first = place.device;
            self.last_device = place.device;
            put(&mut self.block, self.offset);
        }
        put(&mut self.block, u64::from(place.device - self.last_device));
        put(&mut self.block, bytes.len() as u64);
        put_signed(
            &mut self.block,
            place.first_ts.wrapping_sub(self.window_begin),
        );
        put(
            &mut self.block,
            place.last_ts.wrapping_sub(place.first_ts) as u64,
        );
        put(&mut self.block, u64::from(place.rows));
        self.last_device = place.device;
        self.offset += bytes.len() as u64;
        self.meta.rows += u64::from(place.rows);
        self.meta.points += points;
        self.in_block += 1;
        if self.in_block == INDEX_GROUPS {
            self.end_block();
        }
        Ok(())
    }

    fn end_block(&mut self) {
        if self.in_block == 0 {
            return;
        }
        let crc = crc32c::crc32c(&self.block);
        self.block.extend_from_slice(&crc.to_le_bytes());
        self.index.push(IndexBlock {
            first_device: self.block_first,
            offset: self.blocks.len() as u64,
            len: self.block.len() as u32,
        });
        self.blocks.append(&mut self.block);
        self.in_block = 0;
    }

    /// Completes the file; it can be read, and has yet to be forced to disk and named.
    pub(crate) fn finish(mut self) -> Result<Segment, SeriesError> {
        self.end_block();
        for block in &mut self.index {
            block.offset += self.offset;
        }
        let mut footer = Vec::new();
        let meta = &self.meta;
        for number in [
            meta.partition as u64,
            meta.id,
            meta.last_lsn,
            meta.flushed_lsn,
            meta.rows,
            meta.points,
        ] {
            put(&mut footer, number);
        }
        for number in [meta.deletions, meta.policy_age_ms, meta.policy_revision] {
            put(&mut footer, number);
        }
        put_signed(&mut footer, meta.window);
        put_signed(&mut footer, self.window_begin);
        put(&mut footer, meta.replaces.len() as u64);
        meta.replaces.iter().for_each(|&id| put(&mut footer, id));
        put(&mut footer, u64::from(self.last_device));
        put(&mut footer, self.index.len() as u64);
        for block in &self.index {
            put(&mut footer, u64::from(block.first_device));
            put(&mut footer, block.offset);
            put(&mut footer, u64::from(block.len));
        }
        let mut write = || {
            let file = &mut self.file;
            file.write_all(&self.blocks)?;
            file.write_all(&footer)?;
            file.write_all(&(footer.len() as u32).to_le_bytes())?;
            file.write_all(&crc32c::crc32c(&footer).to_le_bytes())?;
            file.write_all(MAGIC)?;
            file.flush()
        };
        if let Err(error) = write() {
            let error = io_error("write", &self.unfinished)(error);
            self.discard();
            return Err(error);
        }
        let file = match self.file.into_inner() {
            Ok(file) => file,
            // Nothing remained in its buffer that could not be written.
            Err(error) => return Err(io_error("write", &self.unfinished)(error.into_error())),
        };
        let (cleared, looked_at) = (
            self.meta.deletions,
            (self.meta.policy_age_ms, self.meta.policy_revision),
        );
        Ok(Segment {
            bytes: self.offset + (self.blocks.len() + footer.len() + TAIL) as u64,
            path: self.path,
            meta: self.meta,
            index: self.index,
            last_device: self.last_device,
            window_begin: self.window_begin,
            checked_deletions: AtomicU64::new(cleared),
            checked_policies: Mutex::new(looked_at),
            is_gone: AtomicBool::new(false),
            uncommitted_file: Mutex::new(Some(file)),
            has_failed: AtomicBool::new(false),
            bytes_by_owner: OnceLock::new(),
        })
    }

    /// Deletes the unfinished file.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(&self.unfinished);
    }
}
