//! NATS with JetStream: how it is started, and as much of its protocol as a test needs to look into it.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use super::instance::{PASSWORD, ServerInstance, USER, error_text};

pub(super) fn command(server: &ServerInstance) -> Command {
    fs::create_dir_all(server.data_dir()).expect("a folder can be made");
    let mut command = server.command_for(&server.program);
    command.args(["--addr", "127.0.0.1", "--port", &server.port.to_string()]);
    command
        .arg("--jetstream")
        .arg("--store_dir")
        .arg(server.data_dir());
    command.args(["--user", USER, "--pass", PASSWORD]);
    command
}

/// A client that has logged in.
pub struct NatsClient {
    reader: BufReader<TcpStream>,
    subscriptions: u32,
    /// Came while an answer was waited for.
    pending: VecDeque<(String, String)>,
}

impl NatsClient {
    pub(super) fn connect(stream: TcpStream) -> Result<Self, String> {
        let mut client = Self {
            reader: BufReader::new(stream),
            subscriptions: 0,
            pending: VecDeque::new(),
        };
        client.read_line()?;
        let hello = format!(
            "CONNECT {{\"verbose\":false,\"user\":\"{USER}\",\"pass\":\"{PASSWORD}\",\"headers\":true}}\r\n"
        );
        client.write(hello.as_bytes())?;
        client.flush()?;
        Ok(client)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), String> {
        self.reader.get_ref().write_all(bytes).map_err(error_text)
    }

    fn read_line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line).map_err(error_text)? {
            0 => Err("the server closed the connection".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Waits until the server has read everything.
    fn flush(&mut self) -> Result<(), String> {
        self.write(b"PING\r\n")?;
        loop {
            let line = self.read_line()?;
            match line.as_str() {
                "PONG" => return Ok(()),
                line if line.starts_with("-ERR") => return Err(line.to_owned()),
                _ => {}
            }
        }
    }

    pub fn subscribe(&mut self, subject: &str) {
        self.subscriptions += 1;
        let line = format!("SUB {subject} {}\r\n", self.subscriptions);
        let done = self.write(line.as_bytes()).and_then(|()| self.flush());
        done.unwrap_or_else(|why| panic!("SUB {subject}: {why}"));
    }

    pub fn publish(&mut self, subject: &str, body: &str) {
        let message = format!("PUB {subject} {}\r\n{body}\r\n", body.len());
        let done = self.write(message.as_bytes());
        done.unwrap_or_else(|why| panic!("PUB {subject}: {why}"));
    }

    /// The next message of a subscription: subject and body, headers before the body. `None` if there is none in time.
    pub fn next(&mut self, within: Duration) -> Option<(String, String)> {
        let waiting = self.pending.pop_front();
        waiting.or_else(|| self.receive(within))
    }

    fn receive(&mut self, within: Duration) -> Option<(String, String)> {
        let socket = self.reader.get_ref();
        socket
            .set_read_timeout(Some(within))
            .expect("a socket takes a timeout");
        loop {
            let line = self.read_line().ok()?;
            let words: Vec<&str> = line.split(' ').collect();
            if !matches!(words[0], "MSG" | "HMSG") {
                continue;
            }
            let size: usize = words.last()?.parse().ok()?;
            let mut body = vec![0; size + 2];
            self.reader.read_exact(&mut body).ok()?;
            body.truncate(size);
            let body = String::from_utf8_lossy(&body).into_owned();
            return Some((words[1].to_owned(), body));
        }
    }

    /// Asks a service, such as JetStream's API.
    pub fn request(&mut self, subject: &str, body: &str) -> String {
        let inbox = format!("_INBOX.kit.{}", self.subscriptions);
        self.subscribe(&inbox);
        let message = format!("PUB {subject} {inbox} {}\r\n{body}\r\n", body.len());
        let sent = self.write(message.as_bytes());
        sent.unwrap_or_else(|why| panic!("{subject}: {why}"));
        while let Some((to, body)) = self.receive(Duration::from_secs(10)) {
            if to == inbox {
                return body;
            }
            self.pending.push_back((to, body));
        }
        panic!("nobody answers to {subject}");
    }
}
