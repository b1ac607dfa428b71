//! Reading and changing the store of configuration objects from the handler of a request.

use serde::de::DeserializeOwned;
use store::{Object, Objects};

use crate::blocking::run_blocking;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Maximum length of an object's id.
pub(crate) const MAX_ID_BYTES: usize = 256;

/// Runs a store operation on a thread that may block.
pub(crate) async fn run_on_store<T: Send + 'static>(
    app: &ApiState,
    work: impl FnOnce(&Objects) -> T + Send + 'static,
) -> Result<T, ProblemDetails> {
    let objects = app.objects.clone();
    run_blocking(move || work(&objects), "The store did not respond.").await
}

pub(crate) fn store_problem(error: &store::StoreError) -> ProblemDetails {
    tracing::error!(%error, "configuration store operation failed");
    ProblemDetails::unavailable(format!("{error}."))
}

pub(crate) async fn get_object(
    app: &ApiState,
    kind: &'static str,
    id: &str,
) -> Result<Option<Object>, ProblemDetails> {
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.contains('\0') {
        return Ok(None);
    }
    let id = id.to_owned();
    run_on_store(app, move |objects| objects.get(kind, &id))
        .await?
        .map_err(|error| store_problem(&error))
}

/// Loads a stored object of a kind that the API itself interprets.
pub(crate) async fn load_object<T: DeserializeOwned>(
    app: &ApiState,
    kind: &'static str,
    id: &str,
) -> Result<Option<T>, ProblemDetails> {
    let object = get_object(app, kind, id).await?;
    // An unreadable operator or key grants no access.
    Ok(
        object.and_then(|object| match serde_json::from_value(object.value) {
            Ok(stored) => Some(stored),
            Err(error) => {
                tracing::error!(kind, id, %error, "stored object is unreadable; ignored");
                None
            }
        }),
    )
}
