//! The times at which a connection is considered lost: no CONNECT in time, silence for longer than its keep-alive, or a
//! packet that stays incomplete.

/// The rate at which a client has to send a packet that takes longer than the deadlines allow.
pub(crate) const MIN_PACKET_BYTES_PER_S: u64 = 1024;

/// The deadlines of one connection.
///
/// It owns the time of the last input, the time since which a packet is incomplete, and the time of the next check. It
/// reads no clock and starts no timer:
///
/// - The caller reports input with [`record_input`](Self::record_input) for complete packets of a connected client,
///   [`record_fragment`](Self::record_fragment) for what is left behind them, [`record_pause`](Self::record_pause)
///   before it stops reading, and input again after that. It does not report packets before CONNECT, so that the time
///   allowed for CONNECT is not extended.
/// - The caller keeps one check of the connection in the shard's timers, and reports its time with
///   [`set_next_check`](Self::set_next_check). A check that fires calls [`poll`](Self::poll), and the caller does what
///   it returns.
///
/// [MQTT-3.1.2-24] counts Control Packets, so that bytes of an incomplete packet are not a sign of life by themselves. But
/// a client cannot send PINGREQ inside a large packet. Therefore each received byte of a packet extends its deadlines,
/// and that of the keep-alive, by the time it takes at [`MIN_PACKET_BYTES_PER_S`]. A client on a slow link completes
/// its packet, and one that sends single bytes gains nothing.
///
/// Invariant: the next check is at the earliest deadline, or before it. Input moves deadlines to later times; only the
/// beginning of an incomplete packet can add an earlier one, and then
/// [`needs_check_before`](Self::needs_check_before) is true.
#[derive(Debug)]
pub(crate) struct ConnectionDeadlines {
    /// Time of the last packet, in the future during a pause; until CONNECT, the time of accept.
    last_seen_ms: u64,
    /// When the incomplete packet began; 0: the connection is not waiting for the client.
    fragment_since_ms: u64,
    /// When the shard's timers check the connection.
    next_check_ms: u64,
}

/// The limits that apply to a connection at a check.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DeadlineLimits {
    /// The client is not connected yet: its connection was accepted, or it is being authenticated.
    Connect { timeout_s: u16 },
    Connected {
        /// 0: the client may be silent for any time.
        keep_alive_s: u16,
        packet_timeout_s: u32,
        /// Received bytes of the incomplete packet; 0: there is none.
        fragment_bytes: usize,
    },
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadlineCheck {
    /// Nothing can become overdue.
    Unlimited,
    /// Check again at this time.
    CheckAt(u64),
    /// CONNECT was not completed in time.
    ConnectOverdue,
    PacketOverdue,
    /// The client sent no packet for 1.5 times its keep-alive [MQTT-3.1.2-22].
    KeepAliveOverdue,
}

impl ConnectionDeadlines {
    pub(crate) fn new(opened_ms: u64) -> Self {
        Self {
            last_seen_ms: opened_ms,
            fragment_since_ms: 0,
            next_check_ms: 0,
        }
    }

    pub(crate) fn last_seen_ms(&self) -> u64 {
        self.last_seen_ms
    }

    /// Sets the time of accept of a connection that comes from another shard.
    pub(crate) fn set_opened(&mut self, opened_ms: u64) {
        self.last_seen_ms = opened_ms;
    }

    /// A packet is complete, or the caller reads again after a pause.
    #[inline]
    pub(crate) fn record_input(&mut self, now_ms: u64) {
        // It is in the future if the packet led to a pause.
        self.last_seen_ms = self.last_seen_ms.max(now_ms);
    }

    /// The caller does not read for a while; that time does not count against the client. `is_connected`: silence
    /// counts from the end of the pause.
    #[inline]
    pub(crate) fn record_pause(&mut self, now_ms: u64, wait_ms: u64, is_connected: bool) {
        if is_connected {
            self.last_seen_ms = now_ms + wait_ms;
        }
        if self.fragment_since_ms > 0 {
            self.fragment_since_ms += wait_ms;
        }
    }

