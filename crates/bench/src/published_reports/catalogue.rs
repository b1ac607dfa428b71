//! The reports that can be reproduced: one TOML file each, which contains their tables, what they state, and the command
//! that measures a row here.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::row_command::RowCommand;
use super::row_server::ServerKind;

/// The files, in the order of the reports.
const FILES: [(&str, &str); 5] = [
    ("000", include_str!("../../published_reports/000.toml")),
    ("001", include_str!("../../published_reports/001.toml")),
    ("002", include_str!("../../published_reports/002.toml")),
    ("003", include_str!("../../published_reports/003.toml")),
    ("004", include_str!("../../published_reports/004.toml")),
];

/// One report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedReport {
    /// Number, which is also the name of the page.
    #[serde(skip)]
    pub(super) id: &'static str,
    /// The system that the report is about.
    pub(super) title: String,
    /// Version and date of the report, and its machine.
    pub(super) source: String,
    /// What its method is, and what ours is; Markdown.
    pub(super) method: String,
    #[serde(rename = "figure")]
    pub(super) figures: Vec<FigureDefinition>,
    #[serde(rename = "section")]
    pub(super) sections: Vec<ReportSection>,
}

/// A column of the report's tables.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FigureDefinition {
    pub(super) id: String,
    pub(super) label: String,
    #[serde(default)]
    pub(super) unit: String,
    pub(super) better: BetterDirection,
    /// What the report measured; not given where it is the same.
    #[serde(default)]
    pub(super) theirs: Option<String>,
    /// What is measured here.
    pub(super) ours: String,
    /// Where the value is in the JSON of the command, see [`super::json_path`]; rows may differ.
    #[serde(default)]
    pub(super) value: Option<String>,
    /// Why there is no value here, such as that the thing does not exist.
    #[serde(default)]
    pub(super) not_measured: Option<String>,
    /// Whether only rows with connections in memory have a value.
    #[serde(default)]
    pub(super) only_in_memory: bool,
    /// Whether the report measures something else, so that its value is shown and is no goal.
    #[serde(default)]
    pub(super) is_other_measure: bool,
    /// Factor from the unit of the JSON to that of the figure.
    #[serde(default = "one")]
    pub(super) scale: f64,
}

/// Which values are good.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BetterDirection {
    Higher,
    Lower,
    Equal,
    /// The value is information and has no goal.
    Neither,
}

/// A table or scenario of the report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportSection {
    pub(super) title: String,
    /// What the report did, and what differs here; Markdown.
    pub(super) text: String,
    /// Figure that the chart of the section compares.
    #[serde(default)]
    pub(super) chart: Option<String>,
    #[serde(default, rename = "row")]
    pub(super) rows: Vec<ReportRow>,
}

/// A line of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportRow {
    /// Unique in the report; the argument of `--row`.
    pub(super) id: String,
    pub(super) label: String,
    /// Arguments of `tidegate`; `{name}` stands for a value of the form, or of the node. `{target}` stands for the target of a
    /// simulation, which is the node, or one in the process of the simulation if that cannot have enough open files.
    #[serde(default)]
    pub(super) command: Option<String>,
    /// Arguments of `tidegate` for what runs before: its node then starts again with its data, so that nothing is in memory.
    #[serde(default)]
    pub(super) preparation: Option<String>,
    /// Why nothing is measured, instead of a command: "needs ...".
    #[serde(default)]
    pub(super) not_measured: Option<String>,
    /// Another system that the node of the row uses. Its address replaces names in the configuration of the node.
    #[serde(default)]
    pub(super) server: Option<ServerKind>,
    /// Whether the exit status of the command concerns other rows as well, and only the values tell how this one ended.
    #[serde(default)]
    pub(super) is_judged_by_values: bool,
    /// A node to start for the row.
    #[serde(default)]
    pub(super) node: Option<RowNode>,
    #[serde(default)]
    pub(super) needs: RowNeeds,
    /// Values of `{name}` in the short and in the full form.
    #[serde(default)]
    pub(super) short: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) full: BTreeMap<String, String>,
    /// What the short form measures instead, if that says nothing about the report's value and the goals.
    #[serde(default)]
    pub(super) short_measures: Option<String>,
    /// About how long the short and the full form take.
    #[serde(default)]
    pub(super) seconds: [u32; 2],
    /// What the report states, by figure.
    #[serde(default)]
    pub(super) theirs: BTreeMap<String, f64>,
    /// What Tidegate aims at, by figure, where this is not what the report states.
    #[serde(default)]
    pub(super) goals: BTreeMap<String, f64>,
    /// Figures that are shown without either.
    #[serde(default)]
    pub(super) shown: Vec<String>,
    /// Where values are in the JSON, where this differs from the figure.
    #[serde(default)]
    pub(super) values: BTreeMap<String, String>,
    /// A remark about the row.
    #[serde(default)]
    pub(super) note: Option<String>,
}

