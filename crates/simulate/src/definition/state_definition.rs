//! The named values of a device, as a file describes them.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::quantity::{NumberRange, Share, TimeSpan};

/// A plain value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Integer(i64),
    Number(f64),
    Boolean(bool),
    Text(String),
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match StateDefinition::deserialize(deserializer)? {
            StateDefinition::Constant(value) => Ok(value),
            StateDefinition::Generator(_) => Err(de::Error::custom(
                "expected a number, a text or a boolean, found a table",
            )),
        }
    }
}

/// How one value of a device comes about: a constant, or a table with one generator.
#[derive(Clone, Debug)]
pub(crate) enum StateDefinition {
    Constant(Scalar),
    Generator(Box<GeneratorTable>),
}

/// The fields of a table; exactly one of them is a generator.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GeneratorTable {
    /// Digits after the decimal point, for all generators of numbers.
    pub(crate) decimals: Option<u8>,
    pub(crate) list: Option<Vec<Scalar>>,
    pub(crate) counter: Option<CounterDefinition>,
    pub(crate) walk: Option<WalkDefinition>,
    pub(crate) sine: Option<SineDefinition>,
    pub(crate) gauss: Option<GaussDefinition>,
    pub(crate) uniform: Option<NumberRange>,
    pub(crate) decay: Option<DecayDefinition>,
    pub(crate) drift: Option<DriftDefinition>,
    pub(crate) hourly: Option<HourlyDefinition>,
    pub(crate) choice: Option<ChoiceDefinition>,
    pub(crate) boolean: Option<BooleanDefinition>,
    pub(crate) route: Option<RouteDefinition>,
    pub(crate) replay: Option<ReplayDefinition>,
}

/// Begins at `start` and adds a number from `step` with each message.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CounterDefinition {
    #[serde(default = "zero")]
    pub(crate) start: NumberRange,
    #[serde(default = "one")]
    pub(crate) step: NumberRange,
    /// Returns to the first `start` when it reaches this.
    pub(crate) end: Option<f64>,
}

fn zero() -> NumberRange {
    NumberRange::single(0.0)
}

fn one() -> NumberRange {
    NumberRange::single(1.0)
}

/// Changes by up to `step` with each message, within `min` and `max`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WalkDefinition {
    pub(crate) start: NumberRange,
    pub(crate) step: f64,
    #[serde(default = "lowest")]
    pub(crate) min: f64,
    #[serde(default = "highest")]
    pub(crate) max: f64,
}

fn lowest() -> f64 {
    f64::MIN
}

fn highest() -> f64 {
    f64::MAX
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SineDefinition {
    pub(crate) mean: f64,
    pub(crate) amplitude: f64,
    pub(crate) period: TimeSpan,
    /// Part of the period by which it is ahead; `[0, 1]` gives each device its own.
    #[serde(default = "zero")]
    pub(crate) phase: NumberRange,
    /// Deviation of normally distributed noise.
    #[serde(default)]
    pub(crate) noise: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GaussDefinition {
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    #[serde(default = "lowest")]
    pub(crate) min: f64,
    #[serde(default = "highest")]
    pub(crate) max: f64,
}

/// Approaches `to` from `from`, and begins again after `restart`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecayDefinition {
    pub(crate) from: NumberRange,
    #[serde(default)]
    pub(crate) to: f64,
    pub(crate) half_life: TimeSpan,
    pub(crate) restart: Option<TimeSpan>,
}

/// Changes gradually, and is somewhere else within `mean` +- `amplitude` after each `period`. Depends on the time of day only, not
/// on messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DriftDefinition {
    #[serde(default)]
    pub(crate) mean: f64,
    pub(crate) amplitude: f64,
    pub(crate) period: TimeSpan,
}

