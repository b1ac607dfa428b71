//! Checks the files of a TLS listener before the node starts.

use std::path::Path;

use broker::config::TlsConfig;
use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// The errors, each with its setting.
pub(super) fn check_tls_files(tls: &TlsConfig) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    let chain = read_certificates(&tls.certificate);
    let key = PrivateKeyDer::from_pem_file(&tls.private_key)
        .map_err(|error| describe(&tls.private_key, &error, "a private key"));
    match (chain, key) {
        (Ok(chain), Ok(key)) => match CertifiedKey::from_der(chain, key, &default_provider()) {
            Ok(_) => {}
            Err(rustls::Error::InconsistentKeys(_)) => problems.push((
                "tls.private_key",
                format!(
                    "{} is not the key of the first certificate in {}",
                    tls.private_key.display(),
                    tls.certificate.display()
                ),
            )),
            Err(error) => problems.push((
                "tls.private_key",
                format!("{} cannot be used: {error}", tls.private_key.display()),
            )),
        },
        (chain, key) => {
            problems.extend(chain.err().map(|message| ("tls.certificate", message)));
            problems.extend(key.err().map(|message| ("tls.private_key", message)));
        }
    }
    if let Some(path) = &tls.client_ca {
        let outcome = read_certificates(path).and_then(|authorities| {
            let mut roots = RootCertStore::empty();
            authorities
                .into_iter()
                .try_for_each(|authority| roots.add(authority))
                .map_err(|error| format!("{} holds no authority: {error}", path.display()))
        });
        problems.extend(outcome.err().map(|message| ("tls.client_ca", message)));
    }
    if problems.is_empty()
        && let Err(error) = broker::check_tls(tls)
    {
        // The broker decides what it can use.
        problems.push(("tls.certificate", error.to_string()));
    }
    problems
}

/// Checks a file that contains certificates and, with `has_key`, also the key of the first one. The error has its setting.
pub(super) fn check_combined_file(
    path: &Path,
    has_key: bool,
) -> Result<(), (&'static str, String)> {
    if !has_key {
        let read = read_certificates(path);
        return read.map(drop).map_err(|error| ("tls.certificate", error));
    }
    let files = TlsConfig {
        certificate: path.to_owned(),
        private_key: path.to_owned(),
        client_ca: None,
        require_client_certificate: false,
        common_name_as_username: false,
    };
    check_tls_files(&files)
        .into_iter()
        .next()
        .map_or(Ok(()), Err)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let what = "a certificate";
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| describe(path, &error, what))?;
    match certificates.is_empty() {
        true => Err(describe(path, &PemError::NoItemsFound, what)),
        false => Ok(certificates),
    }
}

fn describe(path: &Path, error: &PemError, what: &str) -> String {
    let path = path.display();
    match error {
        PemError::Io(error) => format!("{path} cannot be read: {error}"),
        PemError::NoItemsFound => format!("{path} holds no PEM section with {what}"),
        error => format!("{path} is not a PEM file: {error}"),
    }
}
