//! What nodes of a cluster send to each other. Everything is validated when it is read. Another node may have another
//! version, and whoever can write to the network between nodes must not be able to stop one.
//!
//! All numbers are little-endian. A message begins with one byte for its kind; see [`NodeMessage`].

use bytes::{BufMut, Bytes, BytesMut};
use hooks::CertificateNames;
use thiserror::Error;

use super::cross_shard_batch::{BatchError, CrossShardBatch};
use super::exclusive_directory::ExclusiveMessage;
use super::retained_versions::{BUCKETS, RetainedDigests};
use super::session_directory::SessionMessage;
use super::shard_messages::{ExclusiveOutcome, SessionClaimOutcome};
use super::tunnel::{self, TunnelMessage, TunnelRequest};

/// Latest version of these messages.
pub const NODE_PROTOCOL: u32 = 6;
/// Oldest version that this node speaks as well. A release that changes these messages also speaks the version of the
/// release before, so that nodes can be upgraded one after the other.
pub const OLDEST_NODE_PROTOCOL: u32 = 5;

/// Bytes of announcements in one message, except that one announcement may be larger.
pub(crate) const ANNOUNCEMENTS_BYTES: usize = 64 << 10;

/// What a node wants, or no longer wants, from the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// The node has, or no longer has, non-shared subscribers to a filter.
    Filter { filter: Box<str>, wanted: bool },
    /// The number of the node's members in a group.
    Members {
        filter: Box<str>,
        group: Box<str>,
        online: u32,
        total: u32,
    },
}

impl Announcement {
    fn size_bytes(&self) -> usize {
        match self {
            Announcement::Filter { filter, .. } => 8 + filter.len(),
            Announcement::Members { filter, group, .. } => 24 + filter.len() + group.len(),
        }
    }
}

/// One message from a node to another.
#[derive(Debug)]
pub(crate) enum NodeMessage {
    /// Kind 1. `sequence` is the number of the last announcement.
    Announcements {
        sequence: u64,
        announcements: Vec<Announcement>,
    },
    /// Kind 2: the receiver has got all announcements that were made before it became reachable.
    Complete { sequence: u64 },
    /// Kind 3: the sender has applied all announcements up to this number.
    Applied { sequence: u64 },
    /// Kind 4: application messages, after the time of the sender's clock. `confirm`: the receiver confirms when they are in its log.
    Batch {
        number: u64,
        confirm: bool,
        batch: CrossShardBatch,
    },
    /// Kind 5: everything up to this batch of the receiver's stream is in the log of the sender.
    Logged { number: u64 },
    /// Kind 6: digests of the sender's retained messages; the number is their count.
    RetainedDigests(Box<RetainedDigests>),
    /// Kind 7; the number is their count.
    Sessions(Vec<SessionMessage>),
    /// Kind 8; the number is that of the tunnel at its entry.
    Tunnel { tunnel: u64, message: TunnelMessage },
    /// Kind 9: the numbered batches that follow belong to this stream.
    Stream { number: u64 },
    /// Kind 10: whether the store of the sender rejects writes (1) or not (0).
    StoreState { rejects: bool },
    /// Kind 11: the sender adopts the sessions of a node; the number is the state.
    Succession {
        state: SuccessionState,
        node: Box<str>,
    },
    /// Kind 12, since version 6; the number is their count.
    Exclusives(Vec<ExclusiveMessage>),
}

/// How far a node is that adopts the sessions of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuccessionState {
    Begun = 1,
    Adopted = 2,
    /// It does not adopt them.
    Cancelled = 3,
    /// It has adopted them before the receiver could be reached.
    AdoptedBefore = 4,
    /// It may adopt them when the node fails.
    Standby = 5,
    NoStandby = 6,
}

impl SuccessionState {
    pub(crate) fn of_standby(is_standby: bool) -> Self {
        match is_standby {
            true => SuccessionState::Standby,
            false => SuccessionState::NoStandby,
        }
    }
}

/// Why a message of another node cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NodeMessageError {
    #[error("it ends early")]
    Short,
    #[error("its kind {0} is unknown")]
    Kind(u8),
    #[error("a topic filter or group in it is invalid")]
    Filter,
    #[error("a client id, topic, node name or address in it is invalid")]
    Name,
    #[error("{0} bytes follow its end")]
    Excess(usize),
    #[error("an application message in it is invalid: {0}")]
    Batch(#[from] BatchError),
}

