//! Counters of links.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hooks::{MetricFamily, MetricKind};
use link::size_class::SizeClass;

#[derive(Debug, Default)]
pub(crate) struct LinkMetrics {
    pub(crate) links: AtomicU64,
    pub(crate) carriers: AtomicU64,
    pub(crate) carriers_rejected: AtomicU64,
    /// Messages by size class; files are of the class huge.
    messages: ClassCounters,
    pub(crate) message_bytes: AtomicU64,
    pub(crate) messages_rejected: AtomicU64,
    /// Messages, answers and files for peers by size class.
    messages_sent: ClassCounters,
    pub(crate) files_received: AtomicU64,
    pub(crate) files_rejected: AtomicU64,
    pub(crate) files_sent: AtomicU64,
}

/// A counter for each size class.
#[derive(Debug, Default)]
struct ClassCounters([AtomicU64; SizeClass::ALL.len()]);

impl ClassCounters {
    fn count(&self, class: SizeClass) {
        LinkMetrics::count(&self.0[class as usize]);
    }

    fn family(&self, name: &'static str, help: &'static str) -> MetricFamily {
        let classes = SizeClass::ALL.iter().zip(&self.0);
        let values = classes.map(|(class, count)| (class.name(), count.load(Relaxed) as f64));
        MetricFamily::by_label(name, help, MetricKind::Counter, "class", values)
    }
}

impl LinkMetrics {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_message(&self, class: SizeClass, bytes: usize) {
        self.messages.count(class);
        self.message_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// A peer has begun to send a file.
    pub(crate) fn count_received_file(&self) {
        self.messages.count(SizeClass::Huge);
    }

    pub(crate) fn count_sent(&self, class: SizeClass) {
        self.messages_sent.count(class);
    }

    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let counter =
            |name, help, value: &AtomicU64| MetricFamily::counter(name, help, value.load(Relaxed));
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
            self.messages.family(
                "link_messages_total",
                "Messages received over links by size class; files are of the class huge.",
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
            self.messages_sent.family(
                "link_messages_sent_total",
                "Messages and answers sent over links, by size class. Files count as huge.",
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

#[cfg(test)]
mod tests {
    use super::*;
    use hooks::MetricValue;

    #[test]
    fn messages_and_files_are_counted_by_size_class() {
        let metrics = LinkMetrics::default();
        metrics.count_message(SizeClass::Tiny, 100);
        metrics.count_received_file();
        metrics.count_sent(SizeClass::Large);
        metrics.count_sent(SizeClass::Huge);
        for (name, expected) in [
            ("link_messages_total", [1.0, 0.0, 0.0, 0.0, 1.0]),
            ("link_messages_sent_total", [0.0, 0.0, 0.0, 1.0, 1.0]),
        ] {
            let families = metrics.families();
            let family = families.iter().find(|family| family.name == name);
            let samples = &family.expect("it is exported").samples;
            for ((sample, expected), class) in samples.iter().zip(expected).zip(SizeClass::ALL) {
                assert_eq!(sample.labels, [("class", class.name().to_owned())]);
                assert!(
                    matches!(sample.value, MetricValue::Number(value) if value == expected),
                    "{name} {class}"
                );
            }
        }
    }
}
