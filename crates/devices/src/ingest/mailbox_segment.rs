//! Memory for waiting messages, backed by a file so that they outlive the process.
//!
//! Layout: a head of 64 bytes (magic, sequence number, bytes used, salt, CRC32C of magic, sequence number and
//! salt), then consecutive records. Each record has a CRC32C that starts with the salt, and is padded to
//! eight bytes. The salt changes whenever the segment is cleared, so that earlier records are invalid. `used`
//! is written last: a record that was incomplete when the process was killed does not count. Used bytes, salt
//! and sequence number are also in [marks](super::marks) outside the file.
//!
//! This is not a segmented log like a disk queue of `connect`: there are two segments of fixed size that take turns, a
//! segment is cleared as a whole, and workers read the messages where publishers wrote them, without a copy or a
//! system call. Shared code for both would have neither property.

use std::fs::OpenOptions;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::atomic::{Ordering, compiler_fence};

use disk::MAX_HIGH_WATER_MARK;
use memmap2::{MmapMut, MmapOptions};
use series::DeviceNo;

use super::marks::{HalfMark, MailboxDamage, MarkValues};
use super::message::DeviceMessage;
use super::profile::{DeviceRef, ProductNo};

const MAGIC: [u8; 8] = *b"tgmail\x00\x02";
const HEAD_BYTES: usize = 64;
const RECORD_HEAD_BYTES: usize = 48;
const CRC_AT: usize = 40;
const SEQUENCE_AT: usize = 8;
const USED_AT: usize = 16;
const SALT_AT: usize = 24;
const HEAD_CRC_AT: usize = 32;

pub(super) struct MailboxSegment {
    memory: MmapMut,
    used: usize,
    count: u32,
    salt: u64,
    /// Seed of the record checksums; `None` without a backing file.
    seed: Option<u32>,
    mark: Option<HalfMark>,
}

/// A message from the queue.
pub(super) struct QueuedMessage<'a> {
    pub(super) message: DeviceMessage<'a>,
    /// Time of submission by the pipeline's clock, if the message is timed.
    pub(super) enqueued_ns: u64,
}

impl MailboxSegment {
    /// A segment without a file, for a node without persistence.
    pub(super) fn in_memory(bytes: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(bytes.max(2 * HEAD_BYTES))?;
        let mut segment = Self {
            memory,
            used: 0,
            count: 0,
            salt: 0,
            seed: None,
            mark: None,
        };
        segment.clear(0);
        Ok(segment)
    }