/// A node that runs while a row is measured: the first core is its own, the second one that of the command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowNode {
    /// Arguments of `tidegate serve`.
    #[serde(default)]
    pub(super) arguments: String,
    /// Text of its configuration file.
    #[serde(default)]
    pub(super) configuration: String,
    /// Whether node and command share all cores.
    #[serde(default)]
    pub(super) shares_cores: bool,
}

/// What the machine must have.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowNeeds {
    /// Open files of one process, in the short and in the full form.
    #[serde(default)]
    pub(super) open_files: [u64; 2],
    /// Memory in GiB that is available, in the short and in the full form.
    #[serde(default)]
    pub(super) memory_gib: [u64; 2],
    /// Free space for temporary files in GiB, in the short and in the full form.
    #[serde(default)]
    pub(super) disk_gib: [u64; 2],
}

/// The name in commands for the target of a simulation.
const TARGET: &str = "{target}";

/// How the devices of a simulation are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// To a node of its own process.
    Sockets,
    /// To a node in the process of the simulation.
    InMemory,
}

impl ConnectionKind {
    /// Arguments of a simulation.
    fn target(self) -> &'static str {
        match self {
            Self::Sockets => {
                "--set target.broker=mqtt://{mqtt} --set target.api=http://{http} --set target.token_file={token_file}"
            }
            Self::InMemory => {
                "--set target.broker=memory: --set target.node.data_dir={data_dir} --set target.node.shards=1"
            }
        }
    }
}

/// How long rows run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportForm {
    Short,
    Full,
}

impl ReportForm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Full => "full",
        }
    }

    /// The value of this form.
    pub(super) fn of<T: Copy>(self, values: [T; 2]) -> T {
        match self {
            Self::Short => values[0],
            Self::Full => values[1],
        }
    }
}

const fn one() -> f64 {
    1.0
}

/// All reports.
pub(super) fn all_reports() -> anyhow::Result<Vec<PublishedReport>> {
    FILES.iter().map(|(id, text)| read(id, text)).collect()
}

fn read(id: &'static str, text: &str) -> anyhow::Result<PublishedReport> {
    let report: PublishedReport =
        toml::from_str(text).with_context(|| format!("report {id} is not valid"))?;
    let report = PublishedReport { id, ..report };
    report
        .check()
        .with_context(|| format!("report {id} is not valid"))?;
    Ok(report)
}

