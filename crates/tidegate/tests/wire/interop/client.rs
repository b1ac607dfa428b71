//! A client as a process of its own: started, watched line by line, killed at the end of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client may take for anything. An interpreter on a busy machine takes seconds to start.
const LIMIT: Duration = Duration::from_secs(100);

pub(crate) struct Client {
    child: Child,
    what: String,
    lines: Receiver<String>,
    complaints: Option<JoinHandle<String>>,
}

impl Client {
    pub(crate) fn start(command: &mut Command) -> Client {
        let what = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{what} cannot be started: {error}"));
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut errors = child.stderr.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let complaints = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Client {
            child,
            what,
            lines,
            complaints: Some(complaints),
        }
    }

    /// Writes to the client's standard input and closes it.
    pub(crate) fn feed(&mut self, text: &str) {
        let mut input = self.child.stdin.take().expect("fed only once");
        input.write_all(text.as_bytes()).unwrap();
    }

    /// The next line of output; `None` at its end.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                let complaints = self.kill();
                panic!("{} wrote nothing for {LIMIT:?}\n{complaints}", self.what)
            }
        }
    }

    /// Reads until a line that contains `text`, and returns it.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        while let Some(line) = self.next_line() {
            if line.contains(text) {
                return line;
            }
            seen.push(line);
        }
        let complaints = self.kill();
        panic!(
            "{} ended without writing {text:?}\n{}\n{complaints}",
            self.what,
            seen.join("\n")
        )
    }

    /// The end of the client: how it ended, what it wrote since the last look, and its standard error.
    pub(crate) fn wait(mut self) -> (ExitStatus, Vec<String>, String) {
        drop(self.child.stdin.take());
        let mut lines = Vec::new();
        while let Some(line) = self.next_line() {
            lines.push(line);
        }
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "{} did not end", self.what);
            std::thread::sleep(Duration::from_millis(5));
        };
        (status, lines, self.kill())
    }

    /// The end of the client, which must be a good one; what it wrote since the last look.
    pub(crate) fn finish(self) -> Vec<String> {
        let what = self.what.clone();
        let (status, lines, complaints) = self.wait();
        assert!(
            status.success(),
            "{what}: {status}\n{}\n{complaints}",
            lines.join("\n")
        );
        lines
    }

    /// SIGKILL: the connection breaks without a DISCONNECT. Returns what the client wrote to its standard error.
    pub(crate) fn kill(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.complaints
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
