//! The commands that README and manual show are run, in the order of each page, against a node of the page.

mod page;
mod script;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::program::tidegate;
use page::{PageCommand, PageStep, RunMode, matches_output};
use script::PagePorts;

/// A page that takes longer has a command that does not end.
const PAGE_DEADLINE: Duration = Duration::from_secs(50);

/// Pages that run at the same time.
const MAX_PARALLEL_PAGES: usize = 8;

/// Programs of other projects. A page ends at a command whose program is not installed.
const OPTIONAL_PROGRAMS: [&str; 8] = [
    "curl",
    "duckdb",
    "jq",
    "mosquitto_pub",
    "mosquitto_sub",
    "openssl",
    "psql",
    "taskset",
];

#[test]
fn the_commands_of_the_documentation_succeed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    collect_pages(&root.join("docs"), &mut pages);
    // For work on single pages.
    if let Ok(part) = std::env::var("TIDEGATE_TEST_PAGE") {
        pages.retain(|path| path.to_string_lossy().contains(&part));
    }
    let waiting = Mutex::new(pages);
    let failures = Mutex::new(Vec::new());
    let skips = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..MAX_PARALLEL_PAGES {
            scope.spawn(|| {
                loop {
                    let Some(path) = waiting.lock().unwrap().pop() else {
                        return;
                    };
                    let name = path.strip_prefix(&root).unwrap_or(&path).display();
                    let text = fs::read_to_string(&path).unwrap();
                    match run_page(&text) {
                        Ok(None) => {}
                        Ok(Some(skip)) => skips.lock().unwrap().push(format!("{name}: {skip}")),
                        Err(failure) => {
                            failures.lock().unwrap().push(format!("{name}: {failure}"));
                        }
                    }
                }
            });
        }
    });
    for skip in skips.into_inner().unwrap() {
        testkit::report_skipped(&skip);
    }
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn a_wrong_command_is_reported_with_its_line() {
    let page = |shown: &str| {
        format!("# Page\n\n<!-- run: node stopped -->\n```console\n$ true\n{shown}\n```\n")
    };
    assert_eq!(run_page(&page("$ echo port 1\nport 2")), Ok(None));
    let failed = run_page(&page("$ echo text; false"));
    assert_eq!(failed.unwrap_err(), "line 6: echo text; false\ntext");
    let different = run_page(&page("$ echo one\ntwo"));
    assert_eq!(
        different.unwrap_err(),
        "line 6: echo one\nshows\ntwo\nand prints\none"
    );
    let succeeded = run_page("<!-- run: fails -->\n```sh\ntidegate version\n```\n");
    assert!(
        succeeded
            .unwrap_err()
            .starts_with("line 3: tidegate version\n")
    );
}

fn collect_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_pages(&path, pages);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
}

/// Runs a page. The result is what was skipped; the failure names line, command and output.
fn run_page(text: &str) -> Result<Option<String>, String> {
    let mut steps = page::steps(text)?;
    let missing = steps.iter().enumerate().find_map(|(at, step)| match step {
        PageStep::Run(command) => Some((at, command.line, missing_program(&command.text)?)),
        PageStep::WriteFile { .. } => None,
    });
    let skipped = missing.map(|(at, line, program)| {
        steps.truncate(at);
        format!("from line {line} on: {program} is not installed")
    });
    let commands: Vec<&PageCommand> = steps
        .iter()
        .filter_map(|step| match step {
            PageStep::Run(command) => Some(command),
            PageStep::WriteFile { .. } => None,
        })
        .collect();
    if commands.is_empty() {
        return Ok(skipped);
    }
    let folder = tempfile::tempdir().unwrap();
    let log = run_script(&steps, folder.path())?;
    let outputs = script::outputs(&log);
    for command in commands {
        let line = command.line;
        let Some(output) = outputs.iter().find(|output| output.line == line) else {
            return Err(format!("line {line}: not reached"));
        };
        if output.failed {
            return Err(format!("line {line}: {}\n{}", command.text, output.text));
        }
        let has_whole_output = !matches!(command.mode, RunMode::Background | RunMode::UsageOnly);
        let is_compared = has_whole_output && !command.output.is_empty();
        if is_compared && !matches_output(&command.output, &output.text) {
            let shown = command.output.join("\n");
            return Err(format!(
                "line {line}: {}\nshows\n{shown}\nand prints\n{}",
                command.text, output.text
            ));
        }
    }
    Ok(skipped)
}

/// Runs all steps in one shell; the result is its output with marks.
fn run_script(steps: &[PageStep], folder: &Path) -> Result<String, String> {
    let ports = PagePorts::reserve();
    let script = script::write(steps, folder, &ports);
    let log = folder.join("log");
    let file = fs::File::create(&log).unwrap();
    // The environment of the program: no setting of ours, and its folder on the PATH.
    let mut environment = tidegate(&[]);
    ports.set_environment(&mut environment, folder);
    let mut command = std::process::Command::new("bash");
    command.arg(&script).current_dir(folder.join("work"));
    for (name, value) in environment.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + PAGE_DEADLINE;
    let ended = loop {
        if child.try_wait().unwrap().is_some() {
            break true;
        }
        if Instant::now() > deadline {
            break false;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // The node and the commands in the background.
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let _ = kill_process_group(group, Signal::KILL);
    child.wait().unwrap();
    let log = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    if ended {
        Ok(log)
    } else {
        let last = script::outputs(&log).into_iter().next();
        let (line, text) = last.map_or((0, String::new()), |last| (last.line, last.text));
        Err(format!(
            "line {line}: does not end; {PAGE_DEADLINE:?} have passed\n{text}"
        ))
    }
}

/// A program that the command needs and that is not installed.
fn missing_program(command: &str) -> Option<&'static str> {
    let is_separator = |c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-';
    let words: Vec<&str> = command.split(is_separator).collect();
    let folders = std::env::var_os("PATH").unwrap_or_default();
    OPTIONAL_PROGRAMS.into_iter().find(|program| {
        words.contains(program)
            && !std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
            && !(*program == "duckdb" && script::duckdb_package().is_some())
    })
}
