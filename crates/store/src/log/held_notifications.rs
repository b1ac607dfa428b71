//! Notifications of logged batches that wait until another node has the batches too.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::shared::StoreShared;

impl StoreShared {
    pub(crate) fn hold_notifications(&self) {
        self.hold.is_active.store(true, Ordering::Relaxed);
        // The writer publishes a group under a lock, then looks whether to hold its notifications. Everything that is not yet in
        // `written_lsn` when this returns is therefore held.
        self.written_log.wait_for_publication();
    }

    pub(crate) fn confirm_replicated(&self, lsn: u64) {
        // A number above the last frame must not release notifications of frames that are not written yet.
        let lsn = lsn.min(self.written_log.written_lsn());
        let before = self.hold.confirmed_lsn.fetch_max(lsn, Ordering::AcqRel);
        if before < lsn && self.hold.is_active() {
            self.wake();
        }
    }

    pub(crate) fn release_notifications(&self) {
        // Holding may begin again before the writer notices that it ended.
        let lsn = self.written_log.written_lsn();
        self.hold.confirmed_lsn.fetch_max(lsn, Ordering::AcqRel);
        self.hold.is_active.store(false, Ordering::Release);
        self.wake();
    }
}

/// The held notifications of the writer.
#[derive(Default)]
pub(super) struct HeldNotifications {
    /// Last frame of the group, shard, batch; in order.
    waiting: VecDeque<(u64, u16, u64)>,
    /// Number of groups in it.
    groups: u64,
}

impl HeldNotifications {
    /// Holds the notifications of a group if necessary; `false` if they are to be delivered now. At the time of the call, the
    /// group must be published.
    pub(super) fn hold(&mut self, shared: &StoreShared, lsn: u64, logged: &[(u16, u64)]) -> bool {
        if !shared.hold.is_active() && self.waiting.is_empty() {
            return false;
        }
        if !logged.is_empty() {
            let is_same_group = self.waiting.back().is_some_and(|(last, ..)| *last == lsn);
            self.groups += u64::from(!is_same_group);
            for &(shard, number) in logged {
                // With queues in another server, several groups may follow one frame.
                let group = self.waiting.iter_mut().rev();
                let mut group = group.take_while(|(of, ..)| *of == lsn);
                match group.find(|(_, of, _)| *of == shard) {
                    Some((_, _, last)) => *last = number,
                    None => self.waiting.push_back((lsn, shard, number)),
                }
            }
            self.update_gauge(shared);
        }
        true
    }

    /// Moves the notifications that are due to `logged`, one for each shard.
    pub(super) fn take_due(&mut self, shared: &StoreShared, logged: &mut Vec<(u16, u64)>) {
        logged.clear();
        if self.waiting.is_empty() {
            return;
        }
        let due_lsn = if shared.hold.is_active() {
            shared.hold.confirmed_lsn.load(Ordering::Acquire)
        } else {
            u64::MAX
        };
        let mut last_lsn = None;
        while let Some(&(lsn, shard, number)) = self.waiting.front()
            && lsn <= due_lsn
        {
            self.waiting.pop_front();
            self.groups -= u64::from(last_lsn.replace(lsn) != Some(lsn));
            match logged.iter_mut().find(|(of, _)| *of == shard) {
                Some((_, last)) => *last = number,
                None => logged.push((shard, number)),
            }
        }
        if last_lsn.is_some() {
            self.update_gauge(shared);
        }
    }

    fn update_gauge(&self, shared: &StoreShared) {
        let gauge = &shared.counters.held_notifications;
        gauge.store(self.groups, Ordering::Relaxed);
    }
}
