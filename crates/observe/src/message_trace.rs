//! The trace of recorded messages: the steps that each took, and the reasons. It is written only
//! during a recording, for a bounded time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use hooks::{AckKind, DropReason, MessageView, carries_secret};

/// Maximum number of entries; the oldest make room.
const MAX_ENTRIES: usize = 20_000;
/// Entries of all shards per second. Others are counted.
const MAX_PER_S: u64 = 2000;
/// Maximum time of one recording.
pub const MAX_RECORDING_S: u64 = 3600;
/// Rules named in one entry.
const MAX_RULES: usize = 20;

/// The names of the rules that evaluate a message, at most the given number.
pub type RuleLookup = Arc<dyn Fn(&MessageView<'_>, usize) -> Vec<Box<str>> + Send + Sync>;

/// The messages of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingSelection {
    /// `None`: all topics.
    pub topic_filter: Option<String>,
    /// The publisher or the subscriber; `None`: all clients.
    pub client_id: Option<String>,
}

/// What happened to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageStep {
    /// The node accepted it from its publisher.
    Received { payload_bytes: usize, retain: bool },
    /// ACL rules or a hook denied it to its publisher.
    Denied,
    /// Rules evaluate it.
    Rules(Vec<Box<str>>),
    /// It waits in the session queue of a client without a connection.
    Queued,
    /// It was written to a subscriber; the packet id is 0 at QoS 0.
    Sent { packet_id: u16 },
    /// The subscriber acknowledged it.
    Acknowledged(AckKind),
    /// It did not reach a subscriber, or any.
    Dropped(DropReason),
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageTraceEntry {
    /// Grows with each entry, since the node started.
    pub number: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The same for all entries of one message.
    pub message_id: MessageId,
    pub topic: Arc<str>,
    pub qos: u8,
    /// Client id; `None`: the node itself.
    pub publisher: Option<Arc<str>>,
    /// The subscriber that the entry is about.
    pub subscriber: Option<Arc<str>>,
    pub step: MessageStep,
}

/// Identifies a message that this node received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageId {
    pub received_ms: u64,
    pub number: u32,
}

/// Selects entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageTraceQuery {
    pub topic_filter: Option<String>,
    /// The publisher or the subscriber.
    pub client_id: Option<String>,
    pub from_ms: Option<u64>,
    pub to_ms: Option<u64>,
    /// Only entries after this number.
    pub after: u64,
    pub limit: usize,
}

/// A recording that is running or has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingStatus {
    pub selection: RecordingSelection,
    /// `None`: nothing has been recorded since the node started.
    pub since_ms: Option<u64>,
    /// End, also of a recording that is running.
    pub until_ms: Option<u64>,
    pub is_running: bool,
    pub entries: u64,
    /// Entries left out because there were too many per second.
    pub skipped: u64,
}

struct Recording {
    selection: RecordingSelection,
    since_ms: u64,
    until_ms: AtomicU64,
}

#[derive(Default)]
struct TraceEntries {
    entries: VecDeque<MessageTraceEntry>,
    next_number: u64,
    second: u64,
    in_second: u64,
    skipped: u64,
}

/// The trace of a node.
#[derive(Default)]
pub(crate) struct MessageTrace {
    recording: ArcSwapOption<Recording>,
    is_running: AtomicBool,
    entries: Mutex<TraceEntries>,
    rules: ArcSwapOption<RuleLookup>,
}

impl RecordingSelection {
    fn contains(&self, view: &MessageView<'_>, subscriber: Option<&str>) -> bool {
        let is_topic = (self.topic_filter.as_deref())
            .is_none_or(|filter| mqtt::filter_matches(filter, view.topic));
        is_topic
            && self.client_id.as_deref().is_none_or(|client_id| {
                view.from_client_id == client_id || subscriber == Some(client_id)
            })
    }
}

