//! How a run is shown while it lasts: a full screen, a status line, or not at all.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use load_client::interrupt::Interrupt;
use load_client::units::Unit;

use super::live_latency::{CLASSES, LatencyCounts, quantile_bound_ns};
use super::run_log::{LogLine, RunLog};
use super::run_shared::{RunProgress, RunShared};
use super::run_snapshot::{PhaseSnapshot, RunSnapshot};
use crate::phase_plan::PhaseEnd;
use crate::plan::SimulationPlan;
use crate::screen::{
    PhaseRow, PhaseStage, RateHistory, RunScreen, ScreenCommand, ScreenState, is_available,
};

/// How often a screen is drawn without a key.
const SCREEN_INTERVAL_NS: u64 = 250_000_000;
const STATUS_INTERVAL_NS: u64 = 1_000_000_000;
/// Lines of the log that a screen may have room for.
const LOG_LINES: usize = 100;
/// Lines of the log for another part of the program.
const SNAPSHOT_LINES: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisplayKind {
    None,
    /// On standard error.
    StatusLine,
    Screen,
}

impl DisplayKind {
    /// What users expect: a screen on a terminal with a keyboard, otherwise a status line where somebody may look at it.
    pub(crate) fn choose(is_quiet: bool, without_screen: bool) -> Self {
        if is_quiet {
            Self::None
        } else if !without_screen && is_available() {
            Self::Screen
        } else if std::io::stderr().is_terminal() {
            Self::StatusLine
        } else {
            Self::None
        }
    }
}

/// The run at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunView<'a> {
    pub(super) plan: &'a SimulationPlan,
    pub(super) shared: &'a RunShared,
    /// Number of the current phase.
    pub(super) phase: usize,
    pub(super) phase_elapsed_ns: u64,
    pub(super) run_elapsed_ns: u64,
    pub(super) now_ns: u64,
}

