//! Records the metrics of the node in its history, several times a minute.

use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::RuleCounter;
use hooks::MetricFamily;
use series::SeriesError;
use tokio::time::MissedTickBehavior;
use wall_clock::now_ms;

use crate::process_metrics;
use crate::state::ApiState;

/// Time between two samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(15);

/// Runs until the API has stopped.
pub(crate) async fn run(app: Weak<ApiState>) {
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else {
            return;
        };
        let mut families = app.node.counters();
        let record = move || {
            families.extend(app.program.metrics());
            families.extend(process_metrics::families());
            families.extend(rule_families(&app));
            app.history.record(&families, now_ms() as i64)
        };
        match tokio::task::spawn_blocking(record).await {
            Ok(Ok(())) => is_failing = false,
            // The node stops.
            Ok(Err(SeriesError::Closed)) => return,
            // Logged once: a full disk has alarms of its own.
            Ok(Err(error)) if !is_failing => {
                is_failing = true;
                tracing::warn!(%error, "the metrics of the node cannot be stored; retrying with each sample");
            }
            Ok(Err(_)) => {}
            Err(error) => {
                tracing::error!(%error, "recording the metrics of the node panicked; this is a bug");
                return;
            }
        }
    }
}

/// Totals of all rules; those of each rule are not recorded.
fn rule_families(app: &Arc<ApiState>) -> [MetricFamily; 4] {
    let totals = app.engine.totals();
    let family = |name, help, counter| MetricFamily::counter(name, help, totals.get(counter));
    [
        family(
            "rules_matched_total",
            "Events that matched a rule.",
            RuleCounter::Matched,
        ),
        family(
            "rules_failed_total",
            "Events whose evaluation by a rule failed.",
            RuleCounter::Failed,
        ),
        family(
            "rule_actions_succeeded_total",
            "Actions of rules that succeeded.",
            RuleCounter::ActionsSucceeded,
        ),
        family(
            "rule_actions_failed_total",
            "Actions of rules that failed.",
            RuleCounter::ActionsFailed,
        ),
    ]
}