impl MessageTrace {
    pub(crate) fn set_rules(&self, rules: RuleLookup) {
        self.rules.store(Some(Arc::new(rules)));
    }

    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Relaxed)
    }

    pub(crate) fn start(&self, selection: RecordingSelection, duration_s: u64, now_ms: u64) {
        let duration_s = duration_s.clamp(1, MAX_RECORDING_S);
        {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.entries.clear();
            entries.skipped = 0;
        }
        self.recording.store(Some(Arc::new(Recording {
            selection,
            since_ms: now_ms,
            until_ms: AtomicU64::new(now_ms + duration_s * 1000),
        })));
        self.is_running.store(true, Relaxed);
    }

    /// Ends the recording; returns whether one was running. Its entries stay.
    pub(crate) fn stop(&self, now_ms: u64) -> bool {
        let was_running = self.is_running.swap(false, Relaxed);
        if was_running && let Some(recording) = &*self.recording.load() {
            recording.until_ms.fetch_min(now_ms, Relaxed);
        }
        was_running
    }

    /// Ends a recording whose time is over; returns whether it ended.
    pub(crate) fn stop_if_over(&self, now_ms: u64) -> bool {
        let recording = self.recording.load();
        let is_over = recording
            .as_ref()
            .is_some_and(|recording| now_ms >= recording.until_ms.load(Relaxed));
        is_over && self.stop(now_ms)
    }

    /// Whether the recording may contain messages on a topic.
    pub(crate) fn wants_topic(&self, topic: &str) -> bool {
        self.is_running()
            && self.recording.load().as_ref().is_some_and(|recording| {
                let filter = recording.selection.topic_filter.as_deref();
                filter.is_none_or(|filter| mqtt::filter_matches(filter, topic))
            })
    }

    /// Records a received message, and the rules that evaluate it.
    pub(crate) fn received(&self, view: &MessageView<'_>, now_ms: u64) {
        let step = MessageStep::Received {
            payload_bytes: view.payload.len(),
            retain: view.retain,
        };
        if !self.record(view, None, step, now_ms) {
            return;
        }
        if let Some(rules) = &*self.rules.load() {
            let names = rules(view, MAX_RULES);
            if !names.is_empty() {
                self.record(view, None, MessageStep::Rules(names), now_ms);
            }
        }
    }

    /// Records a step, and returns whether the recording contains the message.
    pub(crate) fn record(
        &self,
        view: &MessageView<'_>,
        subscriber: Option<&str>,
        step: MessageStep,
        now_ms: u64,
    ) -> bool {
        if !self.is_running() || carries_secret(view.topic) {
            return false;
        }
        let recording = self.recording.load();
        let is_selected = recording.as_ref().is_some_and(|recording| {
            now_ms < recording.until_ms.load(Relaxed)
                && recording.selection.contains(view, subscriber)
        });
        if !is_selected {
            return false;
        }
        let mut log = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if log.second != now_ms / 1000 {
            (log.second, log.in_second) = (now_ms / 1000, 0);
        }
        log.in_second += 1;
        if log.in_second > MAX_PER_S {
            log.skipped += 1;
            return false;
        }
        if log.entries.len() >= MAX_ENTRIES {
            log.entries.pop_front();
        }
        log.next_number += 1;
        let entry = MessageTraceEntry {
            number: log.next_number,
            at_ms: now_ms,
            message_id: MessageId {
                received_ms: view.received_ms,
                number: view.number,
            },
            topic: view.topic.into(),
            qos: view.qos as u8,
            publisher: (!view.from_client_id.is_empty()).then(|| view.from_client_id.into()),
            subscriber: subscriber.map(Into::into),
            step,
        };
        log.entries.push_back(entry);
        true
    }

    /// The selected entries in order, and whether there are more.
    pub(crate) fn entries(&self, query: &MessageTraceQuery) -> (Vec<MessageTraceEntry>, bool) {
        let log = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let is_selected = |entry: &&MessageTraceEntry| {
            let (publisher, subscriber) = (entry.publisher.as_deref(), entry.subscriber.as_deref());
            entry.number > query.after
                && query.from_ms.is_none_or(|from_ms| entry.at_ms >= from_ms)
                && query.to_ms.is_none_or(|to_ms| entry.at_ms < to_ms)
                && (query.topic_filter.as_deref())
                    .is_none_or(|filter| mqtt::filter_matches(filter, &entry.topic))
                && (query.client_id.as_deref()).is_none_or(|client_id| {
                    publisher == Some(client_id) || subscriber == Some(client_id)
                })
        };
        let selected = log.entries.iter().filter(is_selected);
        let mut selected: Vec<_> = selected.take(query.limit + 1).cloned().collect();
        let has_more = selected.len() > query.limit;
        selected.truncate(query.limit);
        (selected, has_more)
    }

    pub(crate) fn status(&self, now_ms: u64) -> RecordingStatus {
        self.stop_if_over(now_ms);
        let log = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let recording = self.recording.load();
        let recording = recording.as_ref();
        RecordingStatus {
            selection: recording
                .map_or_else(Default::default, |recording| recording.selection.clone()),
            since_ms: recording.map(|recording| recording.since_ms),
            until_ms: recording.map(|recording| recording.until_ms.load(Relaxed)),
            is_running: self.is_running(),
            entries: log.entries.len() as u64,
            skipped: log.skipped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(from: &'a str, topic: &'a str) -> MessageView<'a> {
        MessageView::from_client(from, topic, b"21.5", 1000)
    }

    fn all() -> MessageTraceQuery {
        MessageTraceQuery {
            limit: MAX_ENTRIES,
            ..MessageTraceQuery::default()
        }
    }

    #[test]
    fn a_recording_contains_what_happens_to_its_messages() {
        let log = MessageTrace::default();
        log.received(&view("pump", "plant/1"), 1000);
        assert_eq!(log.entries(&all()).0, []);
        log.set_rules(Arc::new(|_, _| vec!["hot".into()]));
        let selection = RecordingSelection {
            topic_filter: Some("plant/#".to_owned()),
            client_id: None,
        };
        log.start(selection, 10, 1000);
        assert!(log.wants_topic("plant/1") && !log.wants_topic("office"));
        log.received(&view("pump", "plant/1"), 1001);
        log.received(&view("pump", "office"), 1001);
        let dropped = MessageStep::Dropped(DropReason::QueueFull);
        log.record(
            &view("pump", "plant/1"),
            Some("slow"),
            dropped.clone(),
            1002,
        );
        let (entries, has_more) = log.entries(&all());
        let steps: Vec<_> = entries.iter().map(|entry| entry.step.clone()).collect();
        let received = MessageStep::Received {
            payload_bytes: 4,
            retain: false,
        };
        assert_eq!(
            steps,
            [received, MessageStep::Rules(vec!["hot".into()]), dropped]
        );
        assert!(
            !has_more
                && entries
                    .iter()
                    .all(|entry| entry.message_id.received_ms == 1000)
        );
        let of_slow = MessageTraceQuery {
            client_id: Some("slow".to_owned()),
            ..all()
        };
        assert_eq!(log.entries(&of_slow).0.len(), 1);
        let first = MessageTraceQuery { limit: 1, ..all() };
        assert!(log.entries(&first).1);
        let later = MessageTraceQuery {
            after: entries[0].number,
            ..all()
        };
        assert_eq!(log.entries(&later).0.len(), 2);
    }

    #[test]
    fn a_recording_ends_by_itself_and_its_entries_stay() {
        let log = MessageTrace::default();
        let selection = RecordingSelection {
            client_id: Some("pump".to_owned()),
            ..RecordingSelection::default()
        };
        log.start(selection, 10, 1000);
        log.received(&view("pump", "a"), 1000);
        log.received(&view("other", "a"), 1000);
        log.received(&view("pump", "a"), 11_000);
        assert!(!log.stop_if_over(10_999) && log.stop_if_over(11_000));
        assert!(!log.stop_if_over(11_000) && !log.is_running());
        let status = log.status(12_000);
        assert_eq!((status.entries, status.until_ms), (1, Some(11_000)));
        log.start(RecordingSelection::default(), 10, 20_000);
        assert_eq!(log.status(20_000).entries, 0);
    }

    #[test]
    fn a_flood_is_bounded() {
        let log = MessageTrace::default();
        log.start(RecordingSelection::default(), 100, 0);
        for number in 0..30 {
            for _ in 0..MAX_PER_S + 1 {
                log.received(&view("pump", "a"), number * 1000);
            }
        }
        let status = log.status(30_000);
        assert_eq!((status.entries, status.skipped), (MAX_ENTRIES as u64, 30));
    }
}
