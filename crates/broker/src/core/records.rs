//! The binary format of the broker's records in the store: messages, their attributes per session, sessions,
//! subscriptions. Numbers are LEB128; texts are preceded by their length. Every record is validated when it is read: an
//! invalid record is logged and skipped, and the node continues.

use disk::varint::{self, PackBuffer};
use hooks::{MessageView, NEVER_MS};
use mqtt::{Properties, QoS, SubscriptionOptions, Version};

use super::cross_shard_batch::GroupMemberTarget;
use super::message::Message;
use super::origin_node::{OriginNode, SessionAdoption};

/// First byte of every session record: the version of its format.
const SESSION_RECORD_VERSION: u8 = 1;

fn put_text(out: &mut Vec<u8>, text: &str) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

struct RecordReader<'a> {
    rest: &'a [u8],
}

impl<'a> RecordReader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn read_varint(&mut self) -> Option<u64> {
        varint::take(&mut self.rest)
    }

    fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = self.read_varint()?;
        std::str::from_utf8(self.bytes(len)?).ok()
    }
}

const RETAIN: u8 = 1 << 2;
const EXPIRES: u8 = 1 << 3;
const DERIVED: u8 = 1 << 4;
const NUMBERED: u8 = 1 << 5;

fn qos_of(flags: u8) -> Option<QoS> {
    QoS::try_from(flags & 3).ok()
}

/// The head of a stored message; topic, publisher, properties and payload follow it.
#[inline]
pub(crate) fn message_head(view: &MessageView<'_>, head: &mut PackBuffer<'_>) {
    let expires = view.expires_ms != NEVER_MS;
    let mut flags = view.qos as u8;
    flags |= if view.retain { RETAIN } else { 0 };
    flags |= if expires { EXPIRES } else { 0 };
    flags |= if view.is_derived { DERIVED } else { 0 };
    flags |= if view.number != 0 { NUMBERED } else { 0 };
    head.byte(flags);
    head.number(view.received_ms);
    if expires {
        head.number(view.expires_ms);
    }
    if view.number != 0 {
        head.number(u64::from(view.number));
    }
    head.number(view.topic.len() as u64);
    head.number(view.from_client_id.len() as u64);
    head.number(view.from_username.len() as u64);
    head.number(view.properties.as_bytes().len() as u64);
}

/// Length of [`message_head`] in bytes: at most 46.
#[inline]
pub(crate) fn message_head_len(view: &MessageView<'_>) -> usize {
    let expires = match view.expires_ms {
        NEVER_MS => 0,
        expires_ms => varint::len(expires_ms),
    };
    let number = match view.number {
        0 => 0,
        number => varint::len(u64::from(number)),
    };
    let lens = [
        view.topic.len(),
        view.from_client_id.len(),
        view.from_username.len(),
        view.properties.as_bytes().len(),
    ];
    let lens = lens.map(|len| varint::len(len as u64));
    1 + varint::len(view.received_ms) + expires + number + lens.iter().sum::<usize>()
}

/// A complete message as stored.
pub(crate) fn message_bytes(view: &MessageView<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + view.topic.len() + view.payload.len());
    varint::pack(&mut out, |head| message_head(view, head));
    for part in message_parts(view) {
        out.extend_from_slice(part);
    }
    out
}

/// The parts that follow the head.
#[inline]
pub(crate) fn message_parts<'a>(view: &MessageView<'a>) -> [&'a [u8]; 5] {
    [
        view.topic.as_bytes(),
        view.from_client_id.as_bytes(),
        view.from_username.as_bytes(),
        view.properties.as_bytes(),
        view.payload,
    ]
}

