//! Values of generators: within their limits, the same for the same seed, different for different devices.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Component, DeviceState, ReplaySources, StateProgram, StateValue};
use crate::definition::{StateDefinition, TargetDefinition};
use crate::random::RandomKey;

const HOUR_NS: u64 = 3_600_000_000_000;

fn program(definition: Value) -> Result<StateProgram, String> {
    let definition: StateDefinition =
        serde_json::from_value(definition).map_err(|error| error.to_string())?;
    let mut errors = Vec::new();
    let name = "x".to_owned();
    let program = StateProgram::compile(
        [(&name, &definition)].into_iter(),
        "state",
        &ReplaySources {
            folder: Path::new(""),
            target: &TargetDefinition::default(),
        },
        &mut errors,
    );
    match errors.is_empty() {
        true => Ok(program),
        false => Err(format!("{errors:?}")),
    }
}

/// The first values of a device, one message each `interval_ns`, as JSON.
fn values(
    definition: &Value,
    (seed, device): (u64, u32),
    count: u32,
    interval_ns: u64,
) -> Vec<Value> {
    let program = program(definition.clone()).expect("well-formed");
    let key = RandomKey::of_device(seed, 0, device);
    let mut cells = vec![0.0; program.cells()];
    program.initialize(key, &mut cells);
    (0..count)
        .map(|step| {
            let elapsed_ns = u64::from(step) * interval_ns;
            let state = DeviceState {
                key,
                step,
                elapsed_ns,
                wall_ms: elapsed_ns / 1_000_000,
                cells: &cells,
            };
            let value = match program.value(0, Component::Whole, &state) {
                StateValue::Integer(value) => json!(value),
                StateValue::Number { value, .. } => json!(value),
                StateValue::Boolean(value) => json!(value),
                StateValue::Text(text) => json!(text),
                StateValue::Position {
                    longitude,
                    latitude,
                } => json!([longitude, latitude]),
            };
            program.advance(key, step + 1, &mut cells);
            value
        })
        .collect()
}

fn numbers(definition: Value, device: u32, count: u32, interval_ns: u64) -> Vec<f64> {
    let values = values(&definition, (1, device), count, interval_ns);
    values
        .iter()
        .map(|value| value.as_f64().expect("a number"))
        .collect()
}

/// One definition of each generator.
fn all_generators() -> Vec<Value> {
    vec![
        json!(5),
        json!("a"),
        json!({"list": [1, "a", true]}),
        json!({"counter": {"start": [0, 9], "step": [1, 2], "end": 50}}),
        json!({"walk": {"start": [10, 20], "step": 1, "min": 5, "max": 25}}),
        json!({"sine": {"mean": 1, "amplitude": 2, "period": "1h", "phase": [0, 1], "noise": 0.1}}),
        json!({"gauss": {"mean": 1, "deviation": 2}}),
        json!({"uniform": [1, 6]}),
        json!({"uniform": [1, 6], "decimals": 0}),
        json!({"decay": {"from": [90, 100], "half_life": "1m"}}),
        json!({"hourly": {"values": (0..24).collect::<Vec<_>>(), "noise": 0.1}}),
        json!({"choice": {"values": ["a", "b", "c"]}}),
        json!({"boolean": {"share": 0.5}}),
        json!({"boolean": {"change": 0.3}}),
        json!({"route": {"points": [[0, 0], [1, 1]], "speed_kmh": [30, 50]}}),
    ]
}

