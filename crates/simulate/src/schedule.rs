//! When devices send: a heap of the next time of each device and send.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::definition::SendStart;
use crate::plan::SendPlan;
use crate::random::RandomKey;

/// Purpose of a device's random key from which times are drawn; each send has its own.
const TIME_PURPOSE: u64 = 1 << 32;
const FIRST_DRAW: u64 = u64::MAX >> 2;

/// A message that is due: 16 bytes for each device and send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DueSend {
    pub(crate) at_ns: u64,
    /// Number of the device, or [`DueSend::ALL`].
    pub(crate) device: u32,
    pub(crate) send: u16,
    pub(crate) fleet: u16,
}

impl DueSend {
    /// In place of a device: random devices of the fleet send.
    pub(crate) const ALL: u32 = u32::MAX;
}

/// The next message of each device and send.
#[derive(Debug, Default)]
pub(crate) struct SendSchedule {
    heap: BinaryHeap<Reverse<DueSend>>,
}

impl SendSchedule {
    pub(crate) fn push(&mut self, due: DueSend) {
        self.heap.push(Reverse(due));
    }

    /// Multiplies the time that is left until each message by `factor`.
    pub(crate) fn rescale(&mut self, now_ns: u64, factor: f64) {
        let mut all = std::mem::take(&mut self.heap).into_vec();
        for Reverse(due) in &mut all {
            let left_ns = due.at_ns.saturating_sub(now_ns) as f64;
            if due.at_ns > now_ns {
                due.at_ns = now_ns + (left_ns * factor) as u64;
            }
        }
        self.heap = all.into();
    }

    /// Lets messages that were due before `now_ns` be due now.
    pub(crate) fn postpone_overdue(&mut self, now_ns: u64) {
        let mut all = std::mem::take(&mut self.heap).into_vec();
        for Reverse(due) in &mut all {
            due.at_ns = due.at_ns.max(now_ns);
        }
        self.heap = all.into();
    }

    /// The earliest time at which a message is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|due| due.0.at_ns)
    }

    /// Takes the earliest message that is due by `now_ns`.
    #[inline]
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<DueSend> {
        let due = self.heap.peek()?.0;
        if due.at_ns > now_ns {
            return None;
        }
        self.heap.pop();
        Some(due)
    }
}

/// Time from the start of a device to its first message.
pub(crate) fn first_delay_ns(send: &SendPlan, number: u16, key: RandomKey) -> u64 {
    let key = key.purpose(TIME_PURPOSE + u64::from(number));
    match (send.random_devices, send.start) {
        (Some(_), _) => 0,
        (None, SendStart::Together) => (send.jitter_ns as f64 * key.unit(FIRST_DRAW)) as u64,
        (None, SendStart::Staggered) => (send.interval_ns as f64 * key.unit(FIRST_DRAW)) as u64,
    }
}

/// Time from one message to the next at `load` times the rate; `step` makes intervals with jitter differ.
#[inline]
pub(crate) fn interval_ns(
    send: &SendPlan,
    number: u16,
    key: RandomKey,
    step: u32,
    load: f64,
) -> u64 {
    let mut interval_ns = send.interval_ns as f64;
    if send.jitter_ns > 0 {
        let key = key.purpose(TIME_PURPOSE + u64::from(number));
        let jitter_ns = send.jitter_ns as f64;
        interval_ns += key.between(u64::from(step), -jitter_ns, jitter_ns);
    }
    // A load of 0 is a pause; what is due is looked at again after a while.
    (interval_ns / load.max(1e-3)).max(1.0) as u64
}
