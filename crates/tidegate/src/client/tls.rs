//! TLS towards a broker: trusted authorities and the client certificate.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use super::error::ClientError;

/// Maximum number of certificate names listed in an error.
const MAX_LISTED_NAMES: usize = 5;

#[derive(Args, Clone)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    /// Connect with TLS and trust the authorities of this system
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    pub(super) trust: TlsTrustArgs,
    /// ALPN protocol to offer; repeatable
    #[arg(long, value_name = "NAME")]
    alpn: Vec<String>,
}

/// Trusted authorities, and the client certificate.
#[derive(Args, Clone)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsTrustArgs {
    /// PEM file with the authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    cafile: Option<PathBuf>,
    /// PEM file with the client certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Accept any certificate; for tests only
    #[arg(long)]
    insecure: bool,
    /// Name expected in the server's certificate [default: the host]
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
}

impl TlsArgs {
    pub(super) fn is_requested(&self) -> bool {
        let TlsTrustArgs {
            cafile,
            cert,
            insecure,
            ..
        } = &self.trust;
        self.tls || cafile.is_some() || cert.is_some() || *insecure
    }

    /// The TLS configuration of the arguments, after reading the files.
    pub(super) fn client_config(&self) -> Result<Arc<ClientConfig>, ClientError> {
        let mut config = client_config(&self.trust)?;
        let names = self.alpn.iter().map(|name| name.as_bytes().to_vec());
        config.alpn_protocols = names.collect();
        Ok(Arc::new(config))
    }
}

/// The TLS configuration of the arguments, after reading the files.
pub(crate) fn client_config(arguments: &TlsTrustArgs) -> Result<ClientConfig, ClientError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers for the default versions");
    let builder = if arguments.insecure {
        outbound::tls::without_certificate_verification(builder)
    } else {
        builder.with_root_certificates(roots(arguments.cafile.as_deref())?)
    };
    match (&arguments.cert, &arguments.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let key_der = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| file_error(key, &error, "a private key"))?;
            builder
                .with_client_auth_cert(chain, key_der)
                .map_err(|error| {
                    let (cert, key) = (cert.display(), key.display());
                    ClientError::Usage(format!("{cert} and {key} cannot be used together: {error}"))
                })
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

/// For HTTP: trusts the authorities of this file, or of the system.
pub(crate) fn for_https(cafile: Option<&Path>) -> Result<Arc<ClientConfig>, ClientError> {
    let mut config = trusting(cafile)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Trusts the authorities of this file, or those of the system.
pub(super) fn trusting(cafile: Option<&Path>) -> Result<ClientConfig, ClientError> {
    Ok(
        ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has ciphers for the default versions")
            .with_root_certificates(roots(cafile)?)
            .with_no_client_auth(),
    )
}

fn roots(cafile: Option<&Path>) -> Result<RootCertStore, ClientError> {
    let mut roots = RootCertStore::empty();
    match cafile {
        Some(path) => {
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| {
                    ClientError::Usage(format!("{} holds no authority: {error}", path.display()))
                })?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(ClientError::Usage(
                    "this system lists no certificate authorities; name one with --cafile FILE"
                        .into(),
                ));
            }
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let what = "a certificate";
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| file_error(path, &error, what))?;
    match certificates.is_empty() {
        true => Err(file_error(path, &PemError::NoItemsFound, what)),
        false => Ok(certificates),
    }
}

fn file_error(path: &Path, error: &PemError, what: &str) -> ClientError {
    let path = path.display();
    ClientError::Usage(match error {
        PemError::Io(error) => format!("{path} cannot be read: {error}"),
        PemError::NoItemsFound => format!("{path} holds no PEM section with {what}"),
        error => format!("{path} is not a PEM file: {error}"),
    })
}

