//! Values and errors of the time series in the form of the API.

use api::TelemetryBackendError;
use serde_json::Value;
use series::SeriesError;

pub(super) fn to_backend_error(error: SeriesError) -> TelemetryBackendError {
    match error {
        SeriesError::Query {
            field,
            found,
            expected,
        } => TelemetryBackendError::Parameter {
            name: field,
            detail: format!("{found}; expected {expected}"),
        },
        other => TelemetryBackendError::Unavailable(other.to_string()),
    }
}

pub(super) fn value_to_json(value: series::PointValue<'_>) -> Value {
    match value {
        series::PointValue::Bool(value) => value.into(),
        series::PointValue::Int(value) => value.into(),
        series::PointValue::Float(value) => value.into(),
        series::PointValue::Text(text) => text.into(),
        // The JSON was checked when it was stored.
        series::PointValue::Json(json) => serde_json::from_str(json).unwrap_or_default(),
    }
}
