//! TLS towards outside systems: trusted authorities and the client certificate.

use std::path::PathBuf;
use std::sync::Arc;

use outbound::tls::{self, ClientIdentity, TlsConfigPart};
use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::settings::SettingsError;

/// TLS settings; `tls = {}` enables TLS with the system's authorities.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSettings {
    /// PEM file of the trusted authorities; replaces those of the system.
    pub ca: Option<PathBuf>,
    /// PEM file of the client certificate and its chain.
    pub certificate: Option<PathBuf>,
    /// PEM file of the key of the client certificate.
    pub key: Option<PathBuf>,
}

impl TlsSettings {
    /// The rustls configuration. `field` is the name of the setting, for errors.
    pub fn client_config(&self, field: &str) -> Result<Arc<ClientConfig>, SettingsError> {
        let identity = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(ClientIdentity { certificate, key }),
            (Some(_), None) => return Err(SettingsError::new(&format!("{field}.key"), "missing")),
            (None, Some(_)) => {
                return Err(SettingsError::new(
                    &format!("{field}.certificate"),
                    "missing",
                ));
            }
        };
        tls::client_config(self.ca.as_deref(), identity).map_err(|error| {
            let field = match error.part {
                TlsConfigPart::General => field.to_owned(),
                TlsConfigPart::Authorities => format!("{field}.ca"),
                TlsConfigPart::Certificate => format!("{field}.certificate"),
                TlsConfigPart::Key => format!("{field}.key"),
            };
            SettingsError::new(&field, error.detail)
        })
    }

    /// The configuration of an HTTP client: a plain URL needs no authorities and also works on a system without any.
    #[cfg(feature = "http")]
    pub(crate) fn http_client_config(
        tls: Option<&Self>,
        is_secure: bool,
        field: &str,
    ) -> Result<ClientConfig, SettingsError> {
        let config = match (tls, is_secure) {
            (Some(tls), _) => tls.client_config("tls")?,
            (None, true) => Self::default().client_config(field)?,
            (None, false) => tls::client_config_without_roots()
                .map_err(|error| SettingsError::new(field, error.detail))?,
        };
        Ok(Arc::unwrap_or_clone(config))
    }
}
