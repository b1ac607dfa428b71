//! Work that may block.

use std::any::Any;

use crate::problem_details::ProblemDetails;

type ErasedWork = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

/// Runs a closure that may wait for the disk. If it panics, the error is made by `otherwise`.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    otherwise: &'static str,
) -> Result<T, ProblemDetails> {
    // The runtime's code of a task is compiled for each type of closure, about 10 KB. With one type for all of them it is
    // compiled once.
    let work: ErasedWork = Box::new(move || Box::new(work()));
    let done = tokio::task::spawn_blocking(work).await.ok();
    match done.and_then(|result| result.downcast().ok()) {
        Some(result) => Ok(*result),
        None => Err(ProblemDetails::unavailable(otherwise)),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_the_failure_of_its_request_alone() {
        let panicked = run_blocking(|| -> u8 { panic!("a bug") }, "Not possible now.").await;
        let problem = panicked.expect_err("it panicked");
        assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(run_blocking(|| 1, "Not possible now.").await.ok(), Some(1));
    }
}
