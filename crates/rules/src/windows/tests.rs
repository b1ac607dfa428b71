//! Windows of each kind: results, closing times and stored state.

use super::*;
use crate::value::Value;
use crate::window::{Aggregate, AggregateKind, CalendarUnit};

fn window(kind: WindowKind) -> WindowDefinition {
    let aggregate = |kind| Aggregate {
        kind,
        percentile: 0.0,
    };
    WindowDefinition {
        kind,
        keys: 1,
        aggregates: Box::new([
            aggregate(AggregateKind::Count),
            aggregate(AggregateKind::Sum),
        ]),
        zone: crate::zone::Zone::UTC,
    }
}

fn settings() -> WindowOptions {
    WindowOptions {
        lateness_ms: 5,
        ..WindowOptions::default()
    }
}

/// `key start..end: count sum`
fn format_line(closed: &ClosedWindow<'_>) -> String {
    let mut line = Vec::new();
    for value in closed.key {
        value.write_json(&mut line);
    }
    line.extend_from_slice(format!(" {}..{}:", closed.start_ms, closed.end_ms).as_bytes());
    for value in closed.aggregates {
        line.push(b' ');
        value.write_json(&mut line);
    }
    String::from_utf8(line).expect("JSON is UTF-8")
}

/// A window, its clock and the windows it has closed.
struct WindowHarness {
    windows: OpenWindows,
    settings: WindowOptions,
    now_ms: u64,
    closed: Vec<String>,
}

impl WindowHarness {
    fn new(kind: WindowKind) -> Self {
        Self {
            windows: OpenWindows::new(&window(kind), settings()),
            settings: settings(),
            now_ms: 0,
            closed: Vec::new(),
        }
    }

    /// Adds an event on time.
    fn add(&mut self, at_ms: u64, key: &str, value: i64) -> AddOutcome {
        if self.settings.event_time.is_none() {
            self.now_ms = self.now_ms.max(at_ms);
        }
        let sample = WindowSample {
            timestamp_ms: at_ms,
            key: &[Value::Str(key)],
            arguments: &[Value::Int(1), Value::Int(value)],
        };
        let (closed, arena) = (&mut self.closed, Arena::new());
        (self.windows).add(&sample, self.now_ms, &arena, |row| {
            closed.push(format_line(&row))
        })
    }

    fn advance_to_now(&mut self) {
        self.advance(self.now_ms);
    }

    fn advance(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let (closed, arena) = (&mut self.closed, Arena::new());
        (self.windows).advance(now_ms, &arena, |row| closed.push(format_line(&row)));
    }

    fn closed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.closed)
    }

    /// Saves and restores the state, as after a restart.
    fn restart(&mut self) {
        let (groups, bytes) = (self.windows.groups(), self.windows.size_bytes());
        let snapshot = self.windows.snapshot();
        let window = self.windows.window.clone();
        self.windows =
            OpenWindows::restore(&window, self.settings, &snapshot).expect("the snapshot is valid");
        assert_eq!(
            (self.windows.groups(), self.windows.size_bytes()),
            (groups, bytes)
        );
        for end in 0..snapshot.len() {
            assert!(OpenWindows::restore(&window, self.settings, &snapshot[..end]).is_err());
        }
    }

    /// Whether no state remains and the budget is fully released.
    fn is_empty(&self) -> bool {
        (
            self.windows.groups(),
            self.windows.size_bytes(),
            self.windows.due_ms(),
        ) == (0, 0, None)
    }
}

#[test]
fn tumbling_windows_close_in_order_when_their_lateness_has_passed() {
    let mut bench = WindowHarness::new(WindowKind::Tumbling { size_ms: 10 });
    assert_eq!(bench.add(101, "a", 1), AddOutcome::Counted);
    bench.add(109, "b", 2);
    bench.add(112, "a", 4);
    // Late, but not too late.
    assert_eq!(bench.add(103, "a", 8), AddOutcome::Counted);
    assert_eq!(bench.windows.due_ms(), Some(115));
    bench.advance(114);
    assert!(bench.closed().is_empty());
    bench.restart();
    bench.advance(115);
    assert_eq!(
        bench.closed(),
        ["\"a\" 100..110: 2 9", "\"b\" 100..110: 1 2"]
    );
    assert_eq!(bench.add(109, "a", 1), AddOutcome::Late);
    bench.advance(125);
    assert_eq!(bench.closed(), ["\"a\" 110..120: 1 4"]);
    assert!(bench.is_empty());
}

