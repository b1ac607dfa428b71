//! A database that has users or rules: how to reach it, and what it answers.

use std::collections::HashMap;
use std::path::PathBuf;

use secret::Secret;
use serde::Deserialize;
use serde_json::Value;

use super::password_scheme::PasswordScheme;
use crate::authenticator::{AnswerFuture, AuthBackendError, LoginRequest};
use crate::json;

/// Columns by name in lower case; `None` is NULL.
pub(super) type DatabaseRow = HashMap<String, Option<String>>;

/// How to reach a database, and the query to run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DatabaseSettings {
    /// Address as `host:port`.
    pub(super) server: String,
    #[serde(default)]
    pub(super) database: Option<String>,
    #[serde(default)]
    pub(super) username: Option<String>,
    #[serde(default)]
    pub(super) password: Option<Secret>,
    #[serde(default)]
    pub(super) password_file: Option<PathBuf>,
    /// Maximum number of connections.
    #[serde(default = "default_pool_size")]
    pub(super) pool_size: usize,
    #[serde(default)]
    pub(super) tls: bool,
    /// PEM file of certificate authorities to trust instead of those of the system.
    #[serde(default)]
    pub(super) tls_ca: Option<PathBuf>,
    /// The query, in SQL or as a Redis command, with placeholders.
    pub(super) query: String,
    #[serde(default)]
    pub(super) password_hash_algorithm: PasswordScheme,
}

fn default_pool_size() -> usize {
    8
}

impl DatabaseSettings {
    pub(super) fn from_json(value: &Value) -> Result<Self, String> {
        let mut settings: Self = json::parse(value)?;
        if !(1..=256).contains(&settings.pool_size) {
            return Err("pool_size: expected 1 to 256".into());
        }
        let file = settings.password_file.as_ref();
        settings.password = Secret::from_setting("password", settings.password.as_ref(), file)?;
        if settings.tls_ca.is_some() && !settings.tls {
            return Err("tls_ca: needs tls = true".into());
        }
        Ok(settings)
    }

    pub(super) fn host_and_port(&self, usual_port: u16) -> Result<(String, u16), String> {
        let wrong = || format!("server: expected HOST:PORT, found {:?}", self.server);
        let server = self.server.as_str();
        if let Ok(address) = server.parse::<std::net::SocketAddr>() {
            return Ok((address.ip().to_string(), address.port()));
        }
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') => (host, port.parse().map_err(|_| wrong())?),
            Some(_) => (server, usual_port),
            None => (server, usual_port),
        };
        match host.is_empty() {
            true => Err(wrong()),
            false => Ok((host.to_owned(), port)),
        }
    }

    #[cfg(any(feature = "mysql", feature = "redis"))]
    pub(super) fn password(&self) -> Option<String> {
        self.password
            .as_ref()
            .map(|secret| secret.reveal().to_owned())
    }
}

/// A database that answers one query per client.
pub(super) trait UserDatabase: Send + Sync + 'static {
    /// All rows for a client: user rows or rule rows.
    fn query_rows<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<DatabaseRow>, AuthBackendError>>;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_checked() {
        let error = |value| DatabaseSettings::from_json(&value).map(|_| ()).unwrap_err();
        let with = |field: &str, value: Value| {
            let mut all = json!({"server": "h:1", "query": "q"});
            all[field] = value;
            all
        };
        assert!(error(with("pool_size", json!(0))).starts_with("pool_size: "));
        assert!(error(with("tls_ca", json!("/x"))).starts_with("tls_ca: "));
        assert!(error(with("password_file", json!("/nowhere"))).starts_with("password_file: "));
        assert!(error(with("user", json!("x"))).contains("unknown field `user`"));
        assert!(error(json!({"server": "h"})).contains("query"));
        let host = |server: &str| {
            let settings = DatabaseSettings::from_json(&json!({"server": server, "query": "q"}));
            settings.unwrap().host_and_port(5)
        };
        assert_eq!(host("h:1"), Ok(("h".into(), 1)));
        assert_eq!(host("h"), Ok(("h".into(), 5)));
        assert_eq!(host("[::1]:7"), Ok(("::1".into(), 7)));
        assert!(host(":1").is_err() && host("h:x").is_err());
    }
}
