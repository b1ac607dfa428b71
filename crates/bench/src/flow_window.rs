//! How far one publisher may run ahead: of its subscribers (a closed window) and of the broker's acknowledgements.

/// Largest number of QoS 1 and 2 messages in flight that MQTT's 16-bit packet identifiers allow.
pub(crate) const MAX_IN_FLIGHT: u64 = 65_535;

/// Packet identifiers in flight, handed out 1 to 65535 in turn.
///
/// Invariant: identifiers from `settled` to `issued` (as counts) are in flight, except those marked in `early`.
#[derive(Debug, Default)]
pub(crate) struct AckWindow {
    issued: u64,
    settled: u64,
    /// One bit for each identifier acknowledged before an older one; empty until that happens.
    early: Vec<u64>,
}

impl AckWindow {
    /// The identifier of the message with this number, counted from 0.
    #[inline]
    pub(crate) fn id_of(number: u64) -> u16 {
        (number % MAX_IN_FLIGHT) as u16 + 1
    }

    /// Messages sent and not yet acknowledged, counted from the oldest such message.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.issued - self.settled
    }

    /// Notes that `count` more messages were sent.
    #[inline]
    pub(crate) fn record_sent(&mut self, count: u64) {
        self.issued += count;
        debug_assert!(self.in_flight() <= MAX_IN_FLIGHT);
    }

    /// Notes the last acknowledgement for `id`; false if nothing with that identifier is in flight.
    #[inline]
    pub(crate) fn acknowledge(&mut self, id: u16) -> bool {
        if self.early.is_empty() && self.in_flight() > 0 && id == Self::id_of(self.settled) {
            self.settled += 1;
            return true;
        }
        self.acknowledge_out_of_order(id)
    }

    #[cold]
    fn acknowledge_out_of_order(&mut self, id: u16) -> bool {
        let oldest = u64::from(Self::id_of(self.settled));
        let ahead = (u64::from(id) + MAX_IN_FLIGHT - oldest) % MAX_IN_FLIGHT;
        if id == 0 || ahead >= self.in_flight() {
            return false;
        }
        if self.early.is_empty() {
            self.early = vec![0; (MAX_IN_FLIGHT as usize + 1) / 64];
        }
        let (word, bit) = (usize::from(id) / 64, 1u64 << (id % 64));
        if self.early[word] & bit != 0 {
            return false;
        }
        self.early[word] |= bit;
        while self.in_flight() > 0 {
            let id = Self::id_of(self.settled);
            let (word, bit) = (usize::from(id) / 64, 1u64 << (id % 64));
            if self.early[word] & bit == 0 {
                return true;
            }
            self.early[word] &= !bit;
            self.settled += 1;
        }
        self.early = Vec::new();
        true
    }
}

/// How far the slowest of a publisher's subscribers has come.
///
/// `floor` is the number of messages that every subscriber has got or skipped past. With several subscribers,
/// `at_level` counts those standing at each level from `floor` on, in a ring.
#[derive(Debug)]
pub(crate) struct SubscriberProgress {
    floor: u64,
    subscribers: u32,
    at_level: Vec<u32>,
}

impl SubscriberProgress {
    /// For `subscribers` that are never more than `window` messages behind; no window, no bookkeeping.
    pub(crate) fn new(subscribers: u32, window: Option<u64>) -> Self {
        let mut at_level = Vec::new();
        if let Some(window) = window
            && subscribers > 1
        {
            at_level = vec![0; window as usize + 1];
            at_level[0] = subscribers;
        }
        Self {
            floor: 0,
            subscribers,
            at_level,
        }
    }

    /// Messages that every subscriber has got, or skipped past.
    #[inline]
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// One subscriber, who had got `from` messages, has now got `to`.
    #[inline]
    pub(crate) fn advance(&mut self, from: u64, to: u64) {
        if self.at_level.is_empty() {
            self.floor = self.floor.max(to);
            return;
        }
        let (from, to) = (from.max(self.floor), to.max(self.floor));
        if from == to {
            return;
        }
        let ring = self.at_level.len() as u64;
        self.at_level[(from % ring) as usize] -= 1;
        self.at_level[(to % ring) as usize] += 1;
        self.raise_floor();
    }

