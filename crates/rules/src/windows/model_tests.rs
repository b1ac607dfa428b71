//! Compares windows with a model that keeps every event: events out of order, wrong clocks, silence, and
//! restarts.

use proptest::prelude::*;

use super::*;
use crate::value::Value as EventField;
use crate::window::{Aggregate, AggregateKind};

const LATENESS_MS: u64 = 7;
const BOUNDS: EventClockLimits = EventClockLimits {
    max_ahead_ms: 50,
    idle_ms: 40,
};

#[derive(Debug, Clone, Copy)]
enum ModelStep {
    /// An event of a key, with an offset in milliseconds from the node's clock.
    Event(u8, i64),
    /// Time passes.
    Wait(u64),
    Look,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let event = (0..2_u8, -60..60_i64).prop_map(|(key, off_ms)| ModelStep::Event(key, off_ms));
    let wait = prop_oneof![6 => 0..8_u64, 1 => 30..90_u64];
    let step = prop_oneof![
        8 => event,
        6 => wait.prop_map(ModelStep::Wait),
        2 => Just(ModelStep::Look),
        1 => Just(ModelStep::Restart),
    ];
    prop::collection::vec(step, 0..60)
}

/// Start, end, key, number of events.
type ClosedRow = (u64, u64, u8, i64);

/// The model: all events so far.
struct WindowModel {
    kind: WindowKind,
    is_by_events: bool,
    clock: Option<(u64, Option<u64>)>,
    closed_ms: u64,
    /// Timestamp, key, and the end up to which the windows of this event have been counted or missed.
    open: Vec<(u64, u8, u64)>,
    rows: Vec<ClosedRow>,
}

impl WindowModel {
    fn tick(&mut self, now_ms: u64) {
        let at_ms = match &mut self.clock {
            _ if !self.is_by_events => now_ms,
            None => return,
            Some((newest_ms, arrived_ms)) => {
                let silence_ms = now_ms - *arrived_ms.get_or_insert(now_ms);
                *newest_ms
                    + if silence_ms >= BOUNDS.idle_ms {
                        silence_ms
                    } else {
                        0
                    }
            }
        };
        self.closed_ms = self.closed_ms.max(at_ms.saturating_sub(LATENESS_MS));
    }

    /// The windows of an event, given all other events of its key.
    fn windows(&self, at_ms: u64, key: u8) -> Vec<(u64, u64)> {
        match self.kind {
            WindowKind::Tumbling { size_ms } => aligned(at_ms, size_ms, size_ms),
            WindowKind::Hopping { size_ms, every_ms } => aligned(at_ms, size_ms, every_ms),
            WindowKind::Session { gap_ms, .. } => {
                let (mut first, mut last) = (at_ms, at_ms);
                loop {
                    let near = |other: u64| other + gap_ms > first && other < last + gap_ms;
                    let times = self.open.iter().filter(|(_, of, _)| *of == key);
                    let times: Vec<u64> =
                        times.map(|(at, ..)| *at).filter(|at| near(*at)).collect();
                    let low = times.iter().copied().min().unwrap_or(first).min(first);
                    let high = times.iter().copied().max().unwrap_or(last).max(last);
                    if (low, high) == (first, last) {
                        return vec![(first, last + gap_ms)];
                    }
                    (first, last) = (low, high);
                }
            }
            _ => unreachable!("not in this test"),
        }
    }

    fn add(&mut self, at_ms: u64, key: u8, now_ms: u64) -> AddOutcome {
        self.tick(now_ms);
        if self.is_by_events && at_ms > now_ms + BOUNDS.max_ahead_ms {
            return AddOutcome::Ahead;
        }
        self.close();
        let windows = self.windows(at_ms, key);
        let is_open = windows.iter().any(|(_, end_ms)| *end_ms > self.closed_ms);
        if is_open {
            self.open.push((at_ms, key, self.closed_ms));
        }
        let shown = self.clock.map(|(newest_ms, arrived_ms)| {
            let silence_ms = now_ms - arrived_ms.unwrap_or(now_ms);
            newest_ms
                + if silence_ms >= BOUNDS.idle_ms {
                    silence_ms
                } else {
                    0
                }
        });
        self.clock = Some((shown.unwrap_or(0).max(at_ms), Some(now_ms)));
        match is_open {
            true => AddOutcome::Counted,
            false => AddOutcome::Late,
        }
    }

