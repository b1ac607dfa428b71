//! TLS towards outside systems: whom to trust, and who we are.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
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

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Tls {
    /// Trusts nobody; for connections without TLS.
    #[cfg(feature = "http")]
    pub(crate) fn nobody() -> Result<Arc<ClientConfig>, Invalid> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Invalid::new("tls", error.to_string()))?;
        let builder = builder.with_root_certificates(RootCertStore::empty());
        Ok(Arc::new(builder.with_no_client_auth()))
    }

    /// What rustls needs. `field` is the setting this is, for errors.
    pub fn client_config(&self, field: &str) -> Result<Arc<ClientConfig>, Invalid> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Invalid::new(field, error.to_string()))?
            .with_root_certificates(self.roots(field)?);
        let config = match self.identity(field)? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let wrong = |error: rustls::Error| {
                    Invalid::new(&format!("{field}.certificate"), error.to_string())
                };
                builder.with_client_auth_cert(chain, key).map_err(wrong)?
            }
        };
        Ok(Arc::new(config))
    }

    fn roots(&self, field: &str) -> Result<RootCertStore, Invalid> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                let wrong = |error: String| {
                    let detail = format!("{}: {error}", path.display());
                    Invalid::new(&format!("{field}.ca"), detail)
                };
                let certificates =
                    CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
                    roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(wrong("no certificate in it".into()));
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    let detail =
                        "the system has no certificate authorities; name a file with ca".to_owned();
                    return Err(Invalid::new(field, detail));
                }
            }
        }
        Ok(roots)
    }

    fn identity(&self, field: &str) -> Result<Option<Identity>, Invalid> {
        let (certificate, key) = match (&self.certificate, &self.key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(_), None) => {
                return Err(Invalid::new(&format!("{field}.key"), "missing"));
            }
            (None, Some(_)) => {
                return Err(Invalid::new(&format!("{field}.certificate"), "missing"));
            }
        };
        let wrong = |name: &str, path: &PathBuf, error: rustls::pki_types::pem::Error| {
            let detail = format!("{}: {error}", path.display());
            Invalid::new(&format!("{field}.{name}"), detail)
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| wrong("certificate", certificate, error))?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("key", key, error))?;
        Ok(Some((chain, key)))
    }
}
