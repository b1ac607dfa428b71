//! The server side of the opening handshake: checks the request and creates the response.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::deflate::PermessageDeflate;

use super::{DEFAULT_MAX_HEADER_BYTES, HeaderEndScanner, HeaderFields, MAX_HEADERS, accept_key};

/// The options of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The path of the endpoint, such as `/mqtt`. A query string in the request is ignored.
    pub path: String,
    /// Supported sub-protocols. The first one that the client offers is chosen; a client that offers only others
    /// is rejected. If empty, offers are ignored and none is chosen.
    pub subprotocols: Vec<String>,
    /// Reject a client that offers no sub-protocol.
    pub require_subprotocol: bool,
    /// A second service on the same port; `path` takes precedence.
    pub prefix: Option<PrefixPath>,
    /// Origins of web pages that may connect, such as `https://example.org`; empty: all. Clients that send no origin
    /// are no browsers and always accepted.
    pub allowed_origins: Vec<String>,
    /// Whether messages are compressed for clients that offer it.
    pub compression: bool,
    pub max_header_bytes: usize,
}

/// A service at all paths that begin with a prefix.
#[derive(Debug, Clone)]
pub struct PrefixPath {
    /// Such as `/ws/`; a request for it without the last slash is accepted, too.
    pub prefix: String,
    /// Supported sub-protocols. The first one that the client offers is chosen; a client that offers only others gets
    /// none.
    pub subprotocols: Vec<String>,
}

impl PrefixPath {
    fn contains(&self, path: &str) -> bool {
        path.starts_with(&self.prefix) || path == self.prefix.trim_end_matches('/')
    }
}

impl ServerOptions {
    /// Options of an MQTT endpoint: sub-protocols `mqtt` and the older `mqttv3.1`. A client that offers none is
    /// accepted, because some devices send no offer.
    pub fn mqtt(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            subprotocols: vec!["mqtt".into(), "mqttv3.1".into()],
            require_subprotocol: false,
            prefix: None,
            allowed_origins: Vec::new(),
            compression: false,
            max_header_bytes: DEFAULT_MAX_HEADER_BYTES,
        }
    }
}

/// The state of a handshake: how much of the request has been examined.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    header_scanner: HeaderEndScanner,
}

#[derive(Debug)]
pub enum ServerHandshakeStep {
    /// The request is incomplete.
    Incomplete,
    Accepted(ServerHandshakeAccepted),
    Rejected(ServerHandshakeRejected),
}

/// The request is accepted: send `response`, then read frames after `consumed` bytes.
#[derive(Debug)]
pub struct ServerHandshakeAccepted {
    pub response: Vec<u8>,
    /// Length of the request; the bytes after it are frames.
    pub consumed: usize,
    pub subprotocol: Option<String>,
    /// What was agreed on if messages may be compressed.
    pub compression: Option<PermessageDeflate>,
    /// All sub-protocols that the client offers, in its order.
    pub offered_subprotocols: Vec<String>,
    /// Whether the request is for [`ServerOptions::prefix`].
    pub is_prefix: bool,
    /// The request target as received: path and query string.
    pub target: String,
    /// The origin of the web page, if sent by a browser.
    pub origin: Option<String>,
    /// `X-Forwarded-For` as received, with multiple fields joined by commas. Trustworthy only if set by a
    /// trusted proxy.
    pub forwarded_for: Option<String>,
}

/// The request is rejected: send `response` and close the connection.
#[derive(Debug)]
pub struct ServerHandshakeRejected {
    pub response: Vec<u8>,
    pub status: u16,
    /// The reason, as in the body of the response.
    pub reason: String,
}

/// A response that rejects the upgrade.
struct ServerHandshakeError {
    status: &'static str,
    /// Complete header lines in addition to those of every rejection.
    extra_headers: &'static str,
    reason: String,
}

const BAD_REQUEST: &str = "400 Bad Request";

impl ServerHandshakeError {
    fn new(status: &'static str, reason: impl Into<String>) -> Self {
        Self {
            status,
            extra_headers: "",
            reason: reason.into(),
        }
    }

    fn into_rejected(self) -> ServerHandshakeRejected {
        let Self {
            status,
            extra_headers,
            reason,
        } = self;
        let connection = if extra_headers.contains("Upgrade:") {
            "Upgrade, close"
        } else {
            "close"
        };
        let response = format!(
            "HTTP/1.1 {status}\r\nConnection: {connection}\r\n{extra_headers}\
             Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n{reason}\n",
            reason.len() + 1
        );
        ServerHandshakeRejected {
            response: response.into_bytes(),
            status: status[..3]
                .parse()
                .expect("every status begins with three digits"),
            reason,
        }
    }
}