impl PublishedReport {
    /// All rows, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = &ReportRow> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    pub(super) fn row(&self, id: &str) -> Option<&ReportRow> {
        self.rows().find(|row| row.id == id)
    }

    fn figure(&self, id: &str) -> Option<&FigureDefinition> {
        self.figures.iter().find(|figure| figure.id == id)
    }

    /// The figures of a row, in the order of the report.
    pub(super) fn figures_of(&self, row: &ReportRow) -> impl Iterator<Item = &FigureDefinition> {
        self.figures.iter().filter(|figure| row.has(&figure.id))
    }

    /// Names that the code relies on exist.
    fn check(&self) -> anyhow::Result<()> {
        let mut ids: Vec<&str> = self.rows().map(|row| &row.id[..]).collect();
        ids.sort_unstable();
        ensure!(
            ids.windows(2).all(|pair| pair[0] != pair[1]),
            "two rows have the same id"
        );
        for section in &self.sections {
            if let Some(chart) = &section.chart {
                ensure!(
                    self.figure(chart).is_some(),
                    "{}: there is no figure {chart} for its chart",
                    section.title
                );
            }
        }
        for row in self.rows() {
            self.check_row(row)
                .with_context(|| format!("row {}", row.id))?;
        }
        Ok(())
    }

    fn check_row(&self, row: &ReportRow) -> anyhow::Result<()> {
        let names = row.theirs.keys().chain(row.goals.keys());
        for name in names.chain(&row.shown).chain(row.values.keys()) {
            ensure!(self.figure(name).is_some(), "there is no figure {name}");
            ensure!(row.has(name), "figure {name} has a value and is not shown");
        }
        ensure!(
            self.figures_of(row).next().is_some(),
            "it has no figure to show"
        );
        ensure!(
            row.command.is_some() != row.not_measured.is_some(),
            "it needs either a command or not_measured"
        );
        ensure!(
            row.preparation.is_none() || row.node.is_some(),
            "a preparation needs a node"
        );
        if let Some(node) = &row.node {
            // A node that is running already uses the standard ports.
            for option in ["--mqtt ", "--ws "] {
                ensure!(
                    node.arguments.contains(option),
                    "its node uses the standard port of {option}"
                );
            }
        }
        if row.command.is_some() {
            for form in [ReportForm::Short, ReportForm::Full] {
                for connections in [ConnectionKind::Sockets, ConnectionKind::InMemory] {
                    row.command_in(form, connections)?;
                    row.preparation_in(form, connections)?;
                }
            }
            for figure in self.figures_of(row) {
                ensure!(
                    row.value_path(figure).is_some() != figure.not_measured.is_some(),
                    "figure {} has no value",
                    figure.id
                );
            }
        }
        Ok(())
    }
}

impl ReportRow {
    fn has(&self, figure: &str) -> bool {
        self.theirs.contains_key(figure)
            || self.goals.contains_key(figure)
            || self.shown.iter().any(|shown| shown == figure)
    }

    /// The command in a form.
    pub(super) fn command_in(
        &self,
        form: ReportForm,
        connections: ConnectionKind,
    ) -> anyhow::Result<RowCommand> {
        let text = self.command.as_deref().context("it has no command")?;
        self.build_row_command(text, form, connections)
    }

    /// The preparation in a form.
    pub(super) fn preparation_in(
        &self,
        form: ReportForm,
        connections: ConnectionKind,
    ) -> anyhow::Result<Option<RowCommand>> {
        let text = self.preparation.as_deref();
        text.map(|text| self.build_row_command(text, form, connections))
            .transpose()
    }

    fn build_row_command(
        &self,
        text: &str,
        form: ReportForm,
        connections: ConnectionKind,
    ) -> anyhow::Result<RowCommand> {
        let values = match form {
            ReportForm::Short => &self.short,
            ReportForm::Full => &self.full,
        };
        let text = text.replace(TARGET, connections.target());
        RowCommand::new(&text, values, self.node.is_some())
            .with_context(|| format!("{} form", form.name()))
    }

    /// The connections of a form where a process may have `open_files`; `None`: any number.
    pub(super) fn connections_in(
        &self,
        form: ReportForm,
        open_files: Option<u64>,
    ) -> ConnectionKind {
        let needed = form.of(self.needs.open_files);
        let has_target = (self.command.as_deref()).is_some_and(|text| text.contains(TARGET));
        match open_files.is_some_and(|limit| limit < needed) && has_target {
            true => ConnectionKind::InMemory,
            false => ConnectionKind::Sockets,
        }
    }

