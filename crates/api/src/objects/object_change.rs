//! Changes of an object that another node may change at the same time.

use axum::http::StatusCode;
use store::ObjectError;

use crate::object_store::store_problem;
use crate::problem_details::ProblemDetails;

/// More than two are needed only if other nodes change the object again and again.
const MAX_ATTEMPTS: usize = 10;

/// Why an object was not changed.
#[derive(Debug)]
pub(crate) enum ObjectChangeError {
    /// It is not what was read before the change.
    Conflict,
    Other(ProblemDetails),
}

impl From<ProblemDetails> for ObjectChangeError {
    fn from(problem: ProblemDetails) -> Self {
        Self::Other(problem)
    }
}

impl From<ObjectError> for ObjectChangeError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Conflict { .. } => Self::Conflict,
            ObjectError::Storage(error) => Self::Other(store_problem(&error)),
            other => Self::Other(ProblemDetails::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("{other}."),
            )),
        }
    }
}

/// Reads an object and changes it with `attempt`, again if another node has changed it in between. This node has the other change
/// by then (see `ReplicatedObjects` of the crate `cluster`).
pub(crate) async fn retry_conflicts<T, F>(attempt: impl Fn() -> F) -> Result<T, ProblemDetails>
where
    F: Future<Output = Result<T, ObjectChangeError>>,
{
    for _ in 0..MAX_ATTEMPTS {
        match attempt().await {
            Ok(changed) => return Ok(changed),
            Err(ObjectChangeError::Other(problem)) => return Err(problem),
            Err(ObjectChangeError::Conflict) => {}
        }
    }
    Err(ProblemDetails::conflict(
        "Other nodes change it at the same time; try again.",
    ))
}
