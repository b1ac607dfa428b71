//! Logging to standard error as text lines or JSON, with levels that can change at run time.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt, reload};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    /// Its name in settings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// The log filter of the running process, in the syntax of `log.level`.
pub(crate) struct LogLevels {
    current: Mutex<String>,
    apply: ApplyLevelsFn,
}

type ApplyLevelsFn = Box<dyn Fn(Targets) -> Result<(), String> + Send + Sync>;

impl LogLevels {
    /// Takes effect immediately for every thread. The error names the accepted values.
    pub(crate) fn set(&self, levels: &str) -> Result<(), String> {
        let targets = parse_levels(levels)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        (self.apply)(targets)?;
        levels.clone_into(&mut current);
        Ok(())
    }

    pub(crate) fn current(&self) -> String {
        let current = self.current.lock();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Starts logging for the whole process; must be called once.
pub(crate) fn start(levels: &str, format: LogFormat) -> Result<LogLevels, String> {
    let (filter, handle) = reload::Layer::new(parse_levels(levels)?);
    let layer = match format {
        LogFormat::Text => fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .boxed(),
        LogFormat::Json => fmt::layer()
            .with_writer(std::io::stderr)
            .json()
            .flatten_event(true)
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .try_init()
        .map_err(|error| error.to_string())?;
    install_panic_logger();
    let apply = move |targets| handle.reload(targets).map_err(|error| error.to_string());
    Ok(LogLevels {
        current: Mutex::new(levels.to_owned()),
        apply: Box::new(apply),
    })
}

/// Logs panics like other events, so that they appear in the log.
fn install_panic_logger() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = Backtrace::capture();
        tracing::error!(
            thread = thread.name().unwrap_or_default(),
            location = panic.location().map(tracing::field::display),
            backtrace = (backtrace.status() == BacktraceStatus::Captured)
                .then(|| tracing::field::display(&backtrace)),
            "panic: {}",
            panic.payload_as_str().unwrap_or("of an unknown kind"),
        );
    }));
}

/// Parses `info` or `info,broker=debug`. A bare word must be a level: `Targets` alone would accept
/// a misspelt level as the name of a target and log all of it.
pub(crate) fn parse_levels(text: &str) -> Result<Targets, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.contains(&word);
    let fits = text
        .split(',')
        .map(str::trim)
        .all(|part| match part.split_once('=') {
            Some((target, level)) => !target.trim().is_empty() && is_level(level.trim()),
            None => is_level(part),
        });
    let targets = fits.then(|| text.parse().ok()).flatten();
    targets.ok_or_else(|| {
        format!(
            "expected a level ({}) or several as in info,broker=debug, found {text:?}",
            LEVELS.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_and_slips_are_not_taken_for_targets() {
        for text in [
            "info",
            "off",
            "info,broker=debug",
            "warn, broker::session=trace",
        ] {
            assert!(parse_levels(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "inf",
            "INFO2",
            "info,broker",
            "broker=",
            "=debug",
            "info;debug",
        ] {
            assert!(parse_levels(text).is_err(), "{text}");
        }
    }
}