impl ServerHandshake {
    pub fn new() -> Self {
        Self::default()
    }

    /// Processes all bytes received since the connection opened. Input that cannot become a request is rejected
    /// at its first byte, a request that is too long as soon as it exceeds the limit.
    pub fn feed(&mut self, options: &ServerOptions, buf: &[u8]) -> ServerHandshakeStep {
        match self.read_request(options, buf) {
            Ok(None) => ServerHandshakeStep::Incomplete,
            Ok(Some(accepted)) => ServerHandshakeStep::Accepted(accepted),
            Err(rejection) => ServerHandshakeStep::Rejected(rejection.into_rejected()),
        }
    }

    fn read_request(
        &mut self,
        options: &ServerOptions,
        buf: &[u8],
    ) -> Result<Option<ServerHandshakeAccepted>, ServerHandshakeError> {
        if buf.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
            return Err(ServerHandshakeError::new(
                BAD_REQUEST,
                "This listener expects a WebSocket handshake. Plain MQTT and TLS have listeners of their own.",
            ));
        }
        let bounded = &buf[..buf.len().min(options.max_header_bytes)];
        match self.header_scanner.find(bounded) {
            Some(length) => build_response(options, &bounded[..length]).map(Some),
            None if buf.len() < options.max_header_bytes => Ok(None),
            None => Err(ServerHandshakeError::new(
                "431 Request Header Fields Too Large",
                format!(
                    "The request is longer than {} bytes.",
                    options.max_header_bytes
                ),
            )),
        }
    }
}

fn build_response(
    options: &ServerOptions,
    head: &[u8],
) -> Result<ServerHandshakeAccepted, ServerHandshakeError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Ok(_) => {
            return Err(ServerHandshakeError::new(
                BAD_REQUEST,
                "The request is malformed: a line ends without CR LF.",
            ));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return Err(ServerHandshakeError::new(
                "431 Request Header Fields Too Large",
                format!("The request has more than {MAX_HEADERS} header fields."),
            ));
        }
        Err(error) => {
            return Err(ServerHandshakeError::new(
                BAD_REQUEST,
                format!("The request is malformed: {error}."),
            ));
        }
    }
    let fields = HeaderFields(request.headers);
    let target = request.path.unwrap_or_default();
    let is_prefix = check_request_line(
        options,
        request.method.unwrap_or_default(),
        target,
        request.version,
    )?;
    let key = check_fields(options, &fields)?;
    let origin = fields.values("origin").next();
    check_origin(options, origin)?;
    let subprotocol = match &options.prefix {
        Some(prefix) if is_prefix => first_offered(&prefix.subprotocols, &fields),
        _ => choose_subprotocol(options, &fields)?,
    };

    let mut response = String::with_capacity(192);
    response.push_str(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    );
    // Writing to a string cannot fail.
    let _ = write!(response, "Sec-WebSocket-Accept: {}\r\n", accept_key(key));
    if let Some(subprotocol) = subprotocol {
        let _ = write!(response, "Sec-WebSocket-Protocol: {subprotocol}\r\n");
    }
    let compression = match options.compression {
        true => PermessageDeflate::negotiate(&fields),
        false => None,
    };
    if let Some(compression) = compression {
        compression.write_response(&mut response);
    }
    response.push_str("\r\n");
    let forwarded_for: Vec<&str> = fields.values("x-forwarded-for").collect();
    Ok(ServerHandshakeAccepted {
        response: response.into_bytes(),
        consumed: head.len(),
        subprotocol: subprotocol.map(str::to_owned),
        compression,
        offered_subprotocols: fields
            .list_values("sec-websocket-protocol")
            .map(str::to_owned)
            .collect(),
        is_prefix,
        target: target.to_owned(),
        origin: origin.map(str::to_owned),
        forwarded_for: (!forwarded_for.is_empty()).then(|| forwarded_for.join(", ")),
    })
}

/// Checks the request line and returns whether it is for the service at the prefix.
fn check_request_line(
    options: &ServerOptions,
    method: &str,
    target: &str,
    version: Option<u8>,
) -> Result<bool, ServerHandshakeError> {
    if method != "GET" {
        return Err(ServerHandshakeError {
            extra_headers: "Allow: GET\r\n",
            ..ServerHandshakeError::new(
                "405 Method Not Allowed",
                "A WebSocket handshake is a GET request.",
            )
        });
    }
    if version != Some(1) {
        return Err(ServerHandshakeError::new(
            BAD_REQUEST,
            "A WebSocket handshake needs HTTP/1.1.",
        ));
    }
    let path = request_path(target);
    if path == options.path {
        return Ok(false);
    }
    let prefix = options.prefix.as_ref();
    if prefix.is_some_and(|prefix| prefix.contains(path)) {
        return Ok(true);
    }
    let others = prefix.map_or(String::new(), |prefix| {
        format!("; relay endpoints are below {}", prefix.prefix)
    });
    Err(ServerHandshakeError::new(
        "404 Not Found",
        format!(
            "Not found. The WebSocket endpoint is {}{others}.",
            options.path
        ),
    ))
}

