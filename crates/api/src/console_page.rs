//! Serves the web console: its page for every path that is not the API's, and its files.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use crate::access::random_secret;
use crate::problem_details::ProblemDetails;

/// The files of the console; the program embeds them.
pub trait ConsoleSite: Send + Sync {
    /// The page, with `__CSP_NONCE__` where the nonce of the response belongs, and `__REGISTRATION__` where `on` or `off`
    /// tells whether people may register. `None`: the console was not built.
    fn index(&self) -> Option<&'static str>;
    /// Why there is no page.
    fn missing_reason(&self) -> &'static str;
    /// A file by its path, without a leading slash.
    fn find(&self, path: &str) -> Option<ConsoleFile>;
}

/// One file of the console, compressed in two ways.
#[derive(Debug, Clone, Copy)]
pub struct ConsoleFile {
    pub content_type: &'static str,
    /// Quoted.
    pub etag: &'static str,
    /// Whether its name changes with its content.
    pub is_immutable: bool,
    pub brotli: &'static [u8],
    pub gzip: &'static [u8],
}

/// The place of the nonce in the page.
const NONCE_MARK: &str = "__CSP_NONCE__";
/// The place where the page learns whether the form for logins offers registration.
const REGISTRATION_MARK: &str = "__REGISTRATION__";
/// Paths of programs: a page there would hide a mistake.
const PROGRAM_PATHS: [&str; 4] = ["/api/", "/metrics", "/healthz", "/readyz"];

/// The page with a new nonce. `None`: the console was not built.
pub(crate) fn page(site: &dyn ConsoleSite, is_registration_enabled: bool) -> Option<Response> {
    let page = site.index()?;
    let Ok(nonce) = random_secret() else {
        let detail = "The system has no random numbers now; try again.";
        return Some(ProblemDetails::unavailable(detail).into_response());
    };
    // The console talks to the MQTT listeners, which have other ports. A style element needs the nonce: the component
    // library writes the colours of the theme into one.
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:; \
         font-src 'self'; connect-src 'self' ws: wss:; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let registration = match is_registration_enabled {
        true => "on",
        false => "off",
    };
    let page = page.replace(NONCE_MARK, &nonce);
    let mut response = page
        .replace(REGISTRATION_MARK, registration)
        .into_response();
    let fields = response.headers_mut();
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    fields.insert(header::CONTENT_TYPE, html);
    if let Ok(policy) = HeaderValue::try_from(policy) {
        fields.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    let referrer = HeaderValue::from_static("no-referrer");
    fields.insert(header::REFERRER_POLICY, referrer);
    Some(response)
}

/// The response to a path that is no route: a file, the page for a path of the console, or `None`.
pub(crate) fn respond(
    site: &dyn ConsoleSite,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    is_registration_enabled: bool,
) -> Option<Response> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    if let Some(file) = site.find(path.trim_start_matches('/')) {
        return Some(file_response(&file, headers));
    }
    let is_program_path = PROGRAM_PATHS.iter().any(|start| path.starts_with(start));
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let wants_page = accept.is_some_and(|accept| accept.contains("text/html"));
    if is_program_path || path.starts_with("/assets/") || !wants_page {
        return None;
    }
    page(site, is_registration_enabled)
}

fn file_response(file: &ConsoleFile, headers: &HeaderMap) -> Response {
    let caching = match file.is_immutable {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let known = headers.get(header::IF_NONE_MATCH);
    if known.is_some_and(|known| known.as_bytes() == file.etag.as_bytes()) {
        let fields = [(header::ETAG, file.etag), (header::CACHE_CONTROL, caching)];
        return (StatusCode::NOT_MODIFIED, fields).into_response();
    }
    let Some((encoding, content)) = encoded(file, headers) else {
        let detail =
            "The files of the console are compressed: send Accept-Encoding with br or gzip.";
        return ProblemDetails::new(StatusCode::NOT_ACCEPTABLE, detail).into_response();
    };
    let fields: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CONTENT_ENCODING, encoding),
        (header::ETAG, file.etag),
        (header::CACHE_CONTROL, caching),
        (header::VARY, "accept-encoding"),
    ];
    (fields, Body::from(content)).into_response()
}

/// The smallest encoding that the client accepts.
fn encoded(file: &ConsoleFile, headers: &HeaderMap) -> Option<(&'static str, &'static [u8])> {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let accepted: Vec<&str> = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter(|coding| !coding.replace(' ', "").ends_with(";q=0"))
        .filter_map(|coding| coding.split(';').next())
        .map(str::trim)
        .collect();
    if accepted.contains(&"br") {
        return Some(("br", file.brotli));
    }
    let takes_gzip = accepted.contains(&"gzip") || accepted.contains(&"*");
    takes_gzip.then_some(("gzip", file.gzip))
}