const ANNOUNCEMENTS: u8 = 1;
const COMPLETE: u8 = 2;
const APPLIED: u8 = 3;
const BATCH: u8 = 4;
const LOGGED: u8 = 5;
const RETAINED_DIGESTS: u8 = 6;
const SESSIONS: u8 = 7;
const TUNNEL: u8 = 8;
const STREAM: u8 = 9;
const STORE_STATE: u8 = 10;
const SUCCESSION: u8 = 11;
const EXCLUSIVES: u8 = 12;

const TUNNEL_OPEN: u8 = 1;
const TUNNEL_INPUT: u8 = 2;
const TUNNEL_OUTPUT_CREDIT: u8 = 3;
const TUNNEL_ENTRY_CLOSED: u8 = 4;
const TUNNEL_OUTPUT: u8 = 5;
const TUNNEL_INPUT_CREDIT: u8 = 6;
const TUNNEL_EXIT_CLOSED: u8 = 7;

/// More names than a certificate of a client has.
const MAX_CERTIFICATE_NAMES: u32 = 1000;

const SESSION_CLAIM: u8 = 1;
const SESSION_CLAIMED: u8 = 2;
const SESSION_REGISTER: u8 = 3;
const SESSION_RELEASE: u8 = 4;
const SESSION_TAKE_OVER: u8 = 5;
const SESSION_TAKEN_OVER: u8 = 6;
const SESSION_REGISTERED: u8 = 7;
const SESSIONS_RESTORING: u8 = 8;

/// Flags of a registration. To nodes that do not know the second one, any flag is the first one.
const REGISTER_PROVISIONAL: u8 = 1;
const REGISTER_ADOPTED: u8 = 1 << 1;

const CLAIM_GRANTED: u8 = 0;
const CLAIM_ELSEWHERE: u8 = 1;
const CLAIM_UNAVAILABLE: u8 = 2;
const CLAIM_GRANTED_PROVISIONALLY: u8 = 3;

const EXCLUSIVE_CLAIM: u8 = 1;
const EXCLUSIVE_CLAIMED: u8 = 2;
const EXCLUSIVE_REGISTER: u8 = 3;
const EXCLUSIVE_RELEASE: u8 = 4;
const EXCLUSIVE_END: u8 = 5;

const EXCLUSIVE_GRANTED: u8 = 0;
const EXCLUSIVE_HELD: u8 = 1;
const EXCLUSIVE_UNDECIDED: u8 = 2;

/// Bytes of session messages, or of those about exclusive subscriptions, in one message.
const SESSIONS_BYTES: usize = 64 << 10;

const FILTER_GONE: u8 = 0;
const FILTER_WANTED: u8 = 1;
const MEMBERS: u8 = 2;

/// Splits announcements into messages of bounded size. They have the number of the last announcement, so that the
/// receiver's confirmation of the first one confirms too much. Therefore all but the last have the number before.
pub(crate) fn encode_announcements(
    announcements: &[Announcement],
    sequence_before: u64,
    sequence: u64,
    mut send: impl FnMut(Bytes),
) {
    let mut rest = announcements;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take_while(|announcement| {
                bytes += announcement.size_bytes();
                bytes <= ANNOUNCEMENTS_BYTES
            })
            .count()
            .max(1);
        let (now, later) = rest.split_at(count);
        rest = later;
        let number = match rest.is_empty() {
            true => sequence,
            false => sequence_before,
        };
        let mut out = BytesMut::with_capacity(bytes + 16);
        out.put_u8(ANNOUNCEMENTS);
        out.put_u64_le(number);
        out.put_u32_le(now.len() as u32);
        for announcement in now {
            encode_announcement(announcement, &mut out);
        }
        send(out.freeze());
    }
}