#[test]
fn an_event_counts_in_every_hopping_window_it_is_in() {
    let mut bench = WindowHarness::new(WindowKind::Hopping {
        size_ms: 20,
        every_ms: 10,
    });
    bench.add(105, "a", 1);
    bench.add(115, "a", 2);
    bench.restart();
    bench.advance(1000);
    assert_eq!(
        bench.closed(),
        [
            "\"a\" 90..110: 1 1",
            "\"a\" 100..120: 2 3",
            "\"a\" 110..130: 1 2"
        ]
    );
    assert!(bench.is_empty());
}

#[test]
fn a_session_ends_after_its_gap() {
    let mut bench = WindowHarness::new(WindowKind::Session {
        gap_ms: 10,
        max_ms: None,
    });
    bench.add(100, "a", 1);
    bench.add(109, "a", 2);
    bench.add(105, "b", 4);
    bench.advance(115);
    assert!(bench.closed().is_empty());
    bench.advance(120);
    assert_eq!(bench.closed(), ["\"b\" 105..115: 1 4"]);
    bench.restart();
    // The next session of the same key does not close the one before, which still accepts late events.
    bench.add(121, "a", 8);
    assert_eq!(bench.add(118, "a", 16), AddOutcome::Counted);
    // In the middle between both sessions: merges them.
    bench.restart();
    bench.advance(135);
    assert!(bench.closed().is_empty());
    bench.advance(136);
    assert_eq!(bench.closed(), ["\"a\" 100..131: 4 27"]);
    assert!(bench.is_empty());
}

#[test]
fn a_window_of_events_closes_with_the_last_of_them() {
    let mut bench = WindowHarness::new(WindowKind::Count { events: 3, step: 3 });
    for (at_ms, key) in [(100, "a"), (101, "b"), (102, "a")] {
        bench.add(at_ms, key, 1);
    }
    bench.restart();
    assert!(bench.closed().is_empty());
    bench.add(107, "a", 5);
    assert_eq!(bench.closed(), ["\"a\" 100..107: 3 7"]);
    bench.add(108, "b", 1);
    bench.add(109, "b", 1);
    assert_eq!(bench.closed(), ["\"b\" 101..109: 3 3"]);
    assert!(bench.is_empty());
}

#[test]
fn windows_of_events_begin_with_each_step() {
    let mut bench = WindowHarness::new(WindowKind::Count { events: 4, step: 2 });
    for at_ms in 1..=9 {
        bench.add(at_ms, "a", at_ms as i64);
        bench.restart();
    }
    assert_eq!(
        bench.closed(),
        ["\"a\" 1..4: 4 10", "\"a\" 3..6: 4 18", "\"a\" 5..8: 4 26"]
    );
}

#[test]
fn a_session_has_a_maximum_length() {
    let mut bench = WindowHarness::new(WindowKind::Session {
        gap_ms: 10,
        max_ms: Some(25),
    });
    for at_ms in [100, 108, 116, 124, 132] {
        bench.add(at_ms, "a", 1);
        bench.restart();
    }
    bench.advance(124 + 5);
    assert!(bench.closed().is_empty());
    bench.advance(125 + 5);
    assert_eq!(bench.closed(), ["\"a\" 100..125: 4 4"]);
    bench.advance(142 + 5);
    assert_eq!(bench.closed(), ["\"a\" 132..142: 1 1"]);
    assert!(bench.is_empty());
    // A late event may move its start, and therefore its end, forward.
    for at_ms in [210, 215, 222, 229, 205] {
        bench.add(at_ms, "b", 1);
    }
    bench.advance(230 + 5);
    assert_eq!(bench.closed(), ["\"b\" 205..230: 5 5"]);
}

