//! The mail server of a connector, and connections to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::extension::ClientId;
use outbound::stream::{self, OutboundStream};
use rustls::ClientConfig;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use tokio::time::timeout;

use super::smtp_stream::{self, SmtpStream};
use crate::connector::ConnectorError;
use crate::settings::{SettingsError, check_range, host_and_port};
use crate::tls::TlsSettings;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EmailSettings {
    /// `HOST` or `HOST:PORT` of a mail server that relays for this node. Default port 587; 465 with `security = "tls"`, 25 with
    /// `"none"`.
    server: String,
    #[serde(default)]
    security: SmtpSecurity,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    /// TLS settings, if other than those of the system.
    tls: Option<TlsSettings>,
    /// Host name sent to the server (EHLO).
    #[serde(default = "default_ehlo_name")]
    #[schemars(length(min = 1, max = 255))]
    ehlo_name: String,
    /// Time-out for the server to accept a mail.
    #[serde(default = "default_timeout_ms")]
    #[schemars(range(min = 100, max = 600_000))]
    timeout_ms: u64,
}

/// Transport security.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SmtpSecurity {
    /// TLS after the greeting; nothing is sent to a server without it.
    #[default]
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// None: for servers on the same host or in a trusted network.
    None,
}

fn default_ehlo_name() -> String {
    "[127.0.0.1]".into()
}

fn default_timeout_ms() -> u64 {
    30_000
}

pub(super) struct EmailConnector {
    host: String,
    port: u16,
    security: SmtpSecurity,
    tls: Option<Arc<ClientConfig>>,
    credentials: Option<Credentials>,
    ehlo_name: String,
    pub(super) within: Duration,
}

impl EmailConnector {
    pub(super) fn new(settings: EmailSettings) -> Result<Self, SettingsError> {
        let usual_port = match settings.security {
            SmtpSecurity::Starttls => 587,
            SmtpSecurity::Tls => 465,
            SmtpSecurity::None => 25,
        };
        let (host, port) = host_and_port("server", &settings.server, usual_port)?;
        check_range("timeout_ms", settings.timeout_ms, 100..=600_000)?;
        let is_name = |byte: u8| byte.is_ascii_graphic();
        if settings.ehlo_name.is_empty() || !settings.ehlo_name.bytes().all(is_name) {
            let detail = "expected the name of a host, or an address in brackets";
            return Err(SettingsError::new("ehlo_name", detail));
        }
        let password = Secret::from_setting(
            "password",
            settings.password.as_ref(),
            settings.password_file.as_ref(),
        )?;
        let credentials = match (settings.username, password) {
            (None, None) => None,
            (Some(user), Some(password)) => Some(Credentials::new(user, password.reveal().into())),
            (Some(_), None) => {
                return Err(SettingsError::new(
                    "password",
                    "missing; required with a username",
                ));
            }
            (None, Some(_)) => {
                return Err(SettingsError::new(
                    "username",
                    "missing; required with a password",
                ));
            }
        };
        let is_here = matches!(host.as_str(), "localhost" | "127.0.0.1" | "::1");
        if settings.security == SmtpSecurity::None && credentials.is_some() && !is_here {
            let detail = "a password is not sent over the network without TLS";
            return Err(SettingsError::new("security", detail));
        }
        let tls = match (settings.security, settings.tls) {
            (SmtpSecurity::None, None) => None,
            (SmtpSecurity::None, Some(_)) => {
                let detail = "it is not used with security = \"none\"";
                return Err(SettingsError::new("tls", detail));
            }
            (_, tls) => Some(tls.unwrap_or_default().client_config("tls")?),
        };
        Ok(Self {
            host,
            port,
            security: settings.security,
            tls,
            credentials,
            ehlo_name: settings.ehlo_name,
            within: Duration::from_millis(settings.timeout_ms),
        })
    }

    /// Opens a connection that is ready for mails. All errors of the server are transient here.
    pub(super) async fn connect(&self) -> Result<AsyncSmtpConnection, ConnectorError> {
        let connecting = timeout(self.within, self.connect_without_timeout());
        let late = |_| {
            let ms = self.within.as_millis();
            ConnectorError::transient(format!("{}: no connection within {ms} ms", self.host))
        };
        connecting.await.map_err(late)?
    }

    async fn connect_without_timeout(&self) -> Result<AsyncSmtpConnection, ConnectorError> {
        let wrong = |error: lettre::transport::smtp::Error| {
            ConnectorError::transient(format!(
                "{}:{}: {}",
                self.host,
                self.port,
                error_text(&error)
            ))
        };
        let stream = stream::connect(&self.host, self.port).await?;
        let stream = match (self.security, &self.tls) {
            (SmtpSecurity::Tls, Some(tls)) => {
                SmtpStream::new(stream::wrap_tls(stream, &self.host, tls).await?)
            }
            (SmtpSecurity::Starttls, Some(tls)) => {
                let stream = smtp_stream::start_tls(stream, &self.ehlo_name).await;
                let stream = stream.map_err(|error| {
                    ConnectorError::transient(format!("{}:{}: {error}", self.host, self.port))
                })?;
                SmtpStream::after_greeting(stream::wrap_tls(stream, &self.host, tls).await?)
            }
            _ => SmtpStream::new(OutboundStream::Plain(stream)),
        };
        let ehlo_name = ClientId::Domain(self.ehlo_name.clone());
        let mut connection =
            AsyncSmtpConnection::connect_with_transport(Box::new(stream), &ehlo_name)
                .await
                .map_err(wrong)?;
        if let Some(credentials) = &self.credentials {
            let mechanisms = [Mechanism::Plain, Mechanism::Login];
            let let_in = connection.auth(&mechanisms, credentials).await;
            let_in.map_err(wrong)?;
        }
        Ok(connection)
    }
}

/// The error with its causes.
pub(super) fn error_text(error: &lettre::transport::smtp::Error) -> String {
    let mut what = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !what.contains(&text) {
            what = format!("{what}: {text}");
        }
        cause = error.source();
    }
    what
}
