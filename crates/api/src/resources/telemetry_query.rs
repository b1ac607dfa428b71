//! Common parameters of telemetry queries: keys, times and interval lengths.

use std::sync::Arc;

use crate::blocking;
use crate::call::ApiCall;
use crate::cluster_telemetry::{AbsentNodes, ClusterTelemetry};
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{MAX_TIME_MS, Parameter, text_parameter, time_parameter};
use crate::state::ApiState;
use crate::telemetry_backend::{
    LiveTelemetryStream, TelemetryBackend, TelemetryBackendError, TelemetryReader,
};

pub(super) const KEYS: Parameter =
    text_parameter("keys", "Keys, separated by commas; default: all.");
pub(super) const FROM_MS: Parameter = time_parameter(
    "from_ms",
    "Start of the time range, in milliseconds since 1970; default: the first value.",
);
pub(super) const TO_MS: Parameter = time_parameter(
    "to_ms",
    "End of the time range, exclusive; default: the last value.",
);

/// The keys of the request; no key is empty.
pub(super) fn keys(call: &ApiCall) -> Result<Option<Vec<String>>, ProblemDetails> {
    let Some(given) = call.query.text_value(KEYS.name) else {
        return Ok(None);
    };
    let keys: Vec<String> = given.split(',').map(str::to_owned).collect();
    if keys.iter().any(String::is_empty) {
        let detail = format!(
            "keys is {given:?}; expected names separated by commas, none of them empty, or no parameter for all keys."
        );
        return Err(ProblemDetails::invalid_parameter(KEYS.name, detail));
    }
    Ok(Some(keys))
}

pub(super) fn time_range(call: &ApiCall) -> Result<(i64, i64), ProblemDetails> {
    time_range_from(call, FROM_MS, TO_MS)
}

/// The time range, exclusive of its end, from parameters with names of their own.
pub(super) fn time_range_from(
    call: &ApiCall,
    from: Parameter,
    to: Parameter,
) -> Result<(i64, i64), ProblemDetails> {
    let from_ms = call.query.number_value(from).unwrap_or(0) as i64;
    let to_ms = call.query.number_value(to).unwrap_or(MAX_TIME_MS) as i64;
    check_time_order((from.name, from_ms), (to.name, to_ms))?;
    Ok((from_ms, to_ms))
}

fn check_time_order(
    (from, from_ms): (&str, i64),
    (to, to_ms): (&str, i64),
) -> Result<(), ProblemDetails> {
    if from_ms > to_ms {
        let detail = format!("{to} is {to_ms}; expected {from_ms} or more, which is {from}.");
        return Err(ProblemDetails::invalid_parameter(to, detail));
    }
    Ok(())
}

pub(super) fn check_times(from_ms: i64, to_ms: i64) -> Result<(), ProblemDetails> {
    check_time_order((FROM_MS.name, from_ms), (TO_MS.name, to_ms))
}

/// The length of an interval. If it is absent or 0, the whole time range is one interval.
pub(super) fn interval_ms(
    call: &ApiCall,
    interval: Parameter,
    (from_ms, to_ms): (i64, i64),
) -> i64 {
    let given = call.query.number_value(interval).filter(|ms| *ms > 0);
    given.map_or((to_ms - from_ms).max(1), |ms| ms as i64)
}

pub(super) fn to_problem(problem: TelemetryBackendError) -> ProblemDetails {
    match problem {
        TelemetryBackendError::NoDevice(device) => {
            ProblemDetails::not_found(format!("There is no device {device:?}."))
        }
        TelemetryBackendError::Parameter { name, detail } => {
            ProblemDetails::invalid_parameter(name, format!("{name}: {detail}."))
        }
        TelemetryBackendError::Unavailable(detail) => {
            ProblemDetails::unavailable(format!("{detail}."))
        }
    }
}

/// Runs a query on a thread that may block.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &Arc<ApiState>,
    question: impl FnOnce(&dyn TelemetryBackend) -> Result<T, TelemetryBackendError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let tools = app.telemetry_backend.clone();
    let result = blocking::run_blocking(
        move || question(&*tools),
        "The telemetry cannot be read now.",
    );
    result.await?.map_err(to_problem)
}

/// Runs a query of the telemetry of all nodes on a thread that may block. Also returns the nodes that did not answer.
pub(super) async fn run_on_all_nodes<T: Send + 'static>(
    app: &Arc<ApiState>,
    question: impl FnOnce(&dyn TelemetryReader) -> Result<T, TelemetryBackendError> + Send + 'static,
) -> Result<(T, Vec<String>), ProblemDetails> {
    let Some(telemetry) = ClusterTelemetry::new(app, AbsentNodes::Omitted) else {
        let answer = run_blocking(app, move |tools| question(tools)).await?;
        return Ok((answer, Vec::new()));
    };
    // Threads that wait for other nodes are bounded, so that some are left to answer those.
    let permit = app.cluster_reads.clone().acquire_owned().await;
    let read = move || {
        // Until the thread ends: the request may have been given up before.
        let _permit = permit;
        let answer = question(&telemetry)?;
        Ok((answer, telemetry.missing_nodes()))
    };
    let result = blocking::run_blocking(read, "The telemetry cannot be read now.");
    result.await?.map_err(to_problem)
}

/// Subscribes to telemetry that is stored at any node from now on.
pub(super) async fn subscribe_at_all_nodes(
    app: &Arc<ApiState>,
    subscribe: impl FnOnce(
        &dyn TelemetryReader,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError>
    + Send
    + 'static,
) -> Result<Box<dyn LiveTelemetryStream>, ProblemDetails> {
    let (stream, _) = run_on_all_nodes(app, subscribe).await?;
    Ok(stream)
}
