//! Work that may block.

use crate::problem_details::ProblemDetails;

/// Runs a closure that may wait for the disk. If it panics, the error is made by `otherwise`.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    otherwise: &'static str,
) -> Result<T, ProblemDetails> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ProblemDetails::unavailable(otherwise))
}
