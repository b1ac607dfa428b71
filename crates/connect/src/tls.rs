//! TLS towards outside systems: whom to trust, and who we are.

use std::path::PathBuf;
use std::sync::Arc;

use outbound::tls::{self, Identity, Part};
use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::settings::Invalid;

/// `tls = {}` switches it on; whom to trust and who we are may be said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// PEM file of the authorities to trust instead of those of the system.
    pub ca: Option<PathBuf>,
    /// PEM file of our certificate, and those above it.
    pub certificate: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
}

impl Tls {
    /// What rustls needs. `field` is the setting this is, for errors.
    pub fn client_config(&self, field: &str) -> Result<Arc<ClientConfig>, Invalid> {
        let identity = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (Some(_), None) => return Err(Invalid::new(&format!("{field}.key"), "missing")),
            (None, Some(_)) => {
                return Err(Invalid::new(&format!("{field}.certificate"), "missing"));
            }
        };
        tls::client_config(self.ca.as_deref(), identity).map_err(|error| {
            let field = match error.part {
                Part::Whole => field.to_owned(),
                Part::Authorities => format!("{field}.ca"),
                Part::Certificate => format!("{field}.certificate"),
                Part::Key => format!("{field}.key"),
            };
            Invalid::new(&field, error.detail)
        })
    }

    /// What a client of HTTP needs: a plain URL needs no authorities, and a system without them is fine with it.
    #[cfg(feature = "http")]
    pub(crate) fn for_web(
        tls: Option<&Self>,
        is_secure: bool,
        field: &str,
    ) -> Result<ClientConfig, Invalid> {
        let config = match (tls, is_secure) {
            (Some(tls), _) => tls.client_config("tls")?,
            (None, true) => Self::default().client_config(field)?,
            (None, false) => {
                tls::trusting_nobody().map_err(|error| Invalid::new(field, error.detail))?
            }
        };
        Ok(Arc::unwrap_or_clone(config))
    }
}