/// Decodes a stored message.
pub(crate) fn read_message(body: &[u8]) -> Option<Message> {
    let mut reader = RecordReader { rest: body };
    let flags = reader.byte()?;
    let received_ms = reader.read_varint()?;
    let expires_ms = match flags & EXPIRES {
        0 => NEVER_MS,
        _ => reader.read_varint()?,
    };
    let number = match flags & NUMBERED {
        0 => 0,
        _ => u32::try_from(reader.read_varint()?).ok()?,
    };
    let lens = [
        reader.read_varint()?,
        reader.read_varint()?,
        reader.read_varint()?,
        reader.read_varint()?,
    ];
    let mut text = |len| std::str::from_utf8(reader.bytes(len)?).ok();
    let (topic, from_client_id, from_username) = (text(lens[0])?, text(lens[1])?, text(lens[2])?);
    Some(Message::new(&MessageView {
        topic,
        properties: Properties::from_validated(reader.bytes(lens[3])?),
        payload: reader.rest,
        shared_payload: None,
        qos: qos_of(flags)?,
        retain: flags & RETAIN != 0,
        received_ms,
        expires_ms,
        from_client_id,
        from_username,
        is_derived: flags & DERIVED != 0,
        number,
    }))
}

/// The attributes of a message that differ between the sessions it waits for.
#[derive(Debug, PartialEq)]
pub(crate) struct DeliveryAttributes {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) identifiers: Vec<u32>,
}

/// The attributes of a message without subscription identifiers are this byte.
#[inline]
pub(crate) fn attribute_byte(qos: QoS, retain: bool) -> u8 {
    qos as u8 | if retain { RETAIN } else { 0 }
}

pub(crate) fn put_attributes(qos: QoS, retain: bool, identifiers: &[u32], out: &mut Vec<u8>) {
    out.push(attribute_byte(qos, retain));
    for &identifier in identifiers {
        varint::put(out, identifier.into());
    }
}

pub(crate) fn read_attributes(bytes: &[u8]) -> Option<DeliveryAttributes> {
    let mut reader = RecordReader { rest: bytes };
    let flags = reader.byte()?;
    let mut identifiers = Vec::new();
    while !reader.rest.is_empty() {
        identifiers.push(u32::try_from(reader.read_varint()?).ok()?);
    }
    Some(DeliveryAttributes {
        qos: qos_of(flags)?,
        retain: flags & RETAIN != 0,
        identifiers,
    })
}

/// The target of a message in a link: the filter and the name of a group, or nothing for all subscribers.
pub(crate) fn put_member_target(member: Option<(&str, &str)>, out: &mut Vec<u8>) {
    if let Some((filter, group)) = member {
        put_text(out, filter);
        put_text(out, group);
    }
}

/// The outer `None`: the bytes cannot be decoded.
pub(crate) fn read_member_target(bytes: &[u8]) -> Option<Option<(&str, &str)>> {
    if bytes.is_empty() {
        return Some(None);
    }
    let mut reader = RecordReader { rest: bytes };
    Some(Some((reader.text()?, reader.text()?)))
}

/// For whom a message in the link to the other nodes is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NodeEntryTarget<'a> {
    /// All subscribers at other nodes.
    All,
    /// One member of a group.
    Member(GroupMemberTarget<'a>),
    /// All nodes, which retain it.
    RetainedCopy,
    /// All subscribers, except those that this node has adopted from the one where the message was published.
    PublishedAt(&'a str),
}

/// The attributes of a message in the link to the other nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NodeEntry<'a> {
    pub(crate) origin: u64,
    /// The number of the message there; that of the entry differs if the message comes from another node.
    pub(crate) seq: u64,
    pub(crate) target: NodeEntryTarget<'a>,
}

/// Bytes of texts in a [`NodeEntry`], so that it is not longer than attributes may be.
pub(crate) const MAX_NODE_ENTRY_TEXT: usize = 60_000;

const ENTRY_FOR_ALL: u8 = 0;
const ENTRY_FOR_MEMBER: u8 = 1;
const ENTRY_RETAINED_COPY: u8 = 2;
const ENTRY_PUBLISHED_AT: u8 = 3;

