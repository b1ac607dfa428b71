//! The last messages of an endpoint.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::Serialize;

/// Longer texts are cut, with a marker.
const MAX_TEXT_CHARS: usize = 5000;
const CUT_MARKER: &str = "… (cut)";
/// Bytes that an entry counts for besides its texts.
const ENTRY_OVERHEAD_BYTES: usize = 64;
/// The buffer is not moved for less.
const MIN_UNUSED_BYTES: usize = 1024;

/// A kept message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HistoryEntry {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The device's name, `connection ` and its id, or the MQTT client id; empty: the node itself.
    pub sender: String,
    #[serde(flatten)]
    pub payload: HistoryPayload,
}

/// The message as it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryPayload {
    /// At most 5000 characters.
    Text(String),
    /// Length of a binary message, which is not kept.
    BinaryBytes(usize),
}

/// Senders and texts are one after the other in one buffer, so that a message costs a copy of its bytes. It allocates
/// nothing, and memory is used in order.
#[derive(Default)]
pub(crate) struct MessageHistory {
    messages: VecDeque<BufferedMessage>,
    /// Senders and texts of `messages`, from `begin` on.
    texts: Vec<u8>,
    begin: usize,
    bytes: usize,
}

/// What is kept of a message.
#[derive(Clone, Copy)]
pub(crate) enum KeptPayload<'a> {
    /// UTF-8, not longer than [`append_with_cut`] makes it.
    Text(&'a [u8]),
    Binary {
        bytes: usize,
    },
}

struct BufferedMessage {
    at_ms: u64,
    sender_bytes: u32,
    payload: BufferedPayload,
}

#[derive(Clone, Copy)]
enum BufferedPayload {
    Text { bytes: u32 },
    Binary { bytes: usize },
}

impl BufferedMessage {
    /// Bytes in the buffer.
    fn text_bytes(&self) -> usize {
        let text_bytes = match self.payload {
            BufferedPayload::Text { bytes } => bytes as usize,
            BufferedPayload::Binary { .. } => 0,
        };
        self.sender_bytes as usize + text_bytes
    }

    /// What it counts for.
    fn size(&self) -> usize {
        ENTRY_OVERHEAD_BYTES + self.text_bytes()
    }
}

impl MessageHistory {
    /// Adds a message, keeping at most this number of messages, which is not 0, and bytes.
    pub(crate) fn push(
        &mut self,
        payload: KeptPayload<'_>,
        sender: &str,
        at_ms: u64,
        (max_messages, max_bytes): (usize, usize),
    ) {
        while self.messages.len() >= max_messages {
            self.remove_oldest();
        }
        self.release_unused_memory();
        self.texts.extend_from_slice(sender.as_bytes());
        let payload = match payload {
            KeptPayload::Text(text) => {
                self.texts.extend_from_slice(text);
                // A text has at most 5000 characters.
                let bytes = text.len() as u32;
                BufferedPayload::Text { bytes }
            }
            KeptPayload::Binary { bytes } => BufferedPayload::Binary { bytes },
        };
        let message = BufferedMessage {
            at_ms,
            // The name of a device has at most 100 characters, a client id 65,535 bytes.
            sender_bytes: sender.len() as u32,
            payload,
        };
        self.bytes += message.size();
        self.messages.push_back(message);
        self.remove_excess((max_messages, max_bytes));
    }

    /// Applies new limits, which may be lower than before, and releases the memory of what is removed.
    pub(crate) fn limit_to(&mut self, limits: (usize, usize)) {
        let before = self.messages.len();
        self.remove_excess(limits);
        if self.messages.len() == before {
            return;
        }
        self.texts.drain(..self.begin);
        self.begin = 0;
        self.texts.shrink_to_fit();
        self.messages.shrink_to_fit();
    }

    fn remove_excess(&mut self, (max_messages, max_bytes): (usize, usize)) {
        while (self.messages.len() > max_messages || self.bytes > max_bytes) && self.remove_oldest()
        {
        }
    }

    fn remove_oldest(&mut self) -> bool {
        let Some(oldest) = self.messages.pop_front() else {
            return false;
        };
        self.begin += oldest.text_bytes();
        self.bytes -= oldest.size();
        true
    }

    /// Moves the texts to the front of the buffer once half of it is unused, which costs a copy of each byte at most.
    fn release_unused_memory(&mut self) {
        if self.begin < self.texts.len() - self.begin || self.begin < MIN_UNUSED_BYTES {
            return;
        }
        self.texts.drain(..self.begin);
        self.begin = 0;
        let enough = 4 * self.texts.len() + 2 * MIN_UNUSED_BYTES;
        if self.texts.capacity() > 2 * enough {
            self.texts.shrink_to(enough);
        }
    }

