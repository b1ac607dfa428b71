//! The page of a report: Markdown with its tables, and charts beside it.

use std::fmt::Write as _;

use super::catalogue::{
    ConnectionKind, FigureDefinition, PublishedReport, ReportForm, ReportRow, ReportSection,
};
use super::chart::{self, ChartRow};
use super::machine::{self, MachineDescription};
use super::stored_results::{RowOutcome, StoredResults, StoredRow};
use super::verdict::{FigureGoal, display_measured, display_stated};

/// A page and its charts.
pub(super) struct ReportPage {
    pub(super) text: String,
    /// File names and contents.
    pub(super) charts: Vec<(String, String)>,
}

/// How many figures ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FigureCounts {
    pub(super) met: usize,
    pub(super) missed: usize,
    pub(super) failed: usize,
    pub(super) not_measured: usize,
    pub(super) not_comparable: usize,
}

/// The result of one figure of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FigureResult {
    Met,
    Missed,
    Failed,
    NotMeasured,
    /// Measured in a form that says nothing about the goal.
    NotComparable,
    /// Measured, without a goal.
    Shown,
    /// Measured, beside a value of the report that measures something else.
    OtherMeasure,
    /// The thing does not exist here.
    Absent,
}

impl FigureResult {
    fn of(row: &ReportRow, figure: &FigureDefinition, stored: Option<&StoredRow>) -> Self {
        if figure.not_measured.is_some() {
            return Self::Absent;
        }
        let Some(stored) = stored else {
            return match figure.only_in_memory {
                true => Self::Absent,
                false => Self::NotMeasured,
            };
        };
        if figure.only_in_memory && !stored.is_in_memory {
            return Self::Absent;
        }
        match &stored.outcome {
            RowOutcome::Failed { .. } => return Self::Failed,
            RowOutcome::NotMeasured { .. } => return Self::NotMeasured,
            RowOutcome::Measured => {}
        }
        let value = stored.values.get(&figure.id);
        match (FigureGoal::of(row, figure), value) {
            (_, None) => Self::NotMeasured,
            (None, Some(_)) if figure.is_other_measure => Self::OtherMeasure,
            (None, Some(_)) => Self::Shown,
            (Some(_), Some(_)) if row.incomparable_in(&stored.form).is_some() => {
                Self::NotComparable
            }
            (Some(goal), Some(value)) if goal.is_met_by(*value) => Self::Met,
            (Some(_), Some(_)) => Self::Missed,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::Failed => "**failed**",
            Self::NotMeasured => "not measured",
            Self::NotComparable => "not comparable",
            Self::OtherMeasure => "other measure",
            Self::Shown | Self::Absent => "",
        }
    }
}

impl std::fmt::Display for FigureCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            met,
            missed,
            failed,
            not_measured,
            not_comparable,
        } = self;
        write!(
            f,
            "{met} met, {missed} missed, {failed} failed, {not_measured} not measured"
        )?;
        match not_comparable {
            0 => Ok(()),
            count => write!(f, ", {count} not comparable"),
        }
    }
}

/// Counts the figures of all rows.
pub(super) fn count_figures(report: &PublishedReport, results: &StoredResults) -> FigureCounts {
    let mut counts = FigureCounts::default();
    for row in report.rows() {
        for figure in report.figures_of(row) {
            match FigureResult::of(row, figure, results.rows.get(&row.id)) {
                FigureResult::Met => counts.met += 1,
                FigureResult::Missed => counts.missed += 1,
                FigureResult::Failed => counts.failed += 1,
                FigureResult::NotMeasured => counts.not_measured += 1,
                FigureResult::NotComparable => counts.not_comparable += 1,
                FigureResult::Shown | FigureResult::OtherMeasure | FigureResult::Absent => {}
            }
        }
    }
    counts
}

/// Names of the figures of a row that miss their goals.
pub(super) fn missed_figures<'a>(
    report: &'a PublishedReport,
    row: &'a ReportRow,
    stored: &StoredRow,
) -> Vec<&'a str> {
    let figures = report.figures_of(row);
    let missed = figures
        .filter(|figure| FigureResult::of(row, figure, Some(stored)) == FigureResult::Missed);
    missed.map(|figure| &figure.label[..]).collect()
}

/// Renders the page.
pub(super) fn render(report: &PublishedReport, results: &StoredResults) -> ReportPage {
    let id = report.id;
    let mut page = PageWriter {
        report,
        results,
        machines: machines(report, results),
        out: format!(
            "# Report {id}: {}\n\n<!-- Generated by `tidegate bench report {id}`; do not edit. -->\n\n",
            report.title
        ),
        charts: Vec::new(),
    };
    page.write_head();
    page.write_figures();
    for (number, section) in report.sections.iter().enumerate() {
        page.write_section(number + 1, section);
    }
    ReportPage {
        text: page.out,
        charts: page.charts,
    }
}

