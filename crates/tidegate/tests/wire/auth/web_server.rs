//! A small web server: one request per connection, answered by a closure.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

pub(crate) struct WebRequest {
    /// `POST /path`
    pub(crate) line: String,
    /// The whole head in lower case.
    pub(crate) head: String,
    pub(crate) body: serde_json::Value,
}

type Handler = Arc<dyn Fn(&WebRequest) -> (u16, String) + Send + Sync>;

/// Starts it; it lives as long as the process.
pub(crate) fn serve(
    handler: impl Fn(&WebRequest) -> (u16, String) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handler: Handler = Arc::new(handler);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handler = handler.clone();
            std::thread::spawn(move || answer(stream, &handler));
        }
    });
    address
}

/// A client that goes away in the middle is no matter.
fn answer(mut stream: TcpStream, handler: &Handler) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let head = lines.join("\n").to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let request = WebRequest {
        line: lines.first()?.rsplit_once(' ')?.0.to_owned(),
        head,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let (status, text) = handler(&request);
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
    )
    .ok()
}
