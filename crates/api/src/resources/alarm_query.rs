//! Queries of alarms: their parameters, and how they run.

use std::sync::Arc;

use crate::alarm_backend::{AlarmBackend, AlarmBackendError};
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
    question: impl FnOnce(&dyn AlarmBackend) -> Result<T, AlarmBackendError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let tools = Arc::clone(&app.alarm_backend);
    let asked =
        blocking::run_blocking(move || question(&*tools), "The alarms cannot be read now.").await?;
    asked.map_err(to_problem)
}

fn to_problem(error: AlarmBackendError) -> ProblemDetails {
    match error {
        AlarmBackendError::NotFound(detail) => ProblemDetails::not_found(detail),
        AlarmBackendError::Conflict(detail) => ProblemDetails::conflict(detail),
        AlarmBackendError::Field { field, detail } if field.is_empty() => {
            ProblemDetails::unprocessable(detail)
        }
        AlarmBackendError::Field { field, detail } => {
            ProblemDetails::invalid_field(&field, format!("{field}: {detail}."))
        }
        AlarmBackendError::Unavailable(detail) => ProblemDetails::unavailable(detail),
    }
}