/// A value for each hour of the day.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HourlyDefinition {
    pub(crate) values: Vec<f64>,
    /// Whether values change linearly from hour to hour, or suddenly.
    #[serde(default)]
    pub(crate) interpolate: bool,
    #[serde(default)]
    pub(crate) noise: f64,
    /// Minutes that local time is ahead of UTC.
    #[serde(default)]
    pub(crate) utc_offset_minutes: i32,
}

/// One of several values, chosen with each message.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChoiceDefinition {
    pub(crate) values: Vec<Scalar>,
    #[serde(default)]
    pub(crate) weights: Vec<f64>,
    /// Messages for which a choice is kept.
    #[serde(default = "one_message")]
    pub(crate) hold: u32,
}

fn one_message() -> u32 {
    1
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BooleanDefinition {
    /// Share of messages with `true`, if it is chosen for each.
    pub(crate) share: Option<Share>,
    /// Share of messages with which it changes to the opposite, if it has a memory.
    pub(crate) change: Option<Share>,
}

/// A position that moves along a line of points.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteDefinition {
    /// `[longitude, latitude]` of each point, in degrees.
    #[serde(default)]
    pub(crate) points: Vec<[f64; 2]>,
    /// In place of points: each device has a random route.
    pub(crate) area: Option<AreaDefinition>,
    pub(crate) speed_kmh: NumberRange,
    #[serde(default)]
    pub(crate) end: RouteEnd,
    #[serde(default)]
    pub(crate) start: RouteStart,
}

/// Streets on which devices travel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AreaDefinition {
    /// `[longitude, latitude]` in degrees.
    pub(crate) center: [f64; 2],
    pub(crate) radius_km: f64,
    /// Crossings that a route connects.
    #[serde(default = "default_stops")]
    pub(crate) stops: u16,
    /// Distance of two parallel streets.
    #[serde(default = "default_block_m")]
    pub(crate) block_m: f64,
}

fn default_stops() -> u16 {
    6
}

fn default_block_m() -> f64 {
    150.0
}

/// What follows the last point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RouteEnd {
    /// Back to the first point on a straight line.
    #[default]
    Close,
    /// The same way back.
    Return,
    /// The device stays there.
    Stop,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RouteStart {
    /// Anywhere on the route.
    #[default]
    Random,
    /// At the first point.
    First,
}

/// Values of a column of a CSV file, or of a key of a device that a node has stored.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayDefinition {
    /// Relative to the simulation file.
    pub(crate) file: Option<PathBuf>,
    pub(crate) column: Option<String>,
    pub(crate) device: Option<String>,
    pub(crate) key: Option<String>,
    /// Only values of this time before now.
    pub(crate) last: Option<TimeSpan>,
    /// The row in which devices begin.
    #[serde(default)]
    pub(crate) start: ReplayStart,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReplayStart {
    #[default]
    First,
    /// Any row, another one for each device.
    Random,
}

impl<'de> Deserialize<'de> for StateDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StateVisitor;
        impl<'de> Visitor<'de> for StateVisitor {
            type Value = StateDefinition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a text, a boolean, or a table with one generator")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<StateDefinition, E> {
                Ok(StateDefinition::Constant(Scalar::Boolean(value)))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<StateDefinition, E> {
                Ok(StateDefinition::Constant(Scalar::Integer(value)))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<StateDefinition, E> {
                Ok(StateDefinition::Constant(match i64::try_from(value) {
                    Ok(value) => Scalar::Integer(value),
                    Err(_) => Scalar::Number(value as f64),
                }))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<StateDefinition, E> {
                Ok(StateDefinition::Constant(Scalar::Number(value)))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<StateDefinition, E> {
                Ok(StateDefinition::Constant(Scalar::Text(value.to_owned())))
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<StateDefinition, A::Error> {
                let table = GeneratorTable::deserialize(MapAccessDeserializer::new(fields))?;
                Ok(StateDefinition::Generator(Box::new(table)))
            }
        }
        deserializer.deserialize_any(StateVisitor)
    }
}
