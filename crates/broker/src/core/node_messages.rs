//! What nodes of a cluster send to each other. Everything is validated when it is read. Another node may have another
//! version, and whoever can write to the network between nodes must not be able to stop one.
//!
//! All numbers are little-endian. A message begins with one byte for its kind; see [`NodeMessage`].

mod announcements;
mod exclusives;
mod fields;
mod sessions;
mod tunnels;

use bytes::{BufMut, Bytes, BytesMut};

pub(crate) use self::announcements::{Announcement, encode_announcements};
pub(crate) use self::exclusives::encode_exclusives;
pub(crate) use self::fields::NodeMessageError;
use self::fields::{
    ANNOUNCEMENTS, APPLIED, BATCH, COMPLETE, EXCLUSIVES, LOGGED, NodeMessageReader,
    RETAINED_DIGESTS, SESSIONS, STORE_STATE, STREAM, SUCCESSION, TUNNEL, put_text,
};
pub(crate) use self::sessions::encode_sessions;
pub(crate) use self::tunnels::encode_tunnel;
use super::cross_shard_batch::CrossShardBatch;
use super::exclusive_directory::ExclusiveMessage;
use super::retained_versions::{BUCKETS, RetainedDigests};
use super::session_directory::SessionMessage;
use super::tunnel::TunnelMessage;

/// Latest version of these messages.
pub const NODE_PROTOCOL: u32 = 6;
/// Oldest version that this node speaks as well. A release that changes these messages also speaks the version of the
/// release before, so that nodes can be upgraded one after the other.
pub const OLDEST_NODE_PROTOCOL: u32 = 5;

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
