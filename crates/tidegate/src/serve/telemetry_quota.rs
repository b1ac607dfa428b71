//! Enforces the quota of namespaces on stored telemetry: counts it every second.

use std::time::Duration;

use devices::platform::Platform;
use devices::telemetry_usage::TelemetryUsage;
use namespaces::Namespaces;

/// How far stored bytes may exceed a quota is what devices send in this time.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a start waits for the first count, which reads the index of each segment file. Longer ones end in the
/// background.
const FIRST_COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// Counts what namespaces have stored while one of them has a quota. Ends with the runtime.
pub(super) async fn start(usage: &TelemetryUsage, namespaces: &Namespaces, platform: &Platform) {
    // Products of the configuration may be older than their namespace.
    let platform = platform.clone();
    namespaces.observe(move |id| platform.refresh_namespace(id));
    let counting = tokio::spawn(count_if_limited(usage.clone()));
    if tokio::time::timeout(FIRST_COUNT_TIMEOUT, counting)
        .await
        .is_err()
    {
        tracing::warn!(
            "the stored telemetry is still being counted; quotas on telemetry are not enforced until the count is complete"
        );
    }
    tokio::spawn(count_forever(usage.clone()));
}

async fn count_forever(usage: TelemetryUsage) {
    loop {
        tokio::time::sleep(COUNT_INTERVAL).await;
        count_if_limited(usage.clone()).await;
    }
}

async fn count_if_limited(usage: TelemetryUsage) {
    if !usage.is_limited() {
        return;
    }
    let counted = tokio::task::spawn_blocking(move || usage.count()).await;
    if let Err(error) = counted
        && error.is_panic()
    {
        tracing::error!(%error, "counting the stored telemetry panicked; this is a bug");
    }
}
