//! Counters of links.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hooks::{MetricFamily, MetricKind};
use link::size_class::SizeClass;

#[derive(Debug, Default)]
pub(crate) struct LinkMetrics {
    pub(crate) links: AtomicU64,
    pub(crate) carriers: AtomicU64,
    pub(crate) carriers_rejected: AtomicU64,
    /// Messages by size class.
    pub(crate) messages: [AtomicU64; CLASSES.len()],
    pub(crate) message_bytes: AtomicU64,
    pub(crate) messages_rejected: AtomicU64,
    pub(crate) files_received: AtomicU64,
    pub(crate) files_rejected: AtomicU64,
    pub(crate) files_sent: AtomicU64,
}

const CLASSES: [(SizeClass, &str); 5] = [
    (SizeClass::Tiny, "tiny"),
    (SizeClass::Small, "small"),
    (SizeClass::Medium, "medium"),
    (SizeClass::Large, "large"),
    (SizeClass::Huge, "huge"),
];

impl LinkMetrics {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_message(&self, class: SizeClass, bytes: usize) {
        let at = CLASSES.iter().position(|(known, _)| *known == class);
        Self::count(&self.messages[at.expect("the table contains all classes")]);
        self.message_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let counter =
            |name, help, value: &AtomicU64| MetricFamily::counter(name, help, value.load(Relaxed));
        let messages = CLASSES.iter().zip(&self.messages);
        let messages = messages.map(|((_, name), count)| (*name, count.load(Relaxed) as f64));
        vec![
            MetricFamily::gauge(
                "links",
                "Links of link listeners, with and without a connection.",
                self.links.load(Relaxed) as f64,
            ),
            counter(
                "link_connections_total",
                "Connections of links whose clients have logged in.",
                &self.carriers,
            ),
            counter(
                "link_connections_rejected_total",
                "Connections of link listeners that failed in a handshake or whose clients were rejected.",
                &self.carriers_rejected,
            ),
            MetricFamily::by_label(
                "link_messages_total",
                "Messages received over links.",
                MetricKind::Counter,
                "class",
                messages,
            ),
            counter(
                "link_message_bytes_total",
                "Bytes of messages received over links.",
                &self.message_bytes,
            ),
            counter(
                "link_messages_rejected_total",
                "Messages of links that were not published.",
                &self.messages_rejected,
            ),
            counter(
                "link_files_received_total",
                "Files received over links, complete and verified.",
                &self.files_received,
            ),
            counter(
                "link_files_rejected_total",
                "Files of links that were rejected.",
                &self.files_rejected,
            ),
            counter(
                "link_files_sent_total",
                "Files and images sent over links.",
                &self.files_sent,
            ),
        ]
    }
}