#[test]
fn days_begin_at_midnight_in_the_zone() {
    const HOUR_MS: u64 = 3_600_000;
    let zone = crate::zone::Zone::parse("Europe/Berlin").expect("a bundled zone");
    let day_ms = 24 * HOUR_MS;
    let closed = |kind: WindowKind, at_ms: &[u64]| {
        let window = WindowDefinition {
            zone: zone.clone(),
            ..window(kind)
        };
        let mut windows = OpenWindows::new(&window, settings());
        let arena = Arena::new();
        let mut lines = Vec::new();
        for &at_ms in at_ms {
            let sample = WindowSample {
                timestamp_ms: at_ms,
                key: &[Value::Str("a")],
                arguments: &[Value::Bool(true), Value::Int(1)],
            };
            let added = windows.add(&sample, at_ms, &arena, |_| {});
            assert_eq!(added, AddOutcome::Counted, "{at_ms}");
            let snapshot = windows.snapshot();
            windows = OpenWindows::restore(&window, settings(), &snapshot)
                .expect("the snapshot is valid");
        }
        windows.advance(u64::MAX / 2, &arena, |closed| {
            lines.push(format_line(&closed))
        });
        lines
    };
    // 2024-03-31, when clocks in Berlin are set forward, has 23 hours; 2024-10-27 has 25.
    let (spring_ms, autumn_ms) = (1_711_839_600_000, 1_729_980_000_000);
    let tumbling = WindowKind::Tumbling { size_ms: day_ms };
    for (start_ms, hours) in [(spring_ms, 23), (autumn_ms, 25)] {
        let end_ms = start_ms + hours * HOUR_MS;
        let last_ms = end_ms - 1;
        let next_ms = end_ms + 24 * HOUR_MS;
        assert_eq!(
            closed(tumbling, &[start_ms, last_ms, end_ms]),
            [
                format!("\"a\" {start_ms}..{end_ms}: 2 2"),
                format!("\"a\" {end_ms}..{next_ms}: 1 1")
            ]
        );
    }
    let hopping = WindowKind::Hopping {
        size_ms: 2 * day_ms,
        every_ms: day_ms,
    };
    let (before_ms, end_ms) = (spring_ms - day_ms, spring_ms + 23 * HOUR_MS);
    assert_eq!(
        closed(hopping, &[spring_ms]),
        [
            format!("\"a\" {before_ms}..{end_ms}: 1 1"),
            format!("\"a\" {spring_ms}..{}: 1 1", end_ms + day_ms)
        ]
    );
    // Windows that are not whole days ignore the zone.
    let six_hours = WindowKind::Tumbling {
        size_ms: 6 * HOUR_MS,
    };
    let start_ms = spring_ms - spring_ms % (6 * HOUR_MS);
    let end_ms = start_ms + 6 * HOUR_MS;
    assert_eq!(
        closed(six_hours, &[spring_ms]),
        [format!("\"a\" {start_ms}..{end_ms}: 1 1")]
    );
}

