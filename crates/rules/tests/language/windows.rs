//! GROUP BY with windows: samples of events and results of closed windows.

use rules::{
    CalendarUnit, ClosedWindow, EvaluationResources, EvaluationScratch, RuleState, Value,
    WindowKind,
};

use super::{NOW_MS, publish, rule};

#[test]
fn a_window_counts_samples_and_gives_an_output_when_it_closes() {
    let sql = "SELECT payload.device as device, count(*) as n, avg(payload.t) as t, max(payload.t) - min(payload.t) as span, \
               window_start() as since, percentile(payload.t, 95) as p \
               FROM \"$EVENT.PUBLISH\" WHERE payload.t > 0 GROUP BY device, tumbling(10s) HAVING count(*) > 1";
    let rule = rule(sql);
    let window = rule.window().expect("a window");
    assert_eq!(window.kind, WindowKind::Tumbling { size_ms: 10_000 });
    assert_eq!(window.keys, 1);
    let names: Vec<_> = window
        .aggregates
        .iter()
        .map(|aggregate| aggregate.kind.name())
        .collect();
    assert_eq!(names, ["count", "avg", "max", "min", "percentile"]);
    assert_eq!(window.aggregates[4].percentile, 95.0);

    let scratch = EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
    let mut state = RuleState::default();
    let event = publish("t", r#"{"device": "d1", "t": 21}"#);
    let view = scratch.view(&event, NOW_MS);
    let sample = rule
        .sample_event(&view, &mut state)
        .expect("no fault")
        .expect("passes");
    assert_eq!(sample.timestamp_ms, NOW_MS);
    assert!(matches!(sample.key, [Value::Str("d1")]));
    assert!(matches!(
        sample.arguments[..2],
        [Value::Bool(true), Value::Int(21)]
    ));
    let cold = publish("t", r#"{"device": "d1", "t": 0}"#);
    assert!(
        rule.sample_event(&scratch.view(&cold, NOW_MS), &mut state)
            .expect("no fault")
            .is_none()
    );

    let mut aggregates = [
        Value::Int(2),
        Value::Float(21.5),
        Value::Int(22),
        Value::Int(21),
        Value::Int(22),
    ];
    for (count, expected) in [
        (
            2,
            Some(r#"{"device":"d1","n":2,"t":21.5,"span":1,"since":1000,"p":22}"#),
        ),
        (1, None),
    ] {
        aggregates[0] = Value::Int(count);
        let closed = ClosedWindow {
            start_ms: 1000,
            end_ms: 11_000,
            key: sample.key,
            aggregates: scratch.arena().alloc_slice_copy(&aggregates),
        };
        let mut out = Vec::new();
        rule.close_window(&closed, &view, &mut state, &mut |output| {
            output.write_json(&mut out)
        })
        .expect("no fault");
        assert_eq!(
            String::from_utf8(out).expect("UTF-8"),
            expected.unwrap_or_default()
        );
    }
}

#[test]
fn windows_of_every_kind() {
    for (text, kind) in [
        (
            "hopping(1m, 10s)",
            WindowKind::Hopping {
                size_ms: 60_000,
                every_ms: 10_000,
            },
        ),
        ("sliding('1m')", WindowKind::Sliding { size_ms: 60_000 }),
        (
            "session(500ms)",
            WindowKind::Session {
                gap_ms: 500,
                max_ms: None,
            },
        ),
        (
            "count(100)",
            WindowKind::Count {
                events: 100,
                step: 100,
            },
        ),
        (
            "TUMBLING(1.5h)",
            WindowKind::Tumbling { size_ms: 5_400_000 },
        ),
        (
            "tumbling(1w)",
            WindowKind::Calendar {
                size: 1,
                unit: CalendarUnit::Week,
            },
        ),
        (
            "tumbling('3 months')",
            WindowKind::Calendar {
                size: 3,
                unit: CalendarUnit::Month,
            },
        ),
        (
            "tumbling(1mo)",
            WindowKind::Calendar {
                size: 1,
                unit: CalendarUnit::Month,
            },
        ),
    ] {
        for comma in ["", ","] {
            let rule = rule(&format!(
                "SELECT topic, count(*) FROM \"t\" GROUP BY topic{comma} {text}"
            ));
            assert_eq!(rule.window().expect("a window").kind, kind);
        }
        assert_eq!(
            rule(&format!("SELECT count() FROM \"t\" GROUP BY {text}"))
                .window()
                .expect("a window")
                .keys,
            0
        );
    }
}

#[test]
fn windows_of_the_calendar_are_whole_and_tumble() {
    for (window, part) in [
        ("tumbling(1.5 months)", "1 to 12 months"),
        ("tumbling(13mo)", "1 to 12 months"),
        ("tumbling(53w)", "1 to 52 weeks"),
        ("hopping(1mo, 1d)", "unknown unit of time"),
        ("tumbling(1y)", "weeks or months of the calendar"),
    ] {
        let sql = format!("SELECT count(*) FROM \"t\" GROUP BY {window}");
        let error = rules::compile(&sql, &rules::CompileOptions::default())
            .err()
            .expect(window);
        assert!(error.to_string().contains(part), "{window}: {error}");
    }
}
