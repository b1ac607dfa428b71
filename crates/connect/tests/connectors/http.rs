//! A small HTTP server whose answers a test determines, and which can be down.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Decoded.
    pub(crate) query: BTreeMap<String, String>,
    /// As sent.
    pub(crate) raw_query: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    /// As text.
    pub(crate) body: String,
    pub(crate) bytes: Vec<u8>,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn query(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

/// Status, headers as `Name: value`, body.
pub(crate) type Reply = (u16, Vec<String>, String);

pub(crate) struct HttpServer {
    address: SocketAddr,
    state: Arc<HttpServerState>,
}

struct HttpServerState {
    answer: Box<dyn Fn(&ReceivedRequest) -> Reply + Send + Sync>,
    is_down: AtomicBool,
    /// Every n-th answer is lost with its connection after the request was processed.
    lose_every: AtomicU64,
    asked: AtomicU64,
}

impl HttpServer {
    pub(crate) fn start(
        answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(HttpServerState {
            answer: Box::new(answer),
            is_down: AtomicBool::new(false),
            lose_every: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
        });
        let shared = state.clone();
        // Ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || serve(&state, stream));
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.state.is_down.store(is_down, Relaxed);
    }

    pub(crate) fn lose_every(&self, count: u64) {
        self.state.lose_every.store(count, Relaxed);
    }
}

fn serve(state: &HttpServerState, stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let asked = receive(&mut reader)?;
        if state.is_down.load(Relaxed) {
            return None;
        }
        let (status, headers, body) = (state.answer)(&asked);
        let count = state.asked.fetch_add(1, Relaxed) + 1;
        if count.is_multiple_of(state.lose_every.load(Relaxed)) {
            return None;
        }
        let mut reply = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n", body.len());
        for header in headers {
            reply.push_str(&format!("{header}\r\n"));
        }
        reply.push_str(&format!("\r\n{body}"));
        reader.get_mut().write_all(reply.as_bytes()).ok()?;
    }
}

fn receive(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut line = || {
        let mut line = String::new();
        let read = reader.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim_end().to_owned())
    };
    let first = line()?;
    let mut headers = BTreeMap::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(0, |l| l.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, raw_query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = raw_query.split('&').filter_map(|pair| pair.split_once('='));
    Some(ReceivedRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        query: pairs.map(|(n, v)| (decoded(n), decoded(v))).collect(),
        raw_query: raw_query.to_owned(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
        bytes: body,
    })
}

pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                let digits = std::str::from_utf8(&digits).unwrap().to_owned();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap());
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}