pub(crate) fn put_node_entry(entry: &NodeEntry<'_>, out: &mut Vec<u8>) {
    out.push(match entry.target {
        NodeEntryTarget::All => ENTRY_FOR_ALL,
        NodeEntryTarget::Member(_) => ENTRY_FOR_MEMBER,
        NodeEntryTarget::RetainedCopy => ENTRY_RETAINED_COPY,
        NodeEntryTarget::PublishedAt(_) => ENTRY_PUBLISHED_AT,
    });
    out.extend_from_slice(&entry.origin.to_le_bytes());
    varint::put(out, entry.seq);
    match entry.target {
        NodeEntryTarget::All | NodeEntryTarget::RetainedCopy => {}
        NodeEntryTarget::Member(member) => {
            put_text(out, member.filter);
            put_text(out, member.group);
            varint::put(out, member.nth.into());
        }
        NodeEntryTarget::PublishedAt(node) => put_text(out, node),
    }
}

pub(crate) fn read_node_entry(bytes: &[u8]) -> Option<NodeEntry<'_>> {
    let mut reader = RecordReader { rest: bytes };
    let kind = reader.byte()?;
    let origin = u64::from_le_bytes(reader.bytes(8)?.try_into().ok()?);
    let seq = reader.read_varint()?;
    let target = match kind {
        ENTRY_FOR_ALL => NodeEntryTarget::All,
        ENTRY_FOR_MEMBER => NodeEntryTarget::Member(GroupMemberTarget {
            filter: reader.text()?,
            group: reader.text()?,
            nth: u32::try_from(reader.read_varint()?).ok()?,
        }),
        ENTRY_RETAINED_COPY => NodeEntryTarget::RetainedCopy,
        ENTRY_PUBLISHED_AT => NodeEntryTarget::PublishedAt(reader.text()?),
        _ => return None,
    };
    let is_valid = seq > 0 && reader.rest.is_empty();
    is_valid.then_some(NodeEntry {
        origin,
        seq,
        target,
    })
}

/// Key of the numbers that a shard has received: number of shards of the node, shard, origin, and which numbers.
pub(crate) fn received_key((shards, shard): (u16, u16), origin: u64, part: u64) -> [u8; 20] {
    let mut key = [0; 20];
    key[..2].copy_from_slice(&shards.to_be_bytes());
    key[2..4].copy_from_slice(&shard.to_be_bytes());
    key[4..12].copy_from_slice(&origin.to_be_bytes());
    key[12..].copy_from_slice(&part.to_be_bytes());
    key
}

pub(crate) fn read_received_key(key: &[u8]) -> Option<((u16, u16), u64, u64)> {
    let key: &[u8; 20] = key.try_into().ok()?;
    let shards = u16::from_be_bytes([key[0], key[1]]);
    let shard = u16::from_be_bytes([key[2], key[3]]);
    let number = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
    let is_valid = shard < shards;
    is_valid.then_some(((shards, shard), number(4)?, number(12)?))
}

/// A session as stored under its client id.
#[derive(Debug, PartialEq)]
pub(crate) struct SessionRecord<'a> {
    /// The number under which its queue and its subscriptions are stored; never reused.
    pub(crate) number: u64,
    pub(crate) version: Version,
    pub(crate) connected: bool,
    pub(crate) clean_start: bool,
    pub(crate) bridge: bool,
    /// See [`Session::is_provisional`](super::session::Session::is_provisional).
    pub(crate) provisional: bool,
    pub(crate) expiry_s: u32,
    pub(crate) created_ms: u64,
    pub(crate) disconnected_ms: u64,
    pub(crate) username: Option<&'a str>,
    pub(crate) adoption: Option<SessionAdoption>,
    /// The record of `AcceptedNumbers`.
    pub(crate) accepted_numbers: Option<&'a [u8]>,
    /// Delay in seconds and the stored message.
    pub(crate) will: Option<(u32, &'a [u8])>,
}

