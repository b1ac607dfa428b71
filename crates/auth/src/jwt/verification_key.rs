//! Verification keys from a secret, PEM or a JSON Web Key Set, and signature checks (RFC 7515, 7517, 7518, 8037). An
//! algorithm is accepted only with a key of its kind, so that a public key cannot be used as a shared secret.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use ring::{hmac, signature::RsaParameters};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use serde::Deserialize;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::spki::SubjectPublicKeyInfoRef;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
/// Maximum number of keys per set.
const MAX_KEYS: usize = 256;

pub(crate) struct VerificationKey {
    pub(super) id: Option<String>,
    /// The only algorithm allowed for the key, if specified.
    algorithm: Option<String>,
    material: KeyMaterial,
}

enum KeyMaterial {
    Secret(Vec<u8>),
    /// PKCS#1.
    RsaDer(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// Uncompressed points.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl VerificationKey {
    pub(super) fn from_secret(secret: &[u8]) -> Result<Self, String> {
        if secret.is_empty() {
            return Err("the secret is empty".into());
        }
        Ok(Self::from_material(KeyMaterial::Secret(secret.to_vec())))
    }

    fn from_material(material: KeyMaterial) -> Self {
        Self {
            id: None,
            algorithm: None,
            material,
        }
    }

    /// Parses a public key (`PUBLIC KEY`) or a certificate.
    pub(super) fn from_pem(pem: &[u8]) -> Result<Self, String> {
        if let Ok(der) = SubjectPublicKeyInfoDer::from_pem_slice(pem) {
            return Self::from_spki(&der);
        }
        let certificate = CertificateDer::from_pem_slice(pem).map_err(
            |_| "expected a PEM file with a public key (BEGIN PUBLIC KEY) or a certificate",
        )?;
        let certificate = x509_cert::Certificate::from_der(&certificate)
            .map_err(|_| "the certificate cannot be read")?;
        let key = certificate.tbs_certificate().subject_public_key_info();
        Self::from_spki(&key.to_der().map_err(|_| "the certificate cannot be read")?)
    }

    fn from_spki(der: &[u8]) -> Result<Self, String> {
        let unreadable = "the public key cannot be read";
        let info = SubjectPublicKeyInfoRef::from_der(der).map_err(|_| unreadable)?;
        let bytes = info.subject_public_key.as_bytes().ok_or(unreadable)?;
        let bytes = bytes.to_vec();
        let curve = || info.algorithm.parameters_oid().ok();
        Ok(Self::from_material(match info.algorithm.oid {
            RSA => KeyMaterial::RsaDer(bytes),
            ED25519 => KeyMaterial::Ed25519(bytes),
            EC if curve() == Some(P256) => KeyMaterial::P256(bytes),
            EC if curve() == Some(P384) => KeyMaterial::P384(bytes),
            _ => return Err("expected a key for RSA, P-256, P-384 or Ed25519".into()),
        }))
    }

    /// Whether the signature was made by this key. `None`: the algorithm does not fit the key.
    pub(super) fn verify_signature(
        &self,
        algorithm: &str,
        message: &[u8],
        signature: &[u8],
    ) -> Option<bool> {
        if self
            .algorithm
            .as_deref()
            .is_some_and(|own| own != algorithm)
        {
            return None;
        }
        let by_secret = |mac: hmac::Algorithm, secret: &[u8]| {
            let key = hmac::Key::new(mac, secret);
            Some(hmac::verify(&key, message, signature).is_ok())
        };
        let by_key = |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| {
            let key = UnparsedPublicKey::new(algorithm, key);
            Some(key.verify(message, signature).is_ok())
        };
        match (&self.material, algorithm) {
            (KeyMaterial::Secret(secret), "HS256") => by_secret(hmac::HMAC_SHA256, secret),
            (KeyMaterial::Secret(secret), "HS384") => by_secret(hmac::HMAC_SHA384, secret),
            (KeyMaterial::Secret(secret), "HS512") => by_secret(hmac::HMAC_SHA512, secret),
            (KeyMaterial::RsaDer(key), algorithm) => by_key(rsa_parameters(algorithm)?, key),
            (KeyMaterial::Rsa { n, e }, algorithm) => {
                let key = RsaPublicKeyComponents { n, e };
                Some(
                    key.verify(rsa_parameters(algorithm)?, message, signature)
                        .is_ok(),
                )
            }
            (KeyMaterial::P256(key), "ES256") => by_key(&signature::ECDSA_P256_SHA256_FIXED, key),
            (KeyMaterial::P384(key), "ES384") => by_key(&signature::ECDSA_P384_SHA384_FIXED, key),
            (KeyMaterial::Ed25519(key), "EdDSA" | "Ed25519") => by_key(&signature::ED25519, key),
            _ => None,
        }
    }
}

fn rsa_parameters(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// One key of a set. Unknown fields are ignored.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default, rename = "use")]
    usage: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
    #[serde(default)]
    k: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<serde_json::Value>,
}

/// The usable keys of a JSON Web Key Set.
pub(super) fn keys_from_jwks(json: &[u8]) -> Result<Vec<VerificationKey>, String> {
    let set: Jwks = serde_json::from_slice(json)
        .map_err(|_| "expected a JSON Web Key Set: {\"keys\": [...]}")?;
    let keys = set.keys.into_iter().take(MAX_KEYS);
    let keys = keys.filter_map(|key| serde_json::from_value::<Jwk>(key).ok()?.into_key());
    let keys: Vec<_> = keys.collect();
    match keys.is_empty() {
        true => Err("the key set contains no usable key".into()),
        false => Ok(keys),
    }
}

impl Jwk {
    fn into_key(self) -> Option<VerificationKey> {
        if self.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |field: &Option<String>| URL_SAFE_NO_PAD.decode(field.as_ref()?).ok();
        let point = |len: usize| {
            let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
            let point = [&[4][..], &x, &y].concat();
            (x.len() == len && y.len() == len).then_some(point)
        };
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => KeyMaterial::Rsa {
                n: bytes(&self.n)?,
                e: bytes(&self.e)?,
            },
            ("EC", Some("P-256")) => KeyMaterial::P256(point(32)?),
            ("EC", Some("P-384")) => KeyMaterial::P384(point(48)?),
            ("OKP", Some("Ed25519")) => KeyMaterial::Ed25519(bytes(&self.x)?),
            ("oct", _) => KeyMaterial::Secret(bytes(&self.k).filter(|secret| !secret.is_empty())?),
            _ => return None,
        };
        Some(VerificationKey {
            id: self.kid,
            algorithm: self.alg,
            material,
        })
    }
}