pub(crate) enum RunDisplay<'a> {
    None,
    StatusLine(StatusLine),
    Screen(Box<ScreenDisplay<'a>>),
    /// Another part of the program shows it.
    Observer(ObserverDisplay<'a>),
}

impl<'a> RunDisplay<'a> {
    /// Opens a display of a run of this file with this broker.
    pub(crate) fn open(
        kind: DisplayKind,
        interrupt: &Interrupt,
        (name, broker): (String, &'a str),
    ) -> anyhow::Result<Self> {
        Ok(match kind {
            DisplayKind::None => Self::None,
            DisplayKind::StatusLine => Self::StatusLine(StatusLine::default()),
            DisplayKind::Screen => Self::Screen(Box::new(ScreenDisplay {
                screen: RunScreen::open(interrupt)?,
                name,
                broker,
                rates: RateHistory::default(),
                phases: Vec::new(),
                before_phase: ([0; CLASSES], [0; CLASSES]),
                next_draw_ns: 0,
            })),
        })
    }

    /// The log that it shows.
    pub(super) fn new_log(&self) -> Option<RunLog> {
        match self {
            Self::None => None,
            Self::StatusLine(_) => Some(RunLog::printed()),
            Self::Screen(_) | Self::Observer(_) => Some(RunLog::default()),
        }
    }

    /// Waits for a key, at most so long.
    pub(super) fn wait(&mut self, time: Duration) -> Option<ScreenCommand> {
        if let Self::Screen(display) = self {
            match display.screen.wait(time) {
                Ok(command) => return command,
                Err(error) => self.fail(&error),
            }
        }
        std::thread::sleep(time);
        None
    }

    /// Shows the run if that is due.
    pub(super) fn update(&mut self, view: &RunView<'_>) {
        match self {
            Self::None => {}
            Self::StatusLine(line) => line.update(view),
            Self::Observer(observer) => observer.update(view),
            Self::Screen(display) => {
                if let Err(error) = display.update(view) {
                    self.fail(&error);
                }
            }
        }
    }

    /// Lets the next update show the run in any case.
    pub(super) fn redraw(&mut self) {
        if let Self::Screen(display) = self {
            display.next_draw_ns = 0;
        }
    }

    /// The terminal cannot be used any more; the run goes on.
    fn fail(&mut self, error: &anyhow::Error) {
        *self = Self::None;
        eprintln!("{error:#}; the run continues without a screen, Ctrl-C ends it");
    }

    /// Leaves the terminal as it was.
    pub(super) fn close(&mut self) {
        if let Self::StatusLine(_) = self {
            eprint!("\r\x1b[K");
        }
        *self = Self::None;
    }
}

/// One line that is written again every second.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    before: RunProgress,
    next_ns: u64,
}

impl StatusLine {
    fn update(&mut self, view: &RunView<'_>) {
        if self.next_ns == 0 {
            self.next_ns = view.now_ns + STATUS_INTERVAL_NS;
        }
        if view.now_ns < self.next_ns {
            return;
        }
        let progress = view.shared.progress();
        let seconds = (view.now_ns + STATUS_INTERVAL_NS - self.next_ns) as f64 / 1e9;
        let rate = progress.sent.saturating_sub(self.before.sent) as f64 / seconds;
        self.before = progress;
        self.next_ns = view.now_ns + STATUS_INTERVAL_NS;
        let count = |count: u64| Unit::Count.format(count as f64);
        eprint!(
            "\r\x1b[K{}: {} s, {} connected, {} messages/s, {} sent, {} acknowledged, {} failures",
            view.plan.phases[view.phase].name,
            view.phase_elapsed_ns / 1_000_000_000,
            count(progress.connected),
            Unit::PerSecond.format(rate),
            count(progress.sent),
            count(progress.acknowledged),
            count(progress.failures),
        );
        // The line is informative only.
        let _ = std::io::stderr().flush();
    }
}

/// Reports the run to another part of the program.
pub(crate) struct ObserverDisplay<'a> {
    observe: &'a dyn Fn(RunSnapshot),
    phases: Vec<PhaseRow>,
    before: RunProgress,
    rate: f64,
    rate_since_ns: u64,
    next_ns: u64,
}

impl<'a> ObserverDisplay<'a> {
    pub(crate) fn new(observe: &'a dyn Fn(RunSnapshot)) -> Self {
        Self {
            observe,
            phases: Vec::new(),
            before: RunProgress::default(),
            rate: 0.0,
            rate_since_ns: 0,
            next_ns: 0,
        }
    }

    fn update(&mut self, view: &RunView<'_>) {
        if view.now_ns < self.next_ns {
            return;
        }
        self.next_ns = view.now_ns + SCREEN_INTERVAL_NS;
        let progress = view.shared.progress();
        let elapsed_ns = view.now_ns - self.rate_since_ns;
        if elapsed_ns >= STATUS_INTERVAL_NS {
            let sent = progress.sent.saturating_sub(self.before.sent);
            self.rate = match self.rate_since_ns {
                0 => 0.0,
                _ => sent as f64 * 1e9 / elapsed_ns as f64,
            };
            (self.before, self.rate_since_ns) = (progress, view.now_ns);
        }
        if self.phases.is_empty() {
            self.phases = waiting_phases(view.plan);
        }
        update_phases(&mut self.phases, view, &progress);
        let (_, ack_times) = view.shared.live_times();
        let log = view.shared.log();
        (self.observe)(RunSnapshot {
            phases: self.phases.iter().map(PhaseSnapshot::from).collect(),
            connected: progress.connected,
            sent: progress.sent,
            sent_per_s: self.rate,
            acknowledged: progress.acknowledged,
            received: progress.received,
            answers: progress.answers,
            failures: progress.failures,
            ack_p99_ns: quantile_bound_ns(&ack_times, 0.99),
            failures_by_kind: log.map_or_else(Vec::new, |log| log.failures()),
            log: log.map_or_else(Vec::new, |log| {
                let lines = log.latest(SNAPSHOT_LINES).into_iter();
                lines.map(|line| (line.at_ms, line.text)).collect()
            }),
        });
    }
}