proptest! {
    #[test]
    fn every_generator_repeats_itself_by_seed(seed in any::<u64>(), device in any::<u32>()) {
        for definition in all_generators() {
            let first = values(&definition, (seed, device), 20, 1_000_000_000);
            prop_assert_eq!(&first, &values(&definition, (seed, device), 20, 1_000_000_000));
        }
    }

    #[test]
    fn walks_stay_within_limits_and_steps(
        min in -100.0..0.0f64, span in 0.0..100.0f64, step in 0.0..300.0f64, device in any::<u32>()
    ) {
        let max = min + span;
        let definition = json!({"walk": {"start": [min, max], "step": step, "min": min, "max": max}});
        let found = numbers(definition, device, 200, 1);
        for pair in found.windows(2) {
            prop_assert!(pair[1] >= min && pair[1] <= max, "{pair:?}");
            prop_assert!((pair[1] - pair[0]).abs() <= step + 1e-9, "{pair:?}");
        }
    }

    #[test]
    fn whole_numbers_of_a_range_include_its_limits(from in -50i64..50, count in 1i64..5, device in any::<u32>()) {
        let to = from + count - 1;
        let mut found = numbers(json!({"uniform": [from, to], "decimals": 0}), device, 300, 1);
        found.sort_by(f64::total_cmp);
        found.dedup();
        let expected: Vec<f64> = (from..=to).map(|number| number as f64).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn devices_differ() {
    let constant = 3;
    for definition in all_generators().iter().skip(constant) {
        let of = |device| values(definition, (1, device), 50, 60_000_000_000);
        let differing = (1..20).filter(|device| of(*device) != of(0)).count();
        let depends_on_time_only = definition.get("list").is_some();
        assert!(differing > 10 || depends_on_time_only, "{definition}");
    }
}

#[test]
fn values_follow_their_definition() {
    assert_eq!(
        values(&json!({"list": [1, "a", true]}), (1, 0), 4, 1),
        [json!(1), json!("a"), json!(true), json!(1)]
    );
    assert_eq!(
        numbers(
            json!({"counter": {"start": 5, "step": 2, "end": 10}}),
            0,
            5,
            1
        ),
        [5.0, 7.0, 9.0, 5.0, 7.0]
    );
    let sine = numbers(
        json!({"sine": {"mean": 10, "amplitude": 2, "period": "4h"}}),
        0,
        4,
        HOUR_NS,
    );
    assert!(
        sine.iter()
            .zip([10.0, 12.0, 10.0, 8.0])
            .all(|(a, b)| (a - b).abs() < 1e-9),
        "{sine:?}"
    );
    let decay = json!({"decay": {"from": 100, "to": 20, "half_life": "1h", "restart": "3h"}});
    assert_eq!(numbers(decay, 0, 4, HOUR_NS), [100.0, 60.0, 40.0, 100.0]);
    let hours: Vec<u32> = (0..24).map(|hour| hour * 10).collect();
    let hourly =
        json!({"hourly": {"values": hours, "interpolate": true, "utc_offset_minutes": 120}});
    assert_eq!(numbers(hourly, 0, 3, HOUR_NS / 2), [20.0, 25.0, 30.0]);
    let held = values(
        &json!({"choice": {"values": [1, 2, 3, 4, 5, 6, 7, 8], "hold": 5}}),
        (1, 0),
        100,
        1,
    );
    assert!(
        held.chunks(5)
            .all(|group| group.iter().all(|value| *value == group[0]))
    );
    let weighted = values(
        &json!({"choice": {"values": ["a", "b"], "weights": [9, 1]}}),
        (1, 0),
        10_000,
        1,
    );
    let rare = weighted.iter().filter(|value| **value == "b").count();
    assert!((900..1100).contains(&rare), "{rare}");
    let switched = values(
        &json!({"boolean": {"share": 0, "change": 0.1}}),
        (1, 0),
        10_000,
        1,
    );
    assert_eq!(switched[0], false);
    let changes = switched
        .windows(2)
        .filter(|pair| pair[0] != pair[1])
        .count();
    assert!((900..1100).contains(&changes), "{changes}");
    let gauss = numbers(
        json!({"gauss": {"mean": 10, "deviation": 2, "min": 9}}),
        0,
        1000,
        1,
    );
    assert!(gauss.iter().all(|value| *value >= 9.0) && gauss.iter().any(|value| *value > 12.0));
}

#[test]
fn wrong_definitions_are_errors() {
    for (definition, part) in [
        (
            json!({"walk": {"start": 0, "step": 1}, "list": [1]}),
            "found `list` and `walk`",
        ),
        (json!({"decimals": 1}), "expected a generator"),
        (json!({"list": []}), "at least one value"),
        (
            json!({"list": [[1]]}),
            "expected a number, a text, a boolean",
        ),
        (json!({"list": [1], "decimals": 12}), "state.x.decimals"),
        (
            json!({"walk": {"start": 0, "step": 1, "min": 2, "max": 1}}),
            "state.x.walk",
        ),
        (
            json!({"counter": {"start": 5, "end": 5}}),
            "greater than `start`",
        ),
        (json!({"hourly": {"values": [1]}}), "expected 24 values"),
        (
            json!({"choice": {"values": [1, 2], "weights": [1]}}),
            "one `weights` entry",
        ),
        (
            json!({"sine": {"mean": 1, "amplitude": 1, "period": "0s"}}),
            "above 0",
        ),
        (
            json!({"replay": {"file": "/none.csv", "column": "a"}}),
            "/none.csv",
        ),
        (json!({"wlak": {}}), "unknown field"),
    ] {
        let error = program(definition.clone()).map(|_| ()).unwrap_err();
        assert!(error.contains(part), "{definition}: {error}");
    }
}
