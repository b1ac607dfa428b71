//! Messages about the places of sessions, see [`SessionMessage`].

use bytes::{BufMut, Bytes, BytesMut};

use super::fields::{NodeMessageError, NodeMessageReader, SESSIONS, encode_split, put_text};
use crate::core::origin_node::OriginNode;
use crate::core::session_directory::SessionMessage;
use crate::core::shard_messages::SessionClaimOutcome;

const SESSION_CLAIM: u8 = 1;
const SESSION_CLAIMED: u8 = 2;
const SESSION_REGISTER: u8 = 3;
const SESSION_RELEASE: u8 = 4;
const SESSION_TAKE_OVER: u8 = 5;
const SESSION_TAKEN_OVER: u8 = 6;
const SESSION_REGISTERED: u8 = 7;
const SESSIONS_RESTORING: u8 = 8;

/// Flags of a registration.
const REGISTER_PROVISIONAL: u8 = 1;
const REGISTER_ADOPTED: u8 = 1 << 1;
/// The number of flags, behind which is the node that the session was adopted from.
const REGISTER_FLAGS: u32 = 2;
const _: () = assert!(REGISTER_FLAGS + OriginNode::BITS == u8::BITS);

const CLAIM_GRANTED: u8 = 0;
const CLAIM_ELSEWHERE: u8 = 1;
const CLAIM_UNAVAILABLE: u8 = 2;
const CLAIM_GRANTED_PROVISIONALLY: u8 = 3;

/// Splits session messages into messages of bounded size.
pub(crate) fn encode_sessions(messages: &[SessionMessage], send: impl FnMut(Bytes)) {
    encode_split(SESSIONS, messages, encode_session_message, send);
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
            adopted_from,
            client_id,
        } => {
            let adopted =
                adopted_from.map_or(0, |from| REGISTER_ADOPTED | from.bits() << REGISTER_FLAGS);
            let flag = match is_provisional {
                true => adopted | REGISTER_PROVISIONAL,
                false => adopted,
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

impl NodeMessageReader<'_> {
    pub(super) fn session_message(&mut self) -> Result<SessionMessage, NodeMessageError> {
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
                adopted_from: (flag & REGISTER_ADOPTED != 0)
                    .then(|| OriginNode::from_bits(flag >> REGISTER_FLAGS)),
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
}