    /// Newest first.
    pub(crate) fn newest(&self, limit: usize) -> Vec<HistoryEntry> {
        let mut end = self.texts.len();
        let mut take_last = |bytes: usize| {
            let text = &self.texts[end - bytes..end];
            end -= bytes;
            String::from_utf8_lossy(text).into_owned()
        };
        let newest = self.messages.iter().rev().take(limit);
        let entries = newest.map(|message| HistoryEntry {
            at_ms: message.at_ms,
            payload: match message.payload {
                BufferedPayload::Text { bytes } => HistoryPayload::Text(take_last(bytes as usize)),
                BufferedPayload::Binary { bytes } => HistoryPayload::BinaryBytes(bytes),
            },
            sender: take_last(message.sender_bytes as usize),
        });
        entries.collect()
    }
}

/// Appends what is kept of a text: all of it, or its beginning.
pub(crate) fn append_with_cut(texts: &mut Vec<u8>, payload: &[u8]) {
    // There are at most as many characters as bytes.
    if payload.len() <= MAX_TEXT_CHARS {
        texts.extend_from_slice(payload);
        return;
    }
    let text = String::from_utf8_lossy(payload);
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => {
            texts.extend_from_slice(&text.as_bytes()[..end]);
            texts.extend_from_slice(CUT_MARKER.as_bytes());
        }
        None => texts.extend_from_slice(text.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_messages_are_kept_within_both_limits() {
        let mut history = MessageHistory::default();
        let mut push = |text: &str, limits| {
            history.push(KeptPayload::Text(text.as_bytes()), "s", 1, limits);
            history.newest(10).len()
        };
        for n in 0..5 {
            assert_eq!(push(&n.to_string(), (3, 10_000)), 3.min(n + 1));
        }
        assert_eq!(push(&"x".repeat(500), (3, 600)), 1);
        assert_eq!(push("y", (3, 100)), 1);
    }

    #[test]
    fn lower_limits_apply_at_once_and_release_memory() {
        let mut history = MessageHistory::default();
        for number in 0..40 {
            let text = format!("{number:02}{}", "x".repeat(998));
            history.push(KeptPayload::Text(text.as_bytes()), "s", 1, (50, 100_000));
        }
        let texts = |history: &MessageHistory| -> Vec<String> {
            let entries = history.newest(100).into_iter();
            let text = |entry: HistoryEntry| match entry.payload {
                HistoryPayload::Text(text) => text[..2].to_owned(),
                HistoryPayload::BinaryBytes(_) => panic!("only texts"),
            };
            entries.map(text).collect()
        };
        history.limit_to((40, 100_000));
        assert_eq!(texts(&history).len(), 40);
        history.limit_to((3, 100_000));
        assert_eq!(texts(&history), ["39", "38", "37"]);
        assert!(history.texts.capacity() < 4000);
        history.limit_to((3, 2500));
        assert_eq!(texts(&history), ["39", "38"]);
        history.push(KeptPayload::Text(b"40"), "s", 1, (3, 2500));
        assert_eq!(texts(&history), ["40", "39", "38"]);
        history.limit_to((0, 2500));
        assert_eq!((texts(&history).len(), history.bytes), (0, 0));
    }

    #[test]
    fn texts_stay_apart_while_the_oldest_go_and_their_memory_is_released() {
        let mut history = MessageHistory::default();
        let mut expected = VecDeque::new();
        for number in 0..2000_usize {
            let length = match number {
                300..330 => 4000,
                _ => number * 7 % 90,
            };
            let text = number.to_string().repeat(length / 4);
            let bytes = text.len();
            let (kept, payload) = match number % 5 {
                2 => (
                    KeptPayload::Binary { bytes },
                    HistoryPayload::BinaryBytes(bytes),
                ),
                _ => (
                    KeptPayload::Text(text.as_bytes()),
                    HistoryPayload::Text(text.clone()),
                ),
            };
            let sender = format!("sender {number}");
            let limits = (if number % 2 == 0 { 30 } else { 31 }, 60_000);
            history.push(kept, &sender, number as u64, limits);
            expected.push_front(HistoryEntry {
                at_ms: number as u64,
                sender,
                payload,
            });
            expected.truncate(history.messages.len());
            assert_eq!(expected, history.newest(100));
            assert_eq!(history.newest(1), [expected[0].clone()]);
            let sizes: usize = history.messages.iter().map(BufferedMessage::size).sum();
            assert_eq!(history.bytes, sizes);
            assert!(history.bytes <= limits.1 && history.messages.len() <= limits.0);
        }
        assert!(history.texts.capacity() < 32 << 10, "of long texts");
        assert!(history.texts.len() < 16 << 10);
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let mut kept = Vec::new();
        append_with_cut(&mut kept, "ü".repeat(6000).as_bytes());
        let text = String::from_utf8(kept).unwrap();
        assert_eq!(text.chars().count(), 5000 + CUT_MARKER.chars().count());
        assert!(text.ends_with(CUT_MARKER));
    }
}
