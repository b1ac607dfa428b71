//! What one broker did in one round, or in several together, and the numbers that follow from it.

use crate::memory_slope::memory_slope;
use crate::metrics::MetricValues;
use crate::observer::{BrokerUsage, Observations, SeriesPoint};
use crate::timer::PollingTime;
use crate::worker::WorkerCounts;

/// What was measured: messages, or connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeasuredSubject {
    Messages {
        payload_bytes: usize,
    },
    Connections {
        wanted: usize,
    },
    /// Messages on connections that were idle before.
    HeldConnections {
        connections: usize,
        payload_bytes: usize,
    },
    /// Messages that were stored and then received.
    Stored {
        payload_bytes: usize,
    },
}

/// One round.
#[derive(Clone, Debug)]
pub(crate) struct RoundOutcome {
    pub(crate) subject: MeasuredSubject,
    pub(crate) tally: WorkerCounts,
    pub(crate) observations: Observations,
}

impl RoundOutcome {
    /// Adds another round of the same broker.
    pub(crate) fn add_round(&mut self, other: &RoundOutcome) {
        let shift = self
            .observations
            .series
            .last()
            .map_or(0.0, |point| point.at_s);
        self.observations
            .series
            .extend(other.observations.series.iter().map(|point| SeriesPoint {
                at_s: point.at_s + shift,
                ..*point
            }));
        self.tally.add_round(&other.tally);
        let machine = self
            .observations
            .machine_cpu_s
            .zip(other.observations.machine_cpu_s);
        self.observations.machine_cpu_s = machine.map(|(a, b)| a + b);
        self.observations.broker =
            self.observations
                .broker
                .zip(other.observations.broker)
                .map(|(a, b)| BrokerUsage {
                    cpu_s: a.cpu_s + b.cpu_s,
                    rss_start: a.rss_start,
                    // Memory that the first round took may still be there in the next, so only the first tells
                    // what a connection costs.
                    rss_connected: a.rss_connected,
                    rss_end: if matches!(self.subject, MeasuredSubject::Connections { .. }) {
                        a.rss_end
                    } else {
                        b.rss_end
                    },
                    rss_peak: a.rss_peak.max(b.rss_peak),
                    store_cpu_s: a.store_cpu_s + b.store_cpu_s,
                    rss_stored: a.rss_stored.max(b.rss_stored),
                });
        if let (Some(a), Some(b)) = (&mut self.observations.disk, other.observations.disk) {
            a.stored = a.stored.max(b.stored);
            a.end = b.end;
        }
    }

    /// Messages received, or connections accepted.
    fn achieved_count(&self) -> u64 {
        match self.subject {
            MeasuredSubject::Messages { .. }
            | MeasuredSubject::HeldConnections { .. }
            | MeasuredSubject::Stored { .. } => self.tally.received,
            MeasuredSubject::Connections { .. } => self.tally.connects,
        }
    }

    /// All numbers.
    pub(crate) fn measures(&self) -> MetricValues {
        let mut measures = MetricValues::default();
        let tally = &self.tally;
        let rate = self.achieved_count() as f64 / tally.seconds.max(1e-9);
        match self.subject {
            MeasuredSubject::Messages { payload_bytes }
            | MeasuredSubject::HeldConnections { payload_bytes, .. }
            | MeasuredSubject::Stored { payload_bytes } => {
                measures.set("throughput", rate);
                measures.set("payload_rate", rate * payload_bytes as f64);
                measures.set("received", tally.received as f64);
                measures.set("sent", tally.sent as f64);
            }
            MeasuredSubject::Connections { .. } => {
                measures.set("connects", tally.connects as f64);
                measures.set("connect_rate", rate);
            }
        }
        measures.set("seconds", tally.seconds);
        measures.set_latencies("", &tally.latency);
        if !matches!(self.subject, MeasuredSubject::Connections { .. }) {
            if tally.expected > 0 {
                let got = tally.expected.saturating_sub(tally.faults.lost);
                measures.set("success", got as f64 / tally.expected as f64);
            }
            measures.set("lost", tally.faults.lost as f64);
            measures.set("repeated", tally.faults.repeated as f64);
            measures.set("reordered", tally.faults.reordered as f64);
            measures.set("rejected", tally.rejected as f64);
            measures.set("unacknowledged", tally.unacknowledged as f64);
            measures.set("unsent", tally.unsent as f64);
            measures.set("abandoned_windows", tally.abandoned_windows as f64);
            measures.set("unexpected", tally.unexpected as f64);
        }
        if let Some(rules) = tally.rules {
            measures.set("evaluated", rules.evaluated as f64);
            measures.set("rule_failures", rules.failures as f64);
        }
        measures.set("errors", tally.failures.count() as f64);
        self.set_broker_measures(&mut measures);
        self.set_offline_measures(&mut measures);
        if let Some(others) = self.other_programs_cores() {
            measures.set("other_cores", others);
        }
        if let Some(stalls) = self.stalls() {
            measures.set("stalls", stalls);
        }
        measures.set("generator_cpu", self.generator_cpu());
        if tally.generator_cpu_s > 0.0 {
            measures.set(
                "generator_per_cpu_second",
                self.achieved_count() as f64 / tally.generator_cpu_s,
            );
        }
        measures
    }

