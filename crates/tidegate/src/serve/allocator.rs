//! Metrics of the allocator, and the release of unused memory to the system.

use std::cell::Cell;
use std::time::{Duration, Instant};

use hooks::{Hooks, HooksFactory, Interest, MetricFamily};
use mimalloc::MiMalloc;

/// Interval at which threads of the control plane release memory; shards have one of their own.
const RELEASE_INTERVAL: Duration = Duration::from_secs(10);

/// Returns memory freed by this thread to the system. The allocator does so only when it searches for
/// free memory: a node that has become idle would keep the memory of its start or of its last burst.
/// Pages belong to threads, so each thread releases its own.
fn release_unused() {
    // SAFETY: may be called from any thread at any time; memory in use is not touched.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// As [`release_unused`], unless this thread did so a short time ago. For threads that become idle.
pub(super) fn release_when_due() {
    thread_local! {
        static RELEASED: Cell<Instant> = Cell::new(Instant::now());
    }
    let now = Instant::now();
    if RELEASED.with(|released| now - released.get() >= RELEASE_INTERVAL) {
        RELEASED.set(now);
        release_unused();
    }
}

/// Lets each shard release memory.
pub(super) struct MemoryReleaseHooks;

impl HooksFactory for MemoryReleaseHooks {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(Self)
    }
}

impl Hooks for MemoryReleaseHooks {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn housekeeping(&mut self) {
        release_unused();
    }
}

/// Empty if the allocator provides no statistics.
pub(super) fn metrics() -> Vec<MetricFamily> {
    let Ok(json) = MiMalloc::stats_json() else {
        return Vec::new();
    };
    let stats = serde_json::from_slice(json.to_bytes()).unwrap_or_default();
    families(&stats)
}

fn families(stats: &serde_json::Value) -> Vec<MetricFamily> {
    let gauge = |field: &str, name, help| {
        let bytes = stats.get(field)?.get("current")?.as_f64()?;
        Some(MetricFamily::gauge(name, help, bytes.max(0.0)))
    };
    let families = [
        gauge(
            "committed",
            "allocator_committed_bytes",
            "Memory held by the allocator for the process, used or cached.",
        ),
        gauge(
            "reserved",
            "allocator_reserved_bytes",
            "Address space reserved by the allocator.",
        ),
    ];
    families.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_reports_its_memory() {
        let names: Vec<_> = metrics().iter().map(|family| family.name).collect();
        assert_eq!(
            names,
            ["allocator_committed_bytes", "allocator_reserved_bytes"]
        );
        assert!(families(&serde_json::Value::Null).is_empty());
    }
}
