//! What the devices of the demo fleet report: a function of the device and the time, so that history and live values join.

use std::f64::consts::TAU;

use serde_json::{Map, Value, json};

const DAY_S: f64 = 86_400.0;
/// A pump overheats for this time, once in `HOT_PERIODS` such times.
const HOT_S: f64 = 600.0;
const HOT_PERIODS: u64 = 40;
/// The pump that is always too hot, so that there is an active alarm.
const ALWAYS_HOT: u64 = 3;

/// The kinds of devices, each with a product of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceKind {
    Pump,
    Room,
    Meter,
}

impl DeviceKind {
    /// The values of device `number` at a time.
    pub(super) fn values(self, number: u64, at_ms: u64) -> Map<String, Value> {
        #[expect(clippy::cast_precision_loss, reason = "times fit into 53 bits")]
        let at_s = at_ms as f64 / 1000.0;
        // 0 at night, 1 at midday.
        let daylight = 0.5 - 0.5 * (at_s / DAY_S * TAU).cos();
        let drift = |key: u64, period_s: f64| smooth_noise(number * 16 + key, at_s / period_s);
        let fields = match self {
            Self::Pump => {
                let heat = if is_hot(number, at_s) { 1.0 } else { 0.0 };
                vec![
                    (
                        "temperature",
                        56.0 + 5.0 * daylight + 4.0 * drift(0, 300.0) + 28.0 * heat,
                    ),
                    ("pressure", 4.2 + 0.4 * drift(1, 120.0) - 0.8 * heat),
                    ("vibration", 2.1 + 0.5 * drift(2, 60.0) + 2.4 * heat),
                ]
            }
            Self::Room => {
                let people = daylight * (1.0 + drift(3, 1800.0));
                vec![
                    ("temperature", 20.5 + 1.5 * daylight + 0.6 * drift(0, 900.0)),
                    ("humidity", 45.0 + 8.0 * drift(1, 3600.0)),
                    ("co2", 480.0 + 480.0 * people + 30.0 * drift(2, 240.0)),
                ]
            }
            Self::Meter => {
                let power = 6.0 + 9.0 * daylight + 3.0 * drift(0, 600.0);
                // Since the start of 2026.
                let hours = (at_s - 1_767_225_600.0) / 3600.0;
                vec![("power", power), ("energy", 10.5 * hours.max(0.0))]
            }
        };
        let position = match self {
            Self::Pump => pump_position(number).to_vec(),
            Self::Room | Self::Meter => Vec::new(),
        };
        let rounded = fields
            .into_iter()
            .map(|(key, value)| (key, (value * 100.0).round() / 100.0));
        rounded
            .chain(position)
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect()
    }
}

/// The pumps stand in three rows along a quay.
fn pump_position(number: u64) -> [(&'static str, f64); 2] {
    let degrees = |millionths: u64| {
        #[expect(clippy::cast_precision_loss, reason = "less than 2^53")]
        let millionths = millionths as f64;
        millionths / 1_000_000.0
    };
    let (row, column) = (number % 3, number / 3);
    [
        ("latitude", degrees(53_539_000 + row * 900 + column * 130)),
        ("longitude", degrees(9_982_000 + column * 1_700 + row * 240)),
    ]
}

fn is_hot(number: u64, at_s: f64) -> bool {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time after 1970, in units of ten minutes"
    )]
    let period = (at_s / HOT_S) as u64;
    number == ALWAYS_HOT || (period + number * 7).is_multiple_of(HOT_PERIODS)
}

/// Noise between -1 and 1 that changes gradually, with a new random target at each whole number.
fn smooth_noise(seed: u64, at: f64) -> f64 {
    let step = at.floor();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times after 1970 in seconds or longer units"
    )]
    let whole = step as u64;
    let (from, to) = (noise(seed, whole), noise(seed, whole + 1));
    let part = at - step;
    let eased = part * part * (3.0 - 2.0 * part);
    from + (to - from) * eased
}

/// SplitMix64: the same for the same arguments.
fn noise(seed: u64, step: u64) -> f64 {
    let mut bits = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(step.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    f64::from(u32::try_from(bits >> 32).unwrap_or_default()) / f64::from(u32::MAX) * 2.0 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noon of a day in 2026.
    const NOON_MS: u64 = 1_795_262_400_000;

    fn value(kind: DeviceKind, number: u64, key: &str, at_ms: u64) -> f64 {
        kind.values(number, at_ms)[key].as_f64().unwrap()
    }

    #[test]
    fn values_are_plausible_and_change_gradually() {
        for number in 1..=30 {
            for minute in 0..1440 {
                let at_ms = NOON_MS + minute * 60_000;
                let pump = value(DeviceKind::Pump, number, "temperature", at_ms);
                assert!((45.0..95.0).contains(&pump), "{pump}");
                let co2 = value(DeviceKind::Room, number, "co2", at_ms);
                assert!((400.0..1500.0).contains(&co2), "{co2}");
                let humidity = |at_ms| value(DeviceKind::Room, number, "humidity", at_ms);
                assert!((humidity(at_ms) - humidity(at_ms + 5000)).abs() < 0.2);
                let energy = |at_ms| value(DeviceKind::Meter, number, "energy", at_ms);
                assert!(energy(at_ms) < energy(at_ms + 60_000));
            }
        }
    }

    #[test]
    fn one_pump_is_always_hot_and_all_are_at_some_time() {
        let is_hot = |number, at_ms| value(DeviceKind::Pump, number, "temperature", at_ms) > 75.0;
        for number in 1..=12 {
            let times =
                (0..HOT_PERIODS).filter(|period| is_hot(number, NOON_MS + period * 600_000));
            let count = times.count();
            let expected = if number == ALWAYS_HOT { 40 } else { 1 };
            assert_eq!(count, expected, "{number}");
        }
    }
}
