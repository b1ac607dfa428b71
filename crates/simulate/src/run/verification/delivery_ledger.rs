//! Which messages of which device have arrived, and in which order.

use load_client::sequence_checker::{SequenceChecker, SequenceFaults};

/// What an arrived message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    InOrder,
    /// A later message of the device has arrived before at the same subscriber.
    Late,
    Repeated,
    /// No device has this number.
    Unknown,
}

/// Contract: [`record`](Self::record) for each message that arrives, then [`lost`](Self::lost) with what each device has sent.
#[derive(Debug)]
pub(super) struct DeliveryLedger {
    /// For each device, the numbers that have arrived at any subscriber.
    checkers: Vec<SequenceChecker>,
    /// For each subscriber and device, one more than the highest number that has arrived. Subscribers that share a
    /// subscription get the messages of a device in order, but not all of them.
    next: Vec<u32>,
    /// Messages that have arrived, without repetitions.
    delivered: u64,
}

impl DeliveryLedger {
    pub(super) fn new(devices: usize, subscribers: usize) -> Self {
        Self {
            checkers: (0..devices).map(|_| SequenceChecker::default()).collect(),
            next: vec![0; devices * subscribers],
            delivered: 0,
        }
    }

    pub(super) fn record(&mut self, subscriber: usize, device: u32, sequence: u64) -> Arrival {
        let device = device as usize;
        let Some(checker) = self.checkers.get_mut(device) else {
            return Arrival::Unknown;
        };
        if !checker.record(sequence) {
            return Arrival::Repeated;
        }
        self.delivered += 1;
        let next = &mut self.next[subscriber * self.checkers.len() + device];
        let number = u32::try_from(sequence).unwrap_or(u32::MAX);
        if number < *next {
            return Arrival::Late;
        }
        *next = number.saturating_add(1);
        Arrival::InOrder
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Messages that have not arrived, of devices that have each sent so many.
    pub(super) fn lost(&self, sent: impl Iterator<Item = (u32, u32)>) -> u64 {
        let mut faults = SequenceFaults::default();
        for (device, count) in sent {
            if let Some(checker) = self.checkers.get(device as usize) {
                faults.add(checker.faults(u64::from(count)));
            }
        }
        faults.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_devices_are_told_apart() {
        let mut ledger = DeliveryLedger::new(2, 1);
        let arrivals: Vec<Arrival> = [(0, 0), (1, 1), (0, 2), (0, 1), (0, 2), (1, 0), (7, 0)]
            .into_iter()
            .map(|(device, sequence)| ledger.record(0, device, sequence))
            .collect();
        use Arrival::{InOrder, Late, Repeated, Unknown};
        let expected = [InOrder, InOrder, InOrder, Late, Repeated, Late, Unknown];
        assert_eq!(arrivals, expected);
        assert_eq!(ledger.delivered(), 5);
        assert_eq!(ledger.lost([(0, 3), (1, 2)].into_iter()), 0);
        assert_eq!(ledger.lost([(0, 5), (1, 3)].into_iter()), 3);
    }

    #[test]
    fn subscribers_that_share_messages_have_an_order_each() {
        let mut ledger = DeliveryLedger::new(1, 2);
        assert_eq!(ledger.record(0, 0, 1), Arrival::InOrder);
        assert_eq!(ledger.record(1, 0, 0), Arrival::InOrder);
        assert_eq!(ledger.record(1, 0, 3), Arrival::InOrder);
        assert_eq!(ledger.record(1, 0, 2), Arrival::Late);
        assert_eq!(ledger.record(0, 0, 3), Arrival::Repeated);
        assert_eq!(ledger.lost([(0, 4)].into_iter()), 0);
    }
}