fn encode_announcement(announcement: &Announcement, out: &mut BytesMut) {
    match announcement {
        Announcement::Filter { filter, wanted } => {
            out.put_u8(if *wanted { FILTER_WANTED } else { FILTER_GONE });
            put_text(out, filter);
        }
        Announcement::Members {
            filter,
            group,
            online,
            total,
        } => {
            out.put_u8(MEMBERS);
            put_text(out, filter);
            put_text(out, group);
            out.put_u32_le(*online);
            out.put_u32_le(*total);
        }
    }
}

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u32_le(text.len() as u32);
    out.put_slice(text.as_bytes());
}

/// Bytes in front of the application messages: kind, number, whether it is confirmed, and time.
const BATCH_HEAD_BYTES: usize = 18;
const BATCH_TIME_AT: usize = 10;

/// Encodes application messages; the batch is empty afterwards.
pub(crate) fn encode_batch(
    number: u64,
    confirm: bool,
    sent_ms: u64,
    batch: &mut CrossShardBatch,
) -> Bytes {
    let mut out = BytesMut::with_capacity(batch.size() + 64);
    out.put_u8(BATCH);
    out.put_u64_le(number);
    out.put_u8(confirm.into());
    out.put_u64_le(sent_ms);
    batch.encode_into(&mut out);
    batch.clear();
    out.freeze()
}

/// Encodes a batch of [`encode_batch`] again, for another time.
pub(crate) fn encode_batch_again(batch: &[u8], sent_ms: u64) -> Bytes {
    let mut out = BytesMut::from(batch);
    if let Some(time) = out.get_mut(BATCH_TIME_AT..BATCH_HEAD_BYTES) {
        time.copy_from_slice(&sent_ms.to_le_bytes());
    }
    out.freeze()
}

/// Reads the application messages that this node has encoded with [`encode_batch`].
pub(crate) fn decode_own_batch(batch: &[u8]) -> Option<CrossShardBatch> {
    CrossShardBatch::decode(batch.get(BATCH_HEAD_BYTES..)?, 0).ok()
}

fn encode_number(kind: u8, number: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(9);
    out.put_u8(kind);
    out.put_u64_le(number);
    out.freeze()
}

pub(crate) fn encode_complete(sequence: u64) -> Bytes {
    encode_number(COMPLETE, sequence)
}

pub(crate) fn encode_applied(sequence: u64) -> Bytes {
    encode_number(APPLIED, sequence)
}

pub(crate) fn encode_logged(number: u64) -> Bytes {
    encode_number(LOGGED, number)
}

pub(crate) fn encode_stream(number: u64) -> Bytes {
    encode_number(STREAM, number)
}

pub(crate) fn encode_store_state(rejects: bool) -> Bytes {
    encode_number(STORE_STATE, rejects.into())
}

pub(crate) fn encode_succession(state: SuccessionState, node: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(13 + node.len());
    out.put_u8(SUCCESSION);
    out.put_u64_le(state as u64);
    put_text(&mut out, node);
    out.freeze()
}

pub(crate) fn encode_retained_digests(digests: &RetainedDigests) -> Bytes {
    let mut out = BytesMut::with_capacity(9 + 8 * BUCKETS);
    out.put_u8(RETAINED_DIGESTS);
    out.put_u64_le(BUCKETS as u64);
    for &digest in digests {
        out.put_u64_le(digest);
    }
    out.freeze()
}

/// Splits session messages into messages of bounded size.
pub(crate) fn encode_sessions(messages: &[SessionMessage], send: impl FnMut(Bytes)) {
    encode_split(SESSIONS, messages, encode_session_message, send);
}

/// Splits messages about exclusive subscriptions into messages of bounded size.
pub(crate) fn encode_exclusives(messages: &[ExclusiveMessage], send: impl FnMut(Bytes)) {
    encode_split(EXCLUSIVES, messages, encode_exclusive_message, send);
}

fn encode_split<T>(
    kind: u8,
    messages: &[T],
    encode: impl Fn(&T, &mut BytesMut),
    mut send: impl FnMut(Bytes),
) {
    let mut rest = messages;
    while !rest.is_empty() {
        let mut body = BytesMut::new();
        let mut count = 0;
        while count < rest.len() && body.len() < SESSIONS_BYTES {
            encode(&rest[count], &mut body);
            count += 1;
        }
        rest = &rest[count..];
        let mut out = BytesMut::with_capacity(9 + body.len());
        out.put_u8(kind);
        out.put_u64_le(count as u64);
        out.put_slice(&body);
        send(out.freeze());
    }
}

