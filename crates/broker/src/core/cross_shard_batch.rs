//! Application messages in the form in which they cross from shard to shard, and from node to node.
//!
//! They are written one after the other into a batch, so that crossing costs one allocation per turn and not one per
//! message. Large payloads are passed by reference.
//!
//! A publisher often sends many messages to one topic at once. A message that differs from the one before in its payload
//! only is a *repetition*: its record has neither texts nor properties, which are then neither copied nor checked again.

use bytes::{BufMut, Bytes, BytesMut};
use hooks::{MessageView, NEVER_MS, str_from_utf8};
use mqtt::{Properties, QoS};
use thiserror::Error;

use super::outbox::SHARE_FROM_BYTES;

/// The target of a message for one member of a group on the receiving shard, instead of all its subscribers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupMemberTarget<'a> {
    pub(crate) filter: &'a str,
    pub(crate) group: &'a str,
    pub(crate) nth: u32,
}

/// The identity of a message that other nodes must get exactly once, also when nodes fail; see `NodeLink`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageId {
    /// The random number of the link in which the message was first recorded: of one shard in one run of its node.
    pub(crate) origin: u64,
    /// Its number there, which is not used again.
    pub(crate) seq: u64,
    /// No message whose number is lower by more than this will be sent again.
    pub(crate) behind: u32,
}

/// A message on its way to other nodes or from them.
#[derive(Clone, Copy)]
pub(crate) struct NodeTraffic<'a> {
    pub(crate) view: &'a MessageView<'a>,
    pub(crate) id: Option<MessageId>,
}

/// A message received from another shard.
pub(crate) struct CrossShardMessage<'a> {
    pub(crate) view: MessageView<'a>,
    /// It has the same receivers as the message before: all but the payload and the number are the same.
    pub(crate) is_repetition: bool,
    pub(crate) member: Option<GroupMemberTarget<'a>>,
    pub(crate) id: Option<MessageId>,
    /// Its number in the link between the two shards, if it has an entry there.
    pub(crate) link_seq: Option<u64>,
    /// It is to be retained as another node has retained it, and not to be delivered.
    pub(crate) is_retained_copy: bool,
    /// It is only for the sessions that the receiver has adopted from this node.
    pub(crate) adopted_from: Option<&'a str>,
    /// It was published at this node, which has failed and has delivered it to its own sessions.
    pub(crate) published_at: Option<&'a str>,
}