    /// The last input ended with an incomplete packet, possibly another one than before (`is_new`).
    #[inline]
    pub(crate) fn record_fragment(&mut self, now_ms: u64, is_new: bool) {
        if is_new || self.fragment_since_ms == 0 {
            self.fragment_since_ms = now_ms;
        }
    }

    /// The connection is not waiting for the rest of a packet: its bytes wait for the shard.
    #[inline]
    pub(crate) fn record_no_fragment(&mut self) {
        self.fragment_since_ms = 0;
    }

    pub(crate) fn set_next_check(&mut self, at_ms: u64) {
        self.next_check_ms = at_ms;
    }

    /// Whether no check is pending that comes before `deadline_ms`. A check usually comes early enough, so that most
    /// incomplete packets need none of their own.
    pub(crate) fn needs_check_before(&self, deadline_ms: u64, now_ms: u64) -> bool {
        self.next_check_ms <= now_ms || self.next_check_ms > deadline_ms
    }

    /// When the incomplete packet has to be complete; `None`: there is none.
    pub(crate) fn fragment_deadline_ms(
        &self,
        packet_timeout_s: u32,
        fragment_bytes: usize,
    ) -> Option<u64> {
        let timeout_ms = u64::from(packet_timeout_s) * 1000 + sending_time_ms(fragment_bytes);
        (self.fragment_since_ms > 0 && fragment_bytes > 0)
            .then(|| self.fragment_since_ms + timeout_ms)
    }

    /// When the client is considered lost if it completes no packet: after 1.5 times its keep-alive [MQTT-3.1.2-22].
    pub(crate) fn keep_alive_deadline_ms(
        &self,
        keep_alive_s: u16,
        fragment_bytes: usize,
    ) -> Option<u64> {
        let timeout_ms = u64::from(keep_alive_s) * 1500 + sending_time_ms(fragment_bytes);
        (keep_alive_s > 0).then(|| self.last_seen_ms + timeout_ms)
    }

    /// Checks the connection; called when a check [is due](Self::is_check_due).
    pub(crate) fn poll(&self, now_ms: u64, limits: DeadlineLimits) -> DeadlineCheck {
        match limits {
            DeadlineLimits::Connect { timeout_s } => {
                match self.last_seen_ms + u64::from(timeout_s) * 1000 {
                    deadline if deadline > now_ms => DeadlineCheck::CheckAt(deadline),
                    _ => DeadlineCheck::ConnectOverdue,
                }
            }
            DeadlineLimits::Connected {
                keep_alive_s,
                packet_timeout_s,
                fragment_bytes,
            } => {
                let of_packet = self.fragment_deadline_ms(packet_timeout_s, fragment_bytes);
                if of_packet.is_some_and(|deadline| deadline <= now_ms) {
                    return DeadlineCheck::PacketOverdue;
                }
                let of_silence = self.keep_alive_deadline_ms(keep_alive_s, fragment_bytes);
                if of_silence.is_some_and(|deadline| deadline <= now_ms) {
                    return DeadlineCheck::KeepAliveOverdue;
                }
                // When the packet completes, its bytes do not extend the deadline any more.
                let earliest_ms = now_ms + u64::from(keep_alive_s) * 1500;
                let of_silence = of_silence.map(|deadline| deadline.min(earliest_ms));
                let next = of_silence.into_iter().chain(of_packet).min();
                next.map_or(DeadlineCheck::Unlimited, DeadlineCheck::CheckAt)
            }
        }
    }

    /// Whether the check that has fired is the pending one, and not one of an earlier schedule.
    pub(crate) fn is_check_due(&self, now_ms: u64) -> bool {
        now_ms >= self.next_check_ms
    }
}

