//! The rate at which clients are disconnected so that they connect to other nodes.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

/// Turns per second in which clients are disconnected.
const TURNS_PER_SECOND: u32 = 10;

/// The turns in which clients are disconnected.
pub(super) struct DisconnectTurns {
    interval: Interval,
    allowance: TurnAllowance,
}

impl DisconnectTurns {
    /// Disconnects `rate` clients per second. To be called within a runtime.
    pub(super) fn new(rate: u32) -> Self {
        let mut interval = tokio::time::interval(Duration::from_secs(1) / TURNS_PER_SECOND);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            interval,
            allowance: TurnAllowance::new(rate),
        }
    }

    /// Waits for the next turn, and returns how many clients it may disconnect; at least one.
    pub(super) async fn next(&mut self) -> usize {
        loop {
            self.interval.tick().await;
            let most = self.allowance.next_turn();
            if most > 0 {
                return most;
            }
        }
    }
}

/// How many clients each turn disconnects.
struct TurnAllowance {
    rate: u32,
    /// Clients times [`TURNS_PER_SECOND`] that earlier turns have left.
    rest: u32,
}

impl TurnAllowance {
    fn new(rate: u32) -> Self {
        Self { rate, rest: 0 }
    }

    fn next_turn(&mut self) -> usize {
        let due = self.rest + self.rate;
        self.rest = due % TURNS_PER_SECOND;
        (due / TURNS_PER_SECOND) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turns_of_a_second_disconnect_as_many_clients_as_the_rate() {
        for rate in [1, 7, 10, 99, 100, 12_345] {
            let mut allowance = TurnAllowance::new(rate);
            for _ in 0..3 {
                let clients: usize = (0..TURNS_PER_SECOND).map(|_| allowance.next_turn()).sum();
                assert_eq!(clients, rate as usize);
            }
        }
    }
}