/// Describes a connection error; [`handshake_hint`] returns the remedy.
pub(crate) fn describe(error: &std::io::Error) -> String {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(problem)) => {
            format!("the server's certificate {}", describe_certificate(problem))
        }
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "the server requires a client certificate".into()
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            format!("the server rejected the TLS handshake ({alert:?})")
        }
        _ if error.kind() == ErrorKind::UnexpectedEof => {
            "the server closed the connection during the TLS handshake".into()
        }
        _ => error.to_string(),
    }
}

fn describe_certificate(problem: &CertificateError) -> String {
    match problem {
        problem if is_untrusted(problem) => "is not signed by a trusted authority".into(),
        CertificateError::Expired => "has expired".into(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("expired on {}", utc(*not_after))
        }
        CertificateError::NotValidYet => "is not valid yet".into(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("is not valid before {}", utc(*not_before))
        }
        CertificateError::Revoked => "is revoked".into(),
        CertificateError::NotValidForName => "is for another name".into(),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names = presented.iter().map(|name| plain_name(name));
            let names: Vec<_> = names.take(MAX_LISTED_NAMES).collect();
            let expected = expected.to_str();
            match presented.len().saturating_sub(names.len()) {
                _ if names.is_empty() => format!("is not for {expected}: it has no names"),
                0 => format!("is not for {expected}, only for {}", names.join(", ")),
                more => format!(
                    "is not for {expected}, only for {} and {more} more",
                    names.join(", ")
                ),
            }
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not meant for servers (extended key usage)".into()
        }
        CertificateError::BadEncoding => "cannot be decoded".into(),
        CertificateError::UnhandledCriticalExtension => {
            "has a critical extension that is not supported".into()
        }
        // Errors of webpki that rustls passes on without a variant.
        CertificateError::Other(other) => match format!("{other:?}") {
            text if text.contains("CaUsedAsEndEntity") => {
                "is that of an authority, which servers cannot use".into()
            }
            text if text.contains("UnsupportedCertVersion") => {
                "is not of X.509 version 3, the only one supported".into()
            }
            text => format!("is not valid: {}", innermost(&text)),
        },
        other => format!("is not valid: {other}"),
    }
}

/// rustls formats names as `DnsName("a.example")` or `IpAddress(10.0.0.1)`.
fn plain_name(name: &str) -> &str {
    let inside = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inside.unwrap_or(name).trim_matches('"')
}

/// The name `B` in `OtherError(A(B))`.
fn innermost(debug: &str) -> &str {
    let inside = debug.trim_end_matches(')').rsplit('(').next();
    inside.unwrap_or(debug)
}

fn utc(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| format!("second {seconds} of Unix time"),
        |time| time.to_string(),
    )
}

fn tls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The remedy for a failed handshake, if there is one.
pub(super) fn handshake_hint(error: &std::io::Error) -> &'static str {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(problem)) if is_untrusted(problem) => {
            "; name its authority with --cafile FILE (or check nothing with --insecure)"
        }
        Some(rustls::Error::InvalidCertificate(
            NotValidForName | NotValidForNameContext { .. },
        )) => "; give the name in the certificate with --tls-server-name",
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "; give one with --cert FILE and --key FILE"
        }
        Some(rustls::Error::InvalidMessage(_)) => "; check that the port serves TLS",
        _ if error.kind() == ErrorKind::UnexpectedEof => "; check that the port serves TLS",
        _ => "",
    }
}

/// Whether no trusted authority has signed the certificate. An authority of the same name but with
/// another key, such as a previous self-signed certificate, fails at the signature.
fn is_untrusted(problem: &CertificateError) -> bool {
    matches!(
        problem,
        CertificateError::UnknownIssuer
            | CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
    )
}

/// The remedy of `tidegate ctl`, which has fewer TLS options.
pub(crate) fn https_hint(error: &std::io::Error) -> &'static str {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(problem)) if is_untrusted(problem) => {
            "; name its authority with --cafile FILE"
        }
        Some(rustls::Error::InvalidMessage(_)) => "; check that the port serves HTTPS",
        _ if error.kind() == ErrorKind::UnexpectedEof => "; check that the port serves HTTPS",
        _ => "",
    }
}
