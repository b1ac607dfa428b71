//! The files of the log: their names, the segment being written, and the prepared next segment.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wall_clock::now_ms;

use super::file_system::{FileSystem, LogFile};
use super::frame::{SEGMENT_HEAD, SegmentHead};

/// A segment on disk.
pub(crate) struct Segment {
    pub(crate) id: u32,
    pub(crate) seed: u32,
    pub(crate) head: SegmentHead,
    /// The head is on disk once this frame is; `UNKNOWN_LSN` if no frame implies that.
    pub(crate) head_lsn: u64,
    pub(crate) file: Arc<dyn LogFile>,
    /// Bytes to which it may grow; its size once sealed.
    pub(crate) capacity: u64,
    /// Bytes in use by the head and frames.
    pub(crate) used: u64,
    pub(crate) last_lsn: u64,
    /// The last frame with records for the keyed state, 0 if there is none.
    pub(crate) keyed_lsn: u64,
}

/// Frames do not show whether the segment's head is on disk: the segment was recovered, or a sync of it failed.
pub(crate) const UNKNOWN_LSN: u64 = u64::MAX;

impl Segment {
    /// Marks that no frame implies any more that the head is on disk, unless it is known to be.
    pub(crate) fn forget_head_lsn(&mut self) {
        if self.head_lsn > 0 {
            self.head_lsn = UNKNOWN_LSN;
        }
    }
}

/// The directory of the segments, and the size of new ones.
pub(crate) struct SegmentDirectory {
    pub(crate) dir: PathBuf,
    pub(crate) files: Arc<dyn FileSystem>,
    pub(crate) segment_bytes: u64,
}

impl SegmentDirectory {
    pub(crate) fn path(&self, id: u32) -> PathBuf {
        segment_path(&self.dir, id)
    }
}

pub(crate) fn segment_path(dir: &Path, id: u32) -> PathBuf {
    dir.join(format!("{id:010}.log"))
}

/// Numbers of the segments in a directory, ascending. Other files are ignored.
pub(crate) fn list_segment_ids(dir: &Path) -> io::Result<Vec<u32>> {
    let mut ids = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let name = file?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(".log"));
        if let Some(id) = digits.filter(|digits| digits.len() == 10)
            && let Ok(id) = id.parse()
        {
            ids.push(id);
        }
    }
    ids.sort_unstable();
    Ok(ids)
}

/// All segments, oldest first.
pub(crate) struct Segments {
    pub(crate) directory: SegmentDirectory,
    pub(crate) all: VecDeque<Segment>,
    /// Whether the last one accepts more frames.
    is_open: bool,
    /// An empty segment, prepared for when the last one is full.
    next: Option<(u32, Arc<dyn LogFile>)>,
    /// The number of the next segment to create.
    next_id: u32,
}

impl Segments {
    pub(crate) fn new(place: SegmentDirectory, all: VecDeque<Segment>, next_id: u32) -> Self {
        Self {
            directory: place,
            all,
            is_open: false,
            next: None,
            next_id,
        }
    }

    /// The segment being written.
    pub(crate) fn open_segment(&mut self) -> Option<&mut Segment> {
        self.all.back_mut().filter(|_| self.is_open)
    }

    /// The head of the oldest segment, if it may not be on disk and has to be written again.
    pub(crate) fn unsynced_oldest_head(&mut self, synced_lsn: u64) -> Option<SegmentHead> {
        let oldest = self.all.front_mut()?;
        let is_doubtful = oldest.head_lsn > synced_lsn;
        oldest.head_lsn = 0;
        is_doubtful.then_some(oldest.head)
    }

    pub(crate) fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// The number of the segment being written, or of the next one if none is open.
    pub(crate) fn writing_segment_id(&self) -> u32 {
        match self.all.back() {
            Some(last) if self.is_open => last.id,
            _ => self.next.as_ref().map_or(self.next_id, |(id, _)| *id),
        }
    }

