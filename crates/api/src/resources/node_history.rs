//! The metrics of the node over the last days, as columns for charts.

use observe::{
    HistoryColumn, HistoryError, HistoryMetric, HistoryRange, HistoryTable, MAX_HISTORY_INTERVALS,
};
use schemars::JsonSchema;
use serde::Serialize;
use wall_clock::now_ms;

use super::telemetry_query::check_times;
use crate::access::Role;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::history_recorder::SAMPLE_INTERVAL;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType, text_parameter, time_parameter};

const MAX_METRICS: usize = 50;
const DAY_MS: i64 = 86_400_000;
/// Number of intervals if the request does not choose their length.
const DEFAULT_INTERVALS: i64 = 500;

const METRICS: Parameter = text_parameter(
    "metrics",
    "Names of metrics, separated by commas; at most 50.",
);
const FROM_MS: Parameter = time_parameter(
    "from_ms",
    "Start of the time range, in milliseconds since 1970; default: 24 hours before its end.",
);
const TO_MS: Parameter = time_parameter("to_ms", "End of the time range, exclusive; default: now.");
const INTERVAL_MS: Parameter = Parameter {
    name: "interval_ms",
    description: "Length of an interval in milliseconds; default: such that there are about 500. There may be at most 5000.",
    shape: ParameterType::Number(1000, 7 * DAY_MS as u64),
};

/// A metric that the node records.
#[derive(Serialize, JsonSchema)]
struct NodeMetric {
    /// Name of a gauge of `/metrics` without its prefix, or of a counter with `_per_s` instead of `_total`.
    name: String,
    help: &'static str,
    /// Whether it is the rate of a counter, per second.
    is_rate: bool,
}

/// Metrics with common times.
#[derive(Serialize, JsonSchema)]
struct NodeHistoryTable {
    /// Time between two samples of the node.
    sample_interval_ms: u64,
    interval_ms: i64,
    /// Starts of the intervals.
    ts_ms: Vec<i64>,
    columns: Vec<NodeHistoryColumn>,
}

/// One value per interval; `null`: the node was off, or had no value.
#[derive(Serialize, JsonSchema)]
struct NodeHistoryColumn {
    name: String,
    avg: Vec<Option<f64>>,
    min: Vec<Option<f64>>,
    max: Vec<Option<f64>>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/node/metrics", "listNodeMetrics", list)
            .role(Role::Viewer, EndpointScope::Node)
            .summary("List recorded metrics of the node")
            .description("The metrics of `/metrics`, each summed over its labels. Empty with `http.history_days = 0`.")
            .unpaged::<NodeMetric>(),
        get("/api/v1/node/history", "getNodeHistory", history)
            .role(Role::Viewer, EndpointScope::Node)
            .summary("Read metrics of the last days")
            .description(
                "One column per metric, with the average, the least and the greatest value of each interval. The node records a \
                 sample every 15 seconds, and keeps them for `http.history_days`.",
            )
            .parameters(&[METRICS, FROM_MS, TO_MS, INTERVAL_MS])
            .response::<NodeHistoryTable>(200, "The columns.")
            .problem_response(404, "There is no such metric, or the node keeps no history."),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let metrics = call.app.history.metrics().into_iter();
    let shown = metrics.map(|metric: HistoryMetric| NodeMetric {
        name: metric.name,
        help: metric.help,
        is_rate: metric.is_rate,
    });
    call::unpaged_list(shown.collect())
}

/// The time range of a request.
pub(super) fn range(call: &ApiCall) -> Result<HistoryRange, ProblemDetails> {
    let number = |parameter| call.query.number_value(parameter).map(|ms| ms as i64);
    let to_ms = number(TO_MS).unwrap_or_else(|| now_ms() as i64);
    let from_ms = number(FROM_MS).unwrap_or_else(|| (to_ms - DAY_MS).max(0));
    check_times(from_ms, to_ms)?;
    let sample_ms = SAMPLE_INTERVAL.as_millis() as i64;
    let interval_ms = number(INTERVAL_MS).unwrap_or_else(|| {
        let samples = ((to_ms - from_ms) / DEFAULT_INTERVALS).div_euclid(sample_ms);
        samples.max(1) * sample_ms
    });
    match (to_ms - from_ms) / interval_ms < MAX_HISTORY_INTERVALS {
        true => Ok(HistoryRange {
            from_ms,
            to_ms,
            interval_ms,
        }),
        false => {
            let least = (to_ms - from_ms) / (MAX_HISTORY_INTERVALS - 1) + 1;
            let detail = format!(
                "interval_ms is {interval_ms}; expected {least} or more for this time range, which has at most \
                 {MAX_HISTORY_INTERVALS} intervals."
            );
            Err(ProblemDetails::invalid_parameter(INTERVAL_MS.name, detail))
        }
    }
}

/// The metrics with these names in a time range.
pub(super) async fn read_table(
    call: &ApiCall,
    names: Vec<String>,
    range: HistoryRange,
) -> Result<HistoryTable, ProblemDetails> {
    let history = call.app.history.clone();
    let read = move || history.table(&names, range);
    let table = run_blocking(read, "The history cannot be read now.").await?;
    table.map_err(|error| match error {
        HistoryError::Off => ProblemDetails::not_found(
            "The node keeps no history of its metrics; set http.history_days and restart it.",
        ),
        HistoryError::UnknownMetric(_) => {
            ProblemDetails::not_found(format!("{error}; GET /api/v1/node/metrics lists all."))
        }
        HistoryError::Unreadable(_) => ProblemDetails::unavailable(format!("{error}.")),
    })
}

async fn history(call: ApiCall) -> ApiResult {
    let names: Vec<String> = match call.query.text_value(METRICS.name) {
        Some(names) => names.split(',').map(str::to_owned).collect(),
        None => Vec::new(),
    };
    if !(1..=MAX_METRICS).contains(&names.len()) {
        let detail = format!("metrics: expected 1 to {MAX_METRICS} names separated by commas.");
        return Err(ProblemDetails::invalid_parameter(METRICS.name, detail));
    }
    let range = range(&call)?;
    let table = read_table(&call, names, range).await?;
    let columns = table.columns.into_iter();
    call::json_response(NodeHistoryTable {
        sample_interval_ms: SAMPLE_INTERVAL.as_millis() as u64,
        interval_ms: range.interval_ms,
        ts_ms: table.ts_ms,
        columns: columns
            .map(|column: HistoryColumn| NodeHistoryColumn {
                name: column.name,
                avg: column.avg,
                min: column.min,
                max: column.max,
            })
            .collect(),
    })
}
