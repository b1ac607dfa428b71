//! How many connections a worker may begin, if the phase limits their rate.

/// Seconds of a stalled worker that are made up for.
const MAX_STALL_S: f64 = 1.0;

/// Connections that may be begun now. The budget grows with time, but not while no device waits: otherwise, devices that return
/// together after a quiet time would all connect at once.
#[derive(Debug)]
pub(super) struct ConnectBudget {
    connections: f64,
    updated_ns: u64,
}

impl Default for ConnectBudget {
    /// That of the begin of a phase.
    fn default() -> Self {
        Self {
            connections: 1.0,
            updated_ns: 0,
        }
    }
}

impl ConnectBudget {
    /// Adds what `rate` connections per second allow since the last call; `elapsed_ns` is the time of the phase.
    pub(super) fn refill(&mut self, elapsed_ns: u64, rate: Option<f64>, has_waiting: bool) {
        let seconds = elapsed_ns.saturating_sub(self.updated_ns) as f64 / 1e9;
        self.updated_ns = elapsed_ns;
        let rate = rate.unwrap_or(0.0);
        let max = if has_waiting { rate * MAX_STALL_S } else { 0.0 };
        self.connections = (self.connections + seconds * rate).min(max.max(1.0));
    }

    /// Whether a connection may be begun; always without a rate.
    pub(super) fn allows(&self, rate: Option<f64>) -> bool {
        rate.is_none() || self.connections >= 1.0
    }

    pub(super) fn spend(&mut self) {
        self.connections -= 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Begins all connections that are allowed.
    fn begin(budget: &mut ConnectBudget, elapsed_ns: u64, rate: f64) -> u32 {
        budget.refill(elapsed_ns, Some(rate), true);
        let mut begun = 0;
        while budget.allows(Some(rate)) {
            budget.spend();
            begun += 1;
        }
        begun
    }

    #[test]
    fn the_rate_of_a_phase_is_kept() {
        let mut budget = ConnectBudget::default();
        let begun = (0..=200).map(|turn| begin(&mut budget, turn * SECOND_NS / 20, 50.0));
        assert!((499..=502).contains(&begun.sum::<u32>()));
        // A ramp from 0 to 50.
        let mut budget = ConnectBudget::default();
        let begun = (0..=200).map(|turn| {
            let rate = turn as f64 / 4.0;
            begin(&mut budget, turn * SECOND_NS / 20, rate)
        });
        assert!((249..=255).contains(&begun.sum::<u32>()));
    }

    #[test]
    fn a_quiet_time_allows_no_more_connections_later() {
        let mut budget = ConnectBudget::default();
        assert_eq!(begin(&mut budget, 0, 50.0), 1);
        for second in 1..100 {
            budget.refill(second * SECOND_NS, Some(50.0), false);
        }
        assert!(begin(&mut budget, 99 * SECOND_NS, 50.0) <= 1);
        // A stall is made up for, as far as it is short.
        assert_eq!(begin(&mut budget, 200 * SECOND_NS, 50.0), 50);
    }
}
