//! Draws the screen: phases and rates, times and errors, the log, and the keys.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use load_client::units::Unit;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::bars::{bar, sparkline};
use super::rate_history::RateSeries;
use super::screen_state::{PhaseRow, PhaseStage, ScreenState};
use crate::run::{CLASS_BOUNDS_NS, LatencyCounts, quantile_bound_ns};

/// From this width on, the times of connections and of acknowledgements are beside each other.
const WIDE_COLUMNS: u16 = 110;
/// Rows of the panel with rates, with its border.
const RATE_ROWS: u16 = 8;
const SMALLEST: (u16, u16) = (64, 16);
const QUIET: Style = Style::new().fg(Color::DarkGray);
const BAR: Style = Style::new().fg(Color::Cyan);
const ALERT: Style = Style::new().fg(Color::Red);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

pub(super) fn draw(frame: &mut Frame<'_>, state: &ScreenState<'_>) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!(
            "The terminal has {}x{} characters; the screen needs at least {}x{}. The run continues; q ends it.",
            area.width, area.height, SMALLEST.0, SMALLEST.1
        );
        let text = Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: true });
        frame.render_widget(text, area);
        return;
    }
    let upper = RATE_ROWS
        .max(state.phases.len() as u16 + 2)
        .min(area.height / 3);
    let [header, upper, middle, log, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(upper),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(1),
    ])
    .areas(area);
    let [phases, rates] =
        Layout::horizontal([Constraint::Percentage(40), Constraint::Fill(1)]).areas(upper);
    draw_header(frame, header, state);
    draw_phases(frame, phases, state.phases);
    draw_rates(frame, rates, state);
    let has_acks = state.ack.iter().any(|count| *count > 0);
    if area.width >= WIDE_COLUMNS {
        let [connect, ack, errors] = Layout::horizontal([Constraint::Fill(1); 3]).areas(middle);
        draw_times(frame, connect, "Connect times", &state.connect);
        draw_times(frame, ack, "Times to acknowledgement", &state.ack);
        draw_errors(frame, errors, state.failures);
    } else {
        let [times, errors] =
            Layout::horizontal([Constraint::Percentage(60), Constraint::Fill(1)]).areas(middle);
        match has_acks {
            true => draw_times(frame, times, "Times to acknowledgement", &state.ack),
            false => draw_times(frame, times, "Connect times", &state.connect),
        }
        draw_errors(frame, errors, state.failures);
    }
    draw_log(frame, log, state);
    draw_keys(frame, keys, state);
}

fn panel(title: String) -> Block<'static> {
    Block::bordered()
        .border_style(QUIET)
        .title(Line::styled(format!(" {title} "), STRONG))
}

/// Draws a panel; `lines` gets width and height inside its border.
fn draw_panel<'l>(
    frame: &mut Frame<'_>,
    area: Rect,
    block: Block<'_>,
    lines: impl FnOnce(usize, usize) -> Vec<Line<'l>>,
) {
    let inner = block.inner(area);
    frame.render_widget(block, area);
    frame.render_widget(
        Paragraph::new(lines(inner.width.into(), inner.height.into())),
        inner,
    );
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, state: &ScreenState<'_>) {
    let mut right = format!(
        "load x{}  {} ",
        number(state.load * state.factor),
        clock(state.elapsed_s)
    );
    if state.factor != 1.0 {
        right = format!("rates x{}  {right}", number(state.factor));
    }
    let paused = if state.is_paused { " PAUSED " } else { "" };
    let right_width = (right.chars().count() + paused.len() + 1) as u16;
    let [left, end] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(right_width)]).areas(area);
    let name = Line::from(vec![
        Span::styled(format!(" {}", state.name), STRONG),
        Span::styled(format!("  {}", state.broker), QUIET),
    ]);
    frame.render_widget(Paragraph::new(name), left);
    let status = Line::from(vec![
        Span::styled(paused, Style::new().fg(Color::Black).bg(Color::Yellow)),
        Span::raw(format!(" {right}")),
    ]);
    frame.render_widget(Paragraph::new(status), end);
}

