//! The HTTP API of a node under load.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of an answer; those to the requests of this file are shorter.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

/// Where a node answers and what it is shown there.
#[derive(Clone, Debug)]
pub struct NodeApi {
    /// `HOST:PORT`.
    authority: String,
    token: Option<String>,
}

impl NodeApi {
    pub fn new(url: &str, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let authority = url.strip_prefix("http://").unwrap_or(url);
        let authority = authority.trim_end_matches('/');
        ensure!(
            !authority.contains("://") && !authority.contains('/') && authority.contains(':'),
            "--api {url}: expected an address such as http://127.0.0.1:8080"
        );
        let token = token_file.map(|path| {
            let token = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read --token-file {}", path.display()))?;
            anyhow::Ok(token.trim().to_owned())
        });
        Ok(Self {
            authority: authority.to_owned(),
            token: token.transpose()?,
        })
    }

    /// A counter or gauge without labels.
    pub fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let what = || format!("GET http://{}/metrics", self.authority);
        let (status, text) = self
            .send_request("GET", "/metrics", None, "")
            .with_context(what)?;
        ensure!(status == 200, "{} answered {status}", what());
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(known, _)| *known == name);
        let value = found.and_then(|(_, value)| value.parse::<f64>().ok());
        Ok(value.with_context(|| format!("{} has no {name}", what()))? as u64)
    }

    /// An object, if it exists.
    pub fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        match self.exchange("GET", path, None)? {
            (404, _) => Ok(None),
            answer => self.accept("GET", path, answer).map(Some),
        }
    }

    /// Creates an object; `false`: it exists, and is as before.
    pub fn create(&self, path: &str, body: &Value) -> anyhow::Result<bool> {
        let body = body.to_string();
        let body = Some(("application/json", body.as_str()));
        let answer = self.send_request("PUT", path, body, "If-None-Match: *\r\n");
        match answer.with_context(|| format!("PUT http://{}{path}", self.authority))? {
            (412, _) => Ok(false),
            answer => self.accept("PUT", path, answer).map(|_| true),
        }
    }

    /// Makes sure that an object does not exist; `false`: others use it, and it stays.
    pub fn delete(&self, path: &str) -> anyhow::Result<bool> {
        match self.exchange("DELETE", path, None)? {
            (404, _) => Ok(true),
            (409, _) => Ok(false),
            answer => self.accept("DELETE", path, answer).map(|_| true),
        }
    }

    /// Sends JSON lines.
    pub fn post_lines(&self, path: &str, lines: &str) -> anyhow::Result<Value> {
        self.request("POST", path, Some(("application/x-ndjson", lines)))
    }

    /// Sends the content of a file.
    pub fn upload(&self, path: &str, content: &str) -> anyhow::Result<Value> {
        self.request("PUT", path, Some(("application/octet-stream", content)))
    }

    pub fn request_json(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let body = body.map(Value::to_string);
        let body = body.as_deref().map(|body| ("application/json", body));
        self.request(method, path, body)
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &str)>,
    ) -> anyhow::Result<Value> {
        let answer = self.exchange(method, path, body)?;
        self.accept(method, path, answer)
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &str)>,
    ) -> anyhow::Result<(u16, String)> {
        self.send_request(method, path, body, "")
            .with_context(|| format!("{method} http://{}{path}", self.authority))
    }

    /// The body of a successful answer.
    fn accept(
        &self,
        method: &str,
        path: &str,
        (status, text): (u16, String),
    ) -> anyhow::Result<Value> {
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if !(200..300).contains(&status) {
            let detail = value["detail"].as_str().unwrap_or(&text);
            let hint = match status {
                401 => "; give a file with a token (`api.token` in the node's data directory)",
                _ => "",
            };
            bail!(
                "{method} http://{}{path} answered {status}: {detail}{hint}",
                self.authority
            );
        }
        Ok(value)
    }

    /// One request, one connection. HTTP/1.0 keeps the answer in one piece.
    fn send_request(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &str)>,
        headers: &str,
    ) -> anyhow::Result<(u16, String)> {
        let address = self.authority.to_socket_addrs()?.next();
        let address = address.context("this name has no address")?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (media_type, body) = body.unwrap_or_default();
        let mut request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Length: {}\r\n",
            self.authority,
            body.len()
        );
        if !body.is_empty() {
            request += &format!("Content-Type: {media_type}\r\n");
        }
        if let Some(token) = &self.token {
            request += &format!("Authorization: Bearer {token}\r\n");
        }
        request += headers;
        request += "\r\n";
        request += body;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream
            .take(MAX_RESPONSE_BYTES)
            .read_to_string(&mut answer)?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .context("the answer has no end of its head")?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .context("the answer is not HTTP")?;
        Ok((status, body.to_owned()))
    }
}
