//! Application messages in the form in which they cross from shard to shard, and from node to node.
//!
//! They are written one after the other into a batch, so that crossing costs one allocation per turn and not one per
//! message. Large payloads are passed by reference.

use bytes::{BufMut, Bytes, BytesMut};
use hooks::{MessageView, NEVER_MS, str_from_utf8};
use mqtt::{Properties, QoS};
use thiserror::Error;

use super::outbox::SHARE_FROM_BYTES;

/// The target of a message for one member of a group on the receiving shard, instead of all its subscribers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupMemberTarget<'a> {
    pub(crate) filter: &'a str,
    pub(crate) group: &'a str,
    pub(crate) nth: u32,
}

/// A message received from another shard.
pub(crate) struct CrossShardMessage<'a> {
    pub(crate) view: MessageView<'a>,
    pub(crate) member: Option<GroupMemberTarget<'a>>,
    /// Its number in the link between the two shards, if it has an entry there.
    pub(crate) link_seq: Option<u64>,
    /// It is to be retained as another node has retained it, and not to be delivered.
    pub(crate) is_retained_copy: bool,
    /// It is only for the sessions that the receiver has adopted from this node.
    pub(crate) adopted_from: Option<&'a str>,
}

/// Messages one after the other: each a header of fixed size, then its texts, properties and small payload.
#[derive(Debug, Default)]
pub(crate) struct CrossShardBatch {
    bytes: Vec<u8>,
    large_payloads: Vec<Bytes>,
    pub(crate) count: u32,
    large_bytes: usize,
}

const RETAIN: u8 = 1 << 2;
const LARGE: u8 = 1 << 3;
const FOR_MEMBER: u8 = 1 << 4;
const LINKED: u8 = 1 << 5;
const DERIVED: u8 = 1 << 6;
const RETAINED_COPY: u8 = 1 << 7;
/// The member is the name of a node instead, from which the receivers were adopted.
const FOR_ADOPTED: u8 = FOR_MEMBER | RETAINED_COPY;
/// Offset of the flags in the header.
const FLAGS_AT: usize = HEAD_BYTES - 1;

/// The header of a message: times of receipt and expiry, then the lengths of the parts, then flags.
const HEAD_BYTES: usize = 8 + 8 + 4 + 4 + 4 + 2 + 2 + 2 + 1;