#[test]
fn weeks_and_months_are_those_of_the_calendar() {
    const HOUR_MS: u64 = 3_600_000;
    let zone = crate::zone::Zone::parse("Europe/Berlin").expect("a bundled zone");
    let rows = |size: u32, unit: CalendarUnit, at_ms: &[u64]| {
        let window = WindowDefinition {
            zone: zone.clone(),
            ..window(WindowKind::Calendar { size, unit })
        };
        let mut windows = OpenWindows::new(&window, settings());
        let arena = Arena::new();
        let mut lines = Vec::new();
        for &at_ms in at_ms {
            let sample = WindowSample {
                timestamp_ms: at_ms,
                key: &[Value::Str("a")],
                arguments: &[Value::Bool(true), Value::Int(1)],
            };
            let added = windows.add(&sample, at_ms, &arena, |_| {});
            assert_eq!(added, AddOutcome::Counted, "{at_ms}");
            let snapshot = windows.snapshot();
            windows = OpenWindows::restore(&window, settings(), &snapshot)
                .expect("the snapshot is valid");
        }
        windows.advance(u64::MAX / 2, &arena, |closed| {
            lines.push(format_line(&closed))
        });
        lines
    };
    let at = |text: &str| {
        let civil = crate::calendar::CivilTime::from_local_s(0);
        let (date, hour) = text.split_once(' ').expect("a date and an hour");
        let mut parts = date.split('-').map(|part| part.parse().expect("a number"));
        let mut part = || parts.next().expect("year, month and day");
        let civil = crate::calendar::CivilTime {
            year: part(),
            month: part(),
            day: part(),
            hour: hour.parse().expect("an hour"),
            ..civil
        };
        let local_s = civil.to_local_s().expect("a date");
        u64::try_from(zone.to_unix_s(local_s)).expect("after 1970") * 1000
    };
    let expected = |from: &str, to: &str, count: u32| {
        format!("\"a\" {}..{}: {count} {count}", at(from), at(to))
    };
    // From Monday to Sunday. The last Sunday of March 2024 has 23 hours.
    let (monday, next) = (at("2024-03-25 0"), at("2024-04-01 0"));
    assert_eq!(next - monday, (7 * 24 - 1) * HOUR_MS);
    assert_eq!(
        rows(1, CalendarUnit::Week, &[monday, next - 1, next]),
        [
            expected("2024-03-25 0", "2024-04-01 0", 2),
            expected("2024-04-01 0", "2024-04-08 0", 1)
        ]
    );
    // A leap year's February, and the end of a year.
    let events = [
        at("2024-02-01 0"),
        at("2024-02-29 23"),
        at("2024-03-01 0"),
        at("2024-12-31 23"),
        at("2025-01-01 0"),
    ];
    assert_eq!(
        rows(1, CalendarUnit::Month, &events),
        [
            expected("2024-02-01 0", "2024-03-01 0", 2),
            expected("2024-03-01 0", "2024-04-01 0", 1),
            expected("2024-12-01 0", "2025-01-01 0", 1),
            expected("2025-01-01 0", "2025-02-01 0", 1),
        ]
    );
    // Quarters begin with those of the year.
    assert_eq!(
        rows(3, CalendarUnit::Month, &events),
        [
            expected("2024-01-01 0", "2024-04-01 0", 3),
            expected("2024-10-01 0", "2025-01-01 0", 1),
            expected("2025-01-01 0", "2025-04-01 0", 1),
        ]
    );
}

#[test]
fn each_event_is_evaluated_with_the_time_before_it() {
    let mut bench = WindowHarness::new(WindowKind::Sliding { size_ms: 10 });
    for at_ms in [100, 105, 110, 130] {
        bench.add(at_ms, "a", 1);
    }
    let expected = [
        "\"a\" 91..101: 1 1",
        "\"a\" 96..106: 2 2",
        "\"a\" 101..111: 2 2",
        "\"a\" 121..131: 1 1",
    ];
    assert_eq!(bench.closed(), expected);
    bench.restart();
    // A late event sees the events before it.
    bench.add(128, "a", 1);
    assert_eq!(bench.closed(), ["\"a\" 119..129: 1 1"]);
    bench.add(131, "a", 1);
    assert_eq!(bench.closed(), ["\"a\" 122..132: 3 3"]);
    bench.advance(146);
    assert!(bench.is_empty());
}

/// Like [`WindowHarness`], but driven by event timestamps.
fn by_events(kind: WindowKind) -> WindowHarness {
    let settings = WindowOptions {
        event_time: Some(EventClockLimits {
            max_ahead_ms: 1_000,
            idle_ms: 500,
        }),
        ..settings()
    };
    WindowHarness {
        windows: OpenWindows::new(&window(kind), settings),
        settings,
        now_ms: 1_000_000,
        closed: Vec::new(),
    }
}

#[test]
fn a_backlog_is_counted_as_if_it_had_arrived_on_time() {
    let mut bench = by_events(WindowKind::Tumbling { size_ms: 10 });
    // Events of long ago, out of order, all received at the same moment.
    for (at_ms, value) in [(101, 1), (112, 2), (108, 4), (125, 8)] {
        assert_eq!(bench.add(at_ms, "a", value), AddOutcome::Counted);
    }
    assert_eq!(bench.add(109, "a", 16), AddOutcome::Late);
    bench.advance_to_now();
    assert_eq!(
        bench.closed(),
        ["\"a\" 100..110: 2 5", "\"a\" 110..120: 1 2"]
    );
    // An event from a wrong clock does not move the rule's clock.
    assert_eq!(bench.add(9_999_999, "a", 1), AddOutcome::Ahead);
    bench.advance_to_now();
    assert!(bench.closed().is_empty());
    // Downtime of the node does not count as silence.
    bench.now_ms += 3_600_000;
    bench.restart();
    assert_eq!(bench.windows.due_ms(), Some(0), "to be looked at");
    bench.advance_to_now();
    assert!(bench.closed().is_empty());
    // The last window ends after a time without events.
    assert_eq!(bench.windows.due_ms(), Some(bench.now_ms + 500));
    bench.advance(bench.now_ms + 499);
    assert!(bench.closed().is_empty());
    bench.advance(bench.now_ms + 1);
    assert_eq!(bench.closed(), ["\"a\" 120..130: 1 8"]);
    assert!(bench.is_empty());
    // The event clock has meanwhile advanced as fast as the node's.
    assert_eq!(bench.add(130, "a", 1), AddOutcome::Late);
    assert_eq!(bench.add(620, "a", 1), AddOutcome::Counted);
}

