//! Entries of session queues as members of sorted sets.

use std::collections::HashMap;

use bytes::Bytes;
use redis::Value;
use store::{NewEntry, QueueEntry, QueueFetch, QueueGroup};

use super::command_buffer::{bytes_of, number};
use crate::options::MAX_INLINE_BYTES;

/// Sequence number, length of the body, kind.
const MEMBER_HEAD_BYTES: usize = 13;
/// Group number and index of the message within the group.
const MESSAGE_ID_BYTES: usize = 12;
const BODY_INLINE: u8 = 0;
const BODY_SEPARATE: u8 = 1;

/// A page whose separately stored bodies are missing; the entries contain their ids.
pub(super) struct RawPage {
    pub(super) entries: Vec<(QueueEntry, Option<Bytes>)>,
    pub(super) is_last: bool,
}

impl RawPage {
    pub(super) fn new(
        fetch: &QueueFetch,
        members: Vec<Value>,
        state: &HashMap<String, Value>,
    ) -> Self {
        let mut entries: Vec<(QueueEntry, Option<Bytes>)> = Vec::new();
        let mut bytes = 0;
        for member in members {
            let Some((mut stored, size, body_id)) = decode_member(bytes_of(member).into()) else {
                tracing::error!(
                    session = fetch.session,
                    "queued message in Redis is damaged; it is skipped"
                );
                continue;
            };
            bytes += size;
            let is_over =
                entries.len() >= fetch.max_messages as usize || bytes > u64::from(fetch.max_bytes);
            if is_over && !entries.is_empty() {
                return Self {
                    entries,
                    is_last: false,
                };
            }
            let id = state.get(&format!("e{}", stored.seq)).map(number);
            stored.packet_id = id.and_then(|id| id.try_into().ok()).unwrap_or(0);
            stored.released = state.contains_key(&format!("x{}", stored.seq));
            if stored.released {
                stored.body = Bytes::new();
            }
            let body_id = body_id.filter(|_| !stored.released);
            entries.push((stored, body_id));
        }
        Self {
            entries,
            is_last: true,
        }
    }
}

pub(super) fn has_separate_body(group: &QueueGroup<'_>, message: usize) -> bool {
    let message = &group.messages[message];
    message.entries > 1 || message.body.len() > MAX_INLINE_BYTES
}

pub(super) fn message_id(group: u64, message: u32) -> [u8; MESSAGE_ID_BYTES] {
    let mut id = [0; MESSAGE_ID_BYTES];
    id[..8].copy_from_slice(&group.to_be_bytes());
    id[8..].copy_from_slice(&message.to_be_bytes());
    id
}

/// Sequence number, length of the body, kind; the body's id if it is stored separately; length of attributes,
/// attributes, body.
pub(super) fn encode_member(group: &QueueGroup<'_>, entry: &NewEntry<'_>) -> Vec<u8> {
    let body = group.messages[entry.message as usize].body;
    let is_beside = has_separate_body(group, entry.message as usize);
    let mut member = Vec::with_capacity(
        MEMBER_HEAD_BYTES + MESSAGE_ID_BYTES + 2 + entry.attributes.len() + body.len(),
    );
    member.extend_from_slice(&entry.seq.to_be_bytes());
    member.extend_from_slice(&(body.len() as u32).to_be_bytes());
    member.push(if is_beside {
        BODY_SEPARATE
    } else {
        BODY_INLINE
    });
    if is_beside {
        member.extend_from_slice(&message_id(group.number, entry.message));
    }
    member.extend_from_slice(&(entry.attributes.len() as u16).to_be_bytes());
    member.extend_from_slice(entry.attributes);
    if !is_beside {
        member.extend_from_slice(body);
    }
    member
}

/// Returns the entry, its size including the body, and the body's id if it is stored separately.
fn decode_member(mut member: Bytes) -> Option<(QueueEntry, u64, Option<Bytes>)> {
    let seq = u64::from_be_bytes(*member.first_chunk()?);
    let body_len = u32::from_be_bytes(*member.get(8..)?.first_chunk()?);
    let kind = *member.get(MEMBER_HEAD_BYTES - 1)?;
    let _ = member.split_to(MEMBER_HEAD_BYTES);
    let body_id = match kind {
        BODY_SEPARATE if member.len() >= MESSAGE_ID_BYTES => {
            Some(member.split_to(MESSAGE_ID_BYTES))
        }
        BODY_INLINE => None,
        _ => return None,
    };
    let attributes_len = usize::from(u16::from_be_bytes(*member.first_chunk()?));
    let _ = member.split_to(2);
    if member.len() < attributes_len {
        return None;
    }
    let attributes = member.split_to(attributes_len);
    let size = u64::from(body_len) + attributes_len as u64;
    let stored = QueueEntry {
        seq,
        packet_id: 0,
        released: false,
        attributes,
        body: member,
    };
    Some((stored, size, body_id))
}
