//! How much content of streams is under way: passed to the carrier, and not yet read by the peer.
//!
//! Sockets and routers may take many megabytes, and an urgent message would wait behind all of them. PING frames between
//! chunks show how much the peer has read, and how fast. Twice what is under way at that rate without a queue may be
//! passed to the carrier, or what the peer reads in [`QUEUE_TIME`] if that is more. [`MIN_LIMIT_BYTES`] may always be
//! passed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Enough for the round trips of a local network.
const MIN_LIMIT_BYTES: u64 = 2 * 1024 * 1024;
/// With shorter queues, a peer on the same machine often waits for content, and each wake-up costs both peers.
const QUEUE_TIME: Duration = Duration::from_millis(2);
const MAX_QUEUE_BYTES: u64 = 8 * 1024 * 1024;
/// PING frames that are under way with as much content as the limit permits.
const PROBES_WITHIN_LIMIT: u64 = 4;
/// After this time the least round-trip time is measured again, with little under way: the route may have changed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);
/// The highest rate of at least so many round trips counts, because content is not always available.
const RATE_ROUND_TRIPS: u32 = 8;
const MIN_RATE_PERIOD: Duration = Duration::from_millis(50);

/// A PING that is not answered.
#[derive(Debug)]
struct Probe {
    nonce: u64,
    sent_at: Instant,
    /// What had been passed to the carrier before it.
    passed: u64,
    /// What had been read when it was sent, and when that was known.
    read: u64,
    read_at: Instant,
}

/// The limit of streams on one carrier.
#[derive(Debug)]
pub(crate) struct CarrierBacklog {
    passed: u64,
    read: u64,
    /// When `read` was reached, or when something was passed after a pause.
    read_at: Instant,
    /// `passed` at the last probe.
    probed: u64,
    probes: VecDeque<Probe>,
    /// Highest rates of this period and the one before, in bytes per second.
    rates: [f64; 2],
    rate_period_start: Instant,
    least_round_trip: Option<Duration>,
    /// When the least round-trip time was measured.
    measured_at: Instant,
    /// The probe whose round trip replaces the least one.
    renewal_nonce: Option<u64>,
    limit: u64,
}