    /// Creates the next segment if there is none, which reserves its space.
    pub(crate) fn prepare_next(&mut self) -> io::Result<()> {
        if self.next.is_none() {
            let path = self.directory.path(self.next_id);
            let place = &self.directory;
            let file = place.files.create(&path, place.segment_bytes)?;
            place.files.sync_dir(&place.dir)?;
            self.next = Some((self.next_id, file));
            self.next_id += 1;
        }
        Ok(())
    }

    /// Closes the last segment for further frames and frees its unused space.
    pub(crate) fn seal(&mut self) {
        if let Some(last) = self.open_segment() {
            // May fail where writing failed before; it only frees space.
            if last.file.truncate(last.used).is_ok() {
                last.capacity = last.used;
            }
            if last.used == SEGMENT_HEAD as u64 {
                // The next frame goes to another segment.
                last.forget_head_lsn();
            }
        }
        self.is_open = false;
    }

    /// Begins a segment with space for a frame of `frame_len` bytes.
    pub(crate) fn begin_segment(
        &mut self,
        frame_len: u64,
        follows_lsn: u64,
        first_lsn: u64,
        synced_lsn: u64,
    ) -> io::Result<()> {
        self.seal();
        let wanted = SEGMENT_HEAD as u64 + frame_len;
        let place = &self.directory;
        if wanted > place.segment_bytes
            && let Some((id, _)) = self.next.take()
        {
            // A frame larger than a segment gets a segment of its own size under the same number.
            self.next_id = id;
        }
        let (id, file) = match self.next.take() {
            Some(next) => next,
            None => {
                let path = place.path(self.next_id);
                let file = place.files.create(&path, wanted.max(place.segment_bytes))?;
                place.files.sync_dir(&place.dir)?;
                self.next_id += 1;
                (self.next_id - 1, file)
            }
        };
        let head = SegmentHead {
            salt: random_u64(),
            id,
            first_lsn,
            follows_lsn,
            synced_lsn,
            created_ms: now_ms(),
        };
        let mut written = file.write_at(&head.encode(), 0);
        let is_oldest = self.all.is_empty();
        if is_oldest {
            // Where the log begins must be known in all cases: what follows a lost beginning must not pass for the whole log.
            written = written.and_then(|()| file.sync());
        }
        if let Err(error) = written {
            // The retry creates it again under this number.
            self.next_id = id;
            return Err(error);
        }
        self.all.push_back(Segment {
            id,
            seed: head.seed(),
            head,
            head_lsn: if is_oldest { 0 } else { first_lsn },
            file,
            capacity: wanted.max(place.segment_bytes),
            used: SEGMENT_HEAD as u64,
            last_lsn: follows_lsn,
            keyed_lsn: 0,
        });
        self.is_open = true;
        Ok(())
    }

    /// Removes the prepared, unused segment.
    pub(crate) fn drop_next(&mut self) {
        if let Some((id, _)) = self.next.take() {
            // A leftover empty segment is recognised as unused.
            let _ = self.directory.files.remove(&self.directory.path(id));
            self.next_id = id;
        }
    }

    /// Bytes on disk, including prepared segments.
    pub(crate) fn bytes(&self) -> u64 {
        let next = if self.has_next() {
            self.directory.segment_bytes
        } else {
            0
        };
        next + self.all.iter().map(|segment| segment.capacity).sum::<u64>()
    }

    pub(crate) fn find(&self, id: u32) -> Option<&Segment> {
        find_segment(&self.all, id)
    }
}

/// The segment with this number.
pub(crate) fn find_segment(all: &VecDeque<Segment>, id: u32) -> Option<&Segment> {
    let at = all.binary_search_by_key(&id, |segment| segment.id);
    at.ok().map(|at| &all[at])
}

/// An unpredictable number, generated like the keys of hash maps.
pub(crate) fn random_u64() -> u64 {
    use std::hash::BuildHasher as _;
    std::hash::RandomState::new().hash_one(now_ms())
}
