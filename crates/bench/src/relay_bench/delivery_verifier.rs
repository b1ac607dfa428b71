//! Checks every received message: its bytes, its endpoint, and its number in the sequence of its sender.

use std::ops::Range;

use hdrhistogram::Histogram;
use serde_json::Value;

use super::message_template::MessageTemplate;
use crate::flow_window::SubscriberProgress;
use crate::metrics::latency_histogram;
use crate::sequence_checker::{SequenceChecker, SequenceFaults};

/// Connections of a load. Those of an endpoint are its senders, then receivers, of which the last ones may be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelayShape {
    pub(super) endpoints: usize,
    /// Of an endpoint. Senders receive, too, but not what they have sent.
    pub(super) senders: usize,
    /// Of an endpoint: connections that send nothing.
    pub(super) receivers: usize,
    /// How many of `receivers` do not read before the end.
    pub(super) slow_receivers: usize,
}

impl RelayShape {
    pub(super) fn connections_per_endpoint(&self) -> usize {
        self.senders + self.receivers
    }

    pub(super) fn connections(&self) -> usize {
        self.endpoints * self.connections_per_endpoint()
    }

    pub(super) fn all_senders(&self) -> usize {
        self.endpoints * self.senders
    }

    /// Connections that get each message, without slow receivers.
    pub(super) fn deliveries_per_message(&self) -> usize {
        self.connections_per_endpoint() - 1 - self.slow_receivers
    }

    /// The connection of a sender.
    pub(super) fn connection_of(&self, sender: usize) -> usize {
        sender / self.senders * self.connections_per_endpoint() + sender % self.senders
    }

    /// The sender that this connection is.
    pub(super) fn sender_of(&self, connection: usize) -> Option<usize> {
        let member = connection % self.connections_per_endpoint();
        let endpoint = connection / self.connections_per_endpoint();
        (member < self.senders).then(|| endpoint * self.senders + member)
    }

    pub(super) fn is_slow(&self, connection: usize) -> bool {
        let each = self.connections_per_endpoint();
        connection % each >= each - self.slow_receivers
    }
}

/// What slow receivers have got once they read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowReceiverCounts {
    pub(super) received: u64,
    /// `lost` is what the relay must have dropped.
    pub(super) faults: SequenceFaults,
    /// System messages about dropped messages, and how many messages they named.
    pub(super) warnings: u64,
    pub(super) named_dropped: u64,
}

pub(super) struct DeliveryVerifier {
    run: u32,
    shape: RelayShape,
    template: MessageTemplate,
    /// By connection, then by sender of its endpoint.
    checkers: Vec<SequenceChecker>,
    /// By sender: what its receivers have got, without slow ones.
    progress: Vec<SubscriberProgress>,
    /// Senders whose slowest receiver has got more.
    advanced: Vec<u32>,
    /// Latencies are recorded for messages sent, or due, in this time.
    pub(super) measured: Range<u64>,
    pub(super) latency: Histogram<u64>,
    /// Different messages, without those of slow receivers.
    pub(super) received: u64,
    /// Messages that were not sent, or not to this receiver.
    pub(super) unexpected: u64,
    pub(super) slow: SlowReceiverCounts,
}

impl DeliveryVerifier {
    pub(super) fn new(
        run: u32,
        shape: RelayShape,
        template: MessageTemplate,
        window: Option<u64>,
    ) -> Self {
        let checkers = shape.connections() * shape.senders;
        let receivers = shape.deliveries_per_message() as u32;
        Self {
            run,
            shape,
            template,
            checkers: (0..checkers).map(|_| SequenceChecker::default()).collect(),
            progress: (0..shape.all_senders())
                .map(|_| SubscriberProgress::new(receivers, window))
                .collect(),
            advanced: Vec::new(),
            measured: 0..0,
            latency: latency_histogram(),
            received: 0,
            unexpected: 0,
            slow: SlowReceiverCounts::default(),
        }
    }

    pub(super) fn template(&self) -> &MessageTemplate {
        &self.template
    }

    /// Messages of this sender that all its receivers have got, or that were given up.
    #[inline]
    pub(super) fn floor(&self, sender: usize) -> u64 {
        self.progress[sender].floor()
    }

    /// Gives up waiting for anything before `sent`.
    pub(super) fn skip_to(&mut self, sender: usize, sent: u64) {
        self.progress[sender].skip_to(sent);
    }

    /// A sender whose slowest receiver has got more since it was returned last.
    #[inline]
    pub(super) fn pop_advanced(&mut self) -> Option<usize> {
        self.advanced.pop().map(|sender| sender as usize)
    }

    /// Checks a message.
    #[inline]
    pub(super) fn record(&mut self, connection: usize, message: &[u8], read_ns: u64) {
        let each = self.shape.connections_per_endpoint();
        let Some(stamp) = self.template.read(message) else {
            return self.record_other(connection, message);
        };
        let sender = stamp.publisher as usize;
        if stamp.run != self.run
            || sender >= self.shape.all_senders()
            || sender / self.shape.senders != connection / each
            || self.shape.connection_of(sender) == connection
        {
            self.unexpected += 1;
            return;
        }
        let checker =
            &mut self.checkers[connection * self.shape.senders + sender % self.shape.senders];
        let before = checker.next_expected();
        let is_new = checker.record(stamp.sequence);
        let after = checker.next_expected();
        if self.shape.slow_receivers > 0 && self.shape.is_slow(connection) {
            self.slow.received += u64::from(is_new);
            return;
        }
        if !is_new {
            return;
        }
        self.received += 1;
        if self.measured.contains(&stamp.sent_ns) {
            let latency_ns = read_ns.saturating_sub(stamp.sent_ns);
            self.latency.saturating_record(latency_ns);
        }
        let progress = &mut self.progress[sender];
        let floor = progress.floor();
        progress.advance(before, after);
        if progress.floor() != floor {
            self.advanced.push(sender as u32);
        }
    }