/// All machines of the results, in the order of the rows.
fn machines<'a>(
    report: &PublishedReport,
    results: &'a StoredResults,
) -> Vec<&'a MachineDescription> {
    let mut machines = Vec::new();
    for row in report.rows() {
        if let Some(stored) = results.rows.get(&row.id)
            && !machines.contains(&&stored.machine)
        {
            machines.push(&stored.machine);
        }
    }
    machines
}

struct PageWriter<'a> {
    report: &'a PublishedReport,
    results: &'a StoredResults,
    machines: Vec<&'a MachineDescription>,
    out: String,
    charts: Vec<(String, String)>,
}

impl PageWriter<'_> {
    fn write_head(&mut self) {
        let (report, id) = (self.report, self.report.id);
        let out = &mut self.out;
        let _ = write!(
            out,
            "This page repeats the measurements of a published report with Tidegate: {}\n\n\
             Figures with a goal: {}.\n\n",
            report.source.trim(),
            count_figures(report, self.results)
        );
        let _ = write!(
            out,
            "<!-- run: usage only; measures a release build on an idle machine -->\n```sh\n\
             tidegate bench report {id}\ntidegate bench report {id} --full\n```\n\n"
        );
        match &self.machines[..] {
            [] => out.push_str("Nothing has been measured yet.\n\n"),
            [machine] => {
                let _ = write!(out, "Machine: {}.\n\n", machine.summary());
            }
            machines => {
                for (number, machine) in (1..).zip(machines) {
                    let _ = writeln!(out, "- Machine {number}: {}.", machine.summary());
                }
                out.push('\n');
            }
        }
        let rows = || self.results.rows.iter();
        if rows().any(|(_, stored)| !stored.machine.is_release) {
            out.push_str(
                "> Some figures come from a debug build and say nothing about performance.\n\n",
            );
        }
        let busy: Vec<&str> = rows()
            .filter(|(_, stored)| machine::is_busy(stored.other_cores))
            .map(|(id, _)| &id[..])
            .collect();
        if !busy.is_empty() {
            let names = match busy.len() == rows().count() {
                true => "all rows".to_owned(),
                false => busy.join(", "),
            };
            let _ = write!(
                out,
                "> Other programs used the machine when these rows were measured, so their figures are not valid: {names}.\n\n",
            );
        }
        let _ = write!(out, "{}\n\n", report.method.trim());
    }

    /// What each figure means, in the report and here.
    fn write_figures(&mut self) {
        self.out.push_str(
            "## Figures\n\nA goal without a remark is what the report states; \"own\" marks a goal of Tidegate. A goal is met within 0.1 %. \"Other measure\": the report's value measures something else and is no goal. \"Not comparable\": the short form measures something else; the full form is compared.\n\n\
             | figure | the report measures | Tidegate measures |\n|---|---|---|\n",
        );
        for figure in &self.report.figures {
            let ours = figure.not_measured.as_ref().unwrap_or(&figure.ours);
            let theirs = figure.theirs.as_deref().unwrap_or("the same");
            let _ = writeln!(self.out, "| {} | {theirs} | {ours} |", column_name(figure));
        }
        self.out.push('\n');
    }

    fn write_section(&mut self, number: usize, section: &ReportSection) {
        let _ = write!(
            self.out,
            "## {}\n\n{}\n\n",
            section.title,
            section.text.trim()
        );
        if section.rows.is_empty() {
            return;
        }
        self.write_chart(number, section);
        self.write_values(section);
        self.write_remarks(section);
        self.write_commands(section);
    }

    fn write_chart(&mut self, number: usize, section: &ReportSection) {
        let Some(id) = &section.chart else { return };
        let mut figures = self.report.figures.iter();
        let Some(figure) = figures.find(|figure| figure.id == *id) else {
            return;
        };
        let rows = section.rows.iter().filter_map(|row| {
            let stored = self.results.rows.get(&row.id);
            let stored = stored.filter(|stored| row.incomparable_in(&stored.form).is_none());
            let is_compared = row.theirs.contains_key(id) || row.goals.contains_key(id);
            is_compared.then(|| ChartRow {
                label: &row.label,
                // Bars are compared by value, not by their text.
                theirs: (row.theirs.get(id).copied()).filter(|_| !figure.is_other_measure),
                ours: stored.and_then(|stored| stored.values.get(id)).copied(),
            })
        });
        let rows: Vec<ChartRow<'_>> = rows.collect();
        if let Some(svg) = chart::render(&column_name(figure), &rows) {
            let name = format!("{}-{number}.svg", self.report.id);
            let _ = write!(self.out, "![{}]({name})\n\n", column_name(figure));
            self.charts.push((name, svg));
        }
    }

    /// A line for each figure of each row.
    fn write_values(&mut self, section: &ReportSection) {
        self.out.push_str(
            "| row | figure | report | Tidegate | goal | result |\n|---|---|---:|---:|---:|---|\n",
        );
        for row in &section.rows {
            let stored = self.results.rows.get(&row.id);
            let is_in_memory = stored.is_some_and(|stored| stored.is_in_memory);
            let figures = self.report.figures_of(row);
            let figures = figures.filter(|figure| is_in_memory || !figure.only_in_memory);
            for (at, figure) in figures.enumerate() {
                let label = match (at, is_in_memory) {
                    (0, true) => format!("{} (in memory, one process)", row.label),
                    (0, false) => row.label.clone(),
                    _ => String::new(),
                };
                let theirs = row.theirs.get(&figure.id);
                let ours = stored.and_then(|stored| stored.values.get(&figure.id));
                let theirs = theirs.map_or_else(|| "-".to_owned(), |value| display_stated(*value));
                let ours = ours.map_or_else(|| "-".to_owned(), |value| display_measured(*value));
                let goal = FigureGoal::of(row, figure);
                let goal = goal.map_or_else(String::new, |goal| {
                    let own = if goal.is_own { " (own)" } else { "" };
                    format!("{} {}{own}", goal.sign(), display_stated(goal.value))
                });
                let _ = writeln!(
                    self.out,
                    "| {label} | {} | {theirs} | {ours} | {goal} | {} |",
                    column_name(figure),
                    FigureResult::of(row, figure, stored).name()
                );
            }
        }
        self.out.push('\n');
    }

    /// Notes about rows, failures, and reasons why a row was not measured.
    fn write_remarks(&mut self, section: &ReportSection) {
        let before = self.out.len();
        for row in &section.rows {
            let label = &row.label;
            if let Some(note) = &row.note {
                let _ = writeln!(self.out, "- {label}: {}", note.trim());
            }
            if let Some(reason) = &row.not_measured {
                let _ = writeln!(self.out, "- {label}: not measured: {}", reason.trim());
            }
            let stored = self.results.rows.get(&row.id);
            if stored.is_some_and(|stored| stored.is_in_memory) {
                let _ = writeln!(
                    self.out,
                    "- {label}: in memory, one process: a process may not have so many open files here. The devices connected \
                     without sockets to a node in their own process, which shares all cores with them."
                );
            }
            if let Some(short) = stored.and_then(|stored| row.incomparable_in(&stored.form)) {
                let _ = writeln!(
                    self.out,
                    "- {label}: not comparable: the short form {}",
                    short.trim()
                );
            }
            match stored.map(|stored| &stored.outcome) {
                Some(RowOutcome::Failed { reason }) => {
                    let _ = writeln!(
                        self.out,
                        "- {label}: **failed**: `{}`",
                        reason.replace('`', "'")
                    );
                }
                Some(RowOutcome::NotMeasured { reason }) => {
                    let _ = writeln!(self.out, "- {label}: not measured: {reason}");
                }
                Some(RowOutcome::Measured) => {}
                None if row.command.is_some() => {
                    let _ = writeln!(self.out, "- {label}: not measured yet");
                }
                None => {}
            }
        }
        if self.out.len() > before {
            self.out.push('\n');
        }
    }

    /// How each row is measured alone, and what this runs.
    fn write_commands(&mut self, section: &ReportSection) {
        let id = self.report.id;
        let rows = section.rows.iter().filter(|row| row.command.is_some());
        let mut lines = String::new();
        for row in rows {
            let stored = self.results.rows.get(&row.id);
            let full = stored.is_some_and(|stored| stored.form == ReportForm::Full.name());
            let full = if full { " --full" } else { "" };
            let shown = match stored {
                Some(stored) => stored.command.clone(),
                None => row
                    .command_in(ReportForm::Short, ConnectionKind::Sockets)
                    .map(|command| command.to_string())
                    .unwrap_or_default(),
            };
            let measured = stored.map_or_else(String::new, |stored| {
                let machine = match &self.machines[..] {
                    [] | [_] => String::new(),
                    machines => {
                        let mut all = machines.iter();
                        let at = all.position(|machine| **machine == stored.machine);
                        format!(", machine {}", at.map_or(0, |at| at + 1))
                    }
                };
                format!(
                    "{} form, {:.0} s, {}{machine}",
                    stored.form,
                    stored.seconds,
                    time_of(stored.started_ms)
                )
            });
            let _ = writeln!(
                lines,
                "| {} | `tidegate bench report {id} --row {}{full}` | `{shown}` | {measured} |",
                row.label, row.id
            );
        }
        if !lines.is_empty() {
            let _ = write!(
                self.out,
                "| row | command | runs | measured |\n|---|---|---|---|\n{lines}\n"
            );
        }
    }
}

