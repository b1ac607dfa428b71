//! Certificates for TLS tests, made anew in every run, and a blocking TLS client that trusts them.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};

use crate::support::Stream;

/// A certificate authority and the folder its files are written to.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

/// The PEM files of a certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    /// Makes an authority and writes its certificate to `dir`.
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
            .distinguished_name
            .push(DnType::CommonName, "Test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = dir.into();
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    /// The file with the authority's own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate for a server on this machine.
    pub(crate) fn server(&self, file_name: &str) -> Identity {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let params = CertificateParams::new(names).unwrap();
        self.sign(
            file_name,
            params,
            "localhost",
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    /// A certificate for a client.
    pub(crate) fn client(&self, common_name: &str) -> Identity {
        let params = CertificateParams::new(Vec::new()).unwrap();
        self.sign(
            common_name,
            params,
            common_name,
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }

    fn sign(
        &self,
        file_name: &str,
        mut params: CertificateParams,
        common_name: &str,
        usage: ExtendedKeyUsagePurpose,
    ) -> Identity {
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let identity = Identity {
            certificate: self.dir.join(format!("{file_name}.pem")),
            key: self.dir.join(format!("{file_name}.key")),
        };
        // The key first: a node that watches its certificate must never see a new one without its key.
        fs::write(&identity.key, key.serialize_pem()).unwrap();
        fs::write(&identity.certificate, certificate.pem()).unwrap();
        identity
    }

    /// As [`Authority::client_config`] without an identity, speaking only these versions.
    pub(crate) fn client_config_for(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let config = self.builder(versions).with_no_client_auth();
        Arc::new(config)
    }

    /// What a client needs to trust this authority's servers, showing `identity` if asked.
    pub(crate) fn client_config(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        let builder = self.builder(rustls::DEFAULT_VERSIONS);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = vec![read_certificate(&identity.certificate)];
                let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        Arc::new(config)
    }

    fn builder(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
    }

    /// Connects with TLS and finishes the handshake. In TLS 1.3 a server that refuses the client's certificate says so
    /// only after that: the error then comes with the first read.
    pub(crate) fn connect(
        &self,
        address: &str,
        identity: Option<&Identity>,
    ) -> Result<TlsStream, std::io::Error> {
        connect(address, self.client_config(identity))
    }
}

pub(crate) fn connect(
    address: &str,
    config: Arc<ClientConfig>,
) -> Result<TlsStream, std::io::Error> {
    connect_over(TcpStream::connect(address)?, config)
}

/// The handshake over a socket that has been used for something else before.
pub(crate) fn connect_over(
    mut socket: TcpStream,
    config: Arc<ClientConfig>,
) -> Result<TlsStream, std::io::Error> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(config, name).unwrap();
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(crate::support::DEADLINE))?;
    while session.is_handshaking() {
        session.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(session, socket))
}

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

impl Stream for TlsStream {
    fn set_timeouts(&mut self, timeout: Duration) {
        self.sock.set_timeouts(timeout);
    }

    fn shut(&mut self) {
        self.sock.shut();
    }
}

/// The certificate the server showed.
pub(crate) fn server_certificate(stream: &TlsStream) -> CertificateDer<'static> {
    let chain = stream
        .conn
        .peer_certificates()
        .expect("a server always shows one");
    chain[0].clone().into_owned()
}

pub(crate) fn read_certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}