/// Whether a text is an origin as clients send it (RFC 6454 section 6.2): `null`, or a scheme, `://`, and a host with an optional
/// port. Only `http` and `https` require the host: libraries for devices send `file://`.
#[must_use]
pub fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else {
        return text == "null";
    };
    let is_scheme_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let is_web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(is_scheme_byte)
        && (!authority.is_empty() || !is_web)
        && authority
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"/,".contains(&byte))
}

/// RFC 6455 section 10.2: a browser names the page that opens the connection, so that other sites cannot use a visitor's
/// access to the node.
fn check_origin(options: &ServerOptions, origin: Option<&str>) -> Result<(), ServerHandshakeError> {
    let allowed = &options.allowed_origins;
    match origin {
        Some(origin)
            if !allowed.is_empty() && !allowed.iter().any(|it| it.eq_ignore_ascii_case(origin)) =>
        {
            Err(ServerHandshakeError::new(
                "403 Forbidden",
                "Web pages of this origin may not connect; see the setting allowed_origins of the listener.",
            ))
        }
        _ => Ok(()),
    }
}

/// The path of a request target, which may be an absolute URI (RFC 6455 section 4.1, RFC 9112 section 3.2.2).
fn request_path(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.starts_with('/') => {
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ => target,
    };
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Checks the header fields that section 4.2.1 requires, and returns the key.
fn check_fields<'b>(
    options: &ServerOptions,
    fields: &HeaderFields<'_, 'b>,
) -> Result<&'b str, ServerHandshakeError> {
    if fields.single_value("host").is_none() {
        return Err(ServerHandshakeError::new(
            BAD_REQUEST,
            "Exactly one Host field is needed.",
        ));
    }
    if !(fields.list_contains("connection", "upgrade")
        && fields.list_contains("upgrade", "websocket"))
    {
        return Err(ServerHandshakeError {
            extra_headers: "Upgrade: websocket\r\n",
            ..ServerHandshakeError::new(
                "426 Upgrade Required",
                format!(
                    "{} is a WebSocket endpoint: send Connection: Upgrade and Upgrade: websocket.",
                    options.path
                ),
            )
        });
    }
    if fields.single_value("sec-websocket-version") != Some("13") {
        return Err(ServerHandshakeError {
            extra_headers: "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            ..ServerHandshakeError::new("426 Upgrade Required", "Sec-WebSocket-Version must be 13.")
        });
    }
    let has_body = fields.has("transfer-encoding")
        || fields.values("content-length").any(|length| length != "0");
    if has_body {
        return Err(ServerHandshakeError::new(
            BAD_REQUEST,
            "A WebSocket handshake has no body.",
        ));
    }
    let is_nonce = |key: &&str| {
        let mut nonce = [0; 18];
        key.len() == 24 && STANDARD.decode_slice(key, &mut nonce) == Ok(16)
    };
    fields
        .single_value("sec-websocket-key")
        .filter(is_nonce)
        .ok_or_else(|| {
            ServerHandshakeError::new(
                BAD_REQUEST,
                "Exactly one Sec-WebSocket-Key of 16 bytes in base64 is needed.",
            )
        })
}

/// The first supported sub-protocol that the client offers.
fn first_offered<'o>(supported: &'o [String], fields: &HeaderFields<'_, '_>) -> Option<&'o str> {
    let is_offered = |spoken: &&String| {
        let mut offers = fields.list_values("sec-websocket-protocol");
        offers.any(|offer| offer == spoken.as_str())
    };
    supported.iter().find(is_offered).map(String::as_str)
}

fn choose_subprotocol<'o>(
    options: &'o ServerOptions,
    fields: &HeaderFields<'_, '_>,
) -> Result<Option<&'o str>, ServerHandshakeError> {
    if options.subprotocols.is_empty() {
        return Ok(None);
    }
    let chosen = first_offered(&options.subprotocols, fields);
    let offers_any = fields.has("sec-websocket-protocol");
    if chosen.is_none() && (offers_any || options.require_subprotocol) {
        return Err(ServerHandshakeError::new(
            BAD_REQUEST,
            format!(
                "Sec-WebSocket-Protocol must offer {}.",
                options.subprotocols.join(" or ")
            ),
        ));
    }
    Ok(chosen)
}
