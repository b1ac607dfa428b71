//! Live messages of a topic filter or of a client, for readers who may be slower than the broker.
//! Each stream has a limit of messages per second; what exceeds it is counted instead of copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use hooks::{MessageView, carries_secret};
use tokio::sync::mpsc;

use crate::message_copy::MessageCopy;

/// Maximum number of streams of the node.
const MAX_STREAMS: usize = 64;
/// Messages that wait for the reader of a stream.
const BUFFERED_MESSAGES: usize = 256;

/// The messages of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSelection {
    /// Messages published on matching topics. As for subscriptions, `#` and `+` do not match a first level that begins
    /// with `$`.
    TopicFilter(String),
    /// Messages that a client publishes, and those that are sent to it.
    Client(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageDirection {
    /// The message was accepted from its publisher.
    Published,
    /// The message was sent to the client of the stream.
    Delivered,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveMessage {
    pub direction: MessageDirection,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub message: MessageCopy,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveMessageItem {
    Message(LiveMessage),
    /// This many messages were left out since the last item of this kind.
    Skipped(u64),
}

/// The maximum number of streams is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_STREAMS} streams of messages are open, which is the limit of the node")]
pub struct TooManyStreamsError;

/// What decides whether a message belongs to a stream, and how much of it is copied.
struct MessageTap {
    selection: MessageSelection,
    max_per_s: u32,
    max_payload_bytes: usize,
    /// The current second, and in the low 32 bits the number of its messages.
    window: AtomicU64,
    skipped: AtomicU64,
    messages: mpsc::Sender<LiveMessage>,
}

impl MessageTap {
    /// Takes a message of the current second, unless it has the maximum number.
    fn admit(&self, now_ms: u64) -> bool {
        let second = (now_ms / 1000) << 32;
        let taken = self.window.fetch_update(Relaxed, Relaxed, |window| {
            match window & !u64::from(u32::MAX) == second {
                false => Some(second | 1),
                true => ((window as u32) < self.max_per_s).then_some(window + 1),
            }
        });
        taken.is_ok()
    }

    fn offer(&self, view: &MessageView<'_>, direction: MessageDirection, now_ms: u64) {
        let is_taken = self.admit(now_ms) && {
            let message = LiveMessage {
                direction,
                at_ms: now_ms,
                message: MessageCopy::new(view, self.max_payload_bytes),
            };
            self.messages.try_send(message).is_ok()
        };
        if !is_taken {
            self.skipped.fetch_add(1, Relaxed);
        }
    }
}

/// All open streams.
#[derive(Default)]
pub(crate) struct MessageTaps {
    taps: ArcSwap<Vec<Arc<MessageTap>>>,
}

impl MessageTaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.taps.load().is_empty()
    }

    /// Whether a stream wants the messages of a client, which are also those sent to it.
    pub(crate) fn has_clients(&self) -> bool {
        let taps = self.taps.load();
        taps.iter()
            .any(|tap| matches!(tap.selection, MessageSelection::Client(_)))
    }

    pub(crate) fn wants_topic(&self, topic: &str) -> bool {
        self.taps.load().iter().any(|tap| match &tap.selection {
            MessageSelection::TopicFilter(filter) => mqtt::filter_matches(filter, topic),
            MessageSelection::Client(_) => true,
        })
    }

    pub(crate) fn published(&self, view: &MessageView<'_>, now_ms: u64) {
        if carries_secret(view.topic) {
            return;
        }
        for tap in self.taps.load().iter() {
            let is_selected = match &tap.selection {
                MessageSelection::TopicFilter(filter) => mqtt::filter_matches(filter, view.topic),
                MessageSelection::Client(id) => view.from_client_id == id,
            };
            if is_selected {
                tap.offer(view, MessageDirection::Published, now_ms);
            }
        }
    }

    pub(crate) fn delivered(&self, client_id: &str, view: &MessageView<'_>, now_ms: u64) {
        if carries_secret(view.topic) {
            return;
        }
        for tap in self.taps.load().iter() {
            if matches!(&tap.selection, MessageSelection::Client(id) if id == client_id) {
                tap.offer(view, MessageDirection::Delivered, now_ms);
            }
        }
    }

    fn add(&self, tap: &Arc<MessageTap>) -> Result<(), TooManyStreamsError> {
        let mut is_full = false;
        self.taps.rcu(|taps| {
            is_full = taps.len() >= MAX_STREAMS;
            let mut taps = Vec::clone(taps);
            if !is_full {
                taps.push(tap.clone());
            }
            taps
        });
        match is_full {
            true => Err(TooManyStreamsError),
            false => Ok(()),
        }
    }

    fn remove(&self, tap: &Arc<MessageTap>) {
        self.taps.rcu(|taps| {
            let others = taps.iter().filter(|other| !Arc::ptr_eq(other, tap));
            others.cloned().collect::<Vec<_>>()
        });
    }
}

/// A stream of live messages. It ends when it is dropped.
pub struct LiveMessages {
    taps: Arc<MessageTaps>,
    tap: Arc<MessageTap>,
    messages: mpsc::Receiver<LiveMessage>,
    /// Called when the stream has ended.
    ended: Box<dyn Fn() + Send + Sync>,
}

impl LiveMessages {
    /// `max_per_s` is at least 1. `ended` is called when the stream has ended.
    pub(crate) fn open(
        taps: &Arc<MessageTaps>,
        selection: MessageSelection,
        (max_per_s, max_payload_bytes): (u32, usize),
        ended: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self, TooManyStreamsError> {
        let (sender, messages) = mpsc::channel(BUFFERED_MESSAGES);
        let tap = Arc::new(MessageTap {
            selection,
            max_per_s: max_per_s.max(1),
            max_payload_bytes,
            window: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            messages: sender,
        });
        taps.add(&tap)?;
        Ok(Self {
            taps: taps.clone(),
            tap,
            messages,
            ended,
        })
    }

    /// The next message. Cancel safe.
    pub async fn next(&mut self) -> Option<LiveMessageItem> {
        self.messages.recv().await.map(LiveMessageItem::Message)
    }

    /// The number of messages left out since the last call, if there are any. Call it now and then.
    pub fn take_skipped(&self) -> Option<LiveMessageItem> {
        let skipped = self.tap.skipped.swap(0, Relaxed);
        (skipped > 0).then_some(LiveMessageItem::Skipped(skipped))
    }
}

impl Drop for LiveMessages {
    fn drop(&mut self) {
        self.taps.remove(&self.tap);
        (self.ended)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(taps: &Arc<MessageTaps>, selection: MessageSelection) -> LiveMessages {
        LiveMessages::open(taps, selection, (3, 4), Box::new(|| ())).expect("room")
    }

    fn topics(stream: &mut LiveMessages) -> Vec<String> {
        let messages = std::iter::from_fn(|| stream.messages.try_recv().ok());
        messages
            .map(|message| message.message.topic.into_string())
            .collect()
    }

    #[test]
    fn a_stream_contains_what_it_selects_and_no_secret() {
        let taps = Arc::default();
        let mut plant = open(&taps, MessageSelection::TopicFilter("plant/+".to_owned()));
        let mut all = open(&taps, MessageSelection::TopicFilter("#".to_owned()));
        let mut client = open(&taps, MessageSelection::Client("ann".to_owned()));
        for (from, topic) in [
            ("bob", "plant/1"),
            ("ann", "office"),
            ("ann", "v1/devices/me/claim"),
            ("bob", "$SYS/x"),
        ] {
            taps.published(&MessageView::from_client(from, topic, b"21.5 C", 1), 1);
        }
        taps.delivered(
            "ann",
            &MessageView::from_client("bob", "plant/1", b"", 1),
            1,
        );
        taps.delivered("bob", &MessageView::from_client("ann", "office", b"", 1), 1);
        let message = plant.messages.try_recv().expect("a message").message;
        assert_eq!(
            (&message.payload[..], message.payload_bytes),
            (&b"21.5"[..], 6)
        );
        assert_eq!(message.publisher.as_deref(), Some("bob"));
        assert_eq!(topics(&mut all), ["plant/1", "office"]);
        assert_eq!(topics(&mut client), ["office", "plant/1"]);
    }

    #[test]
    fn what_exceeds_the_rate_is_counted() {
        let taps = Arc::default();
        let mut stream = open(&taps, MessageSelection::TopicFilter("#".to_owned()));
        for now_ms in [1000, 1001, 1002, 1003, 1999, 2000] {
            taps.published(&MessageView::from_client("c", "t", b"", now_ms), now_ms);
        }
        assert_eq!(topics(&mut stream).len(), 4);
        assert_eq!(stream.take_skipped(), Some(LiveMessageItem::Skipped(2)));
        assert_eq!(stream.take_skipped(), None);
    }

    #[test]
    fn streams_are_limited_and_end_when_they_are_dropped() {
        let taps = Arc::default();
        let selection = || MessageSelection::Client("c".to_owned());
        let streams: Vec<_> = (0..MAX_STREAMS).map(|_| open(&taps, selection())).collect();
        let more = LiveMessages::open(&taps, selection(), (1, 1), Box::new(|| ()));
        assert!(more.is_err() && taps.has_clients());
        drop(streams);
        assert!(taps.is_empty());
    }
}
