//! The client side of the opening handshake: creates the request and checks the response.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};

use super::{DEFAULT_MAX_HEADER_BYTES, HeaderEndScanner, HeaderFields, MAX_HEADERS, accept_key};

/// Maximum number of body bytes that an error quotes from a rejection.
const MAX_QUOTED_BYTES: usize = 200;

/// The parameters of a client's request.
#[derive(Debug, Clone, Copy)]
pub struct ClientRequest<'a> {
    /// Host, and the port unless it is the scheme's default: `broker.example:8083`, `[::1]:8083`.
    pub host: &'a str,
    /// Path and query string, beginning with a slash.
    pub path: &'a str,
    /// Offered sub-protocols in order of preference.
    pub subprotocols: &'a [&'a str],
    /// Additional header fields, such as `("Authorization", "...")`.
    pub headers: &'a [(&'a str, &'a str)],
}

/// The server accepted the handshake; frames follow after `consumed` bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientHandshakeAccepted {
    /// Length of the response.
    pub consumed: usize,
    /// The sub-protocol chosen by the server, one of those offered.
    pub subprotocol: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientHandshakeError {
    #[error("WebSocket {field} {value:?} may not be sent: expected {expected}")]
    InvalidRequest {
        field: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error(
        "the server did not answer with an HTTP/1.1 response; is this port a WebSocket listener?"
    )]
    NotHttp,
    #[error("the head of the server's answer is longer than {0} bytes")]
    TooLong(usize),
    #[error("the server rejected the WebSocket handshake with status {status}{}{text}", if text.is_empty() { "" } else { ": " })]
    Rejected { status: u16, text: String },
    #[error("the server's answer breaks the WebSocket handshake: {0}")]
    Invalid(&'static str),
}

/// A handshake whose request has been created.
#[derive(Debug)]
pub struct ClientHandshake {
    header_scanner: HeaderEndScanner,
    expected_accept_key: String,
    offered: Vec<String>,
}

impl ClientHandshake {
    /// Creates a request: the bytes to send, and the state that checks the response.
    pub fn start(request: &ClientRequest<'_>) -> Result<(Self, Vec<u8>), ClientHandshakeError> {
        let mut nonce = [0; 16];
        SystemRandom::new()
            .fill(&mut nonce)
            .expect("the operating system provides random bytes");
        Self::start_with_nonce(request, nonce)
    }

    fn start_with_nonce(
        request: &ClientRequest<'_>,
        nonce: [u8; 16],
    ) -> Result<(Self, Vec<u8>), ClientHandshakeError> {
        check_request(request)?;
        let key = STANDARD.encode(nonce);
        let mut bytes = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n",
            request.path, request.host
        );
        if !request.subprotocols.is_empty() {
            bytes.push_str("Sec-WebSocket-Protocol: ");
            bytes.push_str(&request.subprotocols.join(", "));
            bytes.push_str("\r\n");
        }
        for (name, value) in request.headers {
            for part in [name, ": ", value, "\r\n"] {
                bytes.push_str(part);
            }
        }
        bytes.push_str("\r\n");
        let handshake = Self {
            header_scanner: HeaderEndScanner::default(),
            expected_accept_key: accept_key(&key),
            offered: request
                .subprotocols
                .iter()
                .map(|&name| name.to_owned())
                .collect(),
        };
        Ok((handshake, bytes.into_bytes()))
    }

    /// Processes all bytes received since the request was sent; `None` if the response is incomplete.
    pub fn feed(
        &mut self,
        buf: &[u8],
    ) -> Result<Option<ClientHandshakeAccepted>, ClientHandshakeError> {
        let expected = b"HTTP/1.1 ";
        let seen = buf.len().min(expected.len());
        if buf[..seen] != expected[..seen] {
            return Err(ClientHandshakeError::NotHttp);
        }
        let bounded = &buf[..buf.len().min(DEFAULT_MAX_HEADER_BYTES)];
        match self.header_scanner.find(bounded) {
            Some(length) => self.check_response(bounded, length).map(Some),
            None if buf.len() < DEFAULT_MAX_HEADER_BYTES => Ok(None),
            None => Err(ClientHandshakeError::TooLong(DEFAULT_MAX_HEADER_BYTES)),
        }
    }

    fn check_response(
        &self,
        buf: &[u8],
        length: usize,
    ) -> Result<ClientHandshakeAccepted, ClientHandshakeError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&buf[..length]) {
            Ok(httparse::Status::Complete(parsed)) if parsed == length => {}
            Ok(_) | Err(_) => return Err(ClientHandshakeError::NotHttp),
        }
        let status = response.code.unwrap_or_default();
        if status != 101 {
            let text = quote_rejection(response.reason.unwrap_or_default(), &buf[length..]);
            return Err(ClientHandshakeError::Rejected { status, text });
        }
        let fields = HeaderFields(response.headers);
        if !(fields.list_contains("upgrade", "websocket")
            && fields.list_contains("connection", "upgrade"))
        {
            return Err(ClientHandshakeError::Invalid(
                "status 101 without an upgrade to websocket",
            ));
        }
        if fields.single_value("sec-websocket-accept") != Some(self.expected_accept_key.as_str()) {
            return Err(ClientHandshakeError::Invalid(
                "Sec-WebSocket-Accept does not answer our key",
            ));
        }
        if fields.has("sec-websocket-extensions") {
            return Err(ClientHandshakeError::Invalid(
                "an extension was chosen, but none was offered",
            ));
        }
        let subprotocol = fields
            .single_value("sec-websocket-protocol")
            .map(str::to_owned);
        if fields.has("sec-websocket-protocol")
            && !subprotocol
                .as_ref()
                .is_some_and(|chosen| self.offered.contains(chosen))
        {
            return Err(ClientHandshakeError::Invalid(
                "a sub-protocol was chosen that was not offered",
            ));
        }
        Ok(ClientHandshakeAccepted {
            consumed: length,
            subprotocol,
        })
    }
}

/// Rejects values that would break out of their header line.
fn check_request(request: &ClientRequest<'_>) -> Result<(), ClientHandshakeError> {
    let check = |good: bool, field, value: &str, expected| {
        if good {
            return Ok(());
        }
        Err(ClientHandshakeError::InvalidRequest {
            field,
            value: value.to_owned(),
            expected,
        })
    };
    let is_visible =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_token = |text: &str| {
        is_visible(text)
            && !text
                .contains(|c: char| !c.is_ascii_alphanumeric() && !"!#$%&'*+-.^_`|~".contains(c))
    };
    check(
        is_visible(request.host),
        "host",
        request.host,
        "a host name without blanks",
    )?;
    check(
        is_visible(request.path) && request.path.starts_with('/'),
        "path",
        request.path,
        "visible ASCII that begins with a slash",
    )?;
    for name in request.subprotocols {
        check(
            is_token(name),
            "sub-protocol",
            name,
            "letters, digits and -._",
        )?;
    }
    for (name, value) in request.headers {
        check(
            is_token(name),
            "header name",
            name,
            "letters, digits and -._",
        )?;
        let is_line = !value.contains(|c: char| c.is_control() && c != '\t');
        check(
            is_line,
            "header value",
            value,
            "one line without control characters",
        )?;
    }
    Ok(())
}

/// The beginning of a rejection's status text and body, without control characters.
fn quote_rejection(reason: &str, body: &[u8]) -> String {
    let body = String::from_utf8_lossy(&body[..body.len().min(MAX_QUOTED_BYTES)]);
    let text: String = [reason, body.trim()].join(" ");
    text.trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
