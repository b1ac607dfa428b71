//! `tidegate bench report` from its command line to its page, with a program of the test's own in the place of `tidegate`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    bench: bench::BenchArgs,
}

const FAKE_PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_program/program.sh");

/// A folder of a test, removed at its end.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(test: &str) -> Self {
        let name = format!("report-{test}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).expect("a file")
    }

    fn results(&self) -> Value {
        serde_json::from_str(&self.file("004.json")).expect("JSON")
    }

    /// Runs the command for report 004; whether it succeeded.
    fn report(&self, options: &str) -> Result<bool, String> {
        let output = self.0.display();
        let line = format!("bench report 004 --quiet --output {output} {options}");
        let program =
            Program::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        let code = bench::run(program.bench).map_err(|error| format!("{error:#}"))?;
        Ok(format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS))
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The line of a page that begins with this.
fn line<'a>(page: &'a str, start: &str) -> &'a str {
    let mut lines = page.lines();
    lines
        .find(|line| line.starts_with(start))
        .unwrap_or_else(|| panic!("no line `{start}` in:\n{page}"))
}

#[test]
fn rows_are_met_missed_or_failed_and_none_ends_the_run() {
    let folder = TestFolder::new("rows");
    let rows =
        "--row fanout --row connections-10 --row rate-500 --row summary-connections --row long";
    let is_success = folder.report(&format!("--program {FAKE_PROGRAM} {rows}"));
    assert_eq!(is_success, Ok(false), "two rows fail");
    let results = folder.results();
    let row = |id: &str| results["rows"][id].clone();
    assert_eq!(row("connections-10")["outcome"], "measured");
    assert_eq!(row("connections-10")["values"]["p95"], 0.3);
    assert_eq!(row("fanout")["outcome"], "failed", "{results:#}");
    let reason = row("fanout")["reason"].to_string();
    assert!(reason.contains("lost==0"), "{reason}");
    let reason = row("long")["reason"].to_string();
    assert!(reason.contains("does not contain connected"), "{reason}");

    let page = folder.file("004.md");
    let result = line(&page, "| 10 connections | latency p50, ms |");
    assert!(
        result.ends_with("| 0.03 | 0.020 |  | other measure |"),
        "{page}"
    );
    let result = line(&page, "|  | sent, messages/s | 9.98 | 10 |");
    assert!(result.ends_with("| >= 9.98 | met |"), "{result}");
    let result = line(&page, "|  | sent, messages/s | 492.66 | 10 |");
    assert!(result.ends_with("**missed** |"), "{result}");
    let result = line(&page, "| 1 sender, 200 receivers, window 20 |");
    assert!(
        result.contains("2,000,000") && result.ends_with("**failed** |"),
        "{result}"
    );
    line(
        &page,
        "- 1 sender, 200 receivers, window 20: **failed**: `exit status: 1",
    );
    line(&page, "- 20 connections: not measured yet");
    assert!(
        page.contains("bench report 004 --row connections-10`"),
        "{page}"
    );
    assert!(page.contains("](004-1.svg)"), "{page}");
    assert!(folder.file("004-1.svg").starts_with("<svg"));
}

#[test]
fn pages_are_generated_again_without_measuring() {
    let folder = TestFolder::new("from");
    let row = format!("--program {FAKE_PROGRAM} --row rate-500");
    assert_eq!(folder.report(&row), Ok(true));
    let page = folder.file("004.md");
    let copy = TestFolder::new("from-copy");
    let results = folder.0.join("004.json");
    for from in [&results, &folder.0] {
        let options = format!("--from {} --program /none/such", from.display());
        assert_eq!(copy.report(&options), Ok(true));
        assert_eq!(copy.file("004.md"), page);
    }
    fs::write(&results, "{}").expect("it is ours");
    let error = copy.report(&format!("--from {}", results.display()));
    assert!(error.is_err_and(|error| error.contains("contains no results")));
}

#[test]
fn an_interrupted_run_continues() {
    let folder = TestFolder::new("resume");
    let first = format!("--program {FAKE_PROGRAM} --row rate-100 --row rate-300");
    assert_eq!(folder.report(&first), Ok(true));
    let mut results = folder.results();
    let done = results["rows"]["rate-100"].clone();
    // All rows are there but one, as if an interrupt had come then.
    let page = folder.file("004.md");
    for row in page.lines().filter_map(|line| line.split(" --row ").nth(1)) {
        let id = row.split('`').next().expect("an id");
        let mut stored = done.clone();
        let command = row.split('`').nth(2).expect("a command");
        stored["command"] = command.into();
        results["rows"][id] = stored;
    }
    let rows = results["rows"].as_object_mut().expect("rows");
    assert!(rows.len() > 20, "{}", rows.len());
    rows.remove("rate-300");
    fs::write(folder.0.join("004.json"), results.to_string()).expect("it is ours");

    let resumed = folder.report(&format!("--program {FAKE_PROGRAM} --resume"));
    assert_eq!(resumed, Ok(true));
    let after = folder.results();
    assert_eq!(after["rows"]["rate-300"]["outcome"], "measured");
    let started = |value: &Value, row: &str| value["rows"][row]["started_ms"].as_u64();
    assert!(started(&after, "rate-300") > started(&after, "rate-100"));
    assert_eq!(after["rows"]["rate-100"], done);
}

#[test]
fn wrong_arguments_are_explained() {
    let folder = TestFolder::new("arguments");
    let error = folder.report("--row nothing").err();
    assert!(error.is_some_and(|error| error.contains("--list")));
    let error = folder.report("--row fanout --resume").err();
    assert!(error.is_some_and(|error| error.contains("cannot be used with")));
    let line = ["bench", "report", "900"];
    let error = bench::run(Program::parse_from(line).bench).err();
    assert!(error.is_some_and(|error| error.to_string().contains("001")));
}
