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
/// Unused memory that a text may keep, besides its own length.
const MAX_SPARE_BYTES: usize = 128;

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
        let (mut text, mut name) = match self.entries.len() >= max_messages {
            true => self.remove_oldest().map_or_else(Default::default, texts_of),
            false => Default::default(),
        };
        replace_text(&mut name, sender);
        let payload = match kind {
            RelayPayloadKind::Text => {
                replace_with_cut(&mut text, payload);
                HistoryPayload::Text(text)
            }
            RelayPayloadKind::Binary => HistoryPayload::BinaryBytes(payload.len()),
        };
        let entry = HistoryEntry {
            at_ms,
            sender: name,
            payload,
        };
        self.bytes += size_of_entry(&entry);
        self.entries.push_back(entry);
        while self.entries.len() > max_messages || self.bytes > max_bytes {
            if self.remove_oldest().is_none() {
                break;
            }
        }
    }

    fn remove_oldest(&mut self) -> Option<HistoryEntry> {
        let oldest = self.entries.pop_front()?;
        self.bytes -= size_of_entry(&oldest);
        Some(oldest)
    }

    /// Newest first.
    pub(crate) fn newest(&self, limit: usize) -> Vec<HistoryEntry> {
        self.entries.iter().rev().take(limit).cloned().collect()
    }
}

/// The texts of an entry that has been removed: an endpoint whose history is full then allocates nothing for a message.
fn texts_of(entry: HistoryEntry) -> (String, String) {
    match entry.payload {
        HistoryPayload::Text(text) => (text, entry.sender),
        HistoryPayload::BinaryBytes(_) => (String::new(), entry.sender),
    }
}

/// Replaces a text, without keeping much more memory than the new one needs.
fn replace_text(text: &mut String, new: &str) {
    text.clear();
    if text.capacity() > 2 * new.len() + MAX_SPARE_BYTES {
        *text = String::new();
    }
    text.push_str(new);
}

/// Replaces a text with the beginning of a payload.
fn replace_with_cut(text: &mut String, payload: &[u8]) {
    let new = String::from_utf8_lossy(payload);
    // There are at most as many characters as bytes.
    let cut = match new.len() > MAX_TEXT_CHARS {
        true => new.char_indices().nth(MAX_TEXT_CHARS),
        false => None,
    };
    match cut {
        Some((end, _)) => {
            replace_text(text, &new[..end]);
            text.push_str(CUT_MARKER);
        }
        None => replace_text(text, &new),
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
    fn texts_of_removed_messages_are_reused_and_not_mixed_up() {
        let mut history = MessageHistory::default();
        let limits = (3, 100_000);
        let long = "x".repeat(4000);
        for (number, text) in [&long, "a", "bb", "ccc", "dddd"].into_iter().enumerate() {
            let kind = match number {
                2 => RelayPayloadKind::Binary,
                _ => RelayPayloadKind::Text,
            };
            history.push(kind, text.as_bytes(), &format!("s{number}"), 1, limits);
        }
        let text = |text: &str| HistoryPayload::Text(text.to_owned());
        let expected = [
            ("s4", text("dddd")),
            ("s3", text("ccc")),
            ("s2", HistoryPayload::BinaryBytes(2)),
        ];
        let kept = history.newest(10).into_iter();
        let kept: Vec<_> = kept.map(|entry| (entry.sender, entry.payload)).collect();
        assert_eq!(
            kept,
            expected.map(|(name, payload)| (name.to_owned(), payload))
        );
        for entry in &history.entries {
            let HistoryPayload::Text(text) = &entry.payload else {
                continue;
            };
            assert!(text.capacity() < 1000, "the memory of a long text is kept");
        }
        let bytes: usize = history.entries.iter().map(size_of_entry).sum();
        assert_eq!(history.bytes, bytes);
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