const CONNECTED: u8 = 1;
const CLEAN_START: u8 = 1 << 1;
const BRIDGE: u8 = 1 << 2;
const USERNAME: u8 = 1 << 3;
const WILL: u8 = 1 << 4;
const ACCEPTED_NUMBERS: u8 = 1 << 5;
const PROVISIONAL: u8 = 1 << 6;
/// The field of the accepted numbers exists, and begins with the adoption. Versions that do not know the flag read the time of the
/// adoption as a length, which is larger than the record: they ignore that field, and read the rest.
const ADOPTED: u8 = 1 << 7;

impl<'a> SessionRecord<'a> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut flags = 0;
        for (set, flag) in [
            (self.connected, CONNECTED),
            (self.clean_start, CLEAN_START),
            (self.bridge, BRIDGE),
            (self.provisional, PROVISIONAL),
            (self.username.is_some(), USERNAME),
            (self.will.is_some(), WILL),
            (self.accepted_numbers.is_some(), ACCEPTED_NUMBERS),
            (self.adoption.is_some(), ADOPTED | ACCEPTED_NUMBERS),
        ] {
            flags |= if set { flag } else { 0 };
        }
        out.extend([SESSION_RECORD_VERSION, flags, self.version.protocol_level()]);
        varint::put(out, self.number);
        varint::put(out, self.expiry_s.into());
        varint::put(out, self.created_ms);
        varint::put(out, self.disconnected_ms);
        if let Some(username) = self.username {
            put_text(out, username);
        }
        if flags & ACCEPTED_NUMBERS != 0 {
            let mut adopted = Vec::new();
            if let Some(adoption) = self.adoption {
                varint::put(&mut adopted, adoption.since_ms);
                adopted.push(adoption.from.bits());
            }
            let numbers = self.accepted_numbers.unwrap_or_default();
            varint::put(out, (adopted.len() + numbers.len()) as u64);
            out.extend_from_slice(&adopted);
            out.extend_from_slice(numbers);
        }
        if let Some((delay_s, body)) = self.will {
            varint::put(out, delay_s.into());
            out.extend_from_slice(body);
        }
    }

    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = RecordReader { rest: bytes };
        if reader.byte()? != SESSION_RECORD_VERSION {
            return None;
        }
        let flags = reader.byte()?;
        let version = match reader.byte()? {
            3 => Version::V31,
            4 => Version::V311,
            5 => Version::V5,
            _ => return None,
        };
        let number = reader.read_varint()?;
        let expiry_s = u32::try_from(reader.read_varint()?).ok()?;
        let (created_ms, disconnected_ms) = (reader.read_varint()?, reader.read_varint()?);
        let username = match flags & USERNAME {
            0 => None,
            _ => Some(reader.text()?),
        };
        let mut adoption = None;
        let mut accepted_numbers = None;
        if flags & ACCEPTED_NUMBERS != 0 {
            let len = reader.read_varint()?;
            let mut field = RecordReader {
                rest: reader.bytes(len)?,
            };
            if flags & ADOPTED != 0 {
                let since_ms = field.read_varint()?;
                let from = OriginNode::from_bits(field.byte()?);
                adoption = Some(SessionAdoption { from, since_ms });
            }
            let is_empty = adoption.is_some() && field.rest.is_empty();
            accepted_numbers = (!is_empty).then_some(field.rest);
        }
        let will = match flags & WILL {
            0 => None,
            _ => Some((u32::try_from(reader.read_varint()?).ok()?, reader.rest)),
        };
        Some(Self {
            number,
            version,
            connected: flags & CONNECTED != 0,
            clean_start: flags & CLEAN_START != 0,
            bridge: flags & BRIDGE != 0,
            provisional: flags & PROVISIONAL != 0,
            expiry_s,
            created_ms,
            disconnected_ms,
            username,
            adoption,
            accepted_numbers,
            will,
        })
    }
}

