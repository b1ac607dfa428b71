//! The TLS layer: which brokers to trust, and ciphertext to plaintext.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::error::TransportError;

/// The files that TLS needs, all in PEM form.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Certificates of authorities to trust; default: those of the system.
    pub authorities: Option<PathBuf>,
    /// Our certificate chain and its key, for brokers that ask.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Accept any certificate.
    pub insecure: bool,
}

/// Makes the configuration that all connections share.
pub fn client_config(files: &TlsFiles) -> anyhow::Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS 1.2 and 1.3")?;
    let builder = if files.insecure {
        outbound::tls::without_certificate_verification(builder)
    } else {
        let roots = match &files.authorities {
            Some(path) => read_authorities(path)?,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(outbound::tls::load_system_authorities()?);
                roots
            }
        };
        builder.with_root_certificates(roots)
    };
    let config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let certificates = read_certificates(chain)?;
            let key_der = PrivateKeyDer::from_pem_file(key)
                .with_context(|| format!("--key {}: no private key in PEM form", key.display()))?;
            builder
                .with_client_auth_cert(certificates, key_der)
                .with_context(|| {
                    format!("--cert {} and --key {}", chain.display(), key.display())
                })?
        }
    };
    Ok(Arc::new(config))
}

fn read_authorities(path: &PathBuf) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots
            .add(certificate)
            .with_context(|| format!("--cafile {}: an unusable certificate", path.display()))?;
    }
    Ok(roots)
}

fn read_certificates(path: &PathBuf) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("cannot read certificates from {}", path.display()))?;
    anyhow::ensure!(
        !certificates.is_empty(),
        "{} holds no certificate in PEM form",
        path.display()
    );
    Ok(certificates)
}

/// Takes all of `raw` in and writes the plaintext to `buf`; returns its length.
pub(super) fn decrypt(
    tls: &mut ClientConnection,
    mut raw: &[u8],
    buf: &mut [u8],
) -> Result<usize, TransportError> {
    let mut filled = 0;
    while !raw.is_empty() {
        tls.read_tls(&mut raw)?;
        tls.process_new_packets()
            .map_err(|error| TransportError::Tls(error.to_string()))?;
        loop {
            match tls.reader().read(&mut buf[filled..]) {
                Ok(0) if filled < buf.len() => return Err(TransportError::Closed),
                Ok(0) => {
                    return Err(TransportError::Tls(
                        "more plaintext than ciphertext".to_owned(),
                    ));
                }
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(TransportError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(filled)
}
