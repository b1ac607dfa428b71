//! One command as a child process: its output, a limit of its time, and an end of everything that it has started.

use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use load_client::interrupt::Interrupt;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time between the request to end and the end by force.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// The JSON of a benchmark is much smaller.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Text of an error that is kept.
const MAX_ERROR_CHARS: usize = 600;

/// What a command printed.
#[derive(Clone)]
pub(super) struct ChildOutput {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The end of what it wrote to standard error.
    pub(super) error: String,
}

/// Runs a program until it ends. It is stopped after `limit` and at an interrupt, which are errors.
pub(super) fn run_child(
    program: &Path,
    arguments: &[String],
    limit: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<ChildOutput> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, so that the nodes and peers it starts can be ended with it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let stdout = read_all(child.stdout.take().context("standard output is piped")?);
    let stderr = read_all(child.stderr.take().context("standard error is piped")?);
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            break status;
        }
        if interrupt.is_requested() {
            stop(&mut child);
            bail!("interrupted");
        }
        if Instant::now() > deadline {
            stop(&mut child);
            bail!("the command did not end within {limit:.0?}; --time-limit changes this");
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    // Processes that the command has left keep its output open.
    kill_group(&child, Signal::KILL);
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap_or_default());
    Ok(ChildOutput {
        status,
        stdout,
        error: end_of(&String::from_utf8_lossy(&stderr)),
    })
}

fn read_all(from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before a failure is shown.
        let _ = from.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
        bytes
    })
}

/// Ends the command and what it has started: first by request, so that it removes its files.
fn stop(child: &mut Child) {
    kill_group(child, Signal::TERM);
    let deadline = Instant::now() + STOP_LIMIT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
    kill_group(child, Signal::KILL);
    let _ = child.wait();
}

fn kill_group(child: &Child, signal: Signal) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        // The group is gone if all its processes have ended.
        let _ = kill_process_group(group, signal);
    }
}

/// The last lines, in one.
fn end_of(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let skipped = line.chars().count().saturating_sub(MAX_ERROR_CHARS);
    line.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> anyhow::Result<ChildOutput> {
        let arguments = ["-c".to_owned(), script.to_owned()];
        run_child(
            Path::new("/bin/sh"),
            &arguments,
            limit,
            &Interrupt::default(),
        )
    }

    #[test]
    fn commands_have_output_and_a_limit() {
        let long = Duration::from_secs(60);
        let output = shell("echo 5; echo wrong >&2; exit 3", long).expect("it ran");
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stdout, b"5\n");
        assert_eq!(output.error, "wrong");
        let error = shell("sleep 60", Duration::from_millis(50)).err();
        assert!(error.is_some_and(|error| error.to_string().contains("--time-limit")));
    }

    #[test]
    fn processes_that_a_command_leaves_end_with_it() {
        let began = Instant::now();
        let output = shell("sleep 60 & echo left", Duration::from_secs(30)).expect("it ran");
        assert_eq!(output.stdout, b"left\n");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