fn draw_phases(frame: &mut Frame<'_>, area: Rect, phases: &[PhaseRow]) {
    draw_panel(frame, area, panel("Phases".to_owned()), |width, height| {
        let current = phases
            .iter()
            .position(|phase| phase.stage == PhaseStage::Running);
        // The current phase stays visible, with the one before it.
        let first = current
            .unwrap_or(0)
            .saturating_sub(1)
            .min(phases.len().saturating_sub(height));
        phases[first..]
            .iter()
            .take(height)
            .map(|phase| phase_line(phase, width))
            .collect()
    });
}

fn phase_line(phase: &PhaseRow, width: usize) -> Line<'_> {
    let (mark, style) = match phase.stage {
        PhaseStage::Done => ("✓", QUIET),
        PhaseStage::Running => ("▶", STRONG),
        PhaseStage::Waiting => (" ", Style::new()),
    };
    let time = match (phase.stage, phase.duration_s) {
        (PhaseStage::Running, Some(duration_s)) => {
            format!("{} of {}", clock(phase.elapsed_s), clock(duration_s))
        }
        (PhaseStage::Running | PhaseStage::Done, _) => clock(phase.elapsed_s),
        (PhaseStage::Waiting, Some(duration_s)) => clock(duration_s),
        (PhaseStage::Waiting, None) => String::new(),
    };
    let bar_width = if width >= 36 { 8 } else { 0 };
    let name_width = width.saturating_sub(time.chars().count() + bar_width + 4);
    let mut spans = vec![Span::styled(
        format!("{mark} {} ", fitted(&phase.name, name_width)),
        style,
    )];
    if bar_width > 0 {
        let share = if phase.stage == PhaseStage::Running {
            phase.progress
        } else {
            None
        };
        let filled = share.map_or(String::new(), |share| bar(share, bar_width - 1));
        spans.push(Span::styled(format!("{filled:<bar_width$}"), BAR));
    }
    spans.push(Span::styled(time, style));
    Line::from(spans)
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, state: &ScreenState<'_>) {
    let progress = &state.progress;
    let rows: [(&str, &RateSeries, u64); 5] = [
        ("connects", &state.rates.connects, progress.connects),
        ("sent", &state.rates.sent, progress.sent),
        (
            "acknowledged",
            &state.rates.acknowledged,
            progress.acknowledged,
        ),
        ("received", &state.rates.received, progress.received),
        ("failures", &state.rates.failures, progress.failures),
    ];
    draw_panel(
        frame,
        area,
        panel("Rates per second, and totals".to_owned()),
        |width, _| {
            let graph_width = width.saturating_sub(34);
            let share = progress.connected as f64 / state.devices.max(1) as f64;
            let connected = format!(
                "{:<13}{} of {}",
                "connected",
                count(progress.connected),
                count(state.devices)
            );
            let connected = format!("{connected:<35}");
            let mut lines = vec![Line::from(vec![
                Span::raw(connected),
                Span::styled(bar(share, graph_width.saturating_sub(1)), BAR),
            ])];
            for (name, rates, total) in rows {
                let is_alert = name == "failures" && rates.latest() > 0.0;
                let style = if is_alert { ALERT } else { Style::new() };
                lines.push(Line::from(vec![
                    Span::styled(
                        format!(
                            "{name:<13}{:>9} {:>11} ",
                            rate(rates.latest()),
                            count(total)
                        ),
                        style,
                    ),
                    Span::styled(
                        sparkline(rates.iter(), graph_width),
                        if is_alert { ALERT } else { BAR },
                    ),
                ]));
            }
            lines
        },
    );
}

fn draw_times(frame: &mut Frame<'_>, area: Rect, title: &str, counts: &LatencyCounts) {
    let mut bounds = String::new();
    for (name, share) in [("50 %", 0.5), ("99 %", 0.99)] {
        if let Some(bound_ns) = quantile_bound_ns(counts, share) {
            bounds += &format!(" {name} ≤ {} ", time(bound_ns));
        }
    }
    let block = panel(title.to_owned()).title_bottom(Line::styled(bounds, STRONG));
    draw_panel(frame, area, block, |width, height| {
        time_lines(counts, width, height)
    });
}

