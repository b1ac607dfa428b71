//! HTTP connector against a scripted server.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::node::{ConnectorNode, push};

#[derive(Debug, Clone, Default)]
struct Request {
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(of, _)| of.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct HttpServerState {
    requests: Vec<Request>,
    /// Scripted answers; afterwards 200.
    answers: VecDeque<&'static str>,
}

struct Server {
    address: SocketAddr,
    state: Arc<Mutex<HttpServerState>>,
}

impl Server {
    /// Its thread ends with the process.
    fn start(answers: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(HttpServerState {
            answers: answers.iter().copied().collect(),
            ..HttpServerState::default()
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, stream) = (shared.clone(), stream.unwrap());
                std::thread::spawn(move || serve(&shared, stream));
            }
        });
        Self { address, state }
    }

    fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    fn connector(&self) -> Value {
        json!({
            "type": "http", "url": format!("http://{}/in", self.address), "headers": {"x-token": "t"},
            "username": "ann", "password": "pencil"
        })
    }
}

fn serve(state: &Mutex<HttpServerState>, stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut request = Request::default();
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            match line.trim_end() {
                "" => break,
                text if request.line.is_empty() => request.line = text.to_owned(),
                text => {
                    let (name, value) = text.split_once(": ").unwrap();
                    request.headers.push((name.to_owned(), value.to_owned()));
                }
            }
        }
        let length = request.header("content-length").unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        request.body = String::from_utf8(body).unwrap();
        let answer = {
            let mut state = state.lock().unwrap();
            state.requests.push(request);
            state.answers.pop_front().unwrap_or("200 OK")
        };
        if stream
            .write_all(format!("HTTP/1.1 {answer}\r\ncontent-length: 4\r\n\r\nbody").as_bytes())
            .is_err()
        {
            return;
        }
    }
}

#[test]
fn a_batch_is_one_request_that_is_signed_and_tried_again() {
    let server = Server::start(&["503 Service Unavailable\r\nretry-after: 0"]);
    let (node, sink) = ConnectorNode::with(
        &server.connector(),
        &json!({
            "connector": "c", "path": "/batch", "batches_in_flight": 1, "batch": {"max_wait_ms": 100},
            "signature": {"secret": "key", "prefix": "sha256="}, "retry": {"initial_delay_ms": 5}
        }),
    );
    node.push(sink, 0..3);
    node.until("they are written", |status| status.metrics.sent == 3);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].line, "POST /in/batch HTTP/1.1");
    let rows: Value = serde_json::from_str(&requests[1].body).unwrap();
    assert_eq!(rows[2]["n"], 2);
    assert_eq!(rows[2]["payload"]["s"], "it's");
    assert_eq!(requests[0].header("x-token"), Some("t"));
    assert_eq!(
        requests[0].header("authorization"),
        Some("Basic YW5uOnBlbmNpbA==")
    );
    assert_eq!(requests[0].header("content-type"), Some("application/json"));
    let key = requests[0].header("idempotency-key").unwrap();
    assert_eq!(
        requests[1].header("idempotency-key"),
        Some(key),
        "the same each time"
    );
    let signature = requests[1].header("x-signature").unwrap();
    let hmac_key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"key");
    let digits = signature.strip_prefix("sha256=").unwrap();
    let tag: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect();
    ring::hmac::verify(&hmac_key, requests[1].body.as_bytes(), &tag).unwrap();
}

#[test]
fn rows_are_requests_in_their_order() {
    let server = Server::start(&[
        "200 OK",
        "429 Too Many Requests",
        "200 OK",
        "400 Bad Request",
    ]);
    let (node, sink) = ConnectorNode::with(
        &server.connector(),
        &json!({
            "connector": "c", "path": "/${topic}/${n}", "method": "PUT", "format": "single", "body": "v=${payload.v}",
            "content_type": "text/plain", "headers": {"x-device": "d${device}"}, "order": "all", "retry": {"initial_delay_ms": 5}
        }),
    );
    node.push(sink, 0..5);
    node.until("all are done with", |status| {
        status.metrics.sent + status.metrics.failed == 5
    });
    let lines: Vec<_> = server.requests().iter().map(|r| r.line.clone()).collect();
    let expected = [0, 1, 1, 2, 3, 4].map(|n| format!("PUT /in/t%2F{n}/{n} HTTP/1.1"));
    assert_eq!(lines, expected);
    let third = &server.requests()[3];
    assert_eq!(
        (third.body.as_str(), third.header("x-device")),
        ("v=2.5", Some("d2"))
    );
    let letters = node.service.dead_letters("s", 0, 9).unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].error, "the server answers 400 Bad Request: body");
}

#[test]
fn a_batch_the_server_rejects_is_cut_until_the_row_is_found() {
    // 4 rows, 2 rows, 1 row, 1 row, 2 rows.
    let server = Server::start(&[
        "400 Bad Request",
        "400 Bad Request",
        "200 OK",
        "400 Bad Request",
    ]);
    let (node, sink) = ConnectorNode::with(
        &server.connector(),
        &json!({
            "connector": "c", "format": "lines", "batches_in_flight": 1, "batch": {"max_rows": 4, "max_wait_ms": 10000}
        }),
    );
    node.push(sink, 0..4);
    node.until("all are done with", |status| {
        status.metrics.sent + status.metrics.failed == 4
    });
    assert_eq!(server.requests()[0].body.lines().count(), 4);
    let letters = node.service.dead_letters("s", 0, 9).unwrap();
    let row: Value = connect::SinkRow::from_bytes(&letters[0].row).to_json();
    assert_eq!((letters.len(), &row["n"]), (1, &json!(1)));
}

#[test]
fn the_test_of_a_connector_reports_its_result() {
    let server = Server::start(&["405 Method Not Allowed", "401 Unauthorized"]);
    let (node, sink) = ConnectorNode::with(&server.connector(), &json!({"connector": "c"}));
    assert_eq!(
        node.test().unwrap(),
        "the server answers 405 Method Not Allowed"
    );
    assert_eq!(
        node.test().unwrap_err(),
        "the server answers 401 Unauthorized"
    );
    let _ = push(&node.service, sink, 0, 1);
    node.stop();
}
