//! The runtime of a client.

use super::error::ClientError;

/// Runs a client to its end on a runtime of its own.
pub(super) fn block_on<T>(
    client: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ClientError::Local {
            what: "cannot start".into(),
            error,
        })?;
    runtime.block_on(client)
}
