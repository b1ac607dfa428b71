//! Signatures of images: minisign, and X.509 certificates.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minisign_verify::{PublicKey, Signature, StreamVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use webpki::{EndEntityCert, KeyUsage};
use x509_cert::der::Decode as _;

use crate::definition_error::DefinitionError;

const MAX_TEXT_BYTES: usize = 64 << 10;
/// Maximum number of certificates in a signature.
const MAX_CERTIFICATES: usize = 8;
/// The extended key usage "code signing" (RFC 5280, section 4.2.1.12).
const CODE_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];

/// The kind of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignatureScheme {
    Minisign,
    X509,
}

/// A signature of an image. It is verified when the package is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackageSignature {
    pub scheme: SignatureScheme,
    /// For `minisign` the content of the `.minisig` file. For `x509` the signature in base64, as `openssl dgst -sha256 -sign`
    /// writes it.
    #[schemars(length(min = 1, max = 65536))]
    pub value: String,
    /// For `x509` the certificate of the signer and the intermediate ones, in PEM.
    #[serde(default)]
    #[schemars(length(max = 65536))]
    pub certificates: Option<String>,
}

/// Settings of the section `[firmware]` about signatures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustSettings {
    /// Minisign public keys separated by commas.
    pub minisign_keys: String,
    /// PEM file with the certificates that signers' certificates must lead to.
    pub ca_file: Option<PathBuf>,
    /// Whether packages without a signature are rejected.
    pub require_signature: bool,
}

/// A setting about signatures that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {detail}")]
pub struct TrustError {
    pub setting: &'static str,
    pub detail: String,
}

/// The keys whose signatures count.
pub(crate) struct TrustedKeys {
    minisign: Vec<(String, PublicKey)>,
    anchors: Vec<TrustAnchor<'static>>,
    pub(crate) requires_signature: bool,
}

impl TrustedKeys {
    pub(crate) fn open(settings: &TrustSettings) -> Result<Self, TrustError> {
        let mut minisign = Vec::new();
        let keys = settings.minisign_keys.split(',').map(str::trim);
        for key in keys.filter(|key| !key.is_empty()) {
            let parsed = PublicKey::from_base64(key).map_err(|error| TrustError {
                setting: "firmware.minisign_keys",
                detail: format!("{key:?} is not the second line of a minisign.pub file: {error}"),
            })?;
            minisign.push((key.to_owned(), parsed));
        }
        let mut anchors = Vec::new();
        if let Some(path) = &settings.ca_file {
            let invalid = |detail: String| TrustError {
                setting: "firmware.ca_file",
                detail: format!("{}: {detail}", path.display()),
            };
            let pem = fs::read(path).map_err(|error| invalid(error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
                let anchor = webpki::anchor_from_trusted_cert(&certificate);
                anchors.push(
                    anchor
                        .map_err(|error| invalid(error.to_string()))?
                        .to_owned(),
                );
            }
            if anchors.is_empty() {
                return Err(invalid(
                    "expected at least one certificate in PEM".to_owned(),
                ));
            }
        }
        Ok(Self {
            minisign,
            anchors,
            requires_signature: settings.require_signature,
        })
    }

    /// Prepares the verification of a signature.
    pub(crate) fn parse(
        &self,
        written: &PackageSignature,
    ) -> Result<ParsedSignature, DefinitionError> {
        let invalid = |field: &str, detail: String| {
            Err(DefinitionError::new(&format!("signature.{field}"), detail))
        };
        let certificates = written.certificates.as_deref().unwrap_or_default();
        for (field, text) in [
            ("value", written.value.as_str()),
            ("certificates", certificates),
        ] {
            if text.len() > MAX_TEXT_BYTES {
                return invalid(field, format!("expected at most {MAX_TEXT_BYTES} bytes"));
            }
        }
        match written.scheme {
            SignatureScheme::Minisign => {
                if self.minisign.is_empty() {
                    let detail = "this node trusts no minisign key (firmware.minisign_keys)";
                    return invalid("scheme", detail.to_owned());
                }
                match Signature::decode(&written.value) {
                    Ok(signature) => Ok(ParsedSignature::Minisign(Box::new(signature))),
                    Err(error) => {
                        let detail = format!("expected the content of a .minisig file: {error}");
                        invalid("value", detail)
                    }
                }
            }
            SignatureScheme::X509 => {
                if self.anchors.is_empty() {
                    let detail = "this node trusts no certificate (firmware.ca_file)";
                    return invalid("scheme", detail.to_owned());
                }
                let compact: String = written.value.split_ascii_whitespace().collect();
                let Ok(value) = STANDARD.decode(compact) else {
                    return invalid("value", "expected base64".to_owned());
                };
                let parsed = CertificateDer::pem_slice_iter(certificates.as_bytes());
                match parsed.collect::<Result<Vec<_>, _>>() {
                    Ok(chain) if (1..=MAX_CERTIFICATES).contains(&chain.len()) => {
                        Ok(ParsedSignature::X509 { value, chain })
                    }
                    _ => invalid(
                        "certificates",
                        format!("expected 1 to {MAX_CERTIFICATES} certificates in PEM"),
                    ),
                }
            }
        }
    }

    /// Begins to verify a minisign signature; also returns the key that must have made it.
    pub(crate) fn minisign_verifier<'s>(
        &'s self,
        signature: &'s Signature,
    ) -> Result<(StreamVerifier<'s>, String), DefinitionError> {
        let mut rejection = None;
        for (text, key) in &self.minisign {
            match key.verify_stream(signature) {
                Ok(verifier) => return Ok((verifier, format!("minisign {text}"))),
                Err(minisign_verify::Error::UnexpectedKeyId) => {}
                Err(error) => rejection = Some(error.to_string()),
            }
        }
        let detail = rejection.unwrap_or_else(|| {
            "it was made with a key that this node does not trust (firmware.minisign_keys)"
                .to_owned()
        });
        Err(DefinitionError::new("signature.value", detail))
    }

    /// Verifies an X.509 signature; returns who made it.
    pub(crate) fn verify_x509(
        &self,
        value: &[u8],
        chain: &[CertificateDer<'static>],
        image: &[u8],
    ) -> Result<String, DefinitionError> {
        let untrusted = |error: webpki::Error| {
            let detail = format!("the certificate is not one that this node trusts: {error}");
            DefinitionError::new("signature.certificates", detail)
        };
        let (signer, intermediates) = chain
            .split_first()
            .expect("a parsed chain has a certificate");
        let certificate = EndEntityCert::try_from(signer).map_err(untrusted)?;
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        let verified = certificate.verify_for_usage(
            algorithms,
            &self.anchors,
            intermediates,
            UnixTime::now(),
            KeyUsage::required_if_present(CODE_SIGNING),
            None,
            None,
        );
        verified.map_err(untrusted)?;
        let mut algorithms = algorithms.iter();
        let is_valid = |algorithm| {
            certificate
                .verify_signature(algorithm, image, value)
                .is_ok()
        };
        if !algorithms.any(|algorithm| is_valid(*algorithm)) {
            let detail = "it is not a signature of this image by the first certificate";
            return Err(DefinitionError::new("signature.value", detail));
        }
        let subject = x509_cert::Certificate::from_der(signer);
        let subject = subject.map(|read| read.tbs_certificate().subject().to_string());
        Ok(format!("x509 {}", subject.unwrap_or_default()))
    }
}

/// A signature in the form in which it is verified.
pub(crate) enum ParsedSignature {
    Minisign(Box<Signature>),
    X509 {
        value: Vec<u8>,
        /// The certificate of the signer comes first.
        chain: Vec<CertificateDer<'static>>,
    },
}