/// All have a kind, a flag or outcome, a number and a text; unused ones are 0 or empty.
fn encode_session_message(message: &SessionMessage, out: &mut BytesMut) {
    let (kind, flag, number, text) = match message {
        SessionMessage::Claim {
            request,
            keep,
            client_id,
        } => (SESSION_CLAIM, u8::from(*keep), *request, &**client_id),
        SessionMessage::Claimed { request, outcome } => {
            let (flag, node) = match outcome {
                SessionClaimOutcome::Granted {
                    is_provisional: false,
                } => (CLAIM_GRANTED, ""),
                SessionClaimOutcome::Granted {
                    is_provisional: true,
                } => (CLAIM_GRANTED_PROVISIONALLY, ""),
                SessionClaimOutcome::Elsewhere { node } => (CLAIM_ELSEWHERE, &**node),
                SessionClaimOutcome::Unavailable => (CLAIM_UNAVAILABLE, ""),
            };
            (SESSION_CLAIMED, flag, *request, node)
        }
        SessionMessage::Register {
            age_ms,
            is_provisional,
            is_adopted,
            client_id,
        } => {
            let flag = match (*is_provisional, *is_adopted) {
                // Whether it was adopted does not matter then.
                (false, _) => 0,
                (true, false) => REGISTER_PROVISIONAL,
                (true, true) => REGISTER_PROVISIONAL | REGISTER_ADOPTED,
            };
            (SESSION_REGISTER, flag, *age_ms, &**client_id)
        }
        SessionMessage::Release { client_id } => (SESSION_RELEASE, 0, 0, &**client_id),
        SessionMessage::TakeOver {
            request,
            keep,
            client_id,
        } => (SESSION_TAKE_OVER, u8::from(*keep), *request, &**client_id),
        SessionMessage::TakenOver { request, kept } => {
            (SESSION_TAKEN_OVER, u8::from(*kept), *request, "")
        }
        SessionMessage::Registered { view } => (SESSION_REGISTERED, 0, *view, ""),
        SessionMessage::Restoring => (SESSIONS_RESTORING, 0, 0, ""),
    };
    out.put_u8(kind);
    out.put_u8(flag);
    out.put_u64_le(number);
    put_text(out, text);
}

/// All have a kind, an outcome, a number, a topic and a client id; unused ones are 0 or empty.
fn encode_exclusive_message(message: &ExclusiveMessage, out: &mut BytesMut) {
    let (kind, outcome, number, topic, client_id) = match message {
        ExclusiveMessage::Claim {
            request,
            topic,
            client_id,
        } => (EXCLUSIVE_CLAIM, 0, *request, &**topic, &**client_id),
        ExclusiveMessage::Claimed { request, outcome } => {
            let outcome = match outcome {
                ExclusiveOutcome::Granted => EXCLUSIVE_GRANTED,
                ExclusiveOutcome::Held => EXCLUSIVE_HELD,
                ExclusiveOutcome::Undecided => EXCLUSIVE_UNDECIDED,
            };
            (EXCLUSIVE_CLAIMED, outcome, *request, "", "")
        }
        ExclusiveMessage::Register {
            age_ms,
            topic,
            client_id,
        } => (EXCLUSIVE_REGISTER, 0, *age_ms, &**topic, &**client_id),
        ExclusiveMessage::Release { topic, client_id } => {
            (EXCLUSIVE_RELEASE, 0, 0, &**topic, &**client_id)
        }
        ExclusiveMessage::End { topic, client_id } => (EXCLUSIVE_END, 0, 0, &**topic, &**client_id),
    };
    out.put_u8(kind);
    out.put_u8(outcome);
    out.put_u64_le(number);
    put_text(out, topic);
    put_text(out, client_id);
}

