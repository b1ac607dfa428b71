//! What workers count in a phase.

use hdrhistogram::Histogram;
use load_client::client_error::FailureLog;
use load_client::latency::latency_histogram;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PhaseCounts {
    pub(crate) connects: u64,
    /// From the begin of the TCP connection to CONNACK.
    #[serde(with = "recorded_values")]
    pub(crate) connect: Histogram<u64>,
    /// Failed attempts to connect.
    pub(crate) connect_failures: u64,
    /// Connections that ended without being asked to.
    pub(crate) disconnects: u64,
    pub(crate) failures: FailureLog,
    /// From the end of a connection to the next CONNACK.
    #[serde(with = "recorded_values")]
    pub(crate) reconnect: Histogram<u64>,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) skipped: u64,
    /// Left out because the thread was too slow.
    pub(crate) missed: u64,
    /// Messages of random devices that had no connection.
    #[serde(default)]
    pub(crate) offline: u64,
    pub(crate) acknowledged: u64,
    pub(crate) rejected: u64,
    /// Messages in flight when their connection ended.
    pub(crate) unacknowledged: u64,
    /// From the time at which the message was due.
    #[serde(with = "recorded_values")]
    pub(crate) ack: Histogram<u64>,
    pub(crate) ack_sum_ns: u64,
    pub(crate) received: u64,
    /// Devices affected by faults.
    pub(crate) faults: u64,
    pub(crate) requests: u64,
    pub(crate) answers: u64,
    pub(crate) failed_answers: u64,
    pub(crate) unanswered: u64,
    /// Files that devices have downloaded and verified because a command named them, and those that they could not.
    #[serde(default)]
    pub(crate) downloaded_files: u64,
    #[serde(default)]
    pub(crate) failed_downloads: u64,
    /// Commands that the simulator has sent to devices, and those of them that did not succeed.
    #[serde(default)]
    pub(crate) commands: u64,
    #[serde(default)]
    pub(crate) failed_commands: u64,
    /// Left out because too many others had not ended.
    #[serde(default)]
    pub(crate) skipped_commands: u64,
    /// From the time at which the command was due to the answer of the device.
    #[serde(default = "latency_histogram", with = "recorded_values")]
    pub(crate) command: Histogram<u64>,
    /// Installations of images that devices have begun, and how they ended.
    pub(crate) updates: u64,
    pub(crate) completed_updates: u64,
    pub(crate) failed_updates: u64,
    /// Images whose size or checksum was wrong.
    pub(crate) damaged_images: u64,
    pub(crate) downloaded_bytes: u64,
    /// From the announcement of an image to its installation.
    #[serde(with = "recorded_values")]
    pub(crate) update: Histogram<u64>,
    /// Calls of scripts that failed.
    pub(crate) script_errors: u64,
    /// Verified messages that subscribers have received, without repetitions.
    pub(crate) delivered: u64,
    pub(crate) repeated: u64,
    pub(crate) reordered: u64,
    /// From the time at which the message was due to its arrival at a subscriber.
    #[serde(with = "recorded_values")]
    pub(crate) delivery: Histogram<u64>,
    /// From the time at which the message was due until a node had stored it.
    #[serde(with = "recorded_values")]
    pub(crate) storage: Histogram<u64>,
    /// Messages that were not stored in time.
    pub(crate) unstored: u64,
}

/// A histogram as a list of values and their counts.
mod recorded_values {
    use hdrhistogram::Histogram;
    use load_client::latency::latency_histogram;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        histogram: &Histogram<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let values = histogram.iter_recorded();
        serializer.collect_seq(values.map(|step| (step.value_iterated_to(), step.count_at_value())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let mut histogram = latency_histogram();
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            histogram.saturating_record_n(value, count);
        }
        Ok(histogram)
    }
}

impl Default for PhaseCounts {
    fn default() -> Self {
        Self {
            connects: 0,
            connect: latency_histogram(),
            connect_failures: 0,
            disconnects: 0,
            failures: FailureLog::default(),
            reconnect: latency_histogram(),
            sent: 0,
            sent_bytes: 0,
            skipped: 0,
            missed: 0,
            offline: 0,
            acknowledged: 0,
            rejected: 0,
            unacknowledged: 0,
            ack: latency_histogram(),
            ack_sum_ns: 0,
            received: 0,
            faults: 0,
            requests: 0,
            answers: 0,
            failed_answers: 0,
            unanswered: 0,
            downloaded_files: 0,
            failed_downloads: 0,
            commands: 0,
            failed_commands: 0,
            skipped_commands: 0,
            command: latency_histogram(),
            updates: 0,
            completed_updates: 0,
            failed_updates: 0,
            damaged_images: 0,
            downloaded_bytes: 0,
            update: latency_histogram(),
            script_errors: 0,
            delivered: 0,
            repeated: 0,
            reordered: 0,
            delivery: latency_histogram(),
            storage: latency_histogram(),
            unstored: 0,
        }
    }
}

impl PhaseCounts {
    /// Adds what another thread has counted in the same phase.
    pub(crate) fn add(&mut self, other: &Self) {
        let sum = |total: &mut Histogram<u64>, part: &Histogram<u64>| {
            total.add(part).expect("histograms have the same bounds");
        };
        sum(&mut self.connect, &other.connect);
        sum(&mut self.reconnect, &other.reconnect);
        sum(&mut self.ack, &other.ack);
        sum(&mut self.delivery, &other.delivery);
        sum(&mut self.storage, &other.storage);
        self.failures.add(&other.failures);
        self.connects += other.connects;
        self.connect_failures += other.connect_failures;
        self.disconnects += other.disconnects;
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.skipped += other.skipped;
        self.missed += other.missed;
        self.offline += other.offline;
        self.acknowledged += other.acknowledged;
        self.rejected += other.rejected;
        self.unacknowledged += other.unacknowledged;
        self.ack_sum_ns += other.ack_sum_ns;
        self.received += other.received;
        self.faults += other.faults;
        self.requests += other.requests;
        self.answers += other.answers;
        self.failed_answers += other.failed_answers;
        self.unanswered += other.unanswered;
        sum(&mut self.command, &other.command);
        self.downloaded_files += other.downloaded_files;
        self.failed_downloads += other.failed_downloads;
        self.commands += other.commands;
        self.failed_commands += other.failed_commands;
        self.skipped_commands += other.skipped_commands;
        sum(&mut self.update, &other.update);
        self.updates += other.updates;
        self.completed_updates += other.completed_updates;
        self.failed_updates += other.failed_updates;
        self.damaged_images += other.damaged_images;
        self.downloaded_bytes += other.downloaded_bytes;
        self.script_errors += other.script_errors;
        self.delivered += other.delivered;
        self.repeated += other.repeated;
        self.reordered += other.reordered;
        self.unstored += other.unstored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_histograms_survive_json() {
        let mut counts = PhaseCounts {
            sent: 7,
            ..PhaseCounts::default()
        };
        for value in [1, 1000, 1_000_000, 123_456_789, 700_000_000_000] {
            counts.ack.saturating_record_n(value, value % 3 + 1);
        }
        let text = serde_json::to_string(&counts).expect("JSON");
        let mut read: PhaseCounts = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read.ack, counts.ack);
        read.add(&counts);
        assert_eq!((read.sent, read.ack.len()), (14, 2 * counts.ack.len()));
    }
}
