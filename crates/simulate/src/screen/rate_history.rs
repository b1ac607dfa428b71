//! Rates of the last minutes, for the screen.

use std::collections::VecDeque;

use crate::run::RunProgress;

/// Rates that are kept: one for each column of a wide screen.
const MAX_RATES: usize = 200;
/// Time over which a rate is measured.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Events per second of one kind, the latest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct RateSeries(VecDeque<f64>);

impl RateSeries {
    fn push(&mut self, rate: f64) {
        if self.0.len() == MAX_RATES {
            self.0.pop_front();
        }
        self.0.push_back(rate);
    }

    pub(super) fn latest(&self) -> f64 {
        self.0.back().copied().unwrap_or(0.0)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &f64> {
        self.0.iter()
    }
}

/// The rates that the screen shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct RateHistory {
    pub(super) connects: RateSeries,
    pub(super) sent: RateSeries,
    pub(super) acknowledged: RateSeries,
    pub(super) received: RateSeries,
    pub(super) failures: RateSeries,
    last: Option<(u64, RunProgress)>,
}

impl RateHistory {
    /// Adds the rates since the last call that did, when a second has passed.
    pub(crate) fn record(&mut self, now_ns: u64, progress: RunProgress) {
        let Some((then_ns, before)) = self.last else {
            self.last = Some((now_ns, progress));
            return;
        };
        let elapsed_ns = now_ns.saturating_sub(then_ns);
        if elapsed_ns < INTERVAL_NS {
            return;
        }
        self.last = Some((now_ns, progress));
        let rate =
            |now: u64, before: u64| now.saturating_sub(before) as f64 * 1e9 / elapsed_ns as f64;
        self.connects.push(rate(progress.connects, before.connects));
        self.sent.push(rate(progress.sent, before.sent));
        self.acknowledged
            .push(rate(progress.acknowledged, before.acknowledged));
        self.received.push(rate(progress.received, before.received));
        self.failures.push(rate(progress.failures, before.failures));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_measured_over_a_second() {
        let mut history = RateHistory::default();
        for (at_ms, sent) in [(0, 0), (500, 400), (2000, 1000), (2500, 9000), (3000, 1500)] {
            let progress = RunProgress {
                sent,
                ..RunProgress::default()
            };
            history.record(at_ms * 1_000_000, progress);
        }
        assert_eq!(
            history.sent.iter().copied().collect::<Vec<_>>(),
            [500.0, 500.0]
        );
        assert_eq!(history.sent.latest(), 500.0);
    }
}