impl CrossShardBatch {
    /// An empty batch that uses the memory of `buffer`.
    pub(crate) fn with_buffer(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self {
            bytes: buffer,
            ..Self::default()
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.large_bytes
    }

    #[inline]
    pub(crate) fn push(
        &mut self,
        view: &MessageView<'_>,
        member: Option<GroupMemberTarget<'_>>,
        link_seq: Option<u64>,
    ) {
        let large = view.shared_payload.is_some() || view.payload.len() >= SHARE_FROM_BYTES;
        let properties = view.properties.as_bytes();
        let inline = if large { &[][..] } else { view.payload };
        let mut flags = view.qos as u8;
        flags |= if view.retain { RETAIN } else { 0 };
        flags |= if view.is_derived { DERIVED } else { 0 };
        flags |= if large { LARGE } else { 0 };
        flags |= if member.is_some() { FOR_MEMBER } else { 0 };
        flags |= if link_seq.is_some() { LINKED } else { 0 };
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&view.received_ms.to_le_bytes());
        head[8..16].copy_from_slice(&view.expires_ms.to_le_bytes());
        head[16..20].copy_from_slice(&(properties.len() as u32).to_le_bytes());
        head[20..24].copy_from_slice(&(inline.len() as u32).to_le_bytes());
        head[24..28].copy_from_slice(&view.number.to_le_bytes());
        head[28..30].copy_from_slice(&(view.topic.len() as u16).to_le_bytes());
        head[30..32].copy_from_slice(&(view.from_client_id.len() as u16).to_le_bytes());
        head[32..34].copy_from_slice(&(view.from_username.len() as u16).to_le_bytes());
        head[34] = flags;
        let out = &mut self.bytes;
        out.extend_from_slice(&head);
        out.extend_from_slice(view.topic.as_bytes());
        out.extend_from_slice(view.from_client_id.as_bytes());
        out.extend_from_slice(view.from_username.as_bytes());
        out.extend_from_slice(properties);
        out.extend_from_slice(inline);
        if large {
            let shared = view.shared_payload.cloned();
            self.large_payloads
                .push(shared.unwrap_or_else(|| Bytes::copy_from_slice(view.payload)));
            self.large_bytes += view.payload.len();
        }
        if let Some(member) = member {
            for text in [member.filter, member.group] {
                out.extend_from_slice(&(text.len() as u32).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            out.extend_from_slice(&member.nth.to_le_bytes());
        }
        if let Some(seq) = link_seq {
            out.extend_from_slice(&seq.to_le_bytes());
        }
        self.count += 1;
    }

    /// Adds a message, or the removal of one, that this node has retained.
    pub(crate) fn push_retained_copy(&mut self, view: &MessageView<'_>) {
        let flags_at = self.bytes.len() + FLAGS_AT;
        self.push(view, None, None);
        self.bytes[flags_at] |= RETAINED_COPY;
    }

    /// Adds a message for the sessions that the receiver has adopted from a node.
    pub(crate) fn push_for_adopted(&mut self, view: &MessageView<'_>, node: &str) {
        let flags_at = self.bytes.len() + FLAGS_AT;
        let target = GroupMemberTarget {
            filter: node,
            group: "",
            nth: 0,
        };
        self.push(view, Some(target), None);
        self.bytes[flags_at] |= FOR_ADOPTED;
    }

    /// The messages in the order they were pushed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = CrossShardMessage<'_>> {
        let mut reader = BatchReader { rest: &self.bytes };
        let mut large = self.large_payloads.iter();
        (0..self.count).map(move |_| {
            let mut head = BatchReader {
                rest: reader.take(HEAD_BYTES),
            };
            let (received_ms, expires_ms) = (head.u64(), head.u64());
            let (properties_len, inline_len) = (head.u32() as usize, head.u32() as usize);
            let number = head.u32();
            let [topic_len, client_id_len, username_len] = [head.u16(), head.u16(), head.u16()];
            let flags = head.take(1)[0];
            let text = str_from_utf8(reader.take(topic_len + client_id_len + username_len));
            let (topic, from) = text.split_at(topic_len);
            let (from_client_id, from_username) = from.split_at(client_id_len);
            let properties = Properties::from_validated(reader.take(properties_len));
            let inline = reader.take(inline_len);
            let shared_payload = if flags & LARGE != 0 {
                large.next()
            } else {
                None
            };
            let member = (flags & FOR_MEMBER != 0).then(|| GroupMemberTarget {
                filter: str_from_utf8(reader.sized()),
                group: str_from_utf8(reader.sized()),
                nth: reader.u32(),
            });
            let view = MessageView {
                topic,
                properties,
                payload: shared_payload.map_or(inline, |shared| shared),
                shared_payload,
                qos: QoS::try_from(flags & 3).expect("was pushed from a QoS"),
                retain: flags & RETAIN != 0,
                received_ms,
                expires_ms,
                from_client_id,
                from_username,
                is_derived: flags & DERIVED != 0,
                number,
            };
            let link_seq = (flags & LINKED != 0).then(|| reader.u64());
            match flags & FOR_ADOPTED == FOR_ADOPTED {
                true => CrossShardMessage {
                    view,
                    adopted_from: member.map(|target| target.filter),
                    member: None,
                    link_seq,
                    is_retained_copy: false,
                },
                false => CrossShardMessage {
                    view,
                    member,
                    link_seq,
                    is_retained_copy: flags & RETAINED_COPY != 0,
                    adopted_from: None,
                },
            }
        })
    }

    /// Returns its memory, for a batch in the other direction: memory allocated by one thread and freed by another is
    /// expensive.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

struct BatchReader<'a> {
    rest: &'a [u8],
}

impl<'a> BatchReader<'a> {
    #[inline]
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    #[inline]
    fn u16(&mut self) -> usize {
        usize::from(u16::from_le_bytes(
            self.take(2).try_into().expect("two bytes were taken"),
        ))
    }

    #[inline]
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes were taken"))
    }

    #[inline]
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes were taken"))
    }

    fn sized(&mut self) -> &'a [u8] {
        let len = self.u32() as usize;
        self.take(len)
    }
}

/// Why the batch of another node cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BatchError {
    #[error("it ends early")]
    Short,
    #[error("its QoS is above 2")]
    QoS,
    #[error("its topic is invalid")]
    Topic,
    #[error("its properties are invalid")]
    Properties,
    #[error("a text in it is not UTF-8")]
    Text,
    #[error("bytes follow the last message")]
    Excess,
}

impl CrossShardBatch {
    /// Appends the batch in the form that [`decode`](Self::decode) reads.
    pub(crate) fn encode_into(&self, out: &mut BytesMut) {
        out.reserve(self.size() + 16);
        out.put_u32_le(self.count);
        out.put_u32_le(self.bytes.len() as u32);
        out.put_slice(&self.bytes);
        for payload in &self.large_payloads {
            out.put_u32_le(payload.len() as u32);
            out.put_slice(payload);
        }
    }