    fn set_broker_measures(&self, measures: &mut MetricValues) {
        let Some(broker) = self.observations.broker else {
            return;
        };
        measures.set("cpu_seconds", broker.cpu_s);
        let store_seconds = self.tally.offline.map_or(0.0, |o| o.store_seconds);
        let seconds = self.tally.seconds + store_seconds;
        measures.set("cpu", broker.cpu_s / seconds.max(1e-9));
        // Below two clock ticks the quotient would be mostly chance.
        let serving_cpu_s = broker.cpu_s - broker.store_cpu_s;
        if serving_cpu_s >= 0.02 {
            measures.set(
                "per_cpu_second",
                self.achieved_count() as f64 / serving_cpu_s,
            );
        }
        measures.set("rss_start", broker.rss_start as f64);
        measures.set("rss_connected", broker.rss_connected as f64);
        measures.set("rss_end", broker.rss_end as f64);
        measures.set("rss_peak", broker.rss_peak as f64);
        if let Some(slope) = memory_slope(&self.observations.series) {
            measures.set("rss_slope", slope);
        }
        if let MeasuredSubject::Connections { wanted } = self.subject
            && wanted > 0
        {
            let grown = broker.rss_end as f64 - broker.rss_start as f64;
            measures.set("rss_per_connection", grown / wanted as f64);
        }
        if let MeasuredSubject::HeldConnections { connections, .. } = self.subject {
            let grown = broker.rss_connected as f64 - broker.rss_start as f64;
            measures.set("rss_per_connection", grown / connections as f64);
        }
    }

    /// What only `offline` has.
    fn set_offline_measures(&self, measures: &mut MetricValues) {
        let (MeasuredSubject::Stored { payload_bytes }, Some(offline)) =
            (self.subject, self.tally.offline)
        else {
            return;
        };
        let tally = &self.tally;
        measures.set("stored", offline.stored as f64);
        measures.set(
            "stored_rate",
            offline.stored as f64 / offline.store_seconds.max(1e-9),
        );
        measures.set("store_seconds", offline.store_seconds);
        measures.set("incomplete", offline.incomplete as f64);
        if !tally.latency.is_empty() {
            let fastest = tally.latency.min().max(1) as f64;
            measures.set("unfairness", tally.latency.max() as f64 / fastest);
        }
        if let Some(broker) = self.observations.broker {
            measures.set("rss_stored", broker.rss_stored as f64);
            if broker.store_cpu_s >= 0.02 {
                let per_second = offline.stored as f64 / broker.store_cpu_s;
                measures.set("stored_per_cpu_second", per_second);
            }
        }
        if let Some(disk) = self.observations.disk {
            measures.set("disk_start", disk.start as f64);
            measures.set("disk_stored", disk.stored as f64);
            measures.set("disk_end", disk.end as f64);
            let payload = offline.held as f64 * payload_bytes as f64;
            let added = disk.stored.saturating_sub(disk.start) as f64;
            measures.set("disk_per_payload", added / payload.max(1.0));
        }
    }

    /// How many cores programs other than broker and generator kept busy, if that can be known.
    pub(crate) fn other_programs_cores(&self) -> Option<f64> {
        let generator_s = self.tally.generator_cpu_s + self.tally.generator_polling_s;
        let ours = self.observations.broker?.cpu_s + generator_s;
        let others = (self.observations.machine_cpu_s? - ours).max(0.0);
        let store_seconds = self.tally.offline.map_or(0.0, |o| o.store_seconds);
        Some(others / (self.tally.seconds + store_seconds).max(1e-9))
    }

