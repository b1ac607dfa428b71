//! Asking HTTP servers: one of several addresses, one bounded answer, connections kept for the next.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::Method;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
pub(crate) use outbound::http::url_encoded;
use outbound::http::{Bounds, Client};

use crate::connector::Failure;
use crate::secret::Secret;
use crate::settings::Invalid;
use crate::tls::Tls;

const MAX_SERVERS: usize = 64;

/// Servers that are asked by HTTP.
pub(crate) struct Web {
    client: Client,
    /// Without a slash at the end.
    bases: Vec<String>,
    /// Which of them is asked next.
    at: AtomicUsize,
    /// Sent with each request.
    headers: HeaderMap,
}

/// What it says of failures, in the terms of sinks.
pub(crate) struct Answer(outbound::http::Answer);

impl std::ops::Deref for Answer {
    type Target = outbound::http::Answer;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Web {
    /// `field` is the setting the addresses are from, for errors. All must be reached the same way.
    pub(crate) fn new(field: &str, urls: &[String], tls: Option<&Tls>) -> Result<Self, Invalid> {
        if urls.is_empty() || urls.len() > MAX_SERVERS {
            let detail = format!("expected 1 to {MAX_SERVERS} addresses");
            return Err(Invalid::new(field, detail));
        }
        let bases = urls.iter().map(|url| {
            let rest = url
                .strip_prefix("http://")
                .or_else(|| url.strip_prefix("https://"));
            let host = rest.and_then(|rest| rest.split('/').next());
            let is_url = host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
                && !url.contains(['?', '#', ' ', '$'])
                && url.parse::<hyper::Uri>().is_ok();
            match is_url {
                true => Ok(url.trim_end_matches('/').to_owned()),
                false => {
                    // Not shown: there may be a password in it.
                    let detail = "expected http://HOST:PORT or https://HOST:PORT, without a user";
                    Err(Invalid::new(field, detail))
                }
            }
        });
        let bases = bases.collect::<Result<Vec<_>, _>>()?;
        let is_secure = bases.iter().any(|base| base.starts_with("https:"));
        let config = Tls::for_web(tls, is_secure, field)?;
        let client = Client::new(config, &Bounds::default());
        Ok(Self {
            client,
            bases,
            at: AtomicUsize::new(0),
            headers: HeaderMap::new(),
        })
    }

    /// Sends a header with each request; `field` is the setting its value is from.
    pub(crate) fn with_header(
        mut self,
        name: HeaderName,
        value: &str,
        field: &str,
    ) -> Result<Self, Invalid> {
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| Invalid::new(field, "it has signs that cannot be sent"))?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Sends a user name and password with each request.
    pub(crate) fn with_login(self, user: &str, password: &Secret) -> Result<Self, Invalid> {
        let both = STANDARD.encode(format!("{user}:{}", password.reveal()));
        self.with_header(AUTHORIZATION, &format!("Basic {both}"), "user")
    }

    /// The address that is asked next.
    pub(crate) fn base(&self) -> &str {
        &self.bases[self.at.load(Relaxed) % self.bases.len()]
    }

    /// Asks one server; redirections are not followed. After an error the next server is asked the next time.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, Failure> {
        let base = self.base();
        let answer = self.ask_at(base, method, path, headers, body).await;
        if answer.as_ref().map_or(true, |answer| answer.status >= 500) && self.bases.len() > 1 {
            self.at.fetch_add(1, Relaxed);
        }
        answer.map_err(|why| Failure::passing(format!("{base}: {why}")))
    }

    async fn ask_at(
        &self,
        base: &str,
        method: Method,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, String> {
        let mut all = self.headers.clone();
        all.extend(headers.iter().cloned());
        let url = format!("{base}{path}");
        let answer = self.client.ask(method, &url, all, body).await;
        answer.map(Answer).map_err(|error| error.to_string())
    }
}

impl Answer {
    /// What it says went wrong, as a failure that can pass.
    pub(crate) fn passing(&self) -> Failure {
        let failure = Failure::passing(self.told());
        match self.retry_after() {
            Some(pause) => failure.retry_after(pause),
            None => failure,
        }
    }

    /// What it says went wrong, as a failure because of what was sent.
    pub(crate) fn of_rows(&self) -> Failure {
        Failure::of_rows(self.told())
    }

    fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        // At most a day; a date is not understood.
        let seconds = text.trim().parse::<u64>().ok()?.min(86_400);
        Some(Duration::from_secs(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_without_being_shown() {
        let error = |url: &str| Web::new("urls", &[url.to_owned()], None).err().unwrap();
        for url in [
            "",
            "ftp://h",
            "http://",
            "http://u:secret@h",
            "http://h?x",
            "h:9200",
        ] {
            let error = error(url);
            assert_eq!(error.field, "urls", "{url}");
            assert!(!error.detail.contains("secret"));
        }
        assert!(Web::new("urls", &["http://h:1/".into()], None).is_ok());
        assert!(Web::new("urls", &[], None).is_err());
    }
}