impl<'a> CrossShardMessage<'a> {
    pub(crate) fn traffic(&'a self) -> NodeTraffic<'a> {
        NodeTraffic {
            view: &self.view,
            id: self.id,
        }
    }
}

/// Messages one after the other: each a header of fixed size, then its texts, properties and small payload. The first
/// byte of a record contains flags.
#[derive(Debug, Default)]
pub(crate) struct CrossShardBatch {
    bytes: Vec<u8>,
    /// Where the record is that the next message may repeat.
    repeatable_at: Option<usize>,
    large_payloads: Vec<Bytes>,
    pub(crate) count: u32,
    large_bytes: usize,
}

const QOS_MASK: u8 = 3;
/// Instead of a QoS: a repetition.
const REPETITION: u8 = 3;
const RETAIN: u8 = 1 << 2;
const LARGE: u8 = 1 << 3;
const FOR_MEMBER: u8 = 1 << 4;
const LINKED: u8 = 1 << 5;
const DERIVED: u8 = 1 << 6;
const RETAINED_COPY: u8 = 1 << 7;
/// The member is the name of a node instead, from which the receivers were adopted.
const FOR_ADOPTED: u8 = FOR_MEMBER | RETAINED_COPY;
/// In the second byte of flags: the identity of the message follows.
const IDENTIFIED: u8 = 1;
/// The member is the name of a node instead, at which the message was published.
const PUBLISHED_AT: u8 = 1 << 1;

/// The header of a message: two bytes of flags, times of receipt and expiry, lengths of properties, topic and publisher.
/// Then those fields that differ in repetitions: length of the payload, and number.
const HEAD_BYTES: usize = REPEATED_BYTES + OWN_BYTES;
const REPEATED_BYTES: usize = TIMES_AT + 8 + 8 + 4 + 2 + 2 + 2;
const TIMES_AT: usize = 2;
const OWN_BYTES: usize = 4 + 4;
/// Bytes of an identity: origin, number, and how far it is behind.
const ID_BYTES: usize = 8 + 8 + 4;

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
        id: Option<MessageId>,
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
        head[0] = flags;
        head[1] = if id.is_some() { IDENTIFIED } else { 0 };
        head[2..10].copy_from_slice(&view.received_ms.to_le_bytes());
        head[10..18].copy_from_slice(&view.expires_ms.to_le_bytes());
        head[18..22].copy_from_slice(&(properties.len() as u32).to_le_bytes());
        head[22..24].copy_from_slice(&(view.topic.len() as u16).to_le_bytes());
        head[24..26].copy_from_slice(&(view.from_client_id.len() as u16).to_le_bytes());
        head[26..28].copy_from_slice(&(view.from_username.len() as u16).to_le_bytes());
        head[28..32].copy_from_slice(&(inline.len() as u32).to_le_bytes());
        head[32..].copy_from_slice(&view.number.to_le_bytes());
        let texts = [
            view.topic.as_bytes(),
            view.from_client_id.as_bytes(),
            view.from_username.as_bytes(),
            properties,
        ];
        let is_repetition = self.can_repeat(&head, &texts);
        let can_be_repeated = flags & (FOR_MEMBER | LINKED) == 0 && id.is_none();
        let out = &mut self.bytes;
        if is_repetition {
            out.push(REPETITION | flags & LARGE);
            out.extend_from_slice(&head[REPEATED_BYTES..]);
        } else {
            self.repeatable_at = can_be_repeated.then_some(out.len());
            out.extend_from_slice(&head);
            for text in texts {
                out.extend_from_slice(text);
            }
        }
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
        if let Some(id) = id {
            out.extend_from_slice(&id.origin.to_le_bytes());
            out.extend_from_slice(&id.seq.to_le_bytes());
            out.extend_from_slice(&id.behind.to_le_bytes());
        }
        self.count += 1;
    }

    /// Whether a message with this header and these texts only repeats the record at `repeatable_at`.
    #[inline]
    fn can_repeat(&self, head: &[u8; HEAD_BYTES], texts: &[&[u8]; 4]) -> bool {
        let Some(record) = self.repeatable_at.and_then(|at| self.bytes.get(at..)) else {
            return false;
        };
        let (earlier, mut rest) = record.split_at(HEAD_BYTES);
        // The record may have a large payload, and the repetition a small one.
        if earlier[0] | LARGE != head[0] | LARGE
            || earlier[1..REPEATED_BYTES] != head[1..REPEATED_BYTES]
        {
            return false;
        }
        texts.iter().all(|text| {
            let earlier;
            (earlier, rest) = rest.split_at(text.len());
            // The comparison of nothing takes 100 ns on some processors, if its address is not mapped.
            text.is_empty() || earlier == *text
        })
    }

    /// Adds a message, or the removal of one, that this node has retained.
    pub(crate) fn push_retained_copy(&mut self, view: &MessageView<'_>) {
        self.repeatable_at = None;
        let flags_at = self.bytes.len();
        self.push(view, None, None, None);
        self.bytes[flags_at] |= RETAINED_COPY;
        self.repeatable_at = None;
    }

    /// Adds a message for the sessions that the receiver has adopted from a node.
    pub(crate) fn push_for_adopted(&mut self, message: NodeTraffic<'_>, node: &str) {
        let flags_at = self.bytes.len();
        self.push_with_node(message, node);
        self.bytes[flags_at] |= FOR_ADOPTED;
    }

    /// Adds a message that was published at a node which has failed, for all sessions except those of that node.
    pub(crate) fn push_published_at(&mut self, message: NodeTraffic<'_>, node: &str) {
        let flags_at = self.bytes.len();
        self.push_with_node(message, node);
        self.bytes[flags_at + 1] |= PUBLISHED_AT;
    }

    fn push_with_node(&mut self, message: NodeTraffic<'_>, node: &str) {
        let target = GroupMemberTarget {
            filter: node,
            group: "",
            nth: 0,
        };
        self.push(message.view, Some(target), None, message.id);
    }

    /// The messages in the order they were pushed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = CrossShardMessage<'_>> {
        let mut reader = BatchReader { rest: &self.bytes };
        let mut large = self.large_payloads.iter();
        let mut repeatable = MessageView::unknown();
        (0..self.count).map(move |_| {
            let flags = reader.take(1)[0];
            let mut take_large = || match flags & LARGE != 0 {
                true => large.next(),
                false => None,
            };
            if flags & QOS_MASK == REPETITION {
                let (inline_len, number) = (reader.u32() as usize, reader.u32());
                let inline = reader.take(inline_len);
                let shared_payload = take_large();
                let view = MessageView {
                    payload: shared_payload.map_or(inline, |shared| shared),
                    shared_payload,
                    number,
                    ..repeatable
                };
                return CrossShardMessage {
                    view,
                    is_repetition: true,
                    member: None,
                    id: None,
                    link_seq: None,
                    is_retained_copy: false,
                    adopted_from: None,
                    published_at: None,
                };
            }
            let mut head = BatchReader {
                rest: reader.take(HEAD_BYTES - 1),
            };
            let more_flags = head.take(1)[0];
            let (received_ms, expires_ms) = (head.u64(), head.u64());
            let properties_len = head.u32() as usize;
            let [topic_len, client_id_len, username_len] = [head.u16(), head.u16(), head.u16()];
            let (inline_len, number) = (head.u32() as usize, head.u32());
            let text = str_from_utf8(reader.take(topic_len + client_id_len + username_len));
            let (topic, from) = text.split_at(topic_len);
            let (from_client_id, from_username) = from.split_at(client_id_len);
            let properties = Properties::from_validated(reader.take(properties_len));
            let inline = reader.take(inline_len);
            let shared_payload = take_large();
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
                qos: QoS::try_from(flags & QOS_MASK).expect("was pushed from a QoS"),
                retain: flags & RETAIN != 0,
                received_ms,
                expires_ms,
                from_client_id,
                from_username,
                is_derived: flags & DERIVED != 0,
                number,
            };
            let link_seq = (flags & LINKED != 0).then(|| reader.u64());
            repeatable = view;
            let id = (more_flags & IDENTIFIED != 0).then(|| MessageId {
                origin: reader.u64(),
                seq: reader.u64(),
                behind: reader.u32(),
            });
            let is_for_adopted = flags & FOR_ADOPTED == FOR_ADOPTED;
            let is_published_at = more_flags & PUBLISHED_AT != 0;
            let node = member.map(|target| target.filter);
            CrossShardMessage {
                view,
                is_repetition: false,
                member: member.filter(|_| !is_for_adopted && !is_published_at),
                link_seq,
                id,
                is_retained_copy: flags & FOR_ADOPTED == RETAINED_COPY,
                adopted_from: node.filter(|_| is_for_adopted),
                published_at: node.filter(|_| is_published_at && !is_for_adopted),
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
    #[error("it repeats a message that is not before it, or cannot be repeated")]
    Repetition,
    #[error("its topic is invalid")]
    Topic,
    #[error("its properties are invalid")]
    Properties,
    #[error("a text in it is not UTF-8")]
    Text,
    #[error("its identity is invalid")]
    Identity,
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
        let mut can_be_repeated = false;
        for _ in 0..count {
            let message = batch.bytes.get(at..).ok_or(BatchError::Short)?;
            let &flags = message.first().ok_or(BatchError::Short)?;
            let len = if flags & QOS_MASK == REPETITION {
                if !can_be_repeated || flags & !(QOS_MASK | LARGE) != 0 {
                    return Err(BatchError::Repetition);
                }
                check_repetition(message)?
            } else {
                let len = check_message(message)?;
                // The time of a retained message is its version, which is the same on all nodes.
                let is_copy = flags & FOR_ADOPTED == RETAINED_COPY;
                let times_at = at + TIMES_AT;
                let first = if is_copy { times_at + 8 } else { times_at };
                for field in (first..times_at + 16).step_by(8) {
                    shift_time(&mut batch.bytes[field..field + 8], clock_ms);
                }
                let more_flags = batch.bytes[at + 1];
                can_be_repeated =
                    flags & (FOR_MEMBER | LINKED | RETAINED_COPY) == 0 && more_flags == 0;
                len
            };
            at += len;
            large += usize::from(flags & LARGE != 0);
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
        self.repeatable_at = None;
        self.large_payloads.clear();
        self.count = 0;
        self.large_bytes = 0;
    }
}

/// Checks the repetition at the front of `bytes`; returns its length.
fn check_repetition(bytes: &[u8]) -> Result<usize, BatchError> {
    let mut reader = UntrustedReader { rest: bytes };
    reader.take(1)?;
    let inline_len = reader.u32()? as usize;
    reader.u32()?;
    reader.take(inline_len)?;
    Ok(bytes.len() - reader.rest.len())
}

/// Checks the message at the front of `bytes`, which is no repetition; returns its length.
fn check_message(bytes: &[u8]) -> Result<usize, BatchError> {
    let mut reader = UntrustedReader { rest: bytes };
    let (flags, more_flags) = (reader.take(1)?[0], reader.take(1)?[0]);
    reader.take(16)?;
    let properties_len = reader.u32()? as usize;
    let [topic_len, client_id_len, username_len] = [reader.u16()?, reader.u16()?, reader.u16()?];
    let inline_len = reader.u32()? as usize;
    reader.u32()?;
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
    if more_flags & IDENTIFIED != 0 {
        let mut id = UntrustedReader {
            rest: reader.take(ID_BYTES)?,
        };
        id.take(8)?;
        let (seq, behind) = (id.u64()?, id.u32()?);
        if seq == 0 || u64::from(behind) >= seq {
            return Err(BatchError::Identity);
        }
    }
    Ok(bytes.len() - reader.rest.len())
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

    fn u64(&mut self) -> Result<u64, BatchError> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    fn text(&mut self, len: usize) -> Result<&'a str, BatchError> {
        std::str::from_utf8(self.take(len)?).map_err(|_| BatchError::Text)
    }
}
