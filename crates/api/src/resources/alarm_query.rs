//! Queries of alarms: their parameters, and how they run.

use crate::alarm_service::{AlarmService, AlarmServiceError};
use crate::blocking;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{Parameter, ParameterType, text_parameter};
use crate::state::ApiState;

pub(super) const DEVICE: Parameter = text_parameter(
    "device",
    "Device id; also includes alarms propagated to the device.",
);
pub(super) const PRODUCT: Parameter =
    text_parameter("product", "Product id; `$node`: alarms of the node itself.");
pub(super) const TYPE: Parameter = text_parameter("type", "Alarm type.");
pub(super) const SEVERITY: Parameter = Parameter {
    name: "severity",
    description: "Severities, separated by commas.",
    shape: ParameterType::Words(&["CRITICAL", "MAJOR", "MINOR", "WARNING", "INDETERMINATE"]),
};

/// Runs a query on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&AlarmService) -> Result<T, AlarmServiceError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let alarms = app.alarms.clone();
    let result =
        blocking::run_blocking(move || question(&alarms), "The alarms cannot be read now.").await?;
    result.map_err(to_problem)
}

pub(super) fn to_problem(error: AlarmServiceError) -> ProblemDetails {
    match error {
        AlarmServiceError::NotFound(detail) => ProblemDetails::not_found(detail),
        AlarmServiceError::Conflict(detail) => ProblemDetails::conflict(detail),
        AlarmServiceError::Field { field, detail } if field.is_empty() => {
            ProblemDetails::unprocessable(detail)
        }
        AlarmServiceError::Field { field, detail } => {
            ProblemDetails::invalid_field(&field, format!("{field}: {detail}."))
        }
        AlarmServiceError::Unavailable(detail) => ProblemDetails::unavailable(detail),
    }
}
