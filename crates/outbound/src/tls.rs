//! TLS client configuration: trusted authorities and client certificates, from PEM files.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};

/// A TLS configuration that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct TlsConfigError {
    /// The part with the error, so that the caller can name its setting.
    pub part: TlsConfigPart,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsConfigPart {
    General,
    /// The trusted certificate authorities.
    Authorities,
    Certificate,
    Key,
}

/// The client's certificate chain and its key.
#[derive(Debug, Clone, Copy)]
pub struct ClientIdentity<'p> {
    pub certificate: &'p Path,
    pub key: &'p Path,
}

fn file_error(part: TlsConfigPart, path: &Path, why: impl std::fmt::Display) -> TlsConfigError {
    TlsConfigError {
        part,
        detail: format!("{}: {why}", path.display()),
    }
}

/// Trusts the authorities of a file, or those of the system. Presents a client certificate if
/// `identity` is given.
pub fn client_config(
    authorities: Option<&Path>,
    identity: Option<ClientIdentity<'_>>,
) -> Result<Arc<ClientConfig>, TlsConfigError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(path) => {
            let wrong = |why: String| file_error(TlsConfigPart::Authorities, path, why);
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
                roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("the file contains no certificate".to_owned()));
            }
        }
        None => {
            roots.add_parsable_certificates(load_system_authorities()?);
        }
    }
    let Some(identity) = identity else {
        return client_config_with_roots(roots);
    };
    let ClientIdentity { certificate, key } = identity;
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| file_error(TlsConfigPart::Certificate, certificate, error))?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| file_error(TlsConfigPart::Key, key, error))?;
    let config = builder()?.with_root_certificates(roots);
    let config = config
        .with_client_auth_cert(chain, key)
        .map_err(|error| file_error(TlsConfigPart::Certificate, certificate, error))?;
    Ok(Arc::new(config))
}

/// The certificate authorities trusted by the system.
pub fn load_system_authorities() -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let found = rustls_native_certs::load_native_certs().certs;
    match found.is_empty() {
        true => Err(TlsConfigError {
            part: TlsConfigPart::General,
            detail: "the system has no certificate authorities; specify a file".to_owned(),
        }),
        false => Ok(found),
    }
}

/// Trusts no authority; for connections without TLS.
pub fn client_config_without_roots() -> Result<Arc<ClientConfig>, TlsConfigError> {
    client_config_with_roots(RootCertStore::empty())
}

fn client_config_with_roots(roots: RootCertStore) -> Result<Arc<ClientConfig>, TlsConfigError> {
    let config = builder()?.with_root_certificates(roots);
    Ok(Arc::new(config.with_no_client_auth()))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TlsConfigError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsConfigError {
            part: TlsConfigPart::General,
            detail: error.to_string(),
        })
}

/// Accepts any server certificate, for the option `--insecure` of command-line clients. Signatures are still verified, so
/// that a broken handshake is detected; but anyone who can intercept the connection can impersonate the server.
pub fn without_certificate_verification(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let verifier = NoCertificateVerification(Arc::clone(builder.crypto_provider()));
    builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
}

#[derive(Debug)]
struct NoCertificateVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoCertificateVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_they_are_about() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let made = rcgen::generate_simple_self_signed(vec!["h".to_owned()]).unwrap();
        let certificate = file("certificate", &made.cert.pem());
        let key = file("key", &made.signing_key.serialize_pem());
        let empty = file("empty", "");
        let config = |authorities: &Path, certificate: &Path, key: &Path| {
            let made = client_config(Some(authorities), Some(ClientIdentity { certificate, key }));
            made.map(drop).map_err(|error| error.part)
        };
        assert_eq!(config(&certificate, &certificate, &key), Ok(()));
        let missing = directory.path().join("missing");
        assert_eq!(
            config(&missing, &certificate, &key),
            Err(TlsConfigPart::Authorities)
        );
        assert_eq!(
            config(&empty, &certificate, &key),
            Err(TlsConfigPart::Authorities)
        );
        assert_eq!(
            config(&certificate, &missing, &key),
            Err(TlsConfigPart::Certificate)
        );
        assert_eq!(
            config(&certificate, &certificate, &empty),
            Err(TlsConfigPart::Key)
        );
        assert!(client_config_without_roots().is_ok());
    }
}
