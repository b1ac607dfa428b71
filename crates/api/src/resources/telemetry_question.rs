//! What questions about telemetry have in common: keys, times, the length of intervals, and how they are asked.

use std::sync::Arc;

use crate::app::App;
use crate::call::{self, Call};
use crate::parameters::{MAX_TIME_MS, Parameter, text, time_ms};
use crate::problem::Problem;
use crate::telemetry_tools::{TelemetryProblem, TelemetryTools};

pub(super) const KEYS: Parameter = text("keys", "Keys, separated by commas; without it all.");
pub(super) const FROM_MS: Parameter = time_ms(
    "from_ms",
    "The first time, in milliseconds since 1970; without it, the beginning.",
);
pub(super) const TO_MS: Parameter = time_ms(
    "to_ms",
    "The time behind the last one; without it, the end.",
);

/// Keys as they are given; none has an empty name.
pub(super) fn keys(call: &Call) -> Result<Option<Vec<String>>, Problem> {
    let Some(given) = call.query.text(KEYS.name) else {
        return Ok(None);
    };
    let keys: Vec<String> = given.split(',').map(str::to_owned).collect();
    if keys.iter().any(String::is_empty) {
        let detail = format!(
            "keys is {given:?}; expected names separated by commas, none of them empty, or no parameter for all keys."
        );
        return Err(Problem::parameter(KEYS.name, detail));
    }
    Ok(Some(keys))
}

pub(super) fn times(call: &Call) -> Result<(i64, i64), Problem> {
    times_of(call, FROM_MS, TO_MS)
}

/// The first time and the one behind the last, where the parameters have names of their own.
pub(super) fn times_of(call: &Call, from: Parameter, to: Parameter) -> Result<(i64, i64), Problem> {
    let from_ms = call.query.number(from).unwrap_or(0) as i64;
    let to_ms = call.query.number(to).unwrap_or(MAX_TIME_MS) as i64;
    in_order((from.name, from_ms), (to.name, to_ms))?;
    Ok((from_ms, to_ms))
}

fn in_order((from, from_ms): (&str, i64), (to, to_ms): (&str, i64)) -> Result<(), Problem> {
    if from_ms > to_ms {
        let detail = format!("{to} is {to_ms}; expected {from_ms} or more, which is {from}.");
        return Err(Problem::parameter(to, detail));
    }
    Ok(())
}

pub(super) fn check_times(from_ms: i64, to_ms: i64) -> Result<(), Problem> {
    in_order((FROM_MS.name, from_ms), (TO_MS.name, to_ms))
}

/// The length of an interval; without it, and where it is 0, all of the time is one.
pub(super) fn interval_ms(call: &Call, interval: Parameter, (from_ms, to_ms): (i64, i64)) -> i64 {
    let given = call.query.number(interval).filter(|ms| *ms > 0);
    given.map_or((to_ms - from_ms).max(1), |ms| ms as i64)
}

pub(super) fn problem(problem: TelemetryProblem) -> Problem {
    match problem {
        TelemetryProblem::NoDevice(device) => {
            Problem::not_found(format!("There is no device {device:?}."))
        }
        TelemetryProblem::Parameter { name, detail } => {
            Problem::parameter(name, format!("{name}: {detail}."))
        }
        TelemetryProblem::Unavailable(detail) => Problem::unavailable(format!("{detail}.")),
    }
}

/// Asks on a thread that may block.
pub(super) async fn ask<T: Send + 'static>(
    app: &Arc<App>,
    question: impl FnOnce(&dyn TelemetryTools) -> Result<T, TelemetryProblem> + Send + 'static,
) -> Result<T, Problem> {
    let tools = app.telemetry_tools.clone();
    let asked = call::blocking(
        move || question(&*tools),
        "The telemetry cannot be read now.",
    );
    asked.await?.map_err(problem)
}
