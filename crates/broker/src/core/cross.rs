//! What shards say to each other. Everything from one shard to another arrives in the order it was said, which is
//! what "a message published after the SUBACK arrives" rests on.
//!
//! Messages are written one after the other into a batch, so that crossing costs one allocation per turn and not one
//! per message; large payloads are handed over by reference.

use bytes::Bytes;
use mqtt::{Properties, QoS};

use super::message::{MessageView, text_of};
use super::outbox::SHARE_FROM_BYTES;

/// One thing a shard says to another.
#[derive(Debug)]
pub(crate) enum Said {
    Messages(Batch),
    /// The speaker has, or no longer has, plain subscribers to a filter.
    Interest {
        filter: Box<str>,
        wanted: bool,
        sequence: u64,
    },
    /// The speaker's members in a group.
    Members {
        filter: Box<str>,
        group: Box<str>,
        online: u32,
        total: u32,
        sequence: u64,
    },
    /// Everything up to this sequence number of the listener has taken effect at the speaker.
    Applied {
        sequence: u64,
    },
}

impl Said {
    /// Bytes it keeps while it waits, roughly.
    pub(crate) fn size(&self) -> usize {
        match self {
            Said::Messages(batch) => batch.size(),
            Said::Interest { filter, .. } => 64 + filter.len(),
            Said::Members { filter, group, .. } => 64 + filter.len() + group.len(),
            Said::Applied { .. } => 64,
        }
    }
}

/// A message meant for one member of a group of the listener instead of all its subscribers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForMember<'a> {
    pub(crate) filter: &'a str,
    pub(crate) group: &'a str,
    pub(crate) nth: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    large: Vec<Bytes>,
    pub(crate) count: u32,
    large_bytes: usize,
}

const RETAIN: u8 = 1 << 2;
const LARGE: u8 = 1 << 3;
const FOR_MEMBER: u8 = 1 << 4;

impl Batch {
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.large_bytes
    }

    pub(crate) fn push(&mut self, view: &MessageView<'_>, member: Option<ForMember<'_>>) {
        let large = view.shared_payload.is_some() || view.payload.len() >= SHARE_FROM_BYTES;
        let properties = view.properties.as_bytes();
        let mut flags = view.qos as u8;
        flags |= if view.retain { RETAIN } else { 0 };
        flags |= if large { LARGE } else { 0 };
        flags |= if member.is_some() { FOR_MEMBER } else { 0 };
        let out = &mut self.bytes;
        out.push(flags);
        out.extend_from_slice(&view.received_ms.to_le_bytes());
        out.extend_from_slice(&view.expires_ms.to_le_bytes());
        let mut text = |text: &str| {
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        };
        text(view.topic);
        text(view.from_client_id);
        text(view.from_username);
        if let Some(member) = member {
            text(member.filter);
            text(member.group);
            out.extend_from_slice(&member.nth.to_le_bytes());
        }
        out.extend_from_slice(&(properties.len() as u32).to_le_bytes());
        out.extend_from_slice(properties);
        if large {
            let shared = view.shared_payload.cloned();
            self.large
                .push(shared.unwrap_or_else(|| Bytes::copy_from_slice(view.payload)));
            self.large_bytes += view.payload.len();
        } else {
            out.extend_from_slice(&(view.payload.len() as u32).to_le_bytes());
            out.extend_from_slice(view.payload);
        }
        self.count += 1;
    }

    /// The messages in the order they were pushed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MessageView<'_>, Option<ForMember<'_>>)> {
        let mut reader = Reader { rest: &self.bytes };
        let mut large = self.large.iter();
        (0..self.count).map(move |_| {
            let flags = reader.take(1)[0];
            let received_ms = reader.u64();
            let expires_ms = reader.u64();
            let topic = text_of(reader.sized());
            let from_client_id = text_of(reader.sized());
            let from_username = text_of(reader.sized());
            let member = (flags & FOR_MEMBER != 0).then(|| ForMember {
                filter: text_of(reader.sized()),
                group: text_of(reader.sized()),
                nth: reader.u32(),
            });
            let properties = Properties::from_validated(reader.sized());
            let shared_payload = if flags & LARGE != 0 {
                large.next()
            } else {
                None
            };
            let payload = match shared_payload {
                Some(payload) => payload,
                None => reader.sized(),
            };
            let view = MessageView {
                topic,
                properties,
                payload,
                shared_payload,
                qos: QoS::try_from(flags & 3).expect("pushed from a QoS"),
                retain: flags & RETAIN != 0,
                received_ms,
                expires_ms,
                from_client_id,
                from_username,
            };
            (view, member)
        })
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes were taken"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes were taken"))
    }

    fn sized(&mut self) -> &'a [u8] {
        let len = self.u32() as usize;
        self.take(len)
    }
}

/// What a shard has to say to the others since it was last asked.
pub(crate) struct Links {
    this_shard: u16,
    outgoing: Vec<Vec<Said>>,
    /// Number of the last thing said that wants to be confirmed.
    sequence: u64,
    /// What each other shard has confirmed.
    applied: Vec<u64>,
    /// Shards something waits for, one bit each.
    pub(crate) waiting: u64,
}

impl Links {
    pub(crate) fn new(this_shard: u16, shards: u16) -> Self {
        Self {
            this_shard,
            outgoing: (0..shards).map(|_| Vec::new()).collect(),
            sequence: 0,
            applied: vec![0; usize::from(shards)],
            waiting: 0,
        }
    }

    pub(crate) fn push(
        &mut self,
        shard: u16,
        view: &MessageView<'_>,
        member: Option<ForMember<'_>>,
    ) {
        let outgoing = &mut self.outgoing[usize::from(shard)];
        if !matches!(outgoing.last(), Some(Said::Messages(_))) {
            outgoing.push(Said::Messages(Batch::default()));
        }
        let Some(Said::Messages(batch)) = outgoing.last_mut() else {
            return;
        };
        batch.push(view, member);
        self.waiting |= 1 << shard;
    }

    pub(crate) fn say(&mut self, shard: u16, said: Said) {
        self.outgoing[usize::from(shard)].push(said);
        self.waiting |= 1 << shard;
    }

    /// Says something to all others that they have to confirm; returns its number.
    pub(crate) fn announce(&mut self, said: impl Fn(u64) -> Said) -> u64 {
        self.sequence += 1;
        for shard in 0..self.outgoing.len() as u16 {
            if shard != self.this_shard {
                self.say(shard, said(self.sequence));
            }
        }
        self.sequence
    }

    pub(crate) fn applied_by(&mut self, shard: u16, sequence: u64) {
        let applied = &mut self.applied[usize::from(shard)];
        *applied = (*applied).max(sequence);
    }

    /// Whether every other shard has confirmed `sequence`.
    pub(crate) fn is_applied(&self, sequence: u64) -> bool {
        let this_shard = usize::from(self.this_shard);
        self.applied
            .iter()
            .enumerate()
            .all(|(n, &applied)| n == this_shard || applied >= sequence)
    }

    /// Takes what waits for a shard.
    pub(crate) fn take(&mut self, shard: u16) -> Vec<Said> {
        self.waiting &= !(1 << shard);
        std::mem::take(&mut self.outgoing[usize::from(shard)])
    }
}