/// How long these bytes of a packet may take.
fn sending_time_ms(bytes: usize) -> u64 {
    bytes as u64 * 1000 / MIN_PACKET_BYTES_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_MS: u64 = 1000;

    fn connected(keep_alive_s: u16, fragment_bytes: usize) -> DeadlineLimits {
        DeadlineLimits::Connected {
            keep_alive_s,
            packet_timeout_s: 60,
            fragment_bytes,
        }
    }

    #[test]
    fn a_silent_client_is_overdue_after_one_and_a_half_keep_alives() {
        let mut deadlines = ConnectionDeadlines::new(0);
        deadlines.record_input(5 * SECOND_MS);
        let poll = |now_s: u64| deadlines.poll(now_s * SECOND_MS, connected(10, 0));
        assert_eq!(poll(6), DeadlineCheck::CheckAt(20 * SECOND_MS));
        assert_eq!(poll(20), DeadlineCheck::KeepAliveOverdue);
        let unlimited = deadlines.poll(u64::MAX, connected(0, 0));
        assert_eq!(unlimited, DeadlineCheck::Unlimited);
    }

    #[test]
    fn bytes_of_a_packet_extend_deadlines_by_the_time_they_take_on_a_slow_link() {
        let mut deadlines = ConnectionDeadlines::new(0);
        deadlines.record_input(SECOND_MS);
        deadlines.record_fragment(SECOND_MS, true);
        let poll = |now_s: u64, limits| deadlines.poll(now_s * SECOND_MS, limits);
        assert_eq!(poll(16, connected(10, 500)), DeadlineCheck::CheckAt(16_488));
        assert_eq!(
            poll(17, connected(10, 500)),
            DeadlineCheck::KeepAliveOverdue
        );
        let kib = 1 << 10;
        assert_eq!(
            poll(100, connected(10, 100 * kib)),
            DeadlineCheck::CheckAt(115_000)
        );
        assert_eq!(
            poll(100, connected(0, 100 * kib)),
            DeadlineCheck::CheckAt(161_000)
        );
        assert_eq!(
            poll(161, connected(0, 100 * kib)),
            DeadlineCheck::PacketOverdue
        );
    }

    #[test]
    fn connect_is_due_within_the_time_of_the_listener() {
        let deadlines = ConnectionDeadlines::new(SECOND_MS);
        let limits = DeadlineLimits::Connect { timeout_s: 10 };
        let early = deadlines.poll(2 * SECOND_MS, limits);
        assert_eq!(early, DeadlineCheck::CheckAt(11 * SECOND_MS));
        let late = deadlines.poll(11 * SECOND_MS, limits);
        assert_eq!(late, DeadlineCheck::ConnectOverdue);
    }

    #[test]
    fn a_pause_extends_the_time_for_an_incomplete_packet_and_for_silence() {
        let mut deadlines = ConnectionDeadlines::new(0);
        deadlines.record_input(SECOND_MS);
        deadlines.record_fragment(SECOND_MS, true);
        deadlines.record_pause(2 * SECOND_MS, 5 * SECOND_MS, true);
        let poll = |now_s: u64, limits| deadlines.poll(now_s * SECOND_MS, limits);
        assert_eq!(poll(65, connected(0, 1)), DeadlineCheck::CheckAt(66_000));
        assert_eq!(poll(66, connected(0, 1)), DeadlineCheck::PacketOverdue);
        assert_eq!(poll(16, connected(10, 0)), DeadlineCheck::CheckAt(22_000));
    }

    #[test]
    fn more_bytes_of_one_packet_do_not_extend_its_time() {
        let mut deadlines = ConnectionDeadlines::new(0);
        deadlines.record_fragment(SECOND_MS, true);
        deadlines.record_fragment(30 * SECOND_MS, false);
        assert_eq!(deadlines.fragment_deadline_ms(60, 1), Some(61_000));
        deadlines.record_fragment(30 * SECOND_MS, true);
        assert_eq!(deadlines.fragment_deadline_ms(60, 1), Some(90_000));
        assert_eq!(deadlines.fragment_deadline_ms(60, 0), None);
    }
}
