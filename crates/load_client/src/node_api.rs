//! The HTTP API of a node under load.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use outbound::url_encoding::url_encode;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of an answer; those to the requests of this file are shorter.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;
/// Pages of a list; a server that always names another one would never end.
const MAX_PAGES: usize = 10_000;

/// A request to the API of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// Media type and content.
    pub body: Option<(&'static str, &'a str)>,
    /// Sets `If-None-Match: *`.
    pub is_creation: bool,
}

/// A way to the API of a node other than plain HTTP: with TLS and other credentials, or within the process of the node.
pub trait NodeTransport: Send + Sync {
    /// The status of the answer, and its content.
    ///
    /// # Errors
    /// If there is no answer.
    fn send(&self, request: &NodeRequest<'_>) -> anyhow::Result<(u16, String)>;

    /// Address of the node, for errors.
    fn address(&self) -> String;
}

/// Where a node answers and what it is shown there.
#[derive(Clone)]
pub struct NodeApi {
    /// Such as `http://127.0.0.1:8080`.
    address: String,
    access: NodeAccess,
}

#[derive(Clone)]
enum NodeAccess {
    Http {
        /// `HOST:PORT`.
        authority: String,
        token: Option<String>,
    },
    Transport(Arc<dyn NodeTransport>),
}

impl fmt::Debug for NodeApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeApi").field(&self.address).finish()
    }
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
            address: format!("http://{authority}"),
            access: NodeAccess::Http {
                authority: authority.to_owned(),
                token: token.transpose()?,
            },
        })
    }

    /// A node that is reached by other means.
    #[must_use]
    pub fn with_transport(transport: Arc<dyn NodeTransport>) -> Self {
        Self {
            address: transport.address(),
            access: NodeAccess::Transport(transport),
        }
    }

    /// A counter or gauge without labels.
    pub fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let what = || format!("GET {}/metrics", self.address);
        let (status, text) = self
            .send_request("GET", "/metrics", None, false)
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

    /// The content of an answer that is no JSON.
    pub fn download(&self, path: &str) -> anyhow::Result<String> {
        let (status, text) = self.exchange("GET", path, None)?;
        if status != 200 {
            self.accept("GET", path, (status, text))?;
            bail!("GET {}{path} answered {status}", self.address);
        }
        Ok(text)
    }

    /// The rows of a list with a query, such as `/api/v1/devices?product=meter`. A page is requested when its first row is.
    #[must_use]
    pub fn rows<'a>(&'a self, list: &'a str) -> NodeRows<'a> {
        NodeRows {
            node: self,
            list,
            page: Vec::new().into_iter(),
            next: Some(list.to_owned()),
            pages: 0,
        }
    }

    /// Creates an object; `false`: it exists, and is as before.
    pub fn create(&self, path: &str, body: &Value) -> anyhow::Result<bool> {
        let body = body.to_string();
        let body = Some(("application/json", body.as_str()));
        let answer = self.send_request("PUT", path, body, true);
        match answer.with_context(|| format!("PUT {}{path}", self.address))? {
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
        body: Option<(&'static str, &str)>,
    ) -> anyhow::Result<Value> {
        let answer = self.exchange(method, path, body)?;
        self.accept(method, path, answer)
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<(&'static str, &str)>,
    ) -> anyhow::Result<(u16, String)> {
        self.send_request(method, path, body, false)
            .with_context(|| format!("{method} {}{path}", self.address))
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
                "{method} {}{path} answered {status}: {detail}{hint}",
                self.address
            );
        }
        Ok(value)
    }

    fn send_request(
        &self,
        method: &str,
        path: &str,
        body: Option<(&'static str, &str)>,
        is_creation: bool,
    ) -> anyhow::Result<(u16, String)> {
        let request = NodeRequest {
            method,
            path,
            body,
            is_creation,
        };
        match &self.access {
            NodeAccess::Http { authority, token } => {
                send_over_http(authority, token.as_deref(), &request)
            }
            NodeAccess::Transport(transport) => transport.send(&request),
        }
    }
}

/// The rows of a list. After an error there are no more.
#[derive(Debug)]
pub struct NodeRows<'a> {
    node: &'a NodeApi,
    /// Path of the list, with a query.
    list: &'a str,
    page: std::vec::IntoIter<Value>,
    /// Path of the next page.
    next: Option<String>,
    pages: usize,
}

impl NodeRows<'_> {
    /// Reads the page at `path`.
    fn turn(&mut self, path: &str) -> anyhow::Result<()> {
        self.pages += 1;
        ensure!(
            self.pages <= MAX_PAGES,
            "GET {}{} has more than {MAX_PAGES} pages",
            self.node.address,
            self.list
        );
        let mut page = self.node.request("GET", path, None)?;
        let Value::Array(rows) = page["data"].take() else {
            bail!(
                "GET {}{path}: expected a list of rows in `data`",
                self.node.address
            );
        };
        self.page = rows.into_iter();
        let next = page["next"].as_str();
        self.next = next.map(|next| format!("{}&after={}", self.list, url_encode(next)));
        Ok(())
    }
}

impl Iterator for NodeRows<'_> {
    type Item = anyhow::Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.page.next() {
                return Some(Ok(row));
            }
            let path = self.next.take()?;
            if let Err(error) = self.turn(&path) {
                return Some(Err(error));
            }
        }
    }
}

/// One request, one connection. HTTP/1.0 keeps the answer in one piece.
fn send_over_http(
    authority: &str,
    token: Option<&str>,
    request: &NodeRequest<'_>,
) -> anyhow::Result<(u16, String)> {
    let address = authority.to_socket_addrs()?.next();
    let address = address.context("this name has no address")?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let (media_type, body) = request.body.unwrap_or_default();
    let mut head = format!(
        "{} {} HTTP/1.0\r\nHost: {authority}\r\nContent-Length: {}\r\n",
        request.method,
        request.path,
        body.len()
    );
    if !body.is_empty() {
        head += &format!("Content-Type: {media_type}\r\n");
    }
    if let Some(token) = token {
        head += &format!("Authorization: Bearer {token}\r\n");
    }
    if request.is_creation {
        head += "If-None-Match: *\r\n";
    }
    head += "\r\n";
    head += body;
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream
        .take(MAX_RESPONSE_BYTES)
        .read_to_string(&mut answer)?;
    ensure!(
        (answer.len() as u64) < MAX_RESPONSE_BYTES,
        "the answer is longer than {MAX_RESPONSE_BYTES} bytes"
    );
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