#[test]
fn windows_of_every_kind_use_event_timestamps() {
    let mut bench = by_events(WindowKind::Session {
        gap_ms: 10,
        max_ms: None,
    });
    for at_ms in [100, 118, 113] {
        bench.add(at_ms, "a", 1);
    }
    bench.add(200, "b", 1);
    bench.advance_to_now();
    assert_eq!(
        bench.closed(),
        ["\"a\" 100..110: 1 1", "\"a\" 113..128: 2 2"]
    );
    let mut bench = by_events(WindowKind::Sliding { size_ms: 10 });
    bench.add(100, "a", 1);
    bench.add(105, "a", 2);
    bench.add(103, "a", 4);
    assert_eq!(bench.add(99, "a", 8), AddOutcome::Late);
    let expected = [
        "\"a\" 91..101: 1 1",
        "\"a\" 96..106: 2 3",
        "\"a\" 94..104: 2 5",
    ];
    assert_eq!(bench.closed(), expected);
    let mut bench = by_events(WindowKind::Count { events: 2, step: 2 });
    bench.add(100, "a", 1);
    assert_eq!(bench.add(5_000_000, "a", 1), AddOutcome::Ahead);
    bench.add(90, "a", 2);
    assert_eq!(bench.closed(), ["\"a\" 90..100: 2 3"]);
    let mut bench = by_events(WindowKind::Hopping {
        size_ms: 20,
        every_ms: 10,
    });
    bench.add(105, "a", 1);
    bench.add(126, "a", 2);
    // Late for one of its two windows.
    assert_eq!(bench.add(115, "a", 4), AddOutcome::Counted);
    bench.advance_to_now();
    assert_eq!(
        bench.closed(),
        ["\"a\" 90..110: 1 1", "\"a\" 100..120: 1 1"]
    );
}

#[test]
fn groups_and_bytes_are_bounded() {
    let kinds = [
        WindowKind::Tumbling { size_ms: 10 },
        WindowKind::Session {
            gap_ms: 10,
            max_ms: None,
        },
        WindowKind::Sliding { size_ms: 10 },
        WindowKind::Count { events: 3, step: 3 },
    ];
    for kind in kinds {
        let mut bench = WindowHarness::new(kind);
        let settings = WindowOptions {
            max_groups: 2,
            ..settings()
        };
        bench.windows = OpenWindows::new(&window(kind), settings);
        let added = ["a", "b", "c", "a"].map(|key| bench.add(100, key, 1));
        assert_eq!(
            added,
            [
                AddOutcome::Counted,
                AddOutcome::Counted,
                AddOutcome::Full,
                AddOutcome::Counted
            ],
            "{kind}"
        );
        let settings = WindowOptions {
            max_bytes: 100,
            ..settings
        };
        bench.windows = OpenWindows::new(&window(kind), settings);
        assert_eq!(bench.add(100, "a", 1), AddOutcome::Full, "{kind}");
        assert!(bench.windows.size_bytes() <= 100, "{kind}");
    }
}

#[test]
fn a_snapshot_of_another_window_is_rejected() {
    let kinds = [10, 20].map(|size_ms| window(WindowKind::Tumbling { size_ms }));
    let snapshot = OpenWindows::new(&kinds[0], settings()).snapshot();
    assert!(OpenWindows::restore(&kinds[0], settings(), &snapshot).is_ok());
    assert_eq!(
        OpenWindows::restore(&kinds[1], settings(), &snapshot).err(),
        Some(DecodeError)
    );
}
