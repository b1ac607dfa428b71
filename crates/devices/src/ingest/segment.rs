//! A piece of memory for messages that wait, which a file stands behind, so that they outlive the process.
//!
//! Layout: a head of 64 bytes (magic, sequence number, bytes used), then records one after the other, each padded to eight bytes.
//! `used` is written last: a record that was not finished when the process was killed is not there.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::{Ordering, compiler_fence};

use memmap2::{MmapMut, MmapOptions};
use series::DeviceNo;

use super::pipeline::Message;
use super::profile::{ProductNo, Voice};

const MAGIC: [u8; 8] = *b"tgmail\x00\x01";
const HEAD_BYTES: usize = 64;
const RECORD_HEAD_BYTES: usize = 40;
const SEQUENCE_AT: usize = 8;
const USED_AT: usize = 16;

pub(super) struct Segment {
    memory: MmapMut,
    used: usize,
    count: u32,
}

/// A message that has waited.
pub(super) struct Waiting<'a> {
    pub(super) message: Message<'a>,
    /// When it was handed over, by the pipeline's clock, where it is timed.
    pub(super) handed_ns: u64,
}

impl Segment {
    /// For a node that keeps nothing.
    pub(super) fn in_memory(bytes: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(bytes.max(2 * HEAD_BYTES))?;
        let mut segment = Self {
            memory,
            used: 0,
            count: 0,
        };
        segment.clear(0);
        Ok(segment)
    }

    /// Opens or makes the file. A file that is no segment is begun anew.
    pub(super) fn open(path: &Path, bytes: usize) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path)?;
        // A file that was larger before keeps its size, for the sake of what is in it.
        let bytes = file.metadata()?.len().max(bytes as u64);
        // A page that has no place on the disk would end the process when it is written to.
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            // Some file systems cannot; those that copy on write promise nothing anyhow.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
            allocated => allocated?,
        }
        // SAFETY: the data directory is locked by this process; nobody else changes the file while it is mapped.
        let memory = unsafe { MmapOptions::new().map_mut(&file)? };
        let mut segment = Self {
            memory,
            used: 0,
            count: 0,
        };
        let is_ours = segment.memory.starts_with(&MAGIC);
        let used = segment.number_at(USED_AT) as usize;
        match is_ours && HEAD_BYTES + used <= segment.memory.len() {
            true => {
                segment.used = used;
                segment.count = segment.messages().count() as u32;
            }
            false => segment.clear(0),
        }
        Ok(segment)
    }

    fn number_at(&self, at: usize) -> u64 {
        let bytes = self.memory[at..].first_chunk().copied();
        bytes.map_or(0, u64::from_le_bytes)
    }

    pub(super) fn sequence(&self) -> u64 {
        self.number_at(SEQUENCE_AT)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn room_bytes(&self) -> usize {
        self.memory.len() - HEAD_BYTES
    }

    /// Forgets what is in it.
    pub(super) fn clear(&mut self, sequence: u64) {
        self.set_used(0);
        self.count = 0;
        self.memory[..8].copy_from_slice(&MAGIC);
        self.memory[SEQUENCE_AT..SEQUENCE_AT + 8].copy_from_slice(&sequence.to_le_bytes());
    }

    fn set_used(&mut self, used: usize) {
        // What was written before must be in the mapping before: a process that is killed has done its writes in this order.
        compiler_fence(Ordering::SeqCst);
        self.used = used;
        self.memory[USED_AT..USED_AT + 8].copy_from_slice(&(used as u64).to_le_bytes());
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn size_of(message: &Message<'_>) -> usize {
        let texts = message.by.id.len() + message.topic.len() + message.payload.len();
        (RECORD_HEAD_BYTES + texts).next_multiple_of(8)
    }

    /// Whether there was room for it.
    #[inline]
    pub(super) fn push(&mut self, message: &Message<'_>, handed_ns: u64) -> bool {
        let size = Self::size_of(message);
        let start = HEAD_BYTES + self.used;
        let (by, topic, payload) = (message.by, message.topic, message.payload);
        let Some(record) = self.memory.get_mut(start..start + size) else {
            return false;
        };
        let (head, texts) = record.split_at_mut(RECORD_HEAD_BYTES);
        head[..4].copy_from_slice(&(size as u32).to_le_bytes());
        head[4..8].copy_from_slice(&by.no.0.to_le_bytes());
        head[8..12].copy_from_slice(&by.product.0.to_le_bytes());
        head[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[16..24].copy_from_slice(&message.received_ms.to_le_bytes());
        head[24..32].copy_from_slice(&handed_ns.to_le_bytes());
        head[32..36].copy_from_slice(&(topic.len() as u32).to_le_bytes());
        head[36..40].copy_from_slice(&(by.id.len() as u32).to_le_bytes());
        let (id, rest) = texts.split_at_mut(by.id.len());
        let (name, rest) = rest.split_at_mut(topic.len());
        id.copy_from_slice(by.id.as_bytes());
        name.copy_from_slice(topic.as_bytes());
        rest[..payload.len()].copy_from_slice(payload);
        self.set_used(self.used + size);
        self.count += 1;
        true
    }

    /// What is in it, in order; ends at what makes no sense.
    pub(super) fn messages(&self) -> impl Iterator<Item = Waiting<'_>> {
        let mut rest = &self.memory[HEAD_BYTES..HEAD_BYTES + self.used];
        std::iter::from_fn(move || {
            let (size, waiting) = record(rest)?;
            rest = rest.get(size..)?;
            Some(waiting)
        })
    }
}

fn record(bytes: &[u8]) -> Option<(usize, Waiting<'_>)> {
    let (head, texts) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>()?;
    let short = |at: usize| {
        head[at..]
            .first_chunk()
            .copied()
            .map_or(0, u32::from_le_bytes)
    };
    let long = |at: usize| {
        head[at..]
            .first_chunk()
            .copied()
            .map_or(0, u64::from_le_bytes)
    };
    let size = short(0) as usize;
    let texts = texts.get(..size.checked_sub(RECORD_HEAD_BYTES)?)?;
    let (id, texts) = texts.split_at_checked(short(36) as usize)?;
    let (topic, texts) = texts.split_at_checked(short(32) as usize)?;
    let by = Voice {
        no: DeviceNo(short(4)),
        product: ProductNo(short(8)),
        id: std::str::from_utf8(id).ok()?,
    };
    let message = Message {
        by,
        topic: std::str::from_utf8(topic).ok()?,
        payload: texts.get(..short(12) as usize)?,
        received_ms: long(16) as i64,
    };
    let handed_ns = long(24);
    Some((size, Waiting { message, handed_ns }))
}
