//! The changes of one shard in one turn, encoded as they are written to the log.
//!
//! A batch is one frame of the log: [`FRAME_HEAD`] bytes that the writer fills in, then records. A record is a tag and its
//! fields; numbers are LEB128, packet ids two bytes, little-endian. An entry refers to the preceding message of its batch.

use disk::varint::{PACK_BUFFER_BYTES, PackBuffer, pack};

/// Offsets in a segment are 32 bits wide.
pub(crate) const MAX_BATCH_BYTES: usize = 1 << 30;

/// Bytes reserved for the head of a frame, see `log/frame.rs`.
pub(crate) const FRAME_HEAD: usize = 32;

/// Largest attributes that are packed into one buffer with the numbers before them and the packet id behind them.
const MAX_PACKED_ATTRIBUTES: usize = PACK_BUFFER_BYTES - (1 + 3 * 10) - 2;

/// Capacity that a recycled batch may retain.
const MAX_RECYCLED_BYTES: usize = 1 << 20;

/// A kind of keyed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StateKind {
    Sessions = 0,
    Subscriptions = 1,
    Retained = 2,
    Delayed = 3,
    /// Numbers of messages that were received from other nodes.
    Received = 4,
}

impl StateKind {
    /// All kinds, in the order of their numbers on disk.
    pub const ALL: [StateKind; 5] = [
        StateKind::Sessions,
        StateKind::Subscriptions,
        StateKind::Retained,
        StateKind::Delayed,
        StateKind::Received,
    ];
}

/// The first byte of a record.
pub(crate) mod tag {
    /// Length, body.
    pub(crate) const MESSAGE: u8 = 1;
    /// Session, sequence number, length, attributes: not sent yet.
    pub(crate) const ENTRY: u8 = 2;
    /// Session, sequence number, length, attributes, packet id.
    pub(crate) const ENTRY_SENT: u8 = 3;
    /// Session, sequence number, packet id.
    pub(crate) const SENT: u8 = 4;
    /// Session, sequence number.
    pub(crate) const RELEASED: u8 = 5;
    /// Session, sequence number.
    pub(crate) const DONE: u8 = 6;
    /// Session, packet id.
    pub(crate) const RECEIVED: u8 = 7;
    /// Session, packet id.
    pub(crate) const FORGOTTEN: u8 = 8;
    /// Session.
    pub(crate) const END: u8 = 9;
    /// Space, length of key, length of value, key, value.
    pub(crate) const PUT: u8 = 10;
    /// Space, length of key, key.
    pub(crate) const DELETE: u8 = 11;
    /// As `ENTRY_SENT`, of a message whose body was released; written when segments are reclaimed.
    pub(crate) const ENTRY_RELEASED: u8 = 12;
}

/// The changes of one shard in one turn. The store applies all of them or none.
#[derive(Debug)]
pub struct StoreBatch {
    /// Assigned by the shard, increasing; `StoreObserver::on_logged` reports it.
    pub number: u64,
    /// Space for the frame head, then records.
    pub(crate) bytes: Vec<u8>,
    /// Whether the batch contains records for the keyed state.
    pub(crate) is_keyed: bool,
    pub(crate) has_message: bool,
}

impl Default for StoreBatch {
    fn default() -> Self {
        Self {
            number: 0,
            bytes: vec![0; FRAME_HEAD],
            is_keyed: false,
            has_message: false,
        }
    }
}

impl StoreBatch {
    /// Begins a message whose body is the concatenation of `parts`. The store does not interpret it. Entries name its receivers.
    #[inline]
    pub fn begin_message(&mut self, parts: &[&[u8]]) {
        self.begin_message_with_head(0, |_| {}, parts);
    }

