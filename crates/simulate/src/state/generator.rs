//! One compiled value.

use super::replay::{ReplayColumn, ReplaySources};
use super::route::Route;
use super::state_value::{Component, DeviceState, StateValue};
use crate::definition::{GeneratorTable, NumberRange, ReplayStart, Scalar, StateDefinition};
use crate::random::RandomKey;

/// Digits after the decimal point where a definition gives none.
const DEFAULT_DECIMALS: u8 = 2;
const MAX_DECIMALS: u8 = 9;
/// Draws of a key that do not depend on the step, such as those of a first value.
const FIRST_DRAW: u64 = u64::MAX >> 2;

#[derive(Debug)]
pub(super) enum Generator {
    Constant(Scalar),
    List(Vec<Scalar>),
    Counter {
        start: NumberRange,
        step: NumberRange,
        end: Option<f64>,
        decimals: u8,
    },
    Walk {
        start: NumberRange,
        step: f64,
        min: f64,
        max: f64,
        decimals: u8,
    },
    Sine {
        mean: f64,
        amplitude: f64,
        period_ns: f64,
        phase: NumberRange,
        noise: f64,
        decimals: u8,
    },
    Gauss {
        mean: f64,
        deviation: f64,
        min: f64,
        max: f64,
        decimals: u8,
    },
    Uniform {
        range: NumberRange,
        decimals: u8,
    },
    Decay {
        from: NumberRange,
        to: f64,
        half_life_ns: f64,
        restart_ns: Option<u64>,
        decimals: u8,
    },
    Drift {
        mean: f64,
        amplitude: f64,
        period_ms: u64,
        decimals: u8,
    },
    Hourly {
        values: Vec<f64>,
        interpolate: bool,
        noise: f64,
        utc_offset_ms: i64,
        decimals: u8,
    },
    Choice {
        values: Vec<Scalar>,
        /// Sums of weights up to and including each value; the last is 1. Empty: all are equally likely.
        sums: Vec<f64>,
        hold: u32,
    },
    BooleanShare(f64),
    BooleanChange {
        first: f64,
        change: f64,
    },
    Route(Route),
    Replay {
        column: ReplayColumn,
        start: ReplayStart,
    },
}

