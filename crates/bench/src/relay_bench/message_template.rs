//! The messages of a load: text around a stamp, as it is sent and as every receiver must get it.

use anyhow::ensure;
use clap::ValueEnum;
use ws::{MaskKeys, Opcode, apply_mask, encode_header};

use crate::payload_stamp::{PayloadStamp, TEXT_BYTES};

/// Text in front of messages of endpoints with the mode `custom_header`.
pub(super) const CUSTOM_HEADER: &str = "bench:";

/// Mode of the endpoints; peers pass messages on unchanged in every mode but `custom_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RelayMode {
    Direct,
    Json,
    #[value(name = "custom_header")]
    CustomHeader,
}

impl RelayMode {
    /// The value of the endpoint's field `mode`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Json => "json",
            Self::CustomHeader => "custom_header",
        }
    }
}

/// What all messages of a load have in common.
#[derive(Clone, Debug)]
pub(super) struct MessageTemplate {
    sent_head: Vec<u8>,
    received_head: Vec<u8>,
    tail: Vec<u8>,
}

impl MessageTemplate {
    /// Messages of `bytes` bytes. In mode `json`, they are what the endpoint makes of them, so that they stay the same.
    pub(super) fn new(mode: RelayMode, bytes: usize) -> anyhow::Result<Self> {
        let (head, end): (&str, &str) = match mode {
            RelayMode::Json => (
                r#"{"type":"message","data":""#,
                r#"","timestamp":1700000000000}"#,
            ),
            RelayMode::Direct | RelayMode::CustomHeader => ("", ""),
        };
        let least = head.len() + TEXT_BYTES + end.len();
        ensure!(
            (least..=16 << 20).contains(&bytes),
            "--payload {bytes} is not between {least} bytes, which number and time need in mode {}, and 16 MiB",
            mode.name()
        );
        let mut tail = vec![b'x'; bytes - least];
        tail.extend(end.bytes());
        let mut received_head = Vec::new();
        if mode == RelayMode::CustomHeader {
            received_head.extend(CUSTOM_HEADER.bytes());
        }
        received_head.extend(head.bytes());
        Ok(Self {
            sent_head: head.as_bytes().to_vec(),
            received_head,
            tail,
        })
    }

    /// Length of a message as it is sent.
    pub(super) fn len(&self) -> usize {
        self.sent_head.len() + TEXT_BYTES + self.tail.len()
    }

    /// Appends a masked text frame with the stamp.
    pub(super) fn encode(&self, stamp: &PayloadStamp, keys: &mut MaskKeys, out: &mut Vec<u8>) {
        let key = keys.next_key();
        encode_header(Opcode::Text, self.len(), Some(key), out);
        let start = out.len();
        out.extend_from_slice(&self.sent_head);
        let stamp_at = out.len();
        out.resize(stamp_at + TEXT_BYTES, 0);
        stamp.write_text(&mut out[stamp_at..]);
        out.extend_from_slice(&self.tail);
        apply_mask(&mut out[start..], key);
    }

    /// The stamp of a received message; `None` if any other byte of it is not as it must be.
    #[inline]
    pub(super) fn read(&self, message: &[u8]) -> Option<PayloadStamp> {
        let rest = message.strip_prefix(self.received_head.as_slice())?;
        let (stamp, tail) = rest.split_at_checked(TEXT_BYTES)?;
        (tail == self.tail)
            .then(|| PayloadStamp::read_text(stamp))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_that_is_right_in_every_byte_is_read() {
        for mode in [RelayMode::Direct, RelayMode::Json, RelayMode::CustomHeader] {
            let template = MessageTemplate::new(mode, 128).expect("long enough");
            let stamp = PayloadStamp {
                run: 1,
                publisher: 2,
                sequence: 3,
                sent_ns: 4,
            };
            let mut frame = Vec::new();
            template.encode(&stamp, &mut MaskKeys::new(), &mut frame);
            // Two bytes, two bytes of length, the key.
            let key = [frame[4], frame[5], frame[6], frame[7]];
            let mut message = frame.split_off(8);
            apply_mask(&mut message, key);
            assert_eq!(message.len(), 128);
            if mode == RelayMode::Json {
                let value: serde_json::Value = serde_json::from_slice(&message).expect("JSON");
                assert_eq!(value["type"], "message");
            }
            if mode == RelayMode::CustomHeader {
                assert_eq!(template.read(&message), None);
                message.splice(0..0, CUSTOM_HEADER.bytes());
            }
            assert_eq!(template.read(&message), Some(stamp));
            let last = message.len() - 1;
            message[last] ^= 1;
            assert_eq!(template.read(&message), None);
            message.truncate(last);
            assert_eq!(template.read(&message), None);
        }
        let error = MessageTemplate::new(RelayMode::Direct, 50).expect_err("too short");
        assert!(error.to_string().contains("--payload 50"), "{error}");
    }
}
