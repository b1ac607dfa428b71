//! Metrics of the allocator, and the release of unused memory to the system.

use std::cell::Cell;
use std::time::{Duration, Instant};

use hooks::{Hooks, HooksFactory, Interest, MetricFamily};
use mimalloc::MiMalloc;

/// Interval at which threads of the control plane release memory; shards have one of their own.
const RELEASE_INTERVAL: Duration = Duration::from_secs(10);

/// `mi_option_purge_delay` of mimalloc 3, which the bindings do not name.
const PURGE_DELAY_OPTION: libmimalloc_sys::mi_option_t = 15;

/// While a node starts, the allocator returns freed pages at once: the threads that started it stay
/// idle afterwards, and an idle thread returns nothing. Without this an idle node held 10 MiB more.
pub(super) fn release_memory_at_once() {
    set_purge_delay(Duration::ZERO);
}

/// A running node keeps freed pages for a second, so that bursts reuse them.
pub(super) fn keep_memory_for_reuse() {
    set_purge_delay(Duration::from_secs(1));
}

fn set_purge_delay(delay: Duration) {
    // SAFETY: an option is one word; other threads that read it meanwhile take either value.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY_OPTION, delay.as_millis() as std::ffi::c_long);
    }
}

/// Returns memory freed by this thread to the system. The allocator does so only when it searches for free memory. A
/// node that has become idle would keep the memory of its start or of its last burst. Pages belong to threads, so each
/// thread releases its own.
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
    fn the_purge_delay_has_the_number_used_here() {
        // SAFETY: only reads an option.
        let delay_ms = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY_OPTION) };
        // The default of mimalloc 3; no other option has it.
        assert_eq!(delay_ms(), 1000);
        release_memory_at_once();
        assert_eq!(delay_ms(), 0);
        keep_memory_for_reuse();
        assert_eq!(delay_ms(), 1000);
    }

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
