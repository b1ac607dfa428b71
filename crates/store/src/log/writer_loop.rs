//! The writer's thread: collects, writes, reclaims and prepares, in rounds.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::reclaim::Reclaimer;
use super::writer::LogWriter;

/// Runs until the store stops.
pub(crate) fn run(mut writer: LogWriter) {
    writer.shared.register_writer();
    let mut reclaimer = Reclaimer::default();
    let mut stopping_since = None;
    loop {
        // Before collecting, so that everything submitted before the stop is collected.
        let is_stopping = writer.shared.is_stopping.load(Ordering::Acquire);
        let was_called = writer.collect();
        writer.write_all();
        let has_copied = reclaimer.step(&mut writer);
        writer.prepare_next();
        writer.free_removed_segments();
        if was_called || has_copied {
            writer.update_counters();
        }
        if is_stopping {
            let since = *stopping_since.get_or_insert_with(Instant::now);
            if writer.is_idle() || since.elapsed() > writer.config.max_stopping {
                break;
            }
        }
        if !was_called && !has_copied {
            std::thread::park_timeout(writer.wait_timeout());
        }
    }
    let batches = writer.pending_batches();
    if batches > 0 {
        tracing::error!(
            batches,
            "store stops before all submitted batches were written; they are lost"
        );
    }
    writer.segments.seal();
    writer.segments.drop_next();
}