    /// Opens or creates the file and compares it with its marks. Reports what is damaged or missing; the
    /// other messages remain readable.
    pub(super) fn open(
        path: &Path,
        bytes: usize,
        known: Option<MarkValues>,
        mark: Option<HalfMark>,
    ) -> io::Result<(Self, Option<MailboxDamage>)> {
        let before = read_file(path)?;
        let contents = decode_contents(before.as_deref(), known);
        if contents.damage.is_some() && before.is_some() {
            let mut copy = path.as_os_str().to_owned();
            copy.push(".damaged");
            std::fs::copy(path, copy)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path)?;
        // A file that was larger before keeps its size, because its content is still needed.
        let bytes = file.metadata()?.len().max(bytes as u64);
        // Writing to a page without disk space would end the process.
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            // Some file systems do not support this; copy-on-write ones give no guarantee in any case.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
            allocated => allocated?,
        }
        // SAFETY: this process holds the lock of the data directory; no other process changes the file while
        // it is mapped.
        let memory = unsafe { MmapOptions::new().map_mut(&file)? };
        let mut segment = Self {
            memory,
            used: 0,
            count: 0,
            salt: contents.salt,
            seed: Some(seed(contents.salt)),
            mark,
        };
        match contents.used {
            0 => segment.clear(0),
            used => {
                segment.put_head(contents.sequence);
                segment.set_used(used);
                segment.count = segment.recovered_messages().count() as u32;
            }
        }
        let problem = contents.damage.map(|problem| (path.to_owned(), problem));
        Ok((segment, problem))
    }

    fn number_at(&self, at: usize) -> u64 {
        number_at(&self.memory, at)
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

    pub(super) fn free_bytes(&self) -> usize {
        self.memory.len() - HEAD_BYTES
    }

    /// Discards the content.
    pub(super) fn clear(&mut self, sequence: u64) {
        self.set_used(0);
        self.count = 0;
        if self.seed.is_some() {
            // Remains of earlier records must not be taken for present ones.
            self.salt = RandomState::new().hash_one(self.salt) & MAX_HIGH_WATER_MARK;
            self.seed = Some(seed(self.salt));
            if let Some(mark) = &self.mark {
                mark.reset(sequence, self.salt);
            }
        }
        self.put_head(sequence);
    }

    fn put_head(&mut self, sequence: u64) {
        self.memory[..8].copy_from_slice(&MAGIC);
        self.memory[SEQUENCE_AT..SEQUENCE_AT + 8].copy_from_slice(&sequence.to_le_bytes());
        self.memory[SALT_AT..SALT_AT + 8].copy_from_slice(&self.salt.to_le_bytes());
        let crc = head_crc(&self.memory).to_le_bytes();
        self.memory[HEAD_CRC_AT..HEAD_CRC_AT + 4].copy_from_slice(&crc);
    }

    fn set_used(&mut self, used: usize) {
        // Earlier writes must reach the mapping first: a killed process has done its writes in this order.
        compiler_fence(Ordering::SeqCst);
        self.used = used;
        self.memory[USED_AT..USED_AT + 8].copy_from_slice(&(used as u64).to_le_bytes());
        compiler_fence(Ordering::SeqCst);
        if let Some(mark) = &self.mark {
            mark.set_used(used);
        }
    }

    pub(super) fn size_of(message: &DeviceMessage<'_>) -> usize {
        let texts = message.sender.id.len() + message.topic.len() + message.payload.len();
        (RECORD_HEAD_BYTES + texts).next_multiple_of(8)
    }

    /// Appends a message. Returns `false` if there is no room.
    #[inline]
    pub(super) fn push(&mut self, message: &DeviceMessage<'_>, handed_ns: u64) -> bool {
        let size = Self::size_of(message);
        let start = HEAD_BYTES + self.used;
        let (by, topic, payload) = (message.sender, message.topic, message.payload);
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
        if let Some(seed) = self.seed {
            let texts = by.id.len() + topic.len() + payload.len();
            let crc = record_crc(seed, &record[..RECORD_HEAD_BYTES + texts]);
            record[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        }
        self.set_used(self.used + size);
        self.count += 1;
        true
    }

    /// Messages appended by this process, in order.
    pub(super) fn messages(&self) -> impl Iterator<Item = QueuedMessage<'_>> {
        messages(&self.memory[HEAD_BYTES..HEAD_BYTES + self.used], None)
    }

    /// Messages left by a previous process, in order, without damaged ones.
    pub(super) fn recovered_messages(&self) -> impl Iterator<Item = QueuedMessage<'_>> {
        messages(&self.memory[HEAD_BYTES..HEAD_BYTES + self.used], self.seed)
    }
}

/// Content of a file after an inspection for damage.
struct SegmentContents {
    used: usize,
    salt: u64,
    sequence: u64,
    damage: Option<String>,
}

fn decode_contents(file: Option<&[u8]>, known: Option<MarkValues>) -> SegmentContents {
    let mut contents = SegmentContents {
        used: 0,
        salt: known.map_or(0, |known| known.salt),
        sequence: known.map_or(0, |known| known.sequence),
        damage: None,
    };
    let expected = known.map_or(0, |known| known.used);
    let Some(file) = file else {
        contents.damage = (expected > 0).then(|| {
            format!("the file is missing, and with it {expected} bytes of device messages")
        });
        return contents;
    };
    let has_head = file.len() >= HEAD_BYTES
        && file.starts_with(&MAGIC)
        && file[HEAD_CRC_AT..HEAD_CRC_AT + 4] == head_crc(file).to_le_bytes();
    if !has_head && expected == 0 {
        // A file that was never used has no content to lose.
        let is_new = file.iter().all(|&byte| byte == 0) || known.is_some();
        contents.damage =
            (!is_new).then(|| "the head of the file is damaged; its messages are lost".to_owned());
        return contents;
    }
    let mut stated_bytes = expected;
    if has_head {
        contents.salt = number_at(file, SALT_AT);
        contents.sequence = number_at(file, SEQUENCE_AT);
        // The mark is set after the last message is written.
        stated_bytes = stated_bytes.max(number_at(file, USED_AT).min(file.len() as u64) as usize);
    }
    let most = file.len().saturating_sub(HEAD_BYTES);
    contents.used = stated_bytes.min(most);
    let records = &file[file.len().min(HEAD_BYTES)..HEAD_BYTES.min(file.len()) + contents.used];
    let readable: usize = messages(records, Some(seed(contents.salt)))
        .map(|waiting| MailboxSegment::size_of(&waiting.message))
        .sum();
    if readable < stated_bytes {
        let lost = stated_bytes - readable;
        contents.damage = Some(format!(
            "{lost} of {stated_bytes} bytes of device messages are damaged or missing and lost; the others are processed"
        ));
    } else if !has_head {
        let detail = "the head of the file is damaged; no message is lost";
        contents.damage = Some(detail.to_owned());
    }
    contents
}

fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Counts the messages in a file and reports damage. Changes nothing.
pub(super) fn check(
    path: &Path,
    known: Option<MarkValues>,
) -> io::Result<(u64, Option<MailboxDamage>)> {
    let file = read_file(path)?;
    let contents = decode_contents(file.as_deref(), known);
    let records = file
        .as_deref()
        .and_then(|file| file.get(HEAD_BYTES..HEAD_BYTES + contents.used))
        .unwrap_or_default();
    let count = messages(records, Some(seed(contents.salt))).count();
    let problem = contents.damage.map(|problem| (path.to_owned(), problem));
    Ok((count as u64, problem))
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn head_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..USED_AT]);
    crc32c::crc32c_append(crc, &bytes[SALT_AT..SALT_AT + 8])
}

fn seed(salt: u64) -> u32 {
    crc32c::crc32c(&salt.to_le_bytes())
}

/// Checksum of a record without its padding.
fn record_crc(seed: u32, record: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(seed, &record[..CRC_AT]);
    crc32c::crc32c_append(crc, &record[RECORD_HEAD_BYTES..])
}

/// Iterates over the messages of records; skips damaged ones.
fn messages(mut rest: &[u8], seed: Option<u32>) -> impl Iterator<Item = QueuedMessage<'_>> {
    std::iter::from_fn(move || {
        // Records begin at multiples of eight bytes.
        while !rest.is_empty() {
            if let Some((size, waiting)) = record(rest, seed) {
                rest = rest.get(size..).unwrap_or_default();
                return Some(waiting);
            }
            rest = rest.get(8..).unwrap_or_default();
        }
        None
    })
}

fn record(bytes: &[u8], seed: Option<u32>) -> Option<(usize, QueuedMessage<'_>)> {
    let (head, texts) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>()?;
    let short = |at: usize| {
        head[at..]
            .first_chunk()
            .copied()
            .map_or(0, u32::from_le_bytes)
    };
    let size = short(0) as usize;
    let texts = texts.get(..size.checked_sub(RECORD_HEAD_BYTES)?)?;
    let lengths = [short(36), short(32), short(12)].map(|length| length as usize);
    let length = lengths
        .iter()
        .try_fold(0, |sum: usize, length| sum.checked_add(*length))?;
    let whole = bytes.get(..RECORD_HEAD_BYTES.checked_add(length)?)?;
    if seed.is_some_and(|seed| record_crc(seed, whole) != short(CRC_AT)) {
        return None;
    }
    let (names, payload) = texts.split_at_checked(lengths[0] + lengths[1])?;
    let names = std::str::from_utf8(names).ok()?;
    let (id, topic) = names.split_at_checked(lengths[0])?;
    let by = DeviceRef {
        no: DeviceNo(short(4)),
        product: ProductNo(short(8)),
        id,
    };
    let message = DeviceMessage {
        sender: by,
        topic,
        payload: payload.get(..lengths[2])?,
        received_ms: number_at(head, 16) as i64,
    };
    let handed_ns = number_at(head, 24);
    Some((
        size,
        QueuedMessage {
            message,
            enqueued_ns: handed_ns,
        },
    ))
}