/// Label and unit.
fn column_name(figure: &FigureDefinition) -> String {
    match &figure.unit[..] {
        "" => figure.label.clone(),
        unit => format!("{}, {unit}", figure.label),
    }
}

/// Date and time in UTC.
fn time_of(ms: u64) -> String {
    let time = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(String::new, |time| {
        time.strftime("%Y-%m-%d %H:%M UTC").to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_form_of_something_else_meets_no_goal() {
        let text = r#"
            title = "T"
            source = "S"
            method = "M"
            [[figure]]
            id = "mean"
            label = "mean"
            better = "lower"
            ours = "time"
            value = "/mean"
            [[section]]
            title = "One"
            text = ""
            chart = "mean"
            [[section.row]]
            id = "a"
            label = "A"
            command = "simulate a"
            short_measures = "connects 8,000 devices"
            theirs = { mean = 100 }
        "#;
        let report: PublishedReport = toml::from_str(text).expect("well-formed");
        let mut results = StoredResults::new("009");
        for (form, result, count) in [
            (
                "short",
                "not comparable",
                "0 met, 0 missed, 0 failed, 0 not measured, 1 not comparable",
            ),
            ("full", "met", "1 met, 0 missed, 0 failed, 0 not measured."),
        ] {
            let stored = serde_json::json!({
                "form": form, "command": "tidegate simulate a", "outcome": "measured", "values": {"mean": 30.0},
                "started_ms": 0, "seconds": 1.0, "other_cores": null, "machine": MachineDescription::read(),
            });
            let stored = serde_json::from_value(stored).expect("well-formed");
            results.rows.insert("a".to_owned(), stored);
            let page = render(&report, &results).text;
            let line = format!("| A | mean | 100 | 30 | <= 100 | {result} |");
            assert!(page.contains(&line), "{page}");
            assert!(page.contains(count), "{page}");
            let is_explained = page.contains("- A: not comparable: the short form connects 8,000");
            assert_eq!(is_explained, form == "short", "{page}");
        }
    }
    #[test]
    fn rows_in_memory_say_so_and_have_figures_of_their_own() {
        let text = r#"
            title = "T"
            source = "S"
            method = "M"
            [[figure]]
            id = "mean"
            label = "mean"
            better = "lower"
            ours = "time"
            value = "/mean"
            [[figure]]
            id = "bytes"
            label = "memory per device"
            better = "lower"
            ours = "memory"
            value = "/bytes"
            only_in_memory = true
            [[section]]
            title = "One"
            text = ""
            [[section.row]]
            id = "a"
            label = "A"
            command = "simulate a {target}"
            node = { arguments = "--mqtt 127.0.0.1:0 --ws off" }
            theirs = { mean = 100 }
            shown = ["bytes"]
        "#;
        let report: PublishedReport = toml::from_str(text).expect("well-formed");
        let mut results = StoredResults::new("009");
        let unmeasured = render(&report, &results);
        assert!(!unmeasured.text.contains("memory per device |  |"));
        assert_eq!(count_figures(&report, &results).not_measured, 1);
        for is_in_memory in [false, true] {
            let stored = serde_json::json!({
                "form": "full", "command": "tidegate simulate a", "outcome": "measured", "is_in_memory": is_in_memory,
                "values": {"mean": 30.0, "bytes": 900.0}, "started_ms": 0, "seconds": 1.0, "other_cores": null,
                "machine": MachineDescription::read(),
            });
            let stored: StoredRow = serde_json::from_value(stored).expect("well-formed");
            results.rows.insert("a".to_owned(), stored);
            let page = render(&report, &results).text;
            let label = match is_in_memory {
                true => "A (in memory, one process)",
                false => "A",
            };
            let line = format!("| {label} | mean | 100 | 30 | <= 100 | met |");
            assert!(page.contains(&line), "{page}");
            let has_bytes = page.contains("|  | memory per device | - | 900 |  |  |");
            assert_eq!(has_bytes, is_in_memory, "{page}");
            let is_explained =
                page.contains("- A: in memory, one process: a process may not have so many");
            assert_eq!(is_explained, is_in_memory, "{page}");
            assert_eq!(count_figures(&report, &results).met, 1);
        }
    }
}