impl CarrierBacklog {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            passed: 0,
            read: 0,
            read_at: now,
            probed: 0,
            probes: VecDeque::new(),
            rates: [0.0; 2],
            rate_period_start: now,
            least_round_trip: None,
            measured_at: now,
            renewal_nonce: None,
            limit: MIN_LIMIT_BYTES,
        }
    }

    fn under_way(&self) -> u64 {
        self.passed - self.read
    }

    /// Whether another chunk may be passed to the carrier.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way() < self.limit
    }

    /// Content is passed to the carrier. Returns whether a probe must follow.
    pub(crate) fn record(&mut self, bytes: usize, now: Instant) -> bool {
        if self.under_way() == 0 {
            self.read_at = now;
        }
        self.passed += bytes as u64;
        self.passed - self.probed >= self.limit / PROBES_WITHIN_LIMIT
    }

    /// A PING with this nonce follows the content.
    pub(crate) fn add_probe(&mut self, nonce: u64, now: Instant) {
        self.probed = self.passed;
        self.probes.push_back(Probe {
            nonce,
            sent_at: now,
            passed: self.passed,
            read: self.read,
            read_at: self.read_at,
        });
        if now >= self.measured_at + RENEWAL_INTERVAL {
            self.limit = MIN_LIMIT_BYTES;
            if self.under_way() <= MIN_LIMIT_BYTES {
                self.renewal_nonce.get_or_insert(nonce);
            }
        }
    }

    /// Handles a PONG. One that answers something else is ignored.
    pub(crate) fn answer(&mut self, nonce: u64, now: Instant) {
        let Some(index) = self.probes.iter().position(|probe| probe.nonce == nonce) else {
            return;
        };
        let Some(probe) = self.probes.drain(..=index).next_back() else {
            return;
        };
        let round_trip = now.saturating_duration_since(probe.sent_at);
        let elapsed = now.saturating_duration_since(probe.read_at);
        self.read = probe.passed;
        self.read_at = now;
        if !elapsed.is_zero() {
            let rate = (probe.passed - probe.read) as f64 / elapsed.as_secs_f64();
            self.record_rate(rate, round_trip, now);
        }
        let is_renewed = self.renewal_nonce.is_some_and(|first| nonce >= first);
        let least = match self.least_round_trip {
            Some(least) if least < round_trip && !is_renewed => least,
            _ => {
                self.measured_at = now;
                self.renewal_nonce = None;
                round_trip
            }
        };
        self.least_round_trip = Some(least);
        if now < self.measured_at + RENEWAL_INTERVAL {
            let rate = self.rates[0].max(self.rates[1]);
            let needed = 2.0 * rate * least.as_secs_f64();
            let queue = ((rate * QUEUE_TIME.as_secs_f64()) as u64).min(MAX_QUEUE_BYTES);
            self.limit = (needed as u64).max(queue).max(MIN_LIMIT_BYTES);
        }
    }

    fn record_rate(&mut self, rate: f64, round_trip: Duration, now: Instant) {
        let period = (round_trip * RATE_ROUND_TRIPS).max(MIN_RATE_PERIOD);
        if now >= self.rate_period_start + period {
            self.rates = [0.0, self.rates[0]];
            self.rate_period_start = now;
        }
        self.rates[0] = self.rates[0].max(rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 256 * 1024;

    /// A carrier with this rate and delay, and buffers of any size.
    struct SimulatedCarrier {
        bytes_per_ms: u64,
        delay: Duration,
        now: Instant,
        backlog: CarrierBacklog,
        /// Nonces, and when their answers arrive.
        answers: VecDeque<(u64, Instant)>,
        /// When the last byte leaves the sender.
        departed: Instant,
        nonce: u64,
        sent: u64,
    }

    impl SimulatedCarrier {
        fn new(bytes_per_ms: u64, round_trip: Duration) -> Self {
            let now = Instant::now();
            Self {
                bytes_per_ms,
                delay: round_trip,
                now,
                backlog: CarrierBacklog::new(now),
                answers: VecDeque::new(),
                departed: now,
                nonce: 0,
                sent: 0,
            }
        }

        /// Sends as much as the limit permits; returns the rate in the end and the longest queue.
        fn run(&mut self, duration: Duration) -> (f64, Duration) {
            let end = self.now + duration;
            let (half, mut sent_at_half) = (self.now + duration / 2, None);
            let mut longest = Duration::ZERO;
            while self.now < end {
                while self.backlog.has_room() {
                    self.departed = self.departed.max(self.now);
                    let us = CHUNK as u64 * 1000 / self.bytes_per_ms;
                    self.departed += Duration::from_micros(us);
                    self.sent += CHUNK as u64;
                    if self.backlog.record(CHUNK, self.now) {
                        self.nonce += 1;
                        self.backlog.add_probe(self.nonce, self.now);
                        let answer = (self.nonce, self.departed + self.delay);
                        self.answers.push_back(answer);
                    }
                    if self.now >= half {
                        longest = longest.max(self.departed.duration_since(self.now));
                    }
                }
                let (nonce, at) = self.answers.pop_front().expect("a probe is under way");
                self.now = at;
                self.backlog.answer(nonce, at);
                if self.now >= half {
                    sent_at_half.get_or_insert((self.now, self.sent));
                }
            }
            let (start, sent) = sent_at_half.expect("half of the time has passed");
            let seconds = self.now.duration_since(start).as_secs_f64();
            ((self.sent - sent) as f64 / seconds / 1e3, longest)
        }
    }

    #[test]
    fn the_rate_of_the_network_is_reached_with_short_queues() {
        for (bytes_per_ms, round_trip_ms, most_ms) in [
            (2_000_000, 0, 3),
            (125_000, 1, 25),
            (40_000, 200, 250),
            (1_000, 50, 2600),
        ] {
            let round_trip = Duration::from_millis(round_trip_ms);
            let mut network = SimulatedCarrier::new(bytes_per_ms, round_trip);
            let (rate, longest) = network.run(Duration::from_secs(20));
            let share = rate / bytes_per_ms as f64;
            assert!(share > 0.95, "{bytes_per_ms} {round_trip:?}: {share}");
            assert!(
                longest <= Duration::from_millis(most_ms),
                "{bytes_per_ms} {round_trip:?}: {longest:?}"
            );
        }
    }

    #[test]
    fn a_longer_route_is_noticed() {
        let mut network = SimulatedCarrier::new(40_000, Duration::from_millis(10));
        network.run(Duration::from_secs(5));
        network.delay = Duration::from_millis(300);
        let (rate, _) = network.run(Duration::from_secs(80));
        assert!(rate / 40_000.0 > 0.9, "{rate}");
    }

    #[test]
    fn answers_to_other_pings_change_nothing() {
        let now = Instant::now();
        let mut backlog = CarrierBacklog::new(now);
        while backlog.has_room() {
            if backlog.record(CHUNK, now) {
                backlog.add_probe(backlog.passed, now);
            }
        }
        backlog.answer(7, now);
        assert!(!backlog.has_room());
        // Answers may be missing; a later one counts for them.
        let later = now + Duration::from_millis(1);
        backlog.answer(MIN_LIMIT_BYTES, later);
        assert!(backlog.has_room() && backlog.probes.is_empty());
    }
}