pub(crate) fn encode_tunnel(tunnel: u64, message: &TunnelMessage) -> Bytes {
    let (kind, body) = match message {
        TunnelMessage::Open(_) => (TUNNEL_OPEN, &[][..]),
        TunnelMessage::Input(bytes) => (TUNNEL_INPUT, &**bytes),
        TunnelMessage::OutputCredit(bytes) => (TUNNEL_OUTPUT_CREDIT, &bytes.to_le_bytes()[..]),
        TunnelMessage::EntryClosed => (TUNNEL_ENTRY_CLOSED, &[][..]),
        TunnelMessage::Output(bytes) => (TUNNEL_OUTPUT, &**bytes),
        TunnelMessage::InputCredit(bytes) => (TUNNEL_INPUT_CREDIT, &bytes.to_le_bytes()[..]),
        TunnelMessage::ExitClosed => (TUNNEL_EXIT_CLOSED, &[][..]),
    };
    let mut out = BytesMut::with_capacity(10 + body.len());
    out.put_u8(TUNNEL);
    out.put_u64_le(tunnel);
    out.put_u8(kind);
    out.put_slice(body);
    if let TunnelMessage::Open(request) = message {
        encode_tunnel_request(request, &mut out);
    }
    out.freeze()
}

fn encode_tunnel_request(request: &TunnelRequest, out: &mut BytesMut) {
    put_text(out, &request.node);
    put_text(out, &request.listener);
    put_text(out, &tunnel::address_text(request.peer));
    match &request.certificate {
        None => out.put_u8(0),
        Some(names) => {
            out.put_u8(1);
            out.put_u8(names.common_name.is_some().into());
            put_text(out, names.common_name.as_deref().unwrap_or_default());
            out.put_u32_le(names.alternative_names.len() as u32);
            for name in &names.alternative_names {
                put_text(out, name);
            }
        }
    }
    out.put_slice(&request.connect);
}

/// Reads a message. Times in it are converted to this node's clock, which shows `now_ms`. What it returns refers to no
/// memory of the message, since some of it is kept for long.
pub(crate) fn decode(bytes: &[u8], now_ms: u64) -> Result<NodeMessage, NodeMessageError> {
    let mut reader = NodeMessageReader { rest: bytes };
    let kind = reader.u8()?;
    let number = reader.u64()?;
    let message = match kind {
        ANNOUNCEMENTS => NodeMessage::Announcements {
            sequence: number,
            announcements: reader.announcements()?,
        },
        COMPLETE => NodeMessage::Complete { sequence: number },
        APPLIED => NodeMessage::Applied { sequence: number },
        LOGGED => NodeMessage::Logged { number },
        STREAM => NodeMessage::Stream { number },
        STORE_STATE => NodeMessage::StoreState {
            rejects: number != 0,
        },
        SUCCESSION => NodeMessage::Succession {
            state: match number {
                1 => SuccessionState::Begun,
                2 => SuccessionState::Adopted,
                4 => SuccessionState::AdoptedBefore,
                5 => SuccessionState::Standby,
                6 => SuccessionState::NoStandby,
                _ => SuccessionState::Cancelled,
            },
            node: reader.name()?,
        },
        RETAINED_DIGESTS => {
            let mut digests = Box::new([0; BUCKETS]);
            for digest in digests.iter_mut() {
                *digest = reader.u64()?;
            }
            NodeMessage::RetainedDigests(digests)
        }
        SESSIONS => {
            let mut messages = Vec::new();
            for _ in 0..number {
                messages.push(reader.session_message()?);
            }
            NodeMessage::Sessions(messages)
        }
        EXCLUSIVES => {
            let mut messages = Vec::new();
            for _ in 0..number {
                messages.push(reader.exclusive_message()?);
            }
            NodeMessage::Exclusives(messages)
        }
        TUNNEL => {
            let message = reader.tunnel_message()?;
            return Ok(NodeMessage::Tunnel {
                tunnel: number,
                message,
            });
        }
        BATCH => {
            let confirm = reader.u8()? != 0;
            let sent_ms = reader.u64()?;
            let clock_ms = (now_ms as i64).saturating_sub(sent_ms as i64);
            let batch = CrossShardBatch::decode(reader.rest, clock_ms)?;
            return Ok(NodeMessage::Batch {
                number,
                confirm,
                batch,
            });
        }
        other => return Err(NodeMessageError::Kind(other)),
    };
    match reader.rest.len() {
        0 => Ok(message),
        excess => Err(NodeMessageError::Excess(excess)),
    }
}