/// Key of a session: client id and number. A session may end on one shard while the client gets a new one on another.
/// The number keeps the new one safe in whichever order the store receives the two changes.
pub(crate) fn session_key(client_id: &str, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(client_id.len() + 9);
    key.extend_from_slice(client_id.as_bytes());
    // No MQTT string contains a NUL [MQTT-1.5.4-2], so that keys sort by client id first.
    key.push(0);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn read_session_key(key: &[u8]) -> Option<&str> {
    let client_id = key.split_at_checked(key.len().checked_sub(9)?)?.0;
    std::str::from_utf8(client_id).ok()
}

/// Key of a subscription: its session's number and the filter as the client wrote it.
pub(crate) fn subscription_key(session: u64, filter: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&session.to_be_bytes());
    out.extend_from_slice(filter.as_bytes());
}

pub(crate) fn read_subscription_key(key: &[u8]) -> Option<(u64, &str)> {
    let (number, filter) = key.split_at_checked(8)?;
    let number = u64::from_be_bytes(number.try_into().ok()?);
    Some((number, std::str::from_utf8(filter).ok()?))
}

pub(crate) fn put_subscription(options: SubscriptionOptions, identifier: u32, out: &mut Vec<u8>) {
    let mut byte = options.qos as u8 | options.retain_handling << 4;
    byte |= if options.no_local { 1 << 2 } else { 0 };
    byte |= if options.retain_as_published {
        1 << 3
    } else {
        0
    };
    out.push(byte);
    varint::put(out, identifier.into());
}

pub(crate) fn read_subscription(bytes: &[u8]) -> Option<(SubscriptionOptions, u32)> {
    let mut reader = RecordReader { rest: bytes };
    let byte = reader.byte()?;
    let options = SubscriptionOptions {
        qos: qos_of(byte)?,
        no_local: byte & 1 << 2 != 0,
        retain_as_published: byte & 1 << 3 != 0,
        retain_handling: byte >> 4,
    };
    Some((options, u32::try_from(reader.read_varint()?).ok()?))
}

/// Flag in the number of a delayed message: it was due, and its subscribers have received it.
pub(crate) const DELAYED_ROUTED: u64 = 1 << 63;

