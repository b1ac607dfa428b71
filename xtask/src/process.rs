//! Running other programs: whole, quietly, or line by line with a watchdog.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::TaskError;
use crate::report::StepOutcome;

/// A cargo command in the workspace's root, with the toolchain xtask itself was built with.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(crate::root());
    // Variables that `cargo run` sets for xtask. The build script of ring examines them, so that with them ring and all
    // that depends on it would be built again after each cargo command by hand.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// How a command line reads when typed.
pub(crate) fn command_line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let mut line = program.rsplit('/').next().unwrap_or_default().to_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Runs a command whose output the user sees.
pub(crate) fn run(command: &mut Command) -> Result<(), TaskError> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", command_line(command))),
        Err(error) => Err(format!(
            "`{}` cannot be started: {error}",
            command_line(command)
        )),
    }
}

/// [`run`] as a step of a report.
pub(crate) fn run_step(command: &mut Command) -> StepOutcome {
    match run(command) {
        Ok(()) => StepOutcome::Passed,
        Err(why) => StepOutcome::Failed(why),
    }
}

/// Runs a command and returns what it wrote to standard output; its complaints are in the error.
pub(crate) fn capture(command: &mut Command) -> Result<String, TaskError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`{}` cannot be started: {error}", command_line(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!(
        "`{}` ended with {}\n{text}{complaint}",
        command_line(command),
        output.status
    ))
}

/// Whether a command can be started and ends well. Its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    capture(command).is_ok()
}

/// Runs a command and hands its output (both streams, in the order written) to `on_line`. If it writes nothing
/// for `silence`, it and everything it started are killed.
pub(crate) fn run_lines(
    command: &mut Command,
    silence: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<ExitStatus, TaskError> {
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let (reader, writer) = std::io::pipe().map_err(|error| failed("cannot make a pipe", error))?;
    let second = writer
        .try_clone()
        .map_err(|error| failed("cannot copy a pipe", error))?;
    let line_of_command = command_line(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(second)
        .spawn()
        .map_err(|error| format!("`{line_of_command}` cannot be started: {error}"))?;
    // The command holds the writing ends as well; without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while let Ok(1..) = reader.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if sender.send(text).is_err() {
                break;
            }
        }
    });
    // A program left behind by a test may hold the pipe open after the command itself has ended, so the end of
    // the command counts, not the end of the pipe.
    let mut quiet = Duration::ZERO;
    const TICK: Duration = Duration::from_millis(500);
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                quiet = Duration::ZERO;
                on_line(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if let Ok(Some(status)) = child.try_wait() {
                    return Ok(status);
                }
                quiet += TICK;
                if quiet >= silence {
                    let threads = describe_threads(child.id());
                    kill_tree(child.id());
                    let _ = child.wait();
                    return Err(format!(
                        "`{line_of_command}` wrote nothing for {} s and was killed; its threads: {threads}",
                        silence.as_secs()
                    ));
                }
            }
        }
    }
    child.wait().map_err(|error| failed("cannot wait", error))
}

/// Kills a process and all its descendants, the deepest last started first.
fn kill_tree(pid: u32) {
    for pid in process_tree(pid).iter().rev() {
        succeeds(Command::new("kill").args(["-KILL", &pid.to_string()]));
    }
}

/// A process and all its descendants.
fn process_tree(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut next = 0;
    while next < pids.len() {
        // Children belong to the thread that started them.
        for thread in thread_ids(pids[next]) {
            let children = format!("/proc/{}/task/{thread}/children", pids[next]);
            let text = std::fs::read_to_string(children).unwrap_or_default();
            pids.extend(
                text.split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        next += 1;
    }
    pids
}

fn thread_ids(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let names = threads
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// The threads of a process and its descendants, each with the kernel function it waits in. A test's thread has its name,
/// of which the kernel keeps 15 characters: this tells which test hangs.
fn describe_threads(pid: u32) -> String {
    let mut threads = Vec::new();
    for pid in process_tree(pid) {
        for thread in thread_ids(pid) {
            let read = |file: &str| {
                let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}"));
                text.unwrap_or_default().trim().to_owned()
            };
            threads.push(format!("{} ({})", read("comm"), read("wchan")));
        }
    }
    threads.join(", ")
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// The full path of a program on `PATH`.
pub(crate) fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_streams_arrive_in_order() {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; printf three; exit 3"]);
        let status = run_lines(&mut command, Duration::from_secs(60), |line| {
            seen.push(line.to_owned())
        });
        assert_eq!(status.map(|status| status.code()), Ok(Some(3)));
        assert_eq!(seen, ["one", "two", "three"]);
    }

    #[test]
    fn a_silent_command_is_killed_with_its_children() {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let outcome = run_lines(&mut command, Duration::from_secs(1), |line| {
            seen.push(line.to_owned())
        });
        let why = outcome.unwrap_err();
        assert!(why.contains("wrote nothing for 1 s"), "{why}");
        assert!(why.contains("sh (") && why.contains("sleep ("), "{why}");
        let pid = seen.first().expect("the shell tells the pid of its child");
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            // Gone, or killed and not yet reaped.
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "still there: {state}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
