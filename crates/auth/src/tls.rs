//! TLS towards servers that are asked: whom to trust.

use std::path::Path;
use std::sync::Arc;

use outbound::tls::{self, Part};
use rustls::ClientConfig;

/// Trusts the authorities of a PEM file, or those of the system.
pub(crate) fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    tls::client_config(ca, None).map_err(told)
}

/// An error with the setting it is about.
pub(crate) fn told(error: tls::Error) -> String {
    match error.part {
        Part::Authorities => format!("tls_ca: {error}"),
        _ => error.to_string(),
    }
}
