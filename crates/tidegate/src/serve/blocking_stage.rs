//! Stages of the start that may block.

use anyhow::Context as _;

/// Runs a stage that may block. `what` is the stage in the error after a panic.
pub(super) async fn run_blocking<T: Send + 'static>(
    what: &'static str,
    stage: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let ended = tokio::task::spawn_blocking(stage).await;
    ended.with_context(|| format!("{what} ended by a panic"))
}
