//! Chunks of images in memory, shared by all devices that download the same image in chunks of the same size.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use transfer::{FileService, TransferError, TransferErrorKind};

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ChunkKey {
    file: Arc<str>,
    offset: u64,
    len: u64,
}

/// The bytes of a chunk; the first one who needs them reads them, and others wait.
type ChunkSlot = Arc<OnceLock<Result<Bytes, TransferError>>>;

struct CachedChunk {
    slot: ChunkSlot,
    /// Position in the order of use.
    used: u64,
}

#[derive(Default)]
struct CacheState {
    chunks: HashMap<ChunkKey, CachedChunk>,
    by_use: BTreeMap<u64, ChunkKey>,
    bytes: u64,
    clock: u64,
}

impl CacheState {
    /// Makes a chunk the one that was used last.
    fn take_slot(&mut self, key: &ChunkKey) -> ChunkSlot {
        self.clock += 1;
        let used = self.clock;
        if let Some(chunk) = self.chunks.get_mut(key) {
            self.by_use.remove(&chunk.used);
            chunk.used = used;
            self.by_use.insert(used, key.clone());
            return chunk.slot.clone();
        }
        let slot = ChunkSlot::default();
        let chunk = CachedChunk {
            slot: slot.clone(),
            used,
        };
        self.chunks.insert(key.clone(), chunk);
        self.by_use.insert(used, key.clone());
        self.bytes += key.len;
        slot
    }

    fn remove(&mut self, key: &ChunkKey) {
        if let Some(chunk) = self.chunks.remove(key) {
            self.by_use.remove(&chunk.used);
            self.bytes -= key.len;
        }
    }

    /// Removes the chunks whose use is longest ago; the last one stays.
    fn shrink(&mut self, max_bytes: u64) {
        while self.bytes > max_bytes && self.chunks.len() > 1 {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                return;
            };
            self.chunks.remove(&oldest);
            self.bytes -= oldest.len;
        }
    }
}

/// Numbers of a cache since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChunkStats {
    /// Chunks that were in memory.
    pub(crate) hits: u64,
    /// Chunks that were read from the disk.
    pub(crate) reads: u64,
    /// Bytes in memory.
    pub(crate) cached_bytes: u64,
}

pub(crate) struct ChunkCache {
    files: FileService,
    max_bytes: u64,
    state: Mutex<CacheState>,
    hits: AtomicU64,
    reads: AtomicU64,
}

impl ChunkCache {
    pub(crate) fn new(files: FileService, max_bytes: u64) -> Self {
        Self {
            files,
            max_bytes,
            state: Mutex::default(),
            hits: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stats(&self) -> ChunkStats {
        ChunkStats {
            hits: self.hits.load(Relaxed),
            reads: self.reads.load(Relaxed),
            cached_bytes: self.lock().bytes,
        }
    }

    /// Bytes of a complete file. The range must be within it.
    pub(crate) fn read(&self, file: &str, offset: u64, len: u64) -> Result<Bytes, TransferError> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let key = ChunkKey {
            file: file.into(),
            offset,
            len,
        };
        let slot = {
            let mut state = self.lock();
            let slot = state.take_slot(&key);
            state.shrink(self.max_bytes);
            slot
        };
        let mut is_hit = true;
        let read = slot.get_or_init(|| {
            is_hit = false;
            self.reads.fetch_add(1, Relaxed);
            self.read_from_disk(&key)
        });
        if is_hit {
            self.hits.fetch_add(1, Relaxed);
        }
        match read {
            Ok(bytes) => {
                self.files.count_sent(len);
                Ok(bytes.clone())
            }
            // It is read again by the next one who needs it.
            Err(error) => {
                self.lock().remove(&key);
                Err(error.clone())
            }
        }
    }

    fn read_from_disk(&self, key: &ChunkKey) -> Result<Bytes, TransferError> {
        let (_, file) = self.files.read(&key.file)?;
        let mut bytes = vec![0; key.len as usize];
        file.read_exact_at(&mut bytes, key.offset)
            .map_err(|error| {
                let detail = format!("the image cannot be read: {error}");
                TransferError::new(TransferErrorKind::Storage, detail)
            })?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use transfer::{FileOwner, FileTarget, TransferRequest, TransferSettings};

    use super::*;

    fn cache(content: &[u8], max_bytes: u64) -> (tempfile::TempDir, ChunkCache, String) {
        let directory = tempfile::tempdir().unwrap();
        let settings = TransferSettings {
            min_free_bytes: 0,
            ..TransferSettings::default()
        };
        let files = FileService::open(directory.path(), settings).unwrap();
        let request = TransferRequest::new(FileOwner::client("c"), "image", "image");
        let id = files.begin(request).unwrap().info().id.clone();
        let written = files.write(FileTarget::Id(&id), 0, content, None).unwrap();
        files.commit(&written).unwrap();
        files.finish(FileTarget::Id(&id), None, None).unwrap();
        (directory, ChunkCache::new(files, max_bytes), id)
    }

    #[test]
    fn ten_thousand_downloads_of_an_image_read_each_chunk_once() {
        let content: Vec<u8> = (0..64_000_u32).map(|n| (n % 251) as u8).collect();
        let (_directory, cache, file) = cache(&content, 1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1250 {
                        let mut received = Vec::new();
                        for at in 0..64 {
                            let chunk = cache.read(&file, at * 1000, 1000).unwrap();
                            received.extend_from_slice(&chunk);
                        }
                        assert!(received == content);
                    }
                });
            }
        });
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.reads), (640_000 - 64, 64));
        assert_eq!(stats.cached_bytes, 64_000);
    }

    #[test]
    fn the_memory_is_bounded() {
        let content = vec![7; 10_000];
        let (_directory, cache, file) = cache(&content, 2500);
        for _ in 0..2 {
            for at in 0..10 {
                assert_eq!(cache.read(&file, at * 1000, 1000).unwrap().len(), 1000);
                assert!(cache.stats().cached_bytes <= 2500);
            }
        }
        assert_eq!(cache.stats().reads, 20, "evicted chunks are read again");
        assert_eq!(cache.read(&file, 0, 10_000).unwrap().len(), 10_000);
        cache.read(&file, 9000, 1000).unwrap();
        assert_eq!(
            cache.stats().cached_bytes,
            1000,
            "a chunk above the limit does not stay"
        );
    }

    #[test]
    fn a_failed_read_is_repeated() {
        let (_directory, cache, file) = cache(b"abc", 1000);
        assert!(cache.read("none", 0, 1).is_err());
        assert!(cache.read(&file, 2, 2).is_err(), "beyond the end");
        assert_eq!(cache.stats().cached_bytes, 0);
        assert_eq!(cache.read(&file, 1, 2).unwrap().as_ref(), b"bc");
    }
}
