//! Settings of a connector, and the credentials read from them.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;

use super::nkey::{self, NKey};
use crate::settings::SettingsError;
use crate::tls::TlsSettings;

/// Settings of the connection to a NATS cluster.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NatsSettings {
    /// Servers of one cluster, as `HOST` or `HOST:PORT`; the first that answers is used.
    #[schemars(length(min = 1, max = 64))]
    pub(super) servers: Vec<String>,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    token: Option<Secret>,
    /// File that contains the token.
    token_file: Option<PathBuf>,
    /// Seed of an NKey, `SU...`.
    nkey_seed: Option<Secret>,
    /// File that contains the seed.
    nkey_seed_file: Option<PathBuf>,
    /// File with a user's JWT and seed, as written by `nsc` (`.creds`).
    credentials_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
}

/// Credentials sent to a server.
pub(super) struct NatsCredentials {
    pub(super) name: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) token: Option<Secret>,
    pub(super) jwt: Option<Secret>,
    pub(super) nkey: Option<NKey>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl NatsCredentials {
    /// Reads secrets and TLS files. `connector` is its name, which the server shows.
    pub(super) fn read(settings: NatsSettings, connector: &str) -> Result<Self, SettingsError> {
        let NatsSettings {
            password, token, ..
        } = &settings;
        let password = Secret::from_setting(
            "password",
            password.as_ref(),
            settings.password_file.as_ref(),
        )?;
        let token = Secret::from_setting("token", token.as_ref(), settings.token_file.as_ref())?;
        let seed = Secret::from_setting(
            "nkey_seed",
            settings.nkey_seed.as_ref(),
            settings.nkey_seed_file.as_ref(),
        )?;
        if password.is_some() && settings.username.is_none() {
            return Err(SettingsError::new(
                "username",
                "missing; required with a password",
            ));
        }
        let mut nkey = match seed {
            None => None,
            Some(seed) => {
                let key = NKey::from_seed(seed.reveal());
                Some(key.map_err(|error| SettingsError::new("nkey_seed", error))?)
            }
        };
        let mut jwt = None;
        if let Some(path) = &settings.credentials_file {
            let wrong = |why: String| {
                let detail = format!("{}: {why}", path.display());
                SettingsError::new("credentials_file", detail)
            };
            let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            let (token, seed) = nkey::read_credentials(&text)
                .ok_or_else(|| wrong("expected a JWT and a seed, as nsc writes them".into()))?;
            nkey = Some(NKey::from_seed(&seed).map_err(wrong)?);
            jwt = Some(Secret::from(token.as_str()));
        }
        let tls = match &settings.tls {
            Some(tls) => Some(tls.client_config("tls")?),
            None => None,
        };
        Ok(Self {
            name: format!("tidegate {connector}"),
            user: settings.username,
            password,
            token,
            jwt,
            nkey,
            tls,
        })
    }
}