    /// As [`begin_message`](Self::begin_message); the body begins with `head_len` bytes (at most 48) that `head` writes.
    #[inline]
    pub fn begin_message_with_head(
        &mut self,
        head_len: usize,
        head: impl FnOnce(&mut PackBuffer<'_>),
        parts: &[&[u8]],
    ) {
        let len = head_len + parts.iter().map(|part| part.len()).sum::<usize>();
        self.bytes.reserve(len + PACK_BUFFER_BYTES);
        pack(&mut self.bytes, |record| {
            record.byte(tag::MESSAGE);
            record.number(len as u64);
            let before = record.size();
            head(record);
            // Otherwise all following records would be misread.
            assert_eq!(
                record.size() - before,
                head_len,
                "the head must have the declared length"
            );
        });
        for part in parts.iter().filter(|part| !part.is_empty()) {
            self.bytes.extend_from_slice(part);
        }
        self.has_message = true;
    }

    /// Queues the message begun last for this session. `packet_id` 0 means not sent yet. Sequence numbers increase within a
    /// session; gaps are allowed. Attributes have at most 65,535 bytes.
    #[inline]
    pub fn add_entry(&mut self, session: u64, seq: u64, packet_id: u16, attributes: &[u8]) {
        assert!(self.has_message, "an entry needs a message before it");
        assert!(
            attributes.len() < 1 << 16,
            "attributes have at most 65,535 bytes"
        );
        let kind = if packet_id == 0 {
            tag::ENTRY
        } else {
            tag::ENTRY_SENT
        };
        let packet_id = (packet_id != 0).then_some(packet_id);
        self.put_entry_record(kind, session, seq, attributes, packet_id);
    }

    /// A copy of an entry whose body is no longer needed.
    pub(crate) fn add_released_entry(
        &mut self,
        session: u64,
        seq: u64,
        packet_id: u16,
        attributes: &[u8],
    ) {
        let kind = tag::ENTRY_RELEASED;
        self.put_entry_record(kind, session, seq, attributes, Some(packet_id));
    }

    /// Records that the entry was sent with this packet id; 0 marks it as not sent again.
    pub fn mark_sent(&mut self, session: u64, seq: u64, packet_id: u16) {
        self.put_record(tag::SENT, &[session, seq], Some(packet_id));
    }

    /// QoS 2: PUBREC was received. The body may go; sequence number and packet id stay until `done`.
    pub fn mark_released(&mut self, session: u64, seq: u64) {
        self.put_record(tag::RELEASED, &[session, seq], None);
    }

    /// Removes the entry: it was acknowledged, expired or dropped.
    #[inline]
    pub fn complete_entry(&mut self, session: u64, seq: u64) {
        self.put_record(tag::DONE, &[session, seq], None);
    }

    /// QoS 2: a message from the client with this packet id was accepted.
    pub fn add_received_id(&mut self, session: u64, packet_id: u16) {
        self.put_record(tag::RECEIVED, &[session], Some(packet_id));
    }

    /// QoS 2: the client released the packet id.
    pub fn remove_received_id(&mut self, session: u64, packet_id: u16) {
        self.put_record(tag::FORGOTTEN, &[session], Some(packet_id));
    }

    /// Removes everything queued for this session number.
    pub fn end_session(&mut self, session: u64) {
        self.put_record(tag::END, &[session], None);
    }

    /// Sets a value of the keyed state. A key has at most 65,535 bytes.
    pub fn put(&mut self, space: StateKind, key: &[u8], value: &[u8]) {
        assert!(key.len() < 1 << 16, "a key has at most 65,535 bytes");
        let lens = [space as u64, key.len() as u64, value.len() as u64];
        self.put_record(tag::PUT, &lens, None);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.is_keyed = true;
    }

    /// Removes a value of the keyed state.
    pub fn delete(&mut self, space: StateKind, key: &[u8]) {
        assert!(key.len() < 1 << 16, "a key has at most 65,535 bytes");
        self.put_record(tag::DELETE, &[space as u64, key.len() as u64], None);
        self.bytes.extend_from_slice(key);
        self.is_keyed = true;
    }

    pub fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// Size of the records in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len() - FRAME_HEAD
    }

    /// Clears the batch and retains its memory, up to [`MAX_RECYCLED_BYTES`].
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(FRAME_HEAD);
        self.bytes.shrink_to(MAX_RECYCLED_BYTES);
        self.number = 0;
        self.is_keyed = false;
        self.has_message = false;
    }

    #[inline]
    fn put_entry_record(
        &mut self,
        kind: u8,
        session: u64,
        seq: u64,
        attributes: &[u8],
        packet_id: Option<u16>,
    ) {
        // Nearly always a single byte.
        let is_short = attributes.len() <= MAX_PACKED_ATTRIBUTES;
        pack(&mut self.bytes, |record| {
            record.byte(kind);
            record.number(session);
            record.number(seq);
            record.number(attributes.len() as u64);
            if is_short {
                attributes.iter().for_each(|&byte| record.byte(byte));
                put_packet_id(record, packet_id);
            }
        });
        if !is_short {
            self.bytes.extend_from_slice(attributes);
            if let Some(packet_id) = packet_id {
                self.bytes.extend_from_slice(&packet_id.to_le_bytes());
            }
        }
    }

    #[inline]
    fn put_record(&mut self, kind: u8, numbers: &[u64], packet_id: Option<u16>) {
        pack(&mut self.bytes, |record| {
            record.byte(kind);
            numbers.iter().for_each(|&number| record.number(number));
            put_packet_id(record, packet_id);
        });
    }
}

#[inline]
fn put_packet_id(record: &mut PackBuffer<'_>, packet_id: Option<u16>) {
    if let Some(packet_id) = packet_id {
        let [low, high] = packet_id.to_le_bytes();
        record.byte(low);
        record.byte(high);
    }
}
