//! Messages about exclusive subscriptions, see [`ExclusiveMessage`].

use bytes::{BufMut, Bytes, BytesMut};

use super::fields::{EXCLUSIVES, NodeMessageError, NodeMessageReader, encode_split, put_text};
use crate::core::exclusive_directory::ExclusiveMessage;
use crate::core::shard_messages::ExclusiveOutcome;

const EXCLUSIVE_CLAIM: u8 = 1;
const EXCLUSIVE_CLAIMED: u8 = 2;
const EXCLUSIVE_REGISTER: u8 = 3;
const EXCLUSIVE_RELEASE: u8 = 4;
const EXCLUSIVE_END: u8 = 5;

const EXCLUSIVE_GRANTED: u8 = 0;
const EXCLUSIVE_HELD: u8 = 1;
const EXCLUSIVE_UNDECIDED: u8 = 2;

/// Splits messages about exclusive subscriptions into messages of bounded size.
pub(crate) fn encode_exclusives(messages: &[ExclusiveMessage], send: impl FnMut(Bytes)) {
    encode_split(EXCLUSIVES, messages, encode_exclusive_message, send);
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

impl NodeMessageReader<'_> {
    pub(super) fn exclusive_message(&mut self) -> Result<ExclusiveMessage, NodeMessageError> {
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
}
