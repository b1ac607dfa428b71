//! Changes of an object that another node may change at the same time.

use axum::http::StatusCode;
use store::{Object, ObjectError};

use crate::object_store::{get_object, store_problem};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

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

/// Changes an object from what it is now (`None`: it does not exist), and again if another node has changed it in between. This node has the
/// other change by then (see `ReplicatedObjects` of the crate `cluster`).
pub(crate) async fn change_object<T, F>(
    app: &ApiState,
    (kind, id): (&'static str, &str),
    change: impl Fn(Option<Object>) -> F,
) -> Result<T, ProblemDetails>
where
    F: Future<Output = Result<T, ObjectChangeError>>,
{
    for _ in 0..MAX_ATTEMPTS {
        let _changing = app.changing.lock().await;
        let current = get_object(app, kind, id).await?;
        match change(current).await {
            Ok(changed) => return Ok(changed),
            Err(ObjectChangeError::Other(problem)) => return Err(problem),
            Err(ObjectChangeError::Conflict) => {}
        }
    }
    Err(ProblemDetails::conflict(
        "Other nodes are changing this object at the same time. Try again.",
    ))
}
