//! Settings of the connection to NATS servers.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::ServerAddr;
use secret::Secret;
use thiserror::Error;

/// How a node connects to NATS servers.
#[derive(Debug, Clone)]
pub struct NatsSettings {
    /// `nats://host:port` or `tls://host:port`, at least one. Other servers of the same NATS cluster are discovered.
    pub urls: Vec<String>,
    /// The begin of all subjects and bucket names: clusters with different prefixes can share NATS servers. 1 to 32 of the
    /// characters `a-z`, `A-Z`, `0-9`, `-` and `_`.
    pub prefix: String,
    pub auth: NatsAuth,
    pub tls: NatsTls,
    /// Copies of each bucket: 1 or 3. `None` stands for 3 if there are at least three servers, and 1 otherwise.
    pub replicas: Option<u8>,
    /// Whether this node configures the servers itself, so that their settings are known.
    pub is_managed: bool,
    pub connect_timeout: Duration,
    /// Limit of a request, including the time until there is a connection.
    pub request_timeout: Duration,
    /// Interval of PINGs. A connection without answers to two of them is closed.
    pub ping_interval: Duration,
    /// How long the entry of a member is kept without being renewed.
    pub member_max_age: Duration,
    /// Limit of all stored objects in bytes.
    pub objects_max_bytes: u64,
    /// Limit of frames that wait to be sent, in bytes.
    pub send_queue_bytes: usize,
    /// Limit of received frames that are still in use, in bytes.
    pub receive_queue_bytes: usize,
}

/// How a node authenticates at NATS servers. A client certificate of [`NatsTls`] can be used in addition or alone.
#[derive(Debug, Clone, Default)]
pub enum NatsAuth {
    #[default]
    None,
    Password {
        user: String,
        password: Secret,
    },
    Token(Secret),
    /// A credentials file (`.creds`) with a JWT and a key. Requires the feature `nkeys`.
    CredentialsFile(PathBuf),
}

/// TLS towards NATS servers.
#[derive(Debug, Clone, Default)]
pub struct NatsTls {
    /// Refuses connections without TLS, also with `nats://` URLs. TLS is used anyway if the server requires it.
    pub is_required: bool,
    /// Certificate authorities in PEM; `None` stands for those of the system.
    pub authorities: Option<PathBuf>,
    /// Client certificate and key in PEM.
    pub identity: Option<NatsIdentity>,
}

/// Files of a client certificate in PEM.
#[derive(Debug, Clone)]
pub struct NatsIdentity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{setting}: {detail}")]
pub struct NatsSettingsError {
    /// Name of the setting, as in [`NatsSettings`].
    pub setting: &'static str,
    pub detail: String,
}

impl NatsSettingsError {
    pub(crate) fn new(setting: &'static str, detail: impl Into<String>) -> Self {
        Self {
            setting,
            detail: detail.into(),
        }
    }
}

const MAX_PREFIX_BYTES: usize = 32;
const MAX_URLS: usize = 64;

impl NatsSettings {
    /// Settings for the servers at `urls` without authentication.
    pub fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            prefix: "tidegate".to_owned(),
            auth: NatsAuth::None,
            tls: NatsTls::default(),
            replicas: None,
            is_managed: false,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(2),
            member_max_age: Duration::from_secs(30),
            objects_max_bytes: 1 << 30,
            send_queue_bytes: 32 << 20,
            receive_queue_bytes: 64 << 20,
        }
    }

    /// Checks all values that need no connection, and returns the servers.
    ///
    /// # Errors
    /// Names the first setting that cannot be used, and what is expected.
    pub fn check(&self) -> Result<Vec<ServerAddr>, NatsSettingsError> {
        check_prefix(&self.prefix)?;
        if let Some(replicas) = self.replicas
            && !matches!(replicas, 1 | 3)
        {
            let detail = format!("{replicas} is not possible: expected 1 or 3");
            return Err(NatsSettingsError::new("replicas", detail));
        }
        let positive: [(&'static str, bool); 7] = [
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("request_timeout", self.request_timeout.is_zero()),
            ("ping_interval", self.ping_interval.is_zero()),
            ("member_max_age", self.member_max_age.is_zero()),
            ("objects_max_bytes", self.objects_max_bytes == 0),
            ("send_queue_bytes", self.send_queue_bytes == 0),
            ("receive_queue_bytes", self.receive_queue_bytes == 0),
        ];
        if let Some((setting, _)) = positive.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(NatsSettingsError::new(
                setting,
                "0 is not possible: expected a larger value",
            ));
        }
        if self.urls.is_empty() || self.urls.len() > MAX_URLS {
            let detail = format!(
                "{} URLs are given: expected 1 to {MAX_URLS}",
                self.urls.len()
            );
            return Err(NatsSettingsError::new("urls", detail));
        }
        self.urls.iter().map(|url| parse_url(url)).collect()
    }
}

fn check_prefix(prefix: &str) -> Result<(), NatsSettingsError> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if prefix.is_empty() || prefix.len() > MAX_PREFIX_BYTES || !prefix.bytes().all(is_valid) {
        let detail = format!(
            "{prefix:?} is not possible: expected 1 to {MAX_PREFIX_BYTES} of the characters a-z, A-Z, 0-9, '-' and '_'"
        );
        return Err(NatsSettingsError::new("prefix", detail));
    }
    Ok(())
}

fn parse_url(url: &str) -> Result<ServerAddr, NatsSettingsError> {
    // The URL is not quoted, since it may contain a password.
    let wrong = |detail: &str| {
        NatsSettingsError::new(
            "urls",
            format!("{detail}; expected nats://host:port or tls://host:port"),
        )
    };
    let address: ServerAddr = url.parse().map_err(|_| wrong("a URL cannot be read"))?;
    if address.has_user_pass() || url.contains('@') {
        return Err(wrong(
            "a URL contains a user or password, which belong into their own settings",
        ));
    }
    if !matches!(address.scheme(), "nats" | "tls") || address.host().is_empty() {
        return Err(wrong(&format!("{url:?} is no address of a NATS server")));
    }
    Ok(address)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut NatsSettings)) -> String {
        let mut settings = NatsSettings::new(vec!["nats://127.0.0.1:4222".to_owned()]);
        change(&mut settings);
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_setting_and_what_is_expected() {
        assert_eq!(
            error(|settings| settings.prefix = "a.b".to_owned()),
            "prefix: \"a.b\" is not possible: expected 1 to 32 of the characters a-z, A-Z, 0-9, '-' and '_'"
        );
        assert_eq!(
            error(|settings| settings.replicas = Some(2)),
            "replicas: 2 is not possible: expected 1 or 3"
        );
        assert_eq!(
            error(|settings| settings.urls.clear()),
            "urls: 0 URLs are given: expected 1 to 64"
        );
        assert_eq!(
            error(|settings| settings.ping_interval = Duration::ZERO),
            "ping_interval: 0 is not possible: expected a larger value"
        );
    }

    #[test]
    fn passwords_in_urls_are_refused_and_not_shown() {
        let error = error(|settings| settings.urls.push("nats://tom:pencil@host".to_owned()));
        assert!(error.contains("a user or password"), "{error}");
        assert!(!error.contains("pencil"), "{error}");
        for url in ["ws://host:80", "http://host", "nats://"] {
            assert!(parse_url(url).is_err(), "{url}");
        }
        for url in ["nats://host", "tls://host:4222", "[::1]:4222"] {
            parse_url(url).unwrap();
        }
    }
}
