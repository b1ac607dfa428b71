//! The progress of transfers on the terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// The shown rate is that of the last seconds, so that it follows changes.
const RATE_PERIOD: Duration = Duration::from_secs(5);
const BAR_WIDTH: usize = 24;

/// Counts the bytes of all files of a command.
#[derive(Debug, Default)]
pub(crate) struct TransferProgress {
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
}

impl TransferProgress {
    pub(crate) fn add_total(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_done(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Content of a file that is sent again does not count twice.
    pub(crate) fn remove_done(&self, bytes: u64) {
        self.done_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Begins again with these numbers.
    pub(crate) fn reset(&self, total: u64, done: u64) {
        self.total_bytes.store(total, Ordering::Relaxed);
        self.done_bytes.store(done, Ordering::Relaxed);
    }

    fn snapshot(&self) -> (u64, u64) {
        let total = self.total_bytes.load(Ordering::Relaxed);
        let done = self.done_bytes.load(Ordering::Relaxed);
        match total {
            0 => (done, total),
            _ => (done.min(total), total),
        }
    }
}

/// Shows progress on standard error until it is dropped, if that is a terminal.
pub(crate) struct ProgressDisplay {
    task: Option<tokio::task::JoinHandle<()>>,
}

impl ProgressDisplay {
    pub(crate) fn start(progress: Arc<TransferProgress>, is_quiet: bool) -> Self {
        let is_shown = !is_quiet && io::stderr().is_terminal();
        let task = is_shown.then(|| tokio::spawn(show(progress)));
        Self { task }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

async fn show(progress: Arc<TransferProgress>) {
    let mut rate = RateMeter::new(progress.snapshot().0, Instant::now());
    loop {
        tokio::time::sleep(REFRESH_INTERVAL).await;
        let (done, total) = progress.snapshot();
        let rate = rate.record(done, Instant::now());
        let line = progress_line(done, total, rate);
        // A terminal that is gone is no reason to stop.
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }
}

/// The bytes per second of the last seconds.
struct RateMeter {
    samples: std::collections::VecDeque<(Instant, u64)>,
}

impl RateMeter {
    fn new(done: u64, now: Instant) -> Self {
        Self {
            samples: [(now, done)].into(),
        }
    }

    fn record(&mut self, done: u64, now: Instant) -> f64 {
        self.samples.push_back((now, done));
        while self.samples.len() > 2 && now - self.samples[1].0 >= RATE_PERIOD {
            self.samples.pop_front();
        }
        let (start, before) = self.samples[0];
        let seconds = (now - start).as_secs_f64();
        if seconds > 0.0 {
            done.saturating_sub(before) as f64 / seconds
        } else {
            0.0
        }
    }
}

/// `total` is 0 if it is unknown.
fn progress_line(done: u64, total: u64, bytes_per_second: f64) -> String {
    if total == 0 {
        let rate = format_bytes(bytes_per_second as u64);
        return format!("{}  {rate}/s", format_bytes(done));
    }
    let share = done as f64 / total as f64;
    let filled = (share * BAR_WIDTH as f64) as usize;
    let remaining = total - done;
    let eta = if remaining == 0 {
        "0:00".to_owned()
    } else if bytes_per_second < 1.0 {
        "-".to_owned()
    } else {
        format_seconds((remaining as f64 / bytes_per_second).ceil() as u64)
    };
    format!(
        "[{}{}] {:3.0}%  {} of {}  {}/s  ETA {eta}",
        "#".repeat(filled),
        ".".repeat(BAR_WIDTH - filled),
        (share * 100.0).floor(),
        format_bytes(done),
        format_bytes(total),
        format_bytes(bytes_per_second as u64),
    )
}

/// A size with three or four digits, such as `12.3 MB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
    let units = ["kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut name = "B";
    for unit in units {
        if value < 999.95 {
            break;
        }
        value /= 1000.0;
        name = unit;
    }
    match name {
        "B" => format!("{bytes} B"),
        _ => format!("{value:.1} {name}"),
    }
}

fn format_seconds(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_amount_rate_and_duration() {
        assert_eq!(
            progress_line(250_000_000, 1_000_000_000, 12_345_678.0),
            "[######..................]  25%  250.0 MB of 1.0 GB  12.3 MB/s  ETA 1:01"
        );
        assert_eq!(progress_line(2_500_000, 0, 1000.0), "2.5 MB  1.0 kB/s");
        assert!(progress_line(0, 1000, 0.0).ends_with("ETA -"));
        assert!(progress_line(0, 1000, 0.1).ends_with("ETA -"));
        assert!(progress_line(1, 40_000_001, 10_000.0).ends_with("ETA 1:06:40"));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut rate = RateMeter::new(0, start);
        for second in 1..=10 {
            let done = 1000 * second;
            let measured = rate.record(done, start + Duration::from_secs(second));
            assert!((measured - 1000.0).abs() < 1.0);
        }
        let stalled = rate.record(10_000, start + Duration::from_secs(15));
        assert!(stalled < 1.0, "{stalled}");
    }
}
