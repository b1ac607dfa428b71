//! One file of the write-ahead log: allocated at once, and mapped block by block.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};

use memmap2::{MmapMut, MmapOptions};

use super::block::BLOCK_BYTES;
use crate::error::{SeriesError, io_error};
use crate::file_operations::sync_dir;
use crate::partitioning::PARTITION_COUNT;

pub(crate) struct WalFile {
    pub(crate) id: u32,
    pub(crate) path: PathBuf,
    pub(super) file: File,
    pub(super) bytes: u64,
    /// Something was written since the last sync began.
    pub(crate) is_dirty: AtomicBool,
    /// The last row of each partition in the file; `u64::MAX` while the partition still writes to it.
    pub(crate) up_to: [AtomicU64; PARTITION_COUNT],
}

impl WalFile {
    pub(crate) fn new(id: u32, path: PathBuf, file: File, bytes: u64) -> Self {
        Self {
            id,
            path,
            file,
            bytes,
            is_dirty: AtomicBool::new(false),
            up_to: [const { AtomicU64::new(0) }; PARTITION_COUNT],
        }
    }

    /// Creates a file of this size, which has its disk space.
    pub(super) fn create(dir: &Path, id: u32, bytes: u64) -> Result<Self, SeriesError> {
        let path = wal_file_path(dir, id);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        let file = file.map_err(io_error("make", &path))?;
        if let Err(error) = allocate(&file, bytes) {
            // The file has no disk space or is unusable; the next attempt creates it again under this number.
            let _ = fs::remove_file(&path);
            return Err(io_error("allocate", &path)(error));
        }
        sync_dir(dir)?;
        Ok(Self::new(id, path, file, bytes))
    }

    /// Maps a block into memory. Each block is mapped once, by the partition that fills it.
    pub(super) fn map_block(&self, block: u64) -> Result<MmapMut, SeriesError> {
        let mut options = MmapOptions::new();
        options.offset(block * BLOCK_BYTES as u64).len(BLOCK_BYTES);
        // SAFETY: no other code maps or writes this block: it is allocated once. Its file belongs to this
        // process alone, as the lock on the directory guarantees. The file may be removed while it is mapped,
        // but is never truncated. Its space is allocated, so that writes do not fail for lack of disk space.
        let map = unsafe { options.map_mut(&self.file) };
        map.map_err(io_error("map", &self.path))
    }
}

pub(crate) fn wal_file_path(dir: &Path, id: u32) -> PathBuf {
    dir.join(format!("{id:010}.wal"))
}

fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            use std::os::unix::fs::FileExt as _;
            let zeros = vec![0; BLOCK_BYTES];
            for at in (0..bytes).step_by(BLOCK_BYTES) {
                file.write_all_at(&zeros, at)?;
            }
        }
        result => result?,
    }
    file.sync_all()
}