/// One line for each class between the first and the last with counts; neighbours are joined if there are too many.
fn time_lines<'l>(counts: &LatencyCounts, width: usize, height: usize) -> Vec<Line<'l>> {
    let first = counts.iter().position(|count| *count > 0);
    let last = counts.iter().rposition(|count| *count > 0);
    let Some((first, last)) = first.zip(last) else {
        return vec![Line::styled("none in this phase", QUIET)];
    };
    let classes = &counts[first..=last];
    let joined = classes.len().div_ceil(height.max(1));
    let rows: Vec<(usize, u64)> = classes
        .chunks(joined)
        .enumerate()
        .map(|(row, counts)| (first + row * joined + counts.len() - 1, counts.iter().sum()))
        .collect();
    let highest = rows.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let bar_width = width.saturating_sub(21);
    rows.into_iter()
        .map(|(class, total)| {
            let label = match CLASS_BOUNDS_NS.get(class) {
                Some(bound_ns) => format!("≤ {}", time(*bound_ns)),
                None => format!("> {}", time(CLASS_BOUNDS_NS[CLASS_BOUNDS_NS.len() - 1])),
            };
            Line::from(vec![
                Span::raw(format!("{label:<9}{:>11} ", count(total))),
                Span::styled(bar(total as f64 / highest as f64, bar_width), BAR),
            ])
        })
        .collect()
}

fn draw_errors(frame: &mut Frame<'_>, area: Rect, failures: &[(String, u64)]) {
    draw_panel(frame, area, panel("Errors".to_owned()), |width, height| {
        if failures.is_empty() {
            return vec![Line::styled("none", QUIET)];
        }
        let shown = if failures.len() > height {
            height.saturating_sub(1)
        } else {
            height
        };
        let mut lines: Vec<Line<'_>> = failures
            .iter()
            .take(shown)
            .map(|(kind, total)| {
                let total = count(*total);
                let kind = fitted(kind, width.saturating_sub(total.len() + 1));
                Line::styled(format!("{kind} {total}"), ALERT)
            })
            .collect();
        if failures.len() > shown {
            lines.push(Line::styled(
                format!("{} more kinds", failures.len() - shown),
                QUIET,
            ));
        }
        lines
    });
}

