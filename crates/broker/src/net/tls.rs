//! TLS of a listener: its certificate, verification of client certificates, and replacement of certificates while
//! connections stay open.

use hooks::CertificateNames;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::config::TlsConfig;
use crate::info::ListenerCertificate;

/// Why a listener's TLS files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {what} from {path}: {reason}")]
    File {
        what: &'static str,
        path: String,
        reason: String,
    },
    #[error("{path} contains no certificate; expected a PEM file with at least one")]
    NoCertificate { path: String },
    #[error(
        "the certificate {certificate} and the private key {private_key} cannot be used: {reason}"
    )]
    Unusable {
        certificate: String,
        private_key: String,
        reason: String,
    },
}

/// The TLS configuration of one listener. [`BrokerHandle::watch_certificates`](crate::BrokerHandle::watch_certificates)
/// reloads it together with those of the broker.
pub struct ListenerTls {
    files: TlsConfig,
    current: RwLock<LoadedTls>,
}

/// What was read from the files, and when they were changed.
struct LoadedTls {
    config: Arc<ServerConfig>,
    modified: Vec<Option<SystemTime>>,
    certificate: Option<ListenerCertificate>,
}

impl ListenerTls {
    pub fn load(files: &TlsConfig) -> Result<Self, TlsError> {
        let current = RwLock::new(LoadedTls {
            config: build_server_config(files)?,
            modified: modification_times(files),
            certificate: describe_certificate(files),
        });
        Ok(Self {
            files: files.clone(),
            current,
        })
    }

    /// The configuration for new connections.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .config
            .clone()
    }

    /// The certificate for new connections; `None` if it cannot be described.
    pub(crate) fn certificate(&self) -> Option<ListenerCertificate> {
        let current = self.current.read();
        (current.unwrap_or_else(PoisonError::into_inner).certificate).clone()
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .modified
            != modification_times(&self.files)
    }

    /// Reads the files again. After an error the certificate in use stays, and the same files are not tried again until
    /// they change.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let modified = modification_times(&self.files);
        let built = build_server_config(&self.files);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.modified = modified;
        current.config = built?;
        current.certificate = describe_certificate(&self.files);
        Ok(())
    }
}

/// Checks that the files of a listener are usable, without opening it.
pub fn check_tls(files: &TlsConfig) -> Result<(), TlsError> {
    build_server_config(files).map(|_| ())
}

pub(crate) fn log_reload_result(result: Result<(), TlsError>) {
    match result {
        Ok(()) => tracing::info!("certificates reloaded; new connections use the new ones"),
        Err(error) => {
            tracing::error!(%error, "cannot reload certificates; those in use stay");
        }
    }
}

fn modification_times(files: &TlsConfig) -> Vec<Option<SystemTime>> {
    let paths = [
        Some(&files.certificate),
        Some(&files.private_key),
        files.client_ca.as_ref(),
    ];
    let time = |path| {
        std::fs::metadata(path)
            .and_then(|meta| meta.modified())
            .ok()
    };
    paths.into_iter().flatten().map(time).collect()
}

fn load_certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |reason: String| TlsError::File {
        what,
        path: path.display().to_string(),
        reason,
    };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(|e| failed(e.to_string()))?
        .collect::<Result<_, _>>()
        .map_err(|e| failed(e.to_string()))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.display().to_string(),
        });
    }
    Ok(certificates)
}

fn build_server_config(files: &TlsConfig) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = load_certificates("the certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.private_key).map_err(|e| TlsError::File {
        what: "the private key",
        path: files.private_key.display().to_string(),
        reason: e.to_string(),
    })?;
    let unusable = |reason: String| TlsError::Unusable {
        certificate: files.certificate.display().to_string(),
        private_key: files.private_key.display().to_string(),
        reason,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable(e.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in load_certificates("the client authorities", path)? {
                roots.add(authority).map_err(|e| unusable(e.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            let verifier = if files.require_client_certificate {
                verifier
            } else {
                verifier.allow_unauthenticated()
            };
            builder
                .with_client_cert_verifier(verifier.build().map_err(|e| unusable(e.to_string()))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| unusable(e.to_string()))?;
    config.alpn_protocols = Vec::new();
    Ok(Arc::new(config))
}

/// Describes the certificate in these files, which were loaded before.
fn describe_certificate(files: &TlsConfig) -> Option<ListenerCertificate> {
    describe_certificate_file(&files.certificate)
}

/// Describes the first certificate in a PEM file; `None` if it cannot be read.
pub fn describe_certificate_file(path: &Path) -> Option<ListenerCertificate> {
    let chain = load_certificates("the certificate", path).ok()?;
    let first = chain.first()?;
    let names = certificate_names(first)?.alternative_names;
    let certificate = x509_cert::Certificate::from_der(first).ok()?;
    let certificate = certificate.tbs_certificate();
    let validity = certificate.validity();
    let to_ms = |time: x509_cert::time::Time| {
        u64::try_from(time.to_unix_duration().as_millis()).unwrap_or(u64::MAX)
    };
    Some(ListenerCertificate {
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        names: names.iter().map(|name| name.to_string()).collect(),
        not_before_ms: to_ms(validity.not_before),
        not_after_ms: to_ms(validity.not_after),
        file: path.display().to_string(),
    })
}

/// The names in a client's certificate; `None` if it cannot be parsed.
pub(crate) fn certificate_names(certificate: &CertificateDer<'_>) -> Option<CertificateNames> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let certificate = certificate.tbs_certificate();
    let common_name = certificate.subject().common_name().ok().flatten();
    let alternative = certificate.get_extension::<SubjectAltName>().ok().flatten();
    let alternative_names = alternative.iter().flat_map(|(_, names)| &names.0);
    Some(CertificateNames {
        common_name: common_name.map(|name| name.value().into()),
        alternative_names: alternative_names.filter_map(general_name_text).collect(),
    })
}

fn general_name_text(name: &GeneralName) -> Option<Box<str>> {
    match name {
        GeneralName::Rfc822Name(text)
        | GeneralName::DnsName(text)
        | GeneralName::UniformResourceIdentifier(text) => Some(text.as_str().into()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string().into())
        }
        _ => None,
    }
}
