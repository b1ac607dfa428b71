//! When messages are due: as fast as a closed window opens, or at a fixed rate whatever comes back.

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LoadPace {
    /// A publisher has at most this many messages that its slowest subscriber has not got.
    Window(u64),
    /// This many messages per second, over all publishers of all threads; those that come within a tick are due together at its end.
    Rate { per_second: f64, tick_ns: u64 },
    /// A publisher sends this number of messages and has at most `window` that the broker has not acknowledged; nobody
    /// receives them meanwhile.
    Stored { window: u64, each: u64 },
}

/// The times at which the messages of a fixed rate are due, dealt out to publishers in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendSchedule {
    start_ns: u64,
    /// Nothing is due from here on.
    end_ns: u64,
    interval_ns: f64,
    /// At least 1.
    tick_ns: u64,
    publishers: u64,
}

impl SendSchedule {
    /// `per_second` messages from `start_ns` to `end_ns` by `publishers` publishers together, at the ends of ticks.
    pub(crate) fn new(
        (start_ns, end_ns): (u64, u64),
        per_second: f64,
        tick_ns: u64,
        publishers: usize,
    ) -> Self {
        Self {
            start_ns,
            end_ns,
            interval_ns: 1e9 / per_second,
            tick_ns: tick_ns.max(1),
            publishers: publishers.max(1) as u64,
        }
    }

    /// When message `number`, counted over all publishers, is due.
    #[inline]
    pub(crate) fn send_time(&self, number: u64) -> u64 {
        let after_ns = (number as f64 * self.interval_ns) as u64;
        self.start_ns + after_ns.next_multiple_of(self.tick_ns)
    }

    /// How many messages are due by `now_ns`.
    #[inline]
    pub(crate) fn due_messages(&self, now_ns: u64) -> u64 {
        let now_ns = now_ns.min(self.end_ns.saturating_sub(1));
        if now_ns < self.start_ns {
            return 0;
        }
        let after_ns = (now_ns - self.start_ns) / self.tick_ns * self.tick_ns;
        let guess = (after_ns as f64 / self.interval_ns) as u64;
        // The division may be off by one either way.
        let mut due = guess.saturating_sub(1);
        while due <= guess + 1 && self.send_time(due) <= now_ns {
            due += 1;
        }
        due
    }

    /// The instant at which message `number` is due, unless that is past the end.
    pub(crate) fn due_time(&self, number: u64) -> Option<u64> {
        let at = self.send_time(number);
        (at < self.end_ns).then_some(at)
    }

    /// The publisher whose turn message `number` is.
    #[inline]
    pub(crate) fn publisher_of(&self, number: u64) -> usize {
        (number % self.publishers) as usize
    }

    /// How many of the first `due` messages are those of `publisher`.
    #[inline]
    pub(crate) fn share_of(&self, publisher: usize, due: u64) -> u64 {
        (due + self.publishers - 1 - publisher as u64) / self.publishers
    }

    /// When a publisher's own message `sequence` is due.
    #[inline]
    pub(crate) fn time_of_own(&self, publisher: usize, sequence: u64) -> u64 {
        self.send_time(sequence * self.publishers + publisher as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_due_once_and_in_time() {
        for rate in [3.0, 1000.0, 33_333.3, 7e6] {
            let schedule = SendSchedule::new((1_000, 1_000 + 50_000_000), rate, 1, 7);
            let mut next = 0;
            for now in (0..60_000_000).step_by(77_777) {
                let due = schedule.due_messages(now);
                assert!(due >= next);
                if due > 0 {
                    assert!(schedule.send_time(due - 1) <= now);
                }
                if now < 50_000_000 {
                    assert!(schedule.send_time(due) > now, "{rate} {now} {due}");
                }
                next = due;
            }
            assert_eq!(schedule.due_time(next), None);
            let shares: u64 = (0..7).map(|p| schedule.share_of(p, next)).sum();
            assert_eq!(shares, next);
        }
    }

    #[test]
    fn what_comes_within_a_tick_is_due_at_its_end() {
        let schedule = SendSchedule::new((500, 500 + 1_000_000), 1e6, 10_000, 3);
        assert_eq!(schedule.due_messages(500), 1);
        assert_eq!(schedule.due_messages(500 + 9_999), 1);
        assert_eq!(schedule.due_time(1), Some(500 + 10_000));
        assert_eq!(schedule.due_messages(500 + 10_000), 11);
        assert_eq!(schedule.send_time(10), 500 + 10_000);
        assert_eq!(schedule.due_messages(u64::MAX), 991);
        assert_eq!(schedule.due_time(991), None);
    }

    #[test]
    fn turns_go_round() {
        let schedule = SendSchedule::new((500, u64::MAX), 1e9, 1, 3);
        assert_eq!(schedule.publisher_of(4), 1);
        assert_eq!(schedule.time_of_own(1, 1), schedule.send_time(4));
        assert_eq!(schedule.share_of(0, 4), 2);
        assert_eq!(schedule.share_of(1, 4), 1);
        assert_eq!(schedule.share_of(2, 4), 1);
    }
}