    /// Why the values of a form are not compared.
    pub(super) fn incomparable_in(&self, form: &str) -> Option<&str> {
        let is_short = form == ReportForm::Short.name();
        self.short_measures.as_deref().filter(|_| is_short)
    }

    /// Where the value of a figure is in the JSON of the command.
    pub(super) fn value_path<'a>(&'a self, figure: &'a FigureDefinition) -> Option<&'a str> {
        let own = self.values.get(&figure.id).or(figure.value.as_ref());
        own.map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"
        title = "T"
        source = "S"
        method = "M"
        [[figure]]
        id = "rate"
        label = "Rate"
        better = "higher"
        ours = "messages received"
        value = "/rate"
        [[section]]
        title = "One"
        text = ""
        [[section.row]]
        id = "a"
        label = "A"
        command = "bench mqtt p2p --duration {duration}"
        short = { duration = "1s" }
        full = { duration = "1m" }
        theirs = { rate = 5 }
    "#;

    fn error(from: &str, to: &str) -> String {
        assert!(REPORT.contains(from), "{from}");
        let text = REPORT.replace(from, to);
        format!("{:#}", read("009", &text).expect_err("it is not valid"))
    }

    #[test]
    fn reports_of_the_program_are_valid() {
        let reports = all_reports().expect("valid");
        assert_eq!(reports.len(), FILES.len());
        for report in &reports {
            assert!(report.rows().count() > 0, "{}", report.id);
        }
    }

    #[test]
    fn mistakes_in_reports_are_found() {
        read("009", REPORT).expect("valid");
        assert!(error("theirs = {", "theirs = { p99 = 1,").contains("there is no figure p99"));
        assert!(error("full = { duration", "full = { time").contains("{duration}"));
        assert!(error("value = \"/rate\"", "").contains("rate has no value"));
        assert!(error("text = \"\"", "text = \"\"\nchart = \"p50\"").contains("p50"));
        assert!(error("theirs =", "node = {}\ntheirs =").contains("--mqtt"));
        assert!(error("theirs =", "not_measured = \"needs a lot\"\ntheirs =").contains("either"));
    }

    #[test]
    fn rows_with_more_connections_than_open_files_connect_in_memory() {
        let text = REPORT
            .replace("bench mqtt p2p", "simulate x {target}")
            .replace(
                "theirs =",
                "needs = { open_files = [100, 5000] }\nnode = { arguments = \"--mqtt 127.0.0.1:0 --ws off\" }\ntheirs =",
            );
        let report = read("009", &text).expect("valid");
        let row = report.row("a").expect("it is there");
        let kind = |form, limit| row.connections_in(form, limit);
        assert_eq!(kind(ReportForm::Full, Some(5000)), ConnectionKind::Sockets);
        assert_eq!(kind(ReportForm::Full, None), ConnectionKind::Sockets);
        assert_eq!(kind(ReportForm::Short, Some(4999)), ConnectionKind::Sockets);
        assert_eq!(kind(ReportForm::Full, Some(4999)), ConnectionKind::InMemory);
        let command = |kind| {
            row.command_in(ReportForm::Full, kind)
                .expect("valid")
                .to_string()
        };
        let sockets = command(ConnectionKind::Sockets);
        assert!(
            sockets.contains(" target.broker=mqtt://$MQTT "),
            "{sockets}"
        );
        let in_memory = command(ConnectionKind::InMemory);
        assert!(
            in_memory.contains(" target.broker=memory: --set target.node.data_dir=$DATA_DIR"),
            "{in_memory}"
        );
        // The command of another row has no choice.
        let report = read("009", REPORT).expect("valid");
        let row = report.row("a").expect("it is there");
        let kind = row.connections_in(ReportForm::Full, Some(1));
        assert_eq!(kind, ConnectionKind::Sockets);
    }
}
