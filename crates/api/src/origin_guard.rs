//! Checks of the Host and Origin headers, which protect an API without authentication. A node on
//! loopback answers only to loopback host names, so that a web page cannot reach it by DNS
//! rebinding. Pages of another origin cannot change anything.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem_details::ProblemDetails;

/// The rule of one listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OriginGuard {
    /// Whether the listener is bound to loopback; then only loopback host names are answered.
    pub(crate) loopback_only: bool,
}

pub(crate) async fn check(
    State(gate): State<OriginGuard>,
    request: Request,
    next: Next,
) -> Response {
    match gate.check_request(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

impl OriginGuard {
    fn check_request(
        self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), ProblemDetails> {
        let host = host_header(headers)?;
        if self.loopback_only
            && !(is_loopback_name(&host) && uri.authority().is_none_or(is_loopback_name))
        {
            return Err(ProblemDetails::new(
                StatusCode::MISDIRECTED_REQUEST,
                format!(
                    "This node listens on loopback and does not answer to {host}; ask for localhost or 127.0.0.1."
                ),
            ));
        }
        let changes_something = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        if changes_something && !is_same_origin(headers, &host) {
            return Err(ProblemDetails::new(
                StatusCode::FORBIDDEN,
                "A web page of another origin may not change anything here.",
            ));
        }
        Ok(())
    }
}

/// The single Host header that HTTP/1.1 requires.
fn host_header(headers: &HeaderMap) -> Result<Authority, ProblemDetails> {
    let mut values = headers.get_all(header::HOST).iter();
    values
        .next()
        .filter(|_| values.next().is_none())
        .and_then(|value| Authority::try_from(value.as_bytes()).ok())
        .ok_or_else(|| ProblemDetails::bad_request("Exactly one valid Host field is needed."))
}

fn is_loopback_name(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        // All names below `localhost` are loopback by RFC 6761; resolvers and browsers comply.
        Err(_) => {
            let name = host.to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

/// Programs other than browsers send neither header.
fn is_same_origin(headers: &HeaderMap, host: &Authority) -> bool {
    const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let is_ours = |origin: &str| {
        let authority = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str()))
    };
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    origins.all(|origin| origin.to_str().is_ok_and(is_ours))
        && sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(loopback_only: bool, method: Method, fields: &[(&'static str, &str)]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        let result =
            OriginGuard { loopback_only }.check_request(&method, &Uri::from_static("/x"), &headers);
        result.err().map(|problem| problem.status.as_u16())
    }

    #[test]
    fn a_node_on_loopback_answers_to_loopback_names_only() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "a.localhost",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:80",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(admit(true, Method::GET, &[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "0.0.0.0",
            "notlocalhost",
        ] {
            assert_eq!(
                admit(true, Method::GET, &[("host", host)]),
                Some(421),
                "{host}"
            );
            assert_eq!(admit(false, Method::GET, &[("host", host)]), None, "{host}");
        }
        assert_eq!(admit(true, Method::GET, &[]), Some(400));
        assert_eq!(
            admit(
                true,
                Method::GET,
                &[("host", "localhost"), ("host", "localhost")]
            ),
            Some(400)
        );
        let uri = Uri::from_static("http://evil.example/x");
        let headers = HeaderMap::from_iter([(header::HOST, "localhost".parse().unwrap())]);
        assert!(
            OriginGuard {
                loopback_only: true
            }
            .check_request(&Method::GET, &uri, &headers)
            .is_err()
        );
    }

    #[test]
    fn pages_of_other_origins_change_nothing() {
        let host = ("host", "localhost:8080");
        let ours = [
            ("origin", "http://localhost:8080"),
            ("origin", "https://localhost:8080"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ];
        for field in ours {
            assert_eq!(
                admit(true, Method::DELETE, &[host, field]),
                None,
                "{field:?}"
            );
        }
        let foreign = [
            ("origin", "http://evil.example"),
            ("origin", "http://localhost:3000"),
            ("origin", "http://localhost"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ];
        for field in foreign {
            for method in [Method::DELETE, Method::PUT, Method::POST, Method::PATCH] {
                assert_eq!(admit(false, method, &[host, field]), Some(403), "{field:?}");
            }
            assert_eq!(admit(true, Method::GET, &[host, field]), None, "{field:?}");
        }
        assert_eq!(admit(true, Method::DELETE, &[host]), None, "not a browser");
    }
}
