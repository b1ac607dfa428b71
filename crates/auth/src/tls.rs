//! TLS towards servers that are asked: whom to trust.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Trusts the authorities of a PEM file, or those of the system.
pub(crate) fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let wrong = |error: String| format!("tls_ca: {}: {error}", path.display());
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
        None => drop(roots.add_parsable_certificates(system_authorities()?)),
    }
    with_roots(roots)
}

pub(crate) fn system_authorities() -> Result<Vec<CertificateDer<'static>>, String> {
    let found = rustls_native_certs::load_native_certs().certs;
    match found.is_empty() {
        true => Err("the system has no certificate authorities; name a file with tls_ca".into()),
        false => Ok(found),
    }
}

/// Trusts nobody; for connections without TLS.
pub(crate) fn no_authorities() -> Result<Arc<ClientConfig>, String> {
    with_roots(RootCertStore::empty())
}

fn with_roots(roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(
        builder.with_root_certificates(roots).with_no_client_auth(),
    ))
}
