//! Certificates of an authority that is created for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// A certificate authority and the folder its files are written to.
pub struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

/// The PEM files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl CertificateAuthority {
    /// Makes an authority and writes its certificate to `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> CertificateAuthority {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        // Of two with the same name, one would look like a forged other.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::new(Vec::new()).expect("no names, none wrong");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Test authority {number}"));
        let issuer = CertifiedIssuer::self_signed(params, generate_key()).expect("a key can sign");
        let dir = dir.into();
        fs::create_dir_all(&dir).expect("a folder can be made");
        write_private(&dir.join("ca.pem"), &issuer.pem());
        CertificateAuthority { issuer, dir }
    }

    /// The file with the authority's own certificate.
    pub fn certificate_path(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// The authority's own certificate.
    pub fn der(&self) -> &[u8] {
        self.issuer.der()
    }

    /// A certificate for a server on this machine.
    pub fn issue_server(&self, file_name: &str) -> TlsIdentity {
        self.issue_server_for(file_name, &["localhost", "127.0.0.1", "::1"])
    }

    /// A certificate for a server with these names and addresses.
    pub fn issue_server_for(&self, file_name: &str, names: &[&str]) -> TlsIdentity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let common_name = names[0].clone();
        let params = CertificateParams::new(names).expect("the test's names are right");
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(file_name, params, &common_name, usages)
    }

    /// A certificate for a program on this machine that accepts and opens connections, such as a server of a cluster.
    pub fn issue_peer(&self, file_name: &str) -> TlsIdentity {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let params = CertificateParams::new(names).expect("the names are right");
        let usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.sign(file_name, params, file_name, usages)
    }

    /// A certificate for a client.
    pub fn issue_client(&self, common_name: &str) -> TlsIdentity {
        let params = CertificateParams::new(Vec::new()).expect("no names, none wrong");
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(common_name, params, common_name, usages)
    }

    fn sign(
        &self,
        file_name: &str,
        mut params: CertificateParams,
        common_name: &str,
        usages: Vec<ExtendedKeyUsagePurpose>,
    ) -> TlsIdentity {
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        let key = generate_key();
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("a key can sign");
        let identity = TlsIdentity {
            certificate: self.dir.join(format!("{file_name}.pem")),
            key: self.dir.join(format!("{file_name}.key")),
        };
        // The key first: a node that watches its certificate must never see a new one without its key.
        write_private(&identity.key, &key.serialize_pem());
        write_private(&identity.certificate, &certificate.pem());
        identity
    }
}

fn generate_key() -> KeyPair {
    KeyPair::generate().expect("the machine has randomness")
}

/// For the owner alone: servers refuse keys that others may read.
fn write_private(path: &Path, text: &str) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = fs::File::options();
    let opened = options.write(true).create(true).truncate(true).mode(0o600);
    let written = opened
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