    /// Reads a batch of another node, and checks everything that [`iter`](Self::iter) takes for granted. Times are
    /// shifted by the difference between the clocks of the nodes, `clock_ms`.
    ///
    /// Payloads are copied: one that is retained or queued must not keep the whole message between nodes in memory. Nor
    /// must it occupy the room of its frame among the received frames, which are limited.
    pub(crate) fn decode(encoded: &[u8], clock_ms: i64) -> Result<Self, BatchError> {
        let mut outer = UntrustedReader { rest: encoded };
        let count = outer.u32()?;
        let len = outer.u32()? as usize;
        let mut batch = Self {
            bytes: outer.take(len)?.to_vec(),
            count,
            ..Self::default()
        };
        let mut at = 0;
        let mut large = 0;
        for _ in 0..count {
            let message = batch.bytes.get(at..).ok_or(BatchError::Short)?;
            let (len, is_large) = check_message(message)?;
            // The time of a retained message is its version, which is the same on all nodes.
            let is_copy = batch.bytes[at + FLAGS_AT] & FOR_ADOPTED == RETAINED_COPY;
            let first = if is_copy { at + 8 } else { at };
            for field in (first..at + 16).step_by(8) {
                shift_time(&mut batch.bytes[field..field + 8], clock_ms);
            }
            at += len;
            large += usize::from(is_large);
        }
        if at != batch.bytes.len() {
            return Err(BatchError::Excess);
        }
        for _ in 0..large {
            let len = outer.u32()? as usize;
            let payload = outer.take(len)?;
            batch.large_bytes += payload.len();
            batch.large_payloads.push(Bytes::copy_from_slice(payload));
        }
        match outer.rest.is_empty() {
            true => Ok(batch),
            false => Err(BatchError::Excess),
        }
    }

    /// Removes all messages and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.large_payloads.clear();
        self.count = 0;
        self.large_bytes = 0;
    }
}

/// Checks the message at the front of `bytes`; returns its length and whether its payload is elsewhere.
fn check_message(bytes: &[u8]) -> Result<(usize, bool), BatchError> {
    let mut reader = UntrustedReader { rest: bytes };
    reader.take(16)?;
    let (properties_len, inline_len) = (reader.u32()? as usize, reader.u32()? as usize);
    reader.u32()?;
    let [topic_len, client_id_len, username_len] = [reader.u16()?, reader.u16()?, reader.u16()?];
    let flags = reader.take(1)?[0];
    if flags & 3 == 3 {
        return Err(BatchError::QoS);
    }
    let topic = reader.text(topic_len)?;
    if mqtt::validate_topic_name(topic, &mqtt::TopicLimits::NONE).is_err() {
        return Err(BatchError::Topic);
    }
    reader.text(client_id_len)?;
    reader.text(username_len)?;
    Properties::of_publish(reader.take(properties_len)?).map_err(|_| BatchError::Properties)?;
    reader.take(inline_len)?;
    if flags & FOR_MEMBER != 0 {
        for _ in 0..2 {
            let len = reader.u32()? as usize;
            reader.text(len)?;
        }
        reader.u32()?;
    }
    if flags & LINKED != 0 {
        reader.take(8)?;
    }
    Ok((bytes.len() - reader.rest.len(), flags & LARGE != 0))
}

/// Converts a time of another node's clock.
fn shift_time(field: &mut [u8], clock_ms: i64) {
    let mut time = [0; 8];
    time.copy_from_slice(field);
    let time_ms = u64::from_le_bytes(time);
    if time_ms != NEVER_MS && time_ms != 0 {
        let shifted = time_ms.saturating_add_signed(clock_ms).max(1);
        field.copy_from_slice(&shifted.to_le_bytes());
    }
}

/// Reads what another node has sent.
struct UntrustedReader<'a> {
    rest: &'a [u8],
}

impl<'a> UntrustedReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BatchError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(BatchError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<usize, BatchError> {
        let taken = self.take(2)?;
        Ok(usize::from(u16::from_le_bytes([taken[0], taken[1]])))
    }

    fn u32(&mut self) -> Result<u32, BatchError> {
        let taken = self.take(4)?;
        Ok(u32::from_le_bytes([taken[0], taken[1], taken[2], taken[3]]))
    }

    fn text(&mut self, len: usize) -> Result<&'a str, BatchError> {
        std::str::from_utf8(self.take(len)?).map_err(|_| BatchError::Text)
    }
}
