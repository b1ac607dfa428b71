//! Error responses for requests to the broker.

use axum::http::StatusCode;
use broker::control::ControlError;

use crate::problem_details::ProblemDetails;

/// Converts an error of the broker to an error response.
pub(super) fn publish_problem(rejection: &ControlError) -> ProblemDetails {
    match rejection {
        ControlError::InvalidField { field, expected } => {
            ProblemDetails::invalid_field(field, format!("{field}: {expected}."))
        }
        ControlError::ReservedTopic => {
            ProblemDetails::new(StatusCode::FORBIDDEN, format!("{rejection}."))
        }
        ControlError::LimitReached(_) => ProblemDetails::conflict(format!("{rejection}.")),
        ControlError::StoreUnavailable | ControlError::Unavailable => {
            ProblemDetails::unavailable(format!("{rejection}."))
        }
    }
}

pub(super) fn session_not_found(client_id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no session of a client {client_id:?}."))
}
