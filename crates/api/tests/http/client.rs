//! An HTTP/1.1 client that sends handwritten requests, including those that no library would send.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpResponse {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no HTTP: {text:?}"));
        Self {
            status: head[9..12].parse().unwrap(),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        assert!(self.has("content-type: application/json"), "{}", self.head);
        serde_json::from_str(&self.body).unwrap()
    }

    /// The detail of an error response, which must be well formed.
    pub(crate) fn problem(&self) -> String {
        assert!(
            self.has("content-type: application/problem+json"),
            "{}",
            self.head
        );
        let body: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(body["status"], self.status);
        assert_eq!(body["type"], "about:blank");
        assert!(body["title"].is_string());
        body["detail"].as_str().unwrap().to_owned()
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        self.head.lines().any(|line| line == field)
    }
}

/// Sends a request unchanged and reads until the server closes.
pub(crate) async fn exchange(address: SocketAddr, request: &str) -> HttpResponse {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    HttpResponse::parse(&answer)
}

pub(crate) async fn request(
    address: SocketAddr,
    method: &str,
    target: &str,
    fields: &str,
    body: &str,
) -> HttpResponse {
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    );
    exchange(address, &request).await
}

pub(crate) async fn get(address: SocketAddr, target: &str) -> HttpResponse {
    request(address, "GET", target, "", "").await
}

pub(crate) async fn delete(address: SocketAddr, target: &str) -> HttpResponse {
    request(address, "DELETE", target, "", "").await
}