    /// The part of its polling in which the machine did not run the generator, if it polled for at least a tenth of the time.
    fn stalls(&self) -> Option<f64> {
        let PollingTime {
            polled_ns,
            stalled_ns,
        } = self.tally.polling;
        let is_enough = polled_ns as f64 / 1e9 >= self.tally.generator_core_s / 10.0;
        (is_enough && polled_ns > 0).then(|| stalled_ns as f64 / polled_ns as f64)
    }

    /// Share of its cores that the generator used.
    pub(crate) fn generator_cpu(&self) -> f64 {
        self.tally.generator_cpu_s / self.tally.generator_core_s.max(1e-9)
    }
}

/// The ratios of the first broker's numbers to the second's.
pub(crate) fn ratios(first: &MetricValues, second: &MetricValues) -> MetricValues {
    let mut ratios = MetricValues::default();
    let of = |name: &str| {
        let (a, b) = (first.get(name)?, second.get(name)?);
        (b > 0.0).then_some(a / b)
    };
    let throughput = of("throughput").or_else(|| of("connect_rate"));
    if let Some(ratio) = of("per_cpu_second").or(throughput) {
        ratios.set("ratio", ratio);
    }
    let named = [
        ("ratio_per_cpu_second", of("per_cpu_second")),
        ("ratio_throughput", throughput),
        ("ratio_stored", of("stored_rate")),
        ("ratio_stored_per_cpu_second", of("stored_per_cpu_second")),
        ("ratio_p50", of("p50")),
        ("ratio_p99", of("p99")),
    ];
    for (name, ratio) in named {
        if let Some(ratio) = ratio {
            ratios.set(name, ratio);
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(received: u64, cpu_s: f64) -> RoundOutcome {
        RoundOutcome {
            subject: MeasuredSubject::Messages { payload_bytes: 100 },
            tally: WorkerCounts {
                seconds: 2.0,
                received,
                generator_cpu_s: 1.0,
                generator_core_s: 2.0,
                ..WorkerCounts::default()
            },
            observations: Observations {
                broker: Some(BrokerUsage {
                    cpu_s,
                    rss_start: 100,
                    rss_end: 300,
                    ..BrokerUsage::default()
                }),
                machine_cpu_s: Some(2.5),
                series: vec![SeriesPoint {
                    at_s: 2.0,
                    per_second: 5.0,
                    broker_cpu: None,
                    rss_bytes: None,
                }],
                disk: None,
            },
        }
    }

    #[test]
    fn rates_over_all_rounds() {
        let mut total = outcome(1000, 0.5);
        total.add_round(&outcome(3000, 1.5));
        let measures = total.measures();
        assert_eq!(measures.get("throughput"), Some(1000.0));
        assert_eq!(measures.get("payload_rate"), Some(100_000.0));
        assert_eq!(measures.get("per_cpu_second"), Some(2000.0));
        assert_eq!(measures.get("cpu"), Some(0.5));
        assert_eq!(measures.get("generator_cpu"), Some(0.5));
        assert_eq!(measures.get("other_cores"), Some(0.25));
        assert_eq!(total.observations.series[1].at_s, 4.0);
    }

    #[test]
    fn stalls_are_the_share_of_polling_if_there_was_enough() {
        let mut polling = outcome(1000, 0.5);
        let stalls = |outcome: &RoundOutcome| outcome.measures().get("stalls");
        assert_eq!(stalls(&polling), None);
        polling.tally.polling = PollingTime {
            polled_ns: 100_000_000,
            stalled_ns: 10_000_000,
        };
        assert_eq!(stalls(&polling), None);
        polling.add_round(&polling.clone());
        polling.tally.polling.polled_ns = 1_000_000_000;
        assert_eq!(stalls(&polling), Some(0.02));
    }

    #[test]
    fn ratios_prefer_processor_time() {
        let (a, b) = (outcome(3000, 0.5).measures(), outcome(1000, 1.0).measures());
        let found = ratios(&a, &b);
        assert_eq!(found.get("ratio"), Some(6.0));
        assert_eq!(found.get("ratio_throughput"), Some(3.0));
        assert_eq!(found.get("ratio_p99"), None);
    }

    #[test]
    fn memory_per_connection() {
        let mut connects = outcome(0, 0.5);
        connects.subject = MeasuredSubject::Connections { wanted: 4 };
        connects.tally.connects = 4;
        let measures = connects.measures();
        assert_eq!(measures.get("rss_per_connection"), Some(50.0));
        assert_eq!(measures.get("connect_rate"), Some(2.0));
        assert_eq!(measures.get("lost"), None);
    }
}
