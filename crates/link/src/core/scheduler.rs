//! Which frame is sent next: stride scheduling over twelve flows, three for each priority.
//!
//! Each flow has a position that advances by the bytes it sends, divided by its weight; the flow with the lowest
//! position is next. A flow that had nothing to send continues at the position of the others, so it is served at once:
//! a message never waits for more than the chunk that is being sent.

use crate::priority::{LANES, Priority};

/// What a flow sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowKind {
    Messages = 0,
    LargeMessages = 1,
    Streams = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) kind: FlowKind,
    pub(crate) priority: Priority,
}

const KINDS: [FlowKind; 3] = [
    FlowKind::Messages,
    FlowKind::LargeMessages,
    FlowKind::Streams,
];
const FLOWS: usize = KINDS.len() * LANES;

#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    positions: [u64; FLOWS],
    was_ready: [bool; FLOWS],
}

impl Scheduler {
    /// The next flow among those that have something to send.
    pub(crate) fn choose(&mut self, mut is_ready: impl FnMut(Flow) -> bool) -> Option<Flow> {
        let flows = KINDS.into_iter().flat_map(|kind| {
            Priority::ALL
                .into_iter()
                .map(move |priority| Flow { kind, priority })
        });
        let mut ready = [false; FLOWS];
        let mut all = [None; FLOWS];
        let mut lowest = None;
        for (index, flow) in flows.enumerate() {
            all[index] = Some(flow);
            ready[index] = is_ready(flow);
            if ready[index] && self.was_ready[index] {
                let position = self.positions[index];
                lowest = Some(lowest.map_or(position, |lowest: u64| lowest.min(position)));
            }
        }
        let base = lowest.unwrap_or_else(|| self.positions.into_iter().max().unwrap_or(0));
        for (index, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
            if !self.was_ready[index] {
                self.positions[index] = base;
            }
        }
        // Flows that have just become ready come first among equals.
        let chosen = (0..FLOWS)
            .filter(|index| ready[*index])
            .min_by_key(|index| (self.positions[*index], self.was_ready[*index]))?;
        self.was_ready = ready;
        all[chosen]
    }

    pub(crate) fn record(&mut self, flow: Flow, bytes: usize) {
        let index = flow.kind as usize * LANES + flow.priority.index();
        // 8 is the largest weight. A frame costs at least its header.
        self.positions[index] += (bytes as u64 + 16) * 8 / flow.priority.weight();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(kind: FlowKind, priority: Priority) -> Flow {
        Flow { kind, priority }
    }

    #[test]
    fn shares_follow_the_weights() {
        let mut scheduler = Scheduler::default();
        let mut bytes = [0_i64; LANES];
        for _ in 0..15_000 {
            let flow = scheduler
                .choose(|flow| flow.kind == FlowKind::Streams)
                .unwrap();
            bytes[flow.priority.index()] += 1000;
            scheduler.record(flow, 1000);
        }
        for (priority, expected) in Priority::ALL.into_iter().zip([8, 4, 2, 1]) {
            let share = bytes[priority.index()] / 1000;
            assert!((share - 1000 * expected).abs() <= 10, "{share}");
        }
    }

    #[test]
    fn a_flow_that_was_idle_is_next_whatever_its_priority() {
        let mut scheduler = Scheduler::default();
        let busy = flow(FlowKind::Streams, Priority::Urgent);
        let idle = flow(FlowKind::Messages, Priority::Bulk);
        for _ in 0..100 {
            assert_eq!(scheduler.choose(|flow| flow == busy), Some(busy));
            scheduler.record(busy, 100_000);
            let next = scheduler.choose(|flow| flow == busy || flow == idle);
            assert_eq!(next, Some(idle));
            scheduler.record(idle, 100);
        }
        assert_eq!(scheduler.choose(|_| false), None);
    }
}