    #[inline]
    fn raise_floor(&mut self) {
        let ring = self.at_level.len() as u64;
        while self.subscribers > 0 && self.at_level[(self.floor % ring) as usize] == 0 {
            self.floor += 1;
        }
    }

    /// One subscriber, who had got `level` messages, is gone; false when none is left.
    pub(crate) fn remove_subscriber(&mut self, level: u64) -> bool {
        self.subscribers = self.subscribers.saturating_sub(1);
        if !self.at_level.is_empty() && self.subscribers > 0 {
            let ring = self.at_level.len() as u64;
            self.at_level[(level.max(self.floor) % ring) as usize] -= 1;
            self.raise_floor();
        }
        self.subscribers > 0
    }

    /// Gives up waiting for anything before `sent`: what is missing was probably lost.
    pub(crate) fn skip_to(&mut self, sent: u64) {
        self.floor = sent;
        if !self.at_level.is_empty() {
            let ring = self.at_level.len() as u64;
            self.at_level.fill(0);
            self.at_level[(sent % ring) as usize] = self.subscribers;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_in_order_and_around_the_end() {
        let mut acks = AckWindow::default();
        for number in 0..200_000u64 {
            acks.record_sent(1);
            assert!(acks.acknowledge(AckWindow::id_of(number)));
        }
        assert_eq!(acks.in_flight(), 0);
        assert!(!acks.acknowledge(5));
    }

    #[test]
    fn acknowledgements_out_of_order_wait_for_the_oldest() {
        let mut acks = AckWindow::default();
        acks.record_sent(4);
        assert!(acks.acknowledge(3));
        assert!(acks.acknowledge(2));
        assert_eq!(acks.in_flight(), 4);
        assert!(!acks.acknowledge(3), "twice");
        assert!(!acks.acknowledge(5), "never sent");
        assert!(!acks.acknowledge(0));
        assert!(acks.acknowledge(1));
        assert_eq!(acks.in_flight(), 1);
        assert!(acks.acknowledge(4));
        assert_eq!(acks.in_flight(), 0);
        acks.record_sent(1);
        assert!(acks.acknowledge(5), "back on the fast path");
    }

    #[test]
    fn a_full_window_of_identifiers() {
        let mut acks = AckWindow::default();
        acks.record_sent(MAX_IN_FLIGHT);
        for number in (0..MAX_IN_FLIGHT).rev() {
            assert!(acks.acknowledge(AckWindow::id_of(number)));
        }
        assert_eq!(acks.in_flight(), 0);
    }

    #[test]
    fn one_subscriber_is_its_own_floor() {
        let mut progress = SubscriberProgress::new(1, Some(10));
        progress.advance(0, 4);
        assert_eq!(progress.floor(), 4);
        progress.skip_to(9);
        progress.advance(4, 6);
        assert_eq!(progress.floor(), 9);
        assert!(!progress.remove_subscriber(6));
    }

    #[test]
    fn the_slowest_of_several_is_the_floor() {
        let mut progress = SubscriberProgress::new(3, Some(4));
        progress.advance(0, 4);
        progress.advance(0, 2);
        assert_eq!(progress.floor(), 0);
        progress.advance(0, 3);
        assert_eq!(progress.floor(), 2);
        progress.advance(2, 5);
        assert_eq!(progress.floor(), 3);
        assert!(progress.remove_subscriber(3));
        assert_eq!(progress.floor(), 4);
        progress.skip_to(7);
        assert_eq!(progress.floor(), 7);
        progress.advance(4, 8);
        progress.advance(5, 6);
        assert_eq!(progress.floor(), 7);
        progress.advance(6, 8);
        assert_eq!(progress.floor(), 8);
    }
}