/// A field of the definition and what is wrong with it.
type GeneratorError = (&'static str, String);

impl Generator {
    pub(super) fn compile(
        definition: &StateDefinition,
        sources: &ReplaySources<'_>,
    ) -> Result<Self, GeneratorError> {
        let table = match definition {
            StateDefinition::Constant(value) => return Ok(Self::Constant(value.clone())),
            StateDefinition::Generator(table) => table,
        };
        let decimals = table.decimals.unwrap_or(DEFAULT_DECIMALS);
        if decimals > MAX_DECIMALS {
            return Err((
                "decimals",
                format!("expected 0 to {MAX_DECIMALS}, found {decimals}"),
            ));
        }
        let mut found: Vec<(&'static str, Result<Self, String>)> = Vec::new();
        let mut add = |name, generator: Option<Result<Self, String>>| {
            found.extend(generator.map(|generator| (name, generator)));
        };
        add(
            "list",
            table
                .list
                .as_ref()
                .map(|values| non_empty(values).map(Self::List)),
        );
        add("counter", compile_counter(table, decimals));
        add("walk", compile_walk(table, decimals));
        add("sine", compile_sine(table, decimals));
        add("gauss", compile_gauss(table, decimals));
        add(
            "uniform",
            table
                .uniform
                .map(|range| Ok(Self::Uniform { range, decimals })),
        );
        add("decay", compile_decay(table, decimals));
        add("drift", compile_drift(table, decimals));
        add("hourly", compile_hourly(table, decimals));
        add("choice", compile_choice(table));
        add("boolean", compile_boolean(table));
        add(
            "route",
            table
                .route
                .as_ref()
                .map(|route| Route::compile(route).map(Self::Route)),
        );
        add(
            "replay",
            table.replay.as_ref().map(|replay| {
                let column = sources.read(replay)?;
                Ok(Self::Replay {
                    column,
                    start: replay.start,
                })
            }),
        );
        match (found.pop(), found.is_empty()) {
            (Some((name, generator)), true) => generator.map_err(|message| (name, message)),
            (None, _) => Err((
                "",
                "expected a generator: list, counter, walk, sine, gauss, uniform, decay, drift, hourly, choice, boolean, route \
                 or replay"
                    .to_owned(),
            )),
            (Some((name, _)), false) => {
                let other = found[0].0;
                Err(("", format!("expected one generator, found `{other}` and `{name}`")))
            }
        }
    }

    /// Whether a number is kept for each device.
    pub(super) fn has_cell(&self) -> bool {
        matches!(
            self,
            Self::Counter { .. } | Self::Walk { .. } | Self::BooleanChange { .. }
        )
    }

    /// The first number kept.
    pub(super) fn first_cell(&self, key: RandomKey) -> f64 {
        match self {
            Self::Counter { start, .. } => key.between(FIRST_DRAW, start.from, start.to),
            Self::Walk {
                start, min, max, ..
            } => key
                .between(FIRST_DRAW, start.from, start.to)
                .clamp(*min, *max),
            Self::BooleanChange { first, .. } => f64::from(key.unit(FIRST_DRAW) < *first),
            _ => 0.0,
        }
    }

    /// The number kept from step `step` on.
    #[inline]
    pub(super) fn next_cell(&self, cell: f64, key: RandomKey, step: u32) -> f64 {
        let step_number = u64::from(step);
        match self {
            Self::Counter {
                step, start, end, ..
            } => {
                let next = cell + key.between(step_number, step.from, step.to);
                match end {
                    Some(end) if next >= *end => start.from,
                    _ => next,
                }
            }
            Self::Walk { step, min, max, .. } => {
                let next = cell + key.between(step_number, -step, *step);
                // Reflected at the limits, so that values do not stay there.
                let next = if next > *max { 2.0 * max - next } else { next };
                let next = if next < *min { 2.0 * min - next } else { next };
                next.clamp(*min, *max)
            }
            Self::BooleanChange { change, .. } => {
                if key.unit(step_number) < *change {
                    1.0 - cell
                } else {
                    cell
                }
            }
            _ => cell,
        }
    }

    #[inline]
    pub(super) fn value<'a>(
        &'a self,
        component: Component,
        cell: f64,
        device: &DeviceState<'_>,
        key: RandomKey,
    ) -> StateValue<'a> {
        let step = u64::from(device.step);
        match self {
            Self::Constant(value) => scalar(value),
            Self::List(values) => scalar(&values[device.step as usize % values.len()]),
            Self::Counter { decimals, .. } | Self::Walk { decimals, .. } => number(cell, *decimals),
            Self::Sine {
                mean,
                amplitude,
                period_ns,
                phase,
                noise,
                decimals,
            } => {
                let ahead = key.between(FIRST_DRAW, phase.from, phase.to);
                let turns = device.elapsed_ns as f64 / period_ns + ahead;
                let wave = mean + amplitude * (std::f64::consts::TAU * turns).sin();
                number(with_noise(wave, *noise, key, step), *decimals)
            }
            Self::Gauss {
                mean,
                deviation,
                min,
                max,
                decimals,
            } => number(
                (mean + deviation * key.gauss(step)).clamp(*min, *max),
                *decimals,
            ),
            Self::Uniform { range, decimals: 0 } => {
                // Both limits belong to the range of whole numbers.
                let from = range.from.ceil();
                let count = (range.to.floor() - from).max(0.0) as u64 + 1;
                StateValue::Integer(from as i64 + key.below(step, count) as i64)
            }
            Self::Uniform { range, decimals } => {
                number(key.between(step, range.from, range.to), *decimals)
            }
            Self::Decay {
                from,
                to,
                half_life_ns,
                restart_ns,
                decimals,
            } => {
                let age_ns = match restart_ns {
                    Some(restart_ns) => device.elapsed_ns % restart_ns,
                    None => device.elapsed_ns,
                };
                let from = key.between(FIRST_DRAW, from.from, from.to);
                let left = (-(age_ns as f64) / half_life_ns).exp2();
                number(to + (from - to) * left, *decimals)
            }
            Self::Drift {
                mean,
                amplitude,
                period_ms,
                decimals,
            } => {
                let period = device.wall_ms / period_ms;
                let part = (device.wall_ms % period_ms) as f64 / *period_ms as f64;
                let (from, to) = (
                    key.between(period, -1.0, 1.0),
                    key.between(period + 1, -1.0, 1.0),
                );
                // Without a kink where a period ends.
                let eased = part * part * (3.0 - 2.0 * part);
                number(mean + amplitude * (from + (to - from) * eased), *decimals)
            }
            Self::Hourly {
                values,
                interpolate,
                noise,
                utc_offset_ms,
                decimals,
            } => {
                let local_ms = device.wall_ms.saturating_add_signed(*utc_offset_ms);
                let hours = (local_ms % 86_400_000) as f64 / 3_600_000.0;
                let (now, next) = (hours as usize % 24, (hours as usize + 1) % 24);
                let part = if *interpolate { hours.fract() } else { 0.0 };
                let value = values[now] + (values[next] - values[now]) * part;
                number(with_noise(value, *noise, key, step), *decimals)
            }
            Self::Choice { values, sums, hold } => {
                let draw = step / u64::from(*hold);
                let at = if sums.is_empty() {
                    key.below(draw, values.len() as u64) as usize
                } else {
                    let point = key.unit(draw);
                    sums.partition_point(|sum| *sum <= point)
                        .min(values.len() - 1)
                };
                scalar(&values[at])
            }
            Self::BooleanShare(share) => StateValue::Boolean(key.unit(step) < *share),
            Self::BooleanChange { .. } => StateValue::Boolean(cell > 0.5),
            Self::Route(route) => route.value(component, device.elapsed_ns, key),
            Self::Replay { column, start } => {
                let first = match start {
                    ReplayStart::First => 0,
                    ReplayStart::Random => key.below(FIRST_DRAW, column.rows() as u64),
                };
                scalar(column.value((first + step) as usize))
            }
        }
    }
}

