//! URLs of requests: always at the origin of the connector's URL, whatever the path of a sink is.

use hyper::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};

use crate::settings::SettingsError;

/// Headers that affect routing or framing of a request; a sink, which uses the connector's credentials, must not
/// set them.
const RESERVED_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The URL of a connector.
#[derive(Debug, Clone)]
pub(super) struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    /// Path and query without a final slash.
    base: String,
}

impl BaseUrl {
    pub(super) fn parse(url: &str) -> Result<Self, SettingsError> {
        let wrong = || {
            // Not shown, because it may contain a password.
            let detail = "expected http://HOST:PORT/PATH or https://HOST/PATH, without a password";
            SettingsError::new("url", detail)
        };
        if url.contains('@') {
            return Err(wrong());
        }
        let parts = url.parse::<Uri>().map_err(|_| wrong())?.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(wrong());
        };
        if !matches!(scheme.as_str(), "http" | "https") || authority.host().is_empty() {
            return Err(wrong());
        }
        let base = parts.path_and_query.as_ref().map_or("", |all| all.as_str());
        Ok(Self {
            scheme,
            authority,
            base: base.trim_end_matches('/').to_owned(),
        })
    }

    pub(super) fn is_secure(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The URL with a path appended. It keeps the connector's origin, and no path segment leads out of its path.
    pub(super) fn join(&self, path: &str) -> Result<Uri, String> {
        if has_dot_step(path) {
            return Err("a path cannot have `.` or `..` as a segment".to_owned());
        }
        let all = match format!("{}{path}", self.base) {
            all if all.starts_with('/') => all,
            all => format!("/{all}"),
        };
        let all = PathAndQuery::try_from(all).map_err(|error| error.to_string())?;
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(all);
        uri.build().map_err(|error| error.to_string())
    }
}

/// Validates the path of a sink, including placeholders.
pub(super) fn check_path(path: &str) -> Result<(), SettingsError> {
    if !path.is_empty() && !path.starts_with(['/', '?']) {
        let detail = format!(
            "expected a path that begins with `/`, or a query that begins with `?`, found {path:?}"
        );
        return Err(SettingsError::new("path", detail));
    }
    if has_dot_step(path) {
        let detail = "a path cannot have `.` or `..` as a segment";
        return Err(SettingsError::new("path", detail));
    }
    Ok(())
}

/// Validates the name of a header that a sink sets.
pub(super) fn check_header(field: &str, name: &str) -> Result<(), SettingsError> {
    let name = name.to_ascii_lowercase();
    let is_reserved = RESERVED_HEADERS.contains(&name.as_str()) || name.starts_with("x-forwarded-");
    match is_reserved {
        true => {
            let detail = format!("a sink cannot set the header {name}; the connector decides it");
            Err(SettingsError::new(field, detail))
        }
        false => Ok(()),
    }
}

/// Whether the path has a `.` or `..` segment in any encoding.
fn has_dot_step(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    path.split(['/', '\\']).any(|step| {
        let step = step.to_ascii_lowercase().replace("%2e", ".");
        // Some servers decode a slash before they resolve segments.
        let mut parts = step.split("%2f").flat_map(|part| part.split("%5c"));
        parts.any(|part| matches!(part, "." | ".."))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(url: &str, path: &str) -> Result<String, String> {
        let target = BaseUrl::parse(url).unwrap();
        target.join(path).map(|uri| uri.to_string())
    }

    #[test]
    fn a_path_never_changes_the_origin() {
        let url = "https://sink.example:8443/base";
        for path in [
            "",
            "/x",
            "?a=b",
            "@evil.example/x",
            "@127.0.0.1:1/",
            ":1@evil.example/",
            ".evil.example/",
            "//evil.example/",
            "/\\evil.example",
            "0/x",
        ] {
            let Ok(uri) = joined(url, path) else { continue };
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(uri.authority().unwrap(), "sink.example:8443", "{path}");
            assert!(uri.path().starts_with("/base"), "{path}");
        }
        // Also for a base URL without a path.
        for path in ["@evil.example/", ".evil.example/", ":1/"] {
            let uri: Uri = joined("http://h", path).unwrap().parse().unwrap();
            assert_eq!(uri.host(), Some("h"), "{path}");
        }
        assert_eq!(joined("http://h/", ""), Ok("http://h/".into()));
        assert_eq!(joined("http://h/a/", "/b?c"), Ok("http://h/a/b?c".into()));
        assert_eq!(
            joined("http://h/a?t=1", "&u=2"),
            Ok("http://h/a?t=1&u=2".into())
        );
    }

    #[test]
    fn no_step_leads_out_of_the_path() {
        for path in [
            "/../x",
            "/a/..",
            "/%2e%2E/x",
            "/./x",
            "/a%2f..%2fb",
            "/..\\x",
        ] {
            assert!(joined("http://h/base", path).is_err(), "{path}");
            assert!(check_path(path).is_err(), "{path}");
        }
        assert!(joined("http://h/base", "/a..b/.x?y=/../").is_ok());
    }

    #[test]
    fn paths_and_headers_are_checked_when_a_sink_is_made() {
        for path in ["", "/", "/a/${topic}", "?x=${n}"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        for path in ["@evil.example/", "x", "${topic}", ":80/", "\\x"] {
            assert_eq!(check_path(path).unwrap_err().field, "path", "{path}");
        }
        for name in ["Host", "content-length", "X-Forwarded-Host"] {
            assert!(check_header("headers", name).is_err(), "{name}");
        }
        assert!(check_header("headers", "x-tenant").is_ok());
    }

    #[test]
    fn urls_are_checked_without_being_shown() {
        for url in ["", "h", "ftp://h", "http://u:secret@h", "http:///x"] {
            let error = BaseUrl::parse(url).unwrap_err();
            assert!(!error.detail.contains("secret"), "{url}");
        }
    }
}
