//! Ctrl-C, SIGTERM and SIGHUP, the end of the terminal: the first one ends the run in order, the second one ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// The status of a process that a signal has ended.
pub const EXIT_STATUS: u8 = 130;

/// Whether the run was interrupted.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<InterruptState>);

#[derive(Debug, Default)]
struct InterruptState {
    is_requested: AtomicBool,
    before_exit: OnceLock<fn()>,
}

impl Interrupt {
    /// Watches for signals on a thread of its own until the process ends.
    ///
    /// # Errors
    /// If the signals cannot be watched, or the thread cannot be started.
    pub fn watch() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let state = interrupt.0.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // Registered before the caller creates anything that must be removed.
        let (mut interrupts, mut terminations, mut hangups) = {
            let _context = runtime.enter();
            // `nohup` lets a process ignore this signal.
            let hangups = (!is_hangup_ignored()).then(|| signal(SignalKind::hangup()));
            (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                hangups.transpose()?,
            )
        };
        let mut hangup = async move || match &mut hangups {
            Some(hangups) => hangups.recv().await,
            None => std::future::pending().await,
        };
        let watch = move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupts.recv() => {}
                        _ = terminations.recv() => {}
                        _ = hangup() => {}
                    }
                    if state.is_requested.swap(true, Ordering::Relaxed) {
                        if let Some(action) = state.before_exit.get() {
                            action();
                        }
                        std::process::exit(EXIT_STATUS.into());
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(watch).context("cannot start a thread")?;
        Ok(interrupt)
    }

    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.is_requested.load(Ordering::Relaxed)
    }

    /// Does what the first signal does: the next one ends the process.
    pub fn request(&self) {
        self.0.is_requested.store(true, Ordering::Relaxed);
    }

    /// Sets what is done before the second signal ends the process; the first call counts.
    pub fn before_exit(&self, action: fn()) {
        // Set once.
        let _ = self.0.before_exit.set(action);
    }
}

/// Whether the process was started with SIGHUP ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is the lowest bit.
    mask.is_some_and(|mask| mask & 1 == 1)
}
