//! Certificates for TLS tests, made anew in every run, and a blocking TLS client that trusts them.

use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};
pub(crate) use testkit::TlsIdentity;

use crate::support::Stream;

/// A certificate authority, and clients that trust it.
pub(crate) struct Authority(testkit::CertificateAuthority);

impl Deref for Authority {
    type Target = testkit::CertificateAuthority;

    fn deref(&self) -> &testkit::CertificateAuthority {
        &self.0
    }
}

impl Authority {
    /// Makes an authority and writes its certificate to `dir`.
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Authority {
        Self(testkit::CertificateAuthority::new(dir))
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
    pub(crate) fn client_config(&self, identity: Option<&TlsIdentity>) -> Arc<ClientConfig> {
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
        roots.add(CertificateDer::from_slice(self.der())).unwrap();
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
    }

    /// Connects with TLS and finishes the handshake. In TLS 1.3 a server that rejects the client's certificate says so
    /// only after that: the error then comes with the first read.
    pub(crate) fn connect(
        &self,
        address: &str,
        identity: Option<&TlsIdentity>,
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