struct NodeMessageReader<'a> {
    rest: &'a [u8],
}

impl<'a> NodeMessageReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], NodeMessageError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(NodeMessageError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, NodeMessageError> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, NodeMessageError> {
        let taken = self.take(4)?;
        Ok(u32::from_le_bytes([taken[0], taken[1], taken[2], taken[3]]))
    }

    fn u64(&mut self) -> Result<u64, NodeMessageError> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }

    /// A text; `invalid` is the error if it is not UTF-8.
    fn text(&mut self, invalid: NodeMessageError) -> Result<&'a str, NodeMessageError> {
        let len = self.u32()? as usize;
        std::str::from_utf8(self.take(len)?).map_err(|_| invalid)
    }

    fn filter(&mut self) -> Result<Box<str>, NodeMessageError> {
        let text = self.text(NodeMessageError::Filter)?;
        // It may begin like an extension: `$share/g/$queue/a` subscribes to `$queue/a`.
        match mqtt::validate_topic_filter(text, &mqtt::TopicLimits::NONE) {
            Ok(()) => Ok(text.into()),
            Err(_) => Err(NodeMessageError::Filter),
        }
    }

    fn exclusive_message(&mut self) -> Result<ExclusiveMessage, NodeMessageError> {
        let (kind, outcome, number) = (self.u8()?, self.u8()?, self.u64()?);
        let (topic, client_id) = (self.name()?, self.name()?);
        Ok(match kind {
            EXCLUSIVE_CLAIM => ExclusiveMessage::Claim {
                request: number,
                topic,
                client_id,
            },
            EXCLUSIVE_CLAIMED => ExclusiveMessage::Claimed {
                request: number,
                outcome: match outcome {
                    EXCLUSIVE_GRANTED => ExclusiveOutcome::Granted,
                    EXCLUSIVE_HELD => ExclusiveOutcome::Held,
                    EXCLUSIVE_UNDECIDED => ExclusiveOutcome::Undecided,
                    other => return Err(NodeMessageError::Kind(other)),
                },
            },
            EXCLUSIVE_REGISTER => ExclusiveMessage::Register {
                age_ms: number,
                topic,
                client_id,
            },
            EXCLUSIVE_RELEASE => ExclusiveMessage::Release { topic, client_id },
            EXCLUSIVE_END => ExclusiveMessage::End { topic, client_id },
            other => return Err(NodeMessageError::Kind(other)),
        })
    }

    fn session_message(&mut self) -> Result<SessionMessage, NodeMessageError> {
        let (kind, flag, number) = (self.u8()?, self.u8()?, self.u64()?);
        let text = self.text(NodeMessageError::Name)?;
        let is_flag = flag != 0;
        Ok(match kind {
            SESSION_CLAIM => SessionMessage::Claim {
                request: number,
                keep: is_flag,
                client_id: text.into(),
            },
            SESSION_CLAIMED => SessionMessage::Claimed {
                request: number,
                outcome: match flag {
                    CLAIM_GRANTED | CLAIM_GRANTED_PROVISIONALLY => SessionClaimOutcome::Granted {
                        is_provisional: flag == CLAIM_GRANTED_PROVISIONALLY,
                    },
                    CLAIM_ELSEWHERE => SessionClaimOutcome::Elsewhere { node: text.into() },
                    CLAIM_UNAVAILABLE => SessionClaimOutcome::Unavailable,
                    other => return Err(NodeMessageError::Kind(other)),
                },
            },
            SESSION_REGISTER => SessionMessage::Register {
                age_ms: number,
                is_provisional: flag & REGISTER_PROVISIONAL != 0,
                is_adopted: flag & REGISTER_ADOPTED != 0,
                client_id: text.into(),
            },
            SESSION_RELEASE => SessionMessage::Release {
                client_id: text.into(),
            },
            SESSION_TAKE_OVER => SessionMessage::TakeOver {
                request: number,
                keep: is_flag,
                client_id: text.into(),
            },
            SESSION_TAKEN_OVER => SessionMessage::TakenOver {
                request: number,
                kept: is_flag,
            },
            SESSION_REGISTERED => SessionMessage::Registered { view: number },
            SESSIONS_RESTORING => SessionMessage::Restoring,
            other => return Err(NodeMessageError::Kind(other)),
        })
    }

    fn name(&mut self) -> Result<Box<str>, NodeMessageError> {
        Ok(self.text(NodeMessageError::Name)?.into())
    }

    /// The rest of the message.
    fn tunnel_message(&mut self) -> Result<TunnelMessage, NodeMessageError> {
        let message = match self.u8()? {
            TUNNEL_OPEN => TunnelMessage::Open(Box::new(self.tunnel_request()?)),
            TUNNEL_INPUT => TunnelMessage::Input(self.take_rest()),
            TUNNEL_OUTPUT_CREDIT => TunnelMessage::OutputCredit(self.u32()?),
            TUNNEL_ENTRY_CLOSED => TunnelMessage::EntryClosed,
            TUNNEL_OUTPUT => TunnelMessage::Output(self.take_rest()),
            TUNNEL_INPUT_CREDIT => TunnelMessage::InputCredit(self.u32()?),
            TUNNEL_EXIT_CLOSED => TunnelMessage::ExitClosed,
            other => return Err(NodeMessageError::Kind(other)),
        };
        match self.rest.len() {
            0 => Ok(message),
            excess => Err(NodeMessageError::Excess(excess)),
        }
    }

    fn take_rest(&mut self) -> Bytes {
        Bytes::copy_from_slice(std::mem::take(&mut self.rest))
    }

    fn tunnel_request(&mut self) -> Result<TunnelRequest, NodeMessageError> {
        let (node, listener) = (self.name()?, self.name()?);
        let peer = tunnel::parse_address(&self.name()?).ok_or(NodeMessageError::Name)?;
        let certificate = match self.u8()? {
            0 => None,
            _ => Some(self.certificate_names()?),
        };
        Ok(TunnelRequest {
            node,
            listener,
            peer,
            certificate,
            connect: self.take_rest(),
        })
    }

    fn certificate_names(&mut self) -> Result<CertificateNames, NodeMessageError> {
        let has_common_name = self.u8()? != 0;
        let common_name = self.name()?;
        let count = self.u32()?;
        if count > MAX_CERTIFICATE_NAMES {
            return Err(NodeMessageError::Name);
        }
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(self.name()?);
        }
        Ok(CertificateNames {
            common_name: has_common_name.then_some(common_name),
            alternative_names: names.into(),
        })
    }

    fn announcements(&mut self) -> Result<Vec<Announcement>, NodeMessageError> {
        let count = self.u32()?;
        let mut announcements = Vec::new();
        for _ in 0..count {
            announcements.push(match self.u8()? {
                kind @ (FILTER_GONE | FILTER_WANTED) => Announcement::Filter {
                    filter: self.filter()?,
                    wanted: kind == FILTER_WANTED,
                },
                MEMBERS => Announcement::Members {
                    filter: self.filter()?,
                    group: self.text(NodeMessageError::Filter)?.into(),
                    online: self.u32()?,
                    total: self.u32()?,
                },
                other => return Err(NodeMessageError::Kind(other)),
            });
        }
        Ok(announcements)
    }
}

#[cfg(test)]
mod tests {
    use hooks::{MessageView, NEVER_MS};
    use mqtt::{Properties, QoS};

    use super::*;

    #[test]
    fn what_was_read_keeps_no_message_between_nodes_in_memory() {
        let payload = vec![7; 100_000];
        let mut batch = CrossShardBatch::default();
        let view = MessageView {
            topic: "t",
            properties: Properties::EMPTY,
            payload: &payload,
            shared_payload: None,
            qos: QoS::AtLeastOnce,
            retain: true,
            received_ms: 1,
            expires_ms: NEVER_MS,
            from_client_id: "",
            from_username: "",
            is_derived: false,
            number: 0,
        };
        batch.push(&view, None, None, None);
        let messages = [
            encode_batch(1, true, 1, &mut batch),
            encode_tunnel(1, &TunnelMessage::Input(payload.clone().into())),
        ];
        for message in messages {
            let read = decode(&message, 1);
            assert!(read.is_ok());
            assert!(message.is_unique(), "{read:?} refers to the message");
        }
    }
}