/// Key of a delayed message; keys sort by due time.
pub(crate) fn delayed_key(due_ms: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&due_ms.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn read_delayed_key(key: &[u8]) -> Option<(u64, u64)> {
    let (due_ms, number) = key.split_at_checked(8)?;
    Some((
        u64::from_be_bytes(due_ms.try_into().ok()?),
        u64::from_be_bytes(number.try_into().ok()?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::session::AcceptedNumbers;
    use mqtt::{PropertiesBuf, Property};

    #[test]
    fn messages_round_trip_and_truncated_ones_are_rejected() {
        let mut properties = PropertiesBuf::new();
        properties.push(Property::ContentType("text/plain"));
        for (expires_ms, number) in [(NEVER_MS, 0), (1_700_000_005_000, 70_000)] {
            let view = MessageView {
                topic: "a/b",
                properties: properties.as_properties(),
                payload: b"hello",
                shared_payload: None,
                qos: QoS::ExactlyOnce,
                retain: true,
                received_ms: 1_700_000_000_000,
                expires_ms,
                from_client_id: "c1",
                from_username: "",
                is_derived: false,
                number,
            };
            let bytes = message_bytes(&view);
            let message = read_message(&bytes).unwrap();
            let read = message.view();
            assert_eq!((read.topic, read.payload), ("a/b", &b"hello"[..]));
            assert_eq!(read.properties.as_bytes(), view.properties.as_bytes());
            assert_eq!((read.qos, read.retain), (QoS::ExactlyOnce, true));
            assert_eq!(read.received_ms, view.received_ms);
            assert_eq!((read.expires_ms, read.number), (expires_ms, number));
            assert_eq!((read.from_client_id, read.from_username), ("c1", ""));
            for cut in 0..bytes.len() - view.payload.len() {
                assert!(read_message(&bytes[..cut]).is_none(), "{cut}");
            }
        }
    }

    /// Nodes that do not know the flag run beside others while a cluster is upgraded.
    #[test]
    fn earlier_versions_read_the_record_of_an_adopted_session() {
        for accepted_numbers in [None, Some(&b"\x01a\0\0\0\0"[..])] {
            let record = SessionRecord {
                number: 300,
                version: Version::V5,
                connected: true,
                clean_start: false,
                bridge: false,
                provisional: false,
                expiry_s: 3600,
                created_ms: 1_700_000_000_000,
                disconnected_ms: 0,
                username: Some("ann"),
                adoption: None,
                accepted_numbers,
                will: Some((5, b"body")),
            };
            let mut before = Vec::new();
            record.write(&mut before);
            let adoption = Some(SessionAdoption {
                from: OriginNode::node("node-1"),
                since_ms: 1_700_000_005_000,
            });
            let adopted = SessionRecord { adoption, ..record };
            let mut bytes = Vec::new();
            adopted.write(&mut bytes);
            let len_of_field = usize::from(accepted_numbers.is_none());
            assert_eq!(bytes.len(), before.len() + len_of_field + 7);
            assert_eq!(SessionRecord::read(&bytes), Some(adopted));

            bytes[1] &= !ADOPTED;
            let read = SessionRecord::read(&bytes).unwrap();
            let numbers = read.accepted_numbers.and_then(AcceptedNumbers::read);
            assert!(numbers.is_none());
            assert_eq!(
                SessionRecord {
                    accepted_numbers,
                    ..read
                },
                SessionRecord::read(&before).unwrap()
            );
        }
    }

    #[test]
    fn records_round_trip() {
        let record = SessionRecord {
            number: 300,
            version: Version::V5,
            connected: true,
            clean_start: false,
            bridge: true,
            provisional: true,
            expiry_s: u32::MAX,
            created_ms: 7,
            disconnected_ms: 1_700_000_000_000,
            username: Some("ann"),
            adoption: None,
            accepted_numbers: Some(b"numbers"),
            will: Some((5, b"body")),
        };
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        assert_eq!(SessionRecord::read(&bytes), Some(record));
        assert_eq!(SessionRecord::read(&[9, 0, 5]), None);
        assert_eq!(read_session_key(&session_key("ann", 300)), Some("ann"));
        assert_eq!(read_session_key(b"ann"), None);

        let options = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: 2,
        };
        let (mut key, mut value) = (Vec::new(), Vec::new());
        subscription_key(300, "$share/g/a/+", &mut key);
        put_subscription(options, 9, &mut value);
        assert_eq!(read_subscription_key(&key), Some((300, "$share/g/a/+")));
        assert_eq!(read_subscription(&value), Some((options, 9)));

        let mut attributes = Vec::new();
        put_attributes(QoS::AtLeastOnce, true, &[1, 4000], &mut attributes);
        let read = read_attributes(&attributes).unwrap();
        assert_eq!(read.identifiers, [1, 4000]);
        assert_eq!((read.qos, read.retain), (QoS::AtLeastOnce, true));
        assert_eq!(read_delayed_key(&delayed_key(5, 6)), Some((5, 6)));

        let member = GroupMemberTarget {
            filter: "a/+",
            group: "g",
            nth: 300,
        };
        for target in [
            NodeEntryTarget::All,
            NodeEntryTarget::Member(member),
            NodeEntryTarget::RetainedCopy,
            NodeEntryTarget::PublishedAt("node-1"),
        ] {
            let entry = NodeEntry {
                origin: u64::MAX - 1,
                seq: 300,
                target,
            };
            let mut bytes = Vec::new();
            put_node_entry(&entry, &mut bytes);
            assert_eq!(read_node_entry(&bytes), Some(entry));
            for cut in 0..bytes.len() {
                assert_eq!(read_node_entry(&bytes[..cut]), None, "{cut}");
            }
        }
        let key = received_key((4, 3), 7, 8);
        assert_eq!(read_received_key(&key), Some(((4, 3), 7, 8)));
        assert_eq!(read_received_key(&key[1..]), None);

        for member in [None, Some(("a/+", "g"))] {
            let mut bytes = Vec::new();
            put_member_target(member, &mut bytes);
            assert_eq!(read_member_target(&bytes), Some(member));
        }
    }
}
