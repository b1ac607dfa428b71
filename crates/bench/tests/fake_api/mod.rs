//! An HTTP API that takes every rule and says of each that it has done well.

#![allow(clippy::unwrap_used)] // it is a test, though no `#[test]` function

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const ANSWER: &str = r#"{"counters": {"matched": 5, "failed": 0}}"#;

/// Answers until it is dropped.
pub(crate) struct FakeApi {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
}

impl FakeApi {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            stop: Arc::default(),
        };
        let (requests, stop) = (api.requests.clone(), api.stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let request = answer(stream.unwrap());
                requests.lock().unwrap().push(request);
            }
        });
        api
    }

    /// First lines and bodies, in their order.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn answer(stream: TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request).unwrap();
    let mut body = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(length) = line.strip_prefix("Content-Length: ") {
            body = length.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut text = vec![0; body];
    reader.read_exact(&mut text).unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
        ANSWER.len()
    );
    let mut stream = reader.into_inner();
    stream.write_all((head + ANSWER).as_bytes()).unwrap();
    request + &String::from_utf8(text).unwrap()
}
