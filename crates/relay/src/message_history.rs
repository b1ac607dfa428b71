//! The last messages of an endpoint.

use std::collections::VecDeque;

use hooks::relay::RelayPayloadKind;
use schemars::JsonSchema;
use serde::Serialize;

/// Longer texts are cut, with a marker.
const MAX_TEXT_CHARS: usize = 5000;
const CUT_MARKER: &str = "… (cut)";
/// Bytes that an entry counts for besides its texts.
const ENTRY_OVERHEAD_BYTES: usize = 64;

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

#[derive(Default)]
pub(crate) struct MessageHistory {
    entries: VecDeque<HistoryEntry>,
    bytes: usize,
}

fn size_of_entry(entry: &HistoryEntry) -> usize {
    let text = match &entry.payload {
        HistoryPayload::Text(text) => text.len(),
        HistoryPayload::BinaryBytes(_) => 0,
    };
    ENTRY_OVERHEAD_BYTES + entry.sender.len() + text
}

impl MessageHistory {
    /// Adds a message, keeping at most this number of messages and bytes.
    pub(crate) fn push(
        &mut self,
        kind: RelayPayloadKind,
        payload: &[u8],
        sender: &str,
        at_ms: u64,
        (max_messages, max_bytes): (usize, usize),
    ) {
        if max_messages == 0 {
            *self = Self::default();
            return;
        }
        let payload = match kind {
            RelayPayloadKind::Text => HistoryPayload::Text(cut(payload)),
            RelayPayloadKind::Binary => HistoryPayload::BinaryBytes(payload.len()),
        };
        let entry = HistoryEntry {
            at_ms,
            sender: sender.to_owned(),
            payload,
        };
        self.bytes += size_of_entry(&entry);
        self.entries.push_back(entry);
        while self.entries.len() > max_messages || self.bytes > max_bytes {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            self.bytes -= size_of_entry(&oldest);
        }
    }

    /// Newest first.
    pub(crate) fn newest(&self, limit: usize) -> Vec<HistoryEntry> {
        self.entries.iter().rev().take(limit).cloned().collect()
    }
}

fn cut(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => format!("{}{CUT_MARKER}", &text[..end]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_messages_are_kept_within_both_limits() {
        let mut history = MessageHistory::default();
        let mut push = |text: &str, limits| {
            history.push(RelayPayloadKind::Text, text.as_bytes(), "s", 1, limits);
            history.newest(10).len()
        };
        for n in 0..5 {
            assert_eq!(push(&n.to_string(), (3, 10_000)), 3.min(n + 1));
        }
        assert_eq!(push(&"x".repeat(500), (3, 600)), 1);
        assert_eq!(push("y", (3, 100)), 1);
        assert_eq!(push("z", (0, 100)), 0);
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let mut history = MessageHistory::default();
        let long = "ü".repeat(6000);
        history.push(
            RelayPayloadKind::Text,
            long.as_bytes(),
            "s",
            1,
            (1, 100_000),
        );
        let HistoryPayload::Text(text) = history.newest(1).remove(0).payload else {
            panic!("text expected");
        };
        assert_eq!(text.chars().count(), 5000 + CUT_MARKER.chars().count());
        assert!(text.ends_with(CUT_MARKER));
    }
}
