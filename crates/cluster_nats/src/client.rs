//! Building clients of NATS from the settings.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Server};
use tokio::sync::Notify;

use crate::settings::{NatsAuth, NatsSettings, NatsSettingsError};

const FIRST_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// After the end of the connection, which the library cannot be told: its task would try to connect for ever.
const DELAY_AFTER_CLOSE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Errors of servers that are shown; others have probably the same.
const MAX_SHOWN_ERRORS: usize = 3;

/// What a client reports outside of requests.
#[derive(Debug, Default)]
pub(crate) struct ClientEvents {
    /// Something has changed: the connection, or the list of servers.
    pub(crate) changed: Notify,
    /// Why servers could not be connected to; empty if the last attempt was successful.
    connect_error: Mutex<Option<String>>,
    is_closed: std::sync::atomic::AtomicBool,
}

impl ClientEvents {
    pub(crate) fn connect_error(&self) -> Option<String> {
        self.connect_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Ends attempts to connect.
    pub(crate) fn close(&self) {
        self.is_closed
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn record_servers(&self, servers: &[Server]) {
        let mut errors: Vec<String> = Vec::new();
        for server in servers {
            if let Some(error) = &server.last_error {
                errors.push(format!("{server}: {}", explain(error)));
            }
        }
        errors.sort();
        let hidden = errors.len().saturating_sub(MAX_SHOWN_ERRORS);
        errors.truncate(MAX_SHOWN_ERRORS);
        let mut text = errors.join("; ");
        if hidden > 0 {
            text.push_str(&format!("; and {hidden} other servers"));
        }
        let mut error = self
            .connect_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !text.is_empty() && error.as_ref() != Some(&text) {
            *error = Some(text);
            drop(error);
            self.changed.notify_one();
        }
    }

    fn delay(&self, attempt: usize) -> Duration {
        if self.is_closed.load(std::sync::atomic::Ordering::Relaxed) {
            return DELAY_AFTER_CLOSE;
        }
        let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        FIRST_RECONNECT_DELAY
            .saturating_mul(2u32.saturating_pow(doublings))
            .min(MAX_RECONNECT_DELAY)
    }
}

/// Adds to an error of the library what to do about it.
fn explain(error: &str) -> String {
    let lower = error.to_ascii_lowercase();
    let remedy = if lower.contains("authorization violation") {
        "; check the user and password, token, credentials file or client certificate"
    } else if lower.contains("unknownissuer") {
        "; check the certificate authorities"
    } else if lower.contains("certificaterequired") || lower.contains("bad certificate") {
        "; the server requires a client certificate that it trusts"
    } else {
        ""
    };
    format!("{error}{remedy}")
}

/// How a client is built, apart from the settings.
#[derive(Debug)]
pub(crate) struct ClientPurpose {
    /// Shown by the server in its list of connections.
    pub(crate) name: String,
    /// Commands and frames that the client buffers.
    pub(crate) command_capacity: usize,
    /// Messages that the client buffers for each subscription.
    pub(crate) subscription_capacity: usize,
}

/// Builds a client, which connects in the background as long as it exists.
pub(crate) async fn start(
    settings: &NatsSettings,
    purpose: ClientPurpose,
    events: &Arc<ClientEvents>,
) -> Result<Client, NatsSettingsError> {
    let servers = settings.check()?;
    let (on_event, on_attempt, on_delay) =
        (Arc::clone(events), Arc::clone(events), Arc::clone(events));
    let options = ConnectOptions::new()
        .name(purpose.name)
        .client_capacity(purpose.command_capacity)
        .subscription_capacity(purpose.subscription_capacity)
        .connection_timeout(settings.connect_timeout)
        .request_timeout(Some(settings.request_timeout))
        .ping_interval(settings.ping_interval)
        .retry_on_initial_connect()
        .event_callback(move |_| {
            on_event.changed.notify_one();
            std::future::ready(())
        })
        .reconnect_to_server_callback(move |servers, _| {
            on_attempt.record_servers(&servers);
            std::future::ready(None)
        })
        .reconnect_delay_callback(move |attempt| on_delay.delay(attempt));
    let options = match settings.is_managed {
        // Managed servers listen on loopback addresses, which mean something else on other hosts.
        true => options.ignore_discovered_servers(),
        false => options,
    };
    let options = with_tls(options, settings)?;
    let options = with_auth(options, &settings.auth).await?;
    options
        .connect(servers)
        .await
        .map_err(|error| NatsSettingsError::new("urls", error.to_string()))
}

fn with_tls(
    options: ConnectOptions,
    settings: &NatsSettings,
) -> Result<ConnectOptions, NatsSettingsError> {
    let tls = &settings.tls;
    let identity = tls
        .identity
        .as_ref()
        .map(|identity| outbound::tls::ClientIdentity {
            certificate: &identity.certificate,
            key: &identity.key,
        });
    let is_configured = tls.is_required
        || tls.authorities.is_some()
        || identity.is_some()
        || settings.urls.iter().any(|url| url.starts_with("tls://"));
    let config = match outbound::tls::client_config(tls.authorities.as_deref(), identity) {
        Ok(config) => config,
        Err(error) if is_configured => {
            return Err(NatsSettingsError::new("tls", error.to_string()));
        }
        // A host without certificate authorities, whose servers require no TLS.
        Err(_) => outbound::tls::client_config_without_roots()
            .map_err(|error| NatsSettingsError::new("tls", error.to_string()))?,
    };
    Ok(options
        .require_tls(tls.is_required)
        .tls_client_config(Arc::unwrap_or_clone(config)))
}

async fn with_auth(
    options: ConnectOptions,
    auth: &NatsAuth,
) -> Result<ConnectOptions, NatsSettingsError> {
    match auth {
        NatsAuth::None => Ok(options),
        NatsAuth::Password { user, password } => {
            Ok(options.user_and_password(user.clone(), password.reveal().to_owned()))
        }
        NatsAuth::Token(token) => Ok(options.token(token.reveal().to_owned())),
        NatsAuth::CredentialsFile(path) => with_credentials(options, path).await,
    }
}

#[cfg(feature = "nkeys")]
async fn with_credentials(
    options: ConnectOptions,
    path: &std::path::Path,
) -> Result<ConnectOptions, NatsSettingsError> {
    let wrong = |error: std::io::Error| {
        NatsSettingsError::new("credentials_file", format!("{}: {error}", path.display()))
    };
    options.credentials_file(path).await.map_err(wrong)
}

#[cfg(not(feature = "nkeys"))]
async fn with_credentials(
    _: ConnectOptions,
    path: &std::path::Path,
) -> Result<ConnectOptions, NatsSettingsError> {
    let detail = format!(
        "{} cannot be used, since this program was built without the feature `nkeys`; use a user and password, a token or a client certificate",
        path.display()
    );
    Err(NatsSettingsError::new("credentials_file", detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_limit_and_never_are_zero() {
        let events = ClientEvents::default();
        assert_eq!(events.delay(0), FIRST_RECONNECT_DELAY);
        assert_eq!(events.delay(1), FIRST_RECONNECT_DELAY);
        assert_eq!(events.delay(2), 2 * FIRST_RECONNECT_DELAY);
        assert_eq!(events.delay(usize::MAX), MAX_RECONNECT_DELAY);
        events.close();
        assert_eq!(events.delay(1), DELAY_AFTER_CLOSE);
    }

    #[test]
    fn errors_tell_what_to_do() {
        let text = explain("authorization violation: nats: authorization violation");
        assert!(text.contains("check the user and password"), "{text}");
        assert_eq!(explain("timed out"), "timed out");
    }
}
