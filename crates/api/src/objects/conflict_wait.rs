//! Changes of an object that another node has changed a moment before.

use std::time::{Duration, Instant};

use axum::http::StatusCode;

use crate::problem_details::ProblemDetails;

/// Time for which a change is repeated until this node has received that of the other node.
const TIMEOUT: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(20);

/// Repeats a change that fails because this node has not received that of another node yet. It then replaces what the object has become,
/// unless a precondition of the client forbids that.
pub(super) struct ConflictWait {
    started: Instant,
}

impl ConflictWait {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    /// Waits a moment if the change is to be repeated; `false`: the problem is the answer.
    pub(super) async fn wait_to_repeat(&self, problem: &ProblemDetails) -> bool {
        let is_conflict = problem.status == StatusCode::PRECONDITION_FAILED;
        let repeats = is_conflict && self.started.elapsed() < TIMEOUT;
        if repeats {
            tokio::time::sleep(INTERVAL).await;
        }
        repeats
    }
}