fn draw_log(frame: &mut Frame<'_>, area: Rect, state: &ScreenState<'_>) {
    draw_panel(
        frame,
        area,
        panel("Log (UTC)".to_owned()),
        |width, height| {
            let latest = state.log.iter().take(height);
            let lines = latest.map(|line| {
                let time = Timestamp::from_millisecond(line.at_ms as i64).unwrap_or_default();
                let time = time
                    .to_zoned(TimeZone::UTC)
                    .strftime("%H:%M:%S")
                    .to_string();
                Line::from(vec![
                    Span::styled(format!("{time} "), QUIET),
                    Span::raw(
                        fitted(&line.text, width.saturating_sub(9))
                            .trim_end()
                            .to_owned(),
                    ),
                ])
            });
            let mut lines: Vec<Line<'_>> = lines.collect();
            lines.reverse();
            lines
        },
    );
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, state: &ScreenState<'_>) {
    let pause = if state.is_paused { "resume" } else { "pause" };
    let keys = [
        ("p", pause),
        ("+", "faster"),
        ("-", "slower"),
        ("n", "next phase"),
        ("q", "stop"),
    ];
    let mut spans = vec![Span::raw(" ")];
    for (key, action) in keys {
        spans.push(Span::styled(
            format!(" {key} "),
            Style::new().add_modifier(Modifier::REVERSED),
        ));
        spans.push(Span::raw(format!(" {action}   ")));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

/// A text with exactly so many characters.
fn fitted(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return format!("{text:<width$}");
    }
    let front: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 {
        front
    } else {
        format!("{front}…")
    }
}

fn count(count: u64) -> String {
    Unit::Count.format(count as f64)
}

fn rate(rate: f64) -> String {
    Unit::PerSecond.format(rate)
}

fn time(ns: u64) -> String {
    Unit::Nanoseconds.format(ns as f64)
}

/// A factor without zeros at the end.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Such as `12 s`, `3:05` or `1:02:03`.
fn clock(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::run::{CLASSES, LogLine, RunProgress};
    use crate::screen::RateHistory;

    struct Sample {
        rates: RateHistory,
        phases: Vec<PhaseRow>,
        failures: Vec<(String, u64)>,
        log: Vec<LogLine>,
    }

    impl Sample {
        fn new() -> Self {
            let mut rates = RateHistory::default();
            for second in 0..30_u64 {
                let progress = RunProgress {
                    connects: 50 * second.min(10),
                    sent: second * second * 12,
                    acknowledged: second * second * 12,
                    received: second,
                    failures: if second < 20 { 0 } else { (second - 20) * 3 },
                    ..RunProgress::default()
                };
                rates.record(second * 1_000_000_000, progress);
            }
            let phase = |name: &str, stage, elapsed_s, duration_s, progress| PhaseRow {
                name: name.to_owned(),
                stage,
                elapsed_s,
                duration_s,
                progress,
            };
            let line = |at_ms, text: &str| LogLine {
                at_ms,
                text: text.to_owned(),
            };
            Self {
                rates,
                phases: vec![
                    phase("connect", PhaseStage::Done, 10.2, None, Some(1.0)),
                    phase("steady", PhaseStage::Running, 19.6, Some(60.0), Some(0.327)),
                    phase(
                        "a phase with a very long name indeed",
                        PhaseStage::Waiting,
                        0.0,
                        Some(3700.0),
                        None,
                    ),
                ],
                failures: vec![
                    ("connection reset".to_owned(), 1234),
                    ("CONNACK Not authorized".to_owned(), 3),
                ],
                log: vec![
                    line(1_795_291_219_000, "meter-17: connection reset"),
                    line(1_795_291_210_200, "phase steady begins"),
                    line(1_795_291_200_000, "phase connect begins"),
                ],
            }
        }

        fn state(&self) -> ScreenState<'_> {
            let mut ack: LatencyCounts = [0; CLASSES];
            for (class, count) in [
                (3, 40),
                (4, 1230),
                (5, 4820),
                (6, 2900),
                (7, 310),
                (8, 35),
                (12, 2),
            ] {
                ack[class] = count;
            }
            let mut connect = [0; CLASSES];
            connect[10] = 480;
            connect[11] = 20;
            ScreenState {
                name: "meters.toml",
                broker: "mqtt://127.0.0.1:1883",
                elapsed_s: 29.8,
                is_paused: false,
                load: 1.0,
                factor: 1.0,
                phases: &self.phases,
                devices: 500,
                progress: RunProgress {
                    connected: 497,
                    connects: 500,
                    sent: 10_092,
                    acknowledged: 10_090,
                    received: 29,
                    failures: 27,
                    ..RunProgress::default()
                },
                rates: &self.rates,
                connect,
                ack,
                failures: &self.failures,
                log: &self.log,
            }
        }
    }

    fn drawn(state: &ScreenState<'_>, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_running_phase_at_80x24() {
        insta::assert_snapshot!(drawn(&Sample::new().state(), 80, 24));
    }

    #[test]
    fn a_pause_at_120x40() {
        let sample = Sample::new();
        let state = ScreenState {
            is_paused: true,
            factor: 2.0,
            load: 1.5,
            ..sample.state()
        };
        insta::assert_snapshot!(drawn(&state, 120, 40));
    }

    #[test]
    fn the_first_second_at_80x24() {
        let mut sample = Sample::new();
        sample.rates = RateHistory::default();
        sample.failures.clear();
        let state = ScreenState {
            progress: RunProgress::default(),
            connect: [0; CLASSES],
            ack: [0; CLASSES],
            log: &[],
            ..sample.state()
        };
        insta::assert_snapshot!(drawn(&state, 80, 24));
    }

    #[test]
    fn many_phases_and_errors_fit_into_the_smallest_terminal() {
        let mut sample = Sample::new();
        for number in 0..20 {
            let mut phase = sample.phases[2].clone();
            phase.name = format!("phase {number}");
            sample.phases.push(phase);
            sample.failures.push((format!("kind {number}"), 1));
        }
        sample.phases[1].stage = PhaseStage::Done;
        sample.phases[12].stage = PhaseStage::Running;
        insta::assert_snapshot!(drawn(&sample.state(), SMALLEST.0, SMALLEST.1));
        assert!(drawn(&sample.state(), 40, 10).contains("The terminal has 40x10"));
        // No size may fail.
        for (width, height) in [(1, 1), (200, 16), (64, 100), (500, 200)] {
            drawn(&sample.state(), width, height);
        }
    }
}
