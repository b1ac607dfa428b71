//! TLS configuration for connections to authentication backends.

use std::path::Path;
use std::sync::Arc;

use outbound::tls::{self, TlsConfigPart};
use rustls::ClientConfig;

/// Trusts the certificate authorities of a PEM file, or those of the system.
pub(crate) fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    tls::client_config(ca, None).map_err(error_with_setting)
}

/// Prefixes an error with the name of the setting.
pub(crate) fn error_with_setting(error: tls::TlsConfigError) -> String {
    match error.part {
        TlsConfigPart::Authorities => format!("tls_ca: {error}"),
        _ => error.to_string(),
    }
}
