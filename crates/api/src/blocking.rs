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