    /// A message that is not of a sender: a system message, or one that must not be.
    #[cold]
    fn record_other(&mut self, connection: usize, message: &[u8]) {
        let value: Value = serde_json::from_slice(message).unwrap_or_default();
        let is_drop_warning = value["type"] == "system" && value["code"] == "RATE_LIMIT_WARNING";
        if is_drop_warning && self.shape.is_slow(connection) {
            self.slow.warnings += 1;
            self.slow.named_dropped += first_number(value["message"].as_str().unwrap_or_default());
        } else {
            self.unexpected += 1;
        }
    }

    /// Faults of all receivers, `sent` being what each sender has sent. Sums up those of slow receivers separately.
    pub(super) fn count_faults(&mut self, sent: impl Fn(usize) -> u64) -> SequenceFaults {
        let mut faults = SequenceFaults::default();
        self.slow.faults = SequenceFaults::default();
        let each = self.shape.connections_per_endpoint();
        for (number, checker) in self.checkers.iter().enumerate() {
            let connection = number / self.shape.senders;
            let sender = connection / each * self.shape.senders + number % self.shape.senders;
            if self.shape.connection_of(sender) == connection {
                continue;
            }
            let found = checker.faults(sent(sender));
            match self.shape.is_slow(connection) {
                true => self.slow.faults.add(found),
                false => faults.add(found),
            }
        }
        faults
    }
}

fn first_number(text: &str) -> u64 {
    let digits = text.split(|c: char| !c.is_ascii_digit());
    let mut numbers = digits.filter_map(|digits| digits.parse().ok());
    numbers.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload_stamp::{PayloadStamp, TEXT_BYTES};
    use crate::relay_bench::message_template::RelayMode;

    fn message(run: u32, publisher: u32, sequence: u64) -> Vec<u8> {
        let mut message = vec![0; TEXT_BYTES];
        let stamp = PayloadStamp {
            run,
            publisher,
            sequence,
            sent_ns: 100,
        };
        stamp.write_text(&mut message);
        message
    }

    /// Two endpoints with two senders, a receiver and a slow receiver each.
    fn verifier() -> DeliveryVerifier {
        let shape = RelayShape {
            endpoints: 2,
            senders: 2,
            receivers: 2,
            slow_receivers: 1,
        };
        let template = MessageTemplate::new(RelayMode::Direct, TEXT_BYTES).expect("long enough");
        let mut verifier = DeliveryVerifier::new(7, shape, template, Some(4));
        verifier.measured = 0..u64::MAX;
        verifier
    }

    #[test]
    fn what_is_complete_is_without_fault() {
        let mut verifier = verifier();
        // Sender 2 is the connection 4; 5 and 6 get its messages, 7 is slow.
        for connection in [5, 6] {
            verifier.record(connection, &message(7, 2, 0), 150);
        }
        assert_eq!((verifier.floor(2), verifier.pop_advanced()), (1, Some(2)));
        assert_eq!((verifier.received, verifier.unexpected), (2, 0));
        assert_eq!(verifier.latency.max(), 50);
        let sent = |sender| u64::from(sender == 2);
        assert_eq!(verifier.count_faults(sent), SequenceFaults::default());
        assert_eq!(verifier.slow.faults.lost, 1);
        let warning = br#"{"type":"system","code":"RATE_LIMIT_WARNING","message":"slow: 1 was dropped","timestamp":5}"#;
        verifier.record(7, warning, 160);
        assert_eq!(
            (verifier.slow.warnings, verifier.slow.named_dropped),
            (1, 1)
        );
        assert_eq!(verifier.unexpected, 0);
    }

    #[test]
    fn every_kind_of_fault_is_found() {
        let mut verifier = verifier();
        let strangers: [(usize, Vec<u8>); 5] = [
            (5, message(8, 2, 0)),
            // Of another endpoint, of nobody, back to the sender, with other bytes.
            (5, message(7, 0, 0)),
            (5, message(7, 9, 0)),
            (4, message(7, 2, 0)),
            (5, b"hello".to_vec()),
        ];
        for (connection, message) in &strangers {
            verifier.record(*connection, message, 150);
        }
        assert_eq!((verifier.received, verifier.unexpected), (0, 5));
        for sequence in [0, 2, 1, 1, 4] {
            verifier.record(6, &message(7, 2, sequence), 150);
        }
        let sent = |sender| if sender == 2 { 6 } else { 0 };
        let faults = verifier.count_faults(sent);
        assert_eq!((faults.repeated, faults.reordered), (1, 1));
        // Connection 5 has got nothing, 6 misses the numbers 3 and 5.
        assert_eq!(faults.lost, 6 + 2);
    }
}