#[inline]
fn number(value: f64, decimals: u8) -> StateValue<'static> {
    StateValue::Number { value, decimals }
}

#[inline]
fn with_noise(value: f64, deviation: f64, key: RandomKey, step: u64) -> f64 {
    if deviation == 0.0 {
        return value;
    }
    value + deviation * key.gauss(step)
}

fn scalar(value: &Scalar) -> StateValue<'_> {
    match value {
        Scalar::Integer(value) => StateValue::Integer(*value),
        Scalar::Number(value) => StateValue::Number {
            value: *value,
            decimals: u8::MAX,
        },
        Scalar::Boolean(value) => StateValue::Boolean(*value),
        Scalar::Text(value) => StateValue::Text(value),
    }
}

fn non_empty(values: &[Scalar]) -> Result<Vec<Scalar>, String> {
    match values {
        [] => Err("expected at least one value".to_owned()),
        values => Ok(values.to_vec()),
    }
}

fn compile_counter(table: &GeneratorTable, decimals: u8) -> Option<Result<Generator, String>> {
    let counter = table.counter.as_ref()?;
    // Counts of things have no decimal point unless they begin or grow by a part.
    let numbers = [
        counter.start.from,
        counter.start.to,
        counter.step.from,
        counter.step.to,
    ];
    let is_whole = numbers.iter().all(|number| number.fract() == 0.0)
        && counter.step.from == counter.step.to
        && counter.start.from == counter.start.to;
    let decimals = if is_whole && table.decimals.is_none() {
        0
    } else {
        decimals
    };
    if counter
        .end
        .is_some_and(|end| end <= counter.start.to || counter.step.from <= 0.0)
    {
        return Some(Err(
            "`end` must be greater than `start`, with a positive `step`".to_owned(),
        ));
    }
    Some(Ok(Generator::Counter {
        start: counter.start,
        step: counter.step,
        end: counter.end,
        decimals,
    }))
}

fn compile_walk(table: &GeneratorTable, decimals: u8) -> Option<Result<Generator, String>> {
    let walk = table.walk.as_ref()?;
    if walk.min > walk.max || walk.step < 0.0 {
        return Some(Err(
            "expected `min` <= `max` and a `step` of at least 0".to_owned()
        ));
    }
    Some(Ok(Generator::Walk {
        start: walk.start,
        step: walk.step,
        min: walk.min,
        max: walk.max,
        decimals,
    }))
}

