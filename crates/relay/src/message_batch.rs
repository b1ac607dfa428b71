//! Messages that are counted and kept together, because a client has sent them with one read.
//!
//! Counters and last messages of an endpoint are shared by all shards. Recording a fast client's messages one by one
//! took 11 % of the time of a node that relays them between pairs. Most of that was the wait until each message was in
//! memory that other threads see.

use std::cell::RefCell;
use std::sync::Arc;

use hooks::MessageView;
use hooks::relay::{RelayPayloadKind, payload_kind};

use crate::endpoint::Endpoint;
use crate::message_history::{KeptPayload, append_with_cut};

/// The texts of a batch are recorded before they exceed this.
const MAX_TEXT_BYTES: usize = 256 * 1024;

thread_local! {
    /// Each shard has a thread, so that a message needs no lock.
    static BATCH: RefCell<MessageBatch> = const { RefCell::new(MessageBatch::new()) };
}

/// Messages of one sender to one endpoint, not recorded yet.
pub(crate) struct MessageBatch {
    /// `None`: the batch is empty.
    endpoint: Option<Arc<Endpoint>>,
    sender: String,
    at_ms: u64,
    payload_bytes: usize,
    messages: Vec<BatchedPayload>,
    texts: Vec<u8>,
}

enum BatchedPayload {
    /// Bytes in `texts`.
    Text {
        bytes: usize,
    },
    Binary {
        bytes: usize,
    },
}

/// Adds a message to the batch of this thread. Text is valid UTF-8.
pub(crate) fn add_message(
    endpoint: &Arc<Endpoint>,
    sender: &str,
    kind: RelayPayloadKind,
    payload: &[u8],
    at_ms: u64,
) {
    BATCH.with_borrow_mut(|batch| {
        if !batch.is_of(endpoint, sender, at_ms) {
            batch.record();
            batch.begin(endpoint, sender, at_ms);
        }
        batch.add(kind, payload);
    });
}

/// Records a message of something other than a connection at once.
pub(crate) fn record_published(endpoint: &Arc<Endpoint>, message: &MessageView<'_>) {
    let (kind, sender) = (payload_kind(message), message.from_client_id);
    add_message(endpoint, sender, kind, message.payload, message.received_ms);
    record_messages();
}

/// Records the batch of this thread.
pub(crate) fn record_messages() {
    BATCH.with_borrow_mut(MessageBatch::record);
}

impl MessageBatch {
    const fn new() -> Self {
        Self {
            endpoint: None,
            sender: String::new(),
            at_ms: 0,
            payload_bytes: 0,
            messages: Vec::new(),
            texts: Vec::new(),
        }
    }

    fn is_of(&self, endpoint: &Arc<Endpoint>, sender: &str, at_ms: u64) -> bool {
        self.at_ms == at_ms
            && self.texts.len() < MAX_TEXT_BYTES
            && (self.endpoint.as_ref()).is_some_and(|own| Arc::ptr_eq(own, endpoint))
            && self.sender == sender
    }

    fn begin(&mut self, endpoint: &Arc<Endpoint>, sender: &str, at_ms: u64) {
        self.endpoint = Some(endpoint.clone());
        self.sender.push_str(sender);
        self.at_ms = at_ms;
    }

    fn add(&mut self, kind: RelayPayloadKind, payload: &[u8]) {
        self.payload_bytes += payload.len();
        self.messages.push(match kind {
            RelayPayloadKind::Text => {
                let before = self.texts.len();
                append_with_cut(&mut self.texts, payload);
                let bytes = self.texts.len() - before;
                BatchedPayload::Text { bytes }
            }
            RelayPayloadKind::Binary => BatchedPayload::Binary {
                bytes: payload.len(),
            },
        });
    }

    fn record(&mut self) {
        let Some(endpoint) = self.endpoint.take() else {
            return;
        };
        (endpoint.counters).messages(self.messages.len(), self.payload_bytes, self.at_ms);
        endpoint.keep_messages(self.payloads(), &self.sender, self.at_ms);
        self.sender.clear();
        self.payload_bytes = 0;
        self.messages.clear();
        self.texts.clear();
        self.texts.shrink_to(MAX_TEXT_BYTES);
    }

    /// The messages in the order in which they were sent.
    fn payloads(&self) -> impl ExactSizeIterator<Item = KeptPayload<'_>> {
        let mut begin = 0;
        self.messages.iter().map(move |message| match *message {
            BatchedPayload::Text { bytes } => {
                let end = begin + bytes;
                let text = &self.texts[begin..end];
                begin = end;
                KeptPayload::Text(text)
            }
            BatchedPayload::Binary { bytes } => KeptPayload::Binary { bytes },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::EndpointDefinition;
    use crate::message_history::HistoryPayload;
    use crate::statistics::StatisticsCounters;

    fn endpoint(history_messages: u16) -> Arc<Endpoint> {
        let definition = json!({"history_messages": history_messages});
        let definition = EndpointDefinition::read(definition, None).unwrap();
        let counters = StatisticsCounters::default();
        Arc::new(Endpoint::new("room", definition, counters))
    }

    /// Sender and text of the last messages, newest first.
    fn kept(endpoint: &Endpoint) -> Vec<(String, String)> {
        let entries = endpoint.history(100).into_iter();
        let shown = entries.map(|entry| match entry.payload {
            HistoryPayload::Text(text) => (entry.sender, text),
            HistoryPayload::BinaryBytes(bytes) => (entry.sender, format!("{bytes} bytes")),
        });
        shown.collect()
    }

    fn expected(entries: &[(&str, &str)]) -> Vec<(String, String)> {
        let entries = entries.iter();
        entries
            .map(|&(sender, text)| (sender.to_owned(), text.to_owned()))
            .collect()
    }

    #[test]
    fn messages_are_recorded_in_their_order_whoever_sent_them() {
        let (one, other) = (endpoint(50), endpoint(50));
        let text = |to: &Arc<Endpoint>, sender, text: &str| {
            add_message(to, sender, RelayPayloadKind::Text, text.as_bytes(), 1);
        };
        text(&one, "a", "1");
        text(&one, "a", "22");
        add_message(&one, "a", RelayPayloadKind::Binary, &[0; 7], 1);
        assert_eq!(kept(&one), [], "they wait");
        text(&one, "b", "3");
        text(&other, "b", "4");
        record_messages();
        record_messages();
        let all = [("b", "3"), ("a", "7 bytes"), ("a", "22"), ("a", "1")];
        assert_eq!(kept(&one), expected(&all));
        assert_eq!(kept(&other), expected(&[("b", "4")]));
        let counted = one.counters.record();
        assert_eq!((counted.total_messages, counted.total_bytes), (4, 11));
        assert_eq!(counted.last_active_at_ms, 1);
    }

    #[test]
    fn of_a_long_batch_the_newest_messages_are_kept() {
        let (few, none) = (endpoint(3), endpoint(0));
        for endpoint in [&few, &none] {
            for number in 0..100 {
                let payload = "x".repeat(6000) + &number.to_string();
                // The first ones are longer than what is kept of a text.
                let payload = &payload.as_bytes()[if number < 98 { 0 } else { 6000 }..];
                add_message(endpoint, "a", RelayPayloadKind::Text, payload, 1);
            }
            record_messages();
            assert_eq!(endpoint.counters.record().total_messages, 100);
        }
        let texts: Vec<usize> = kept(&few).iter().map(|(_, text)| text.len()).collect();
        assert_eq!(texts[..2], [2, 2]);
        assert!((5000..6000).contains(&texts[2]), "{texts:?}");
        assert_eq!(kept(&none), []);
    }
}