/// The full screen, and what it shows of the time before.
#[derive(Debug)]
pub(crate) struct ScreenDisplay<'a> {
    screen: RunScreen,
    name: String,
    broker: &'a str,
    rates: RateHistory,
    phases: Vec<PhaseRow>,
    /// Times of connections and acknowledgements before the phase.
    before_phase: (LatencyCounts, LatencyCounts),
    next_draw_ns: u64,
}

impl ScreenDisplay<'_> {
    fn update(&mut self, view: &RunView<'_>) -> anyhow::Result<()> {
        let progress = view.shared.progress();
        self.rates.record(view.now_ns, progress);
        if self.phases.is_empty() {
            self.phases = waiting_phases(view.plan);
        }
        let times = view.shared.live_times();
        if self.phases[view.phase].stage != PhaseStage::Running {
            self.before_phase = times;
        } else if view.now_ns < self.next_draw_ns {
            return Ok(());
        }
        self.next_draw_ns = view.now_ns + SCREEN_INTERVAL_NS;
        update_phases(&mut self.phases, view, &progress);
        let plan = &view.plan.phases[view.phase];
        let connections = view.plan.connections();
        let log = view.shared.log();
        let lines: Vec<LogLine> = log.map_or_else(Vec::new, |log| log.latest(LOG_LINES));
        let failures = log.map_or_else(Vec::new, |log| log.failures());
        let control = view.shared.control();
        self.screen.draw(&ScreenState {
            name: &self.name,
            broker: self.broker,
            elapsed_s: view.run_elapsed_ns as f64 / 1e9,
            is_paused: control.is_paused(),
            load: plan.load_at(view.phase_elapsed_ns),
            factor: control.factor(),
            phases: &self.phases,
            devices: connections,
            progress,
            rates: &self.rates,
            connect: difference(&times.0, &self.before_phase.0),
            ack: difference(&times.1, &self.before_phase.1),
            failures: &failures,
            log: &lines,
        })
    }
}

/// Brings the rows of phases up to date.
fn update_phases(phases: &mut [PhaseRow], view: &RunView<'_>, progress: &RunProgress) {
    for phase in &mut phases[..view.phase] {
        phase.stage = PhaseStage::Done;
    }
    let plan = &view.plan.phases[view.phase];
    let row = &mut phases[view.phase];
    row.stage = PhaseStage::Running;
    row.elapsed_s = view.phase_elapsed_ns as f64 / 1e9;
    row.progress = match plan.end {
        PhaseEnd::After { ns } | PhaseEnd::Campaign { limit_ns: ns } => {
            Some(view.phase_elapsed_ns as f64 / ns.max(1) as f64)
        }
        PhaseEnd::Connected => {
            let wanted = view.plan.connections() as f64 * plan.devices;
            Some(1.0 - progress.unsettled as f64 / wanted.max(1.0))
        }
        PhaseEnd::Interrupt => None,
    };
}

fn waiting_phases(plan: &SimulationPlan) -> Vec<PhaseRow> {
    let phases = plan.phases.iter();
    let rows = phases.map(|phase| PhaseRow {
        name: phase.name.clone(),
        stage: PhaseStage::Waiting,
        elapsed_s: 0.0,
        duration_s: match phase.end {
            PhaseEnd::After { ns } | PhaseEnd::Campaign { limit_ns: ns } => Some(ns as f64 / 1e9),
            PhaseEnd::Connected | PhaseEnd::Interrupt => None,
        },
        progress: None,
    });
    rows.collect()
}

fn difference(now: &LatencyCounts, before: &LatencyCounts) -> LatencyCounts {
    std::array::from_fn(|class| now[class].saturating_sub(before[class]))
}