fn compile_sine(table: &GeneratorTable, decimals: u8) -> Option<Result<Generator, String>> {
    let sine = table.sine.as_ref()?;
    if sine.period.ns == 0 || sine.noise < 0.0 {
        return Some(Err(
            "expected a `period` above 0 and a `noise` of at least 0".to_owned(),
        ));
    }
    Some(Ok(Generator::Sine {
        mean: sine.mean,
        amplitude: sine.amplitude,
        period_ns: sine.period.ns as f64,
        phase: sine.phase,
        noise: sine.noise,
        decimals,
    }))
}

fn compile_gauss(table: &GeneratorTable, decimals: u8) -> Option<Result<Generator, String>> {
    let gauss = table.gauss.as_ref()?;
    if gauss.min > gauss.max || gauss.deviation < 0.0 {
        return Some(Err(
            "expected `min` <= `max` and a `deviation` of at least 0".to_owned(),
        ));
    }
    Some(Ok(Generator::Gauss {
        mean: gauss.mean,
        deviation: gauss.deviation,
        min: gauss.min,
        max: gauss.max,
        decimals,
    }))
}

fn compile_decay(table: &GeneratorTable, decimals: u8) -> Option<Result<Generator, String>> {
    let decay = table.decay.as_ref()?;
    if decay.half_life.ns == 0 || decay.restart.is_some_and(|restart| restart.ns == 0) {
        return Some(Err("`half_life` and `restart` must be above 0".to_owned()));
    }
    Some(Ok(Generator::Decay {
        from: decay.from,
        to: decay.to,
        half_life_ns: decay.half_life.ns as f64,
        restart_ns: decay.restart.map(|restart| restart.ns),
        decimals,
    }))
}

fn compile_drift(table: &GeneratorTable, decimals: u8) -> Option<Result<Generator, String>> {
    let drift = table.drift.as_ref()?;
    let period_ms = drift.period.ns / 1_000_000;
    if period_ms == 0 {
        return Some(Err("expected a `period` of at least 1ms".to_owned()));
    }
    Some(Ok(Generator::Drift {
        mean: drift.mean,
        amplitude: drift.amplitude,
        period_ms,
        decimals,
    }))
}

fn compile_hourly(table: &GeneratorTable, decimals: u8) -> Option<Result<Generator, String>> {
    let hourly = table.hourly.as_ref()?;
    if hourly.values.len() != 24 || hourly.noise < 0.0 {
        return Some(Err(format!(
            "expected 24 values, one for each hour, and a `noise` of at least 0; found {} values",
            hourly.values.len()
        )));
    }
    Some(Ok(Generator::Hourly {
        values: hourly.values.clone(),
        interpolate: hourly.interpolate,
        noise: hourly.noise,
        utc_offset_ms: i64::from(hourly.utc_offset_minutes) * 60_000,
        decimals,
    }))
}

fn compile_choice(table: &GeneratorTable) -> Option<Result<Generator, String>> {
    let choice = table.choice.as_ref()?;
    let total: f64 = choice.weights.iter().sum();
    let is_weighted = !choice.weights.is_empty();
    if is_weighted
        && (choice.weights.len() != choice.values.len()
            || choice.weights.iter().any(|weight| *weight < 0.0)
            || total <= 0.0)
    {
        return Some(Err(
            "expected one `weights` entry of at least 0 for each value, not all 0".to_owned(),
        ));
    }
    if choice.hold == 0 {
        return Some(Err("`hold` must be at least 1 message".to_owned()));
    }
    let mut sum = 0.0;
    let sums = choice.weights.iter().map(|weight| {
        sum += weight / total;
        sum
    });
    let sums = sums.collect();
    Some(non_empty(&choice.values).map(|values| Generator::Choice {
        values,
        sums,
        hold: choice.hold,
    }))
}

fn compile_boolean(table: &GeneratorTable) -> Option<Result<Generator, String>> {
    let boolean = table.boolean.as_ref()?;
    let share = boolean.share.map(|share| share.0);
    Some(Ok(match boolean.change {
        None => Generator::BooleanShare(share.unwrap_or(0.5)),
        Some(change) => Generator::BooleanChange {
            first: share.unwrap_or(0.0),
            change: change.0,
        },
    }))
}