    /// Moves closed windows to the result rows.
    fn close(&mut self) {
        let mut done: Vec<ClosedRow> = Vec::new();
        let closed_ms = self.closed_ms;
        let mut left = Vec::new();
        for &(at_ms, key, counted_ms) in &self.open {
            let windows = self.windows(at_ms, key);
            for &(start_ms, end_ms) in &windows {
                if end_ms <= counted_ms || end_ms > closed_ms {
                    continue;
                }
                let same = |row: &&mut ClosedRow| (row.0, row.1, row.2) == (start_ms, end_ms, key);
                match done.iter_mut().find(same) {
                    Some(row) => row.3 += 1,
                    None => done.push((start_ms, end_ms, key, 1)),
                }
            }
            if windows.iter().any(|(_, end_ms)| *end_ms > closed_ms) {
                left.push((at_ms, key, closed_ms));
            }
        }
        self.open = left;
        self.rows.extend(done);
    }
}

fn aligned(at_ms: u64, size_ms: u64, every_ms: u64) -> Vec<(u64, u64)> {
    let starts = (0..=at_ms / every_ms).map(|n| n * every_ms);
    let all = starts.map(|start_ms| (start_ms, start_ms + size_ms));
    all.filter(|(_, end_ms)| *end_ms > at_ms).collect()
}

fn check(kind: WindowKind, is_by_events: bool, steps: &[ModelStep]) {
    let window = WindowDefinition {
        kind,
        keys: 1,
        aggregates: Box::new([Aggregate {
            kind: AggregateKind::Count,
            percentile: 0.0,
        }]),
        zone: crate::zone::Zone::UTC,
    };
    let settings = WindowOptions {
        lateness_ms: LATENESS_MS,
        event_time: is_by_events.then_some(BOUNDS),
        ..WindowOptions::default()
    };
    let mut windows = OpenWindows::new(&window, settings);
    let mut model = WindowModel {
        kind,
        is_by_events,
        clock: None,
        closed_ms: 0,
        open: Vec::new(),
        rows: Vec::new(),
    };
    let mut rows: Vec<ClosedRow> = Vec::new();
    let mut now_ms = 1_000_u64;
    let arena = Arena::new();
    let mut close = |closed: ClosedWindow<'_>| {
        let (EventField::Int(key), EventField::Int(count)) = (closed.key[0], closed.aggregates[0])
        else {
            panic!("not what was counted");
        };
        rows.push((closed.start_ms, closed.end_ms, key as u8, count));
    };
    let end = [ModelStep::Look, ModelStep::Wait(10_000), ModelStep::Look];
    for &step in steps.iter().chain(&end) {
        match step {
            ModelStep::Event(key, off_ms) => {
                let at_ms = now_ms.saturating_add_signed(off_ms);
                let sample = WindowSample {
                    timestamp_ms: at_ms,
                    key: &[EventField::Int(key.into())],
                    arguments: &[EventField::Bool(true)],
                };
                let added = windows.add(&sample, now_ms, &arena, &mut close);
                assert_eq!(added, model.add(at_ms, key, now_ms), "{at_ms} at {now_ms}");
            }
            ModelStep::Wait(ms) => now_ms += ms,
            ModelStep::Look => {
                windows.advance(now_ms, &arena, &mut close);
                model.tick(now_ms);
                model.close();
                let is_due = windows.due_ms().is_some_and(|due_ms| due_ms <= now_ms);
                assert!(!is_due, "due again at once");
            }
            ModelStep::Restart => {
                let snapshot = windows.snapshot();
                windows = OpenWindows::restore(&window, settings, &snapshot)
                    .expect("the snapshot is valid");
                if let Some((_, arrived_ms)) = &mut model.clock {
                    *arrived_ms = None;
                }
            }
        }
    }
    assert_eq!((windows.groups(), windows.size_bytes()), (0, 0));
    rows.sort_unstable();
    model.rows.sort_unstable();
    assert_eq!(rows, model.rows);
}

proptest! {
    #[test]
    fn tumbling_windows_count_what_the_model_counts(steps in steps(), is_by_events: bool) {
        check(WindowKind::Tumbling { size_ms: 20 }, is_by_events, &steps);
    }

    #[test]
    fn hopping_windows_count_what_the_model_counts(steps in steps(), is_by_events: bool) {
        let kind = WindowKind::Hopping {
            size_ms: 30,
            every_ms: 10,
        };
        check(kind, is_by_events, &steps);
    }

    #[test]
    fn sessions_are_those_of_the_model(steps in steps(), is_by_events: bool) {
        check(WindowKind::Session { gap_ms: 9, max_ms: None }, is_by_events, &steps);
    }
}
