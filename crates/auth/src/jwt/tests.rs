//! Valid and invalid tokens of each kind, created here.

use std::sync::LazyLock;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use ring::{hmac, signature};
use serde_json::{Value, json};

use super::*;
use crate::authenticator::{AuthenticatedIdentity, Password};

const SECRET: &[u8] = b"a secret of some length";

/// Signs `head.claims`.
fn token(
    algorithm: &str,
    kid: Option<&str>,
    claims: &Value,
    sign: &dyn Fn(&[u8]) -> Vec<u8>,
) -> String {
    let mut head = json!({"alg": algorithm, "typ": "JWT"});
    if let Some(kid) = kid {
        head["kid"] = json!(kid);
    }
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(&head), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn hs256(claims: Value) -> String {
    let sign = |message: &[u8]| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        hmac::sign(&key, message).as_ref().to_vec()
    };
    token("HS256", None, &claims, &sign)
}

fn request(token: &str) -> LoginRequest {
    LoginRequest {
        client_id: "c1".into(),
        username: Some("ann".into()),
        password: Some(Password(token.as_bytes().to_vec())),
        ..LoginRequest::default()
    }
}

fn by(settings: Value) -> Result<JwtAuthenticator, String> {
    let settings: JwtSettings = crate::json::parse(&settings)?;
    JwtAuthenticator::new(&settings, &Handle::current())
}

fn by_secret() -> JwtAuthenticator {
    by(json!({"secret": std::str::from_utf8(SECRET).unwrap()})).unwrap()
}

async fn ask(jwt: &JwtAuthenticator, token: &str) -> AuthenticatorAnswer {
    jwt.check(&request(token)).await.unwrap()
}

fn identity(answer: AuthenticatorAnswer) -> AuthenticatedIdentity {
    match answer {
        AuthenticatorAnswer::Allow(identity) => *identity,
        other => panic!("{other:?}"),
    }
}

fn in_an_hour_s() -> u64 {
    wall_clock::now_ms() / 1000 + 3600
}

#[tokio::test]
async fn a_signed_token_authenticates_with_its_claims() {
    let exp = in_an_hour_s();
    let claims = json!({"exp": exp, "is_superuser": true, "client_attrs": {"site": "a"},
        "acl": [{"permission": "allow", "action": "publish", "topic": "t/${clientid}"}]});
    let granted = identity(ask(&by_secret(), &hs256(claims)).await);
    assert_eq!(granted.expires_at_ms, Some(exp * 1000));
    assert!(granted.is_superuser);
    assert_eq!(granted.rules.len(), 1);
    assert_eq!(granted.attributes, [("site".into(), "a".into())]);
}

#[tokio::test]
async fn a_token_out_of_its_time_is_rejected() {
    let jwt = by_secret();
    let past = wall_clock::now_ms() / 1000 - 1;
    assert_eq!(
        ask(&jwt, &hs256(json!({"exp": past}))).await,
        AuthenticatorAnswer::Deny
    );
    assert_eq!(
        ask(&jwt, &hs256(json!({"exp": "soon"}))).await,
        AuthenticatorAnswer::Deny
    );
    let future = json!({"nbf": in_an_hour_s()});
    assert_eq!(ask(&jwt, &hs256(future)).await, AuthenticatorAnswer::Deny);
    let strict = json!({"secret": std::str::from_utf8(SECRET).unwrap(),
        "claims": {"require_expiry": true}});
    let strict = by(strict).unwrap();
    assert_eq!(
        ask(&strict, &hs256(json!({}))).await,
        AuthenticatorAnswer::Deny
    );
}

#[tokio::test]
async fn a_token_nobody_here_signed_is_not_ours() {
    let jwt = by_secret();
    let good = hs256(json!({}));
    let mut bad = good.clone();
    // Change the last character but one: the last may contain unused bits only.
    let at = bad.len() - 2;
    let other = if &bad[at..=at] == "A" { "B" } else { "A" };
    bad.replace_range(at..=at, other);
    assert_eq!(ask(&jwt, &bad).await, AuthenticatorAnswer::Ignore);
    for text in ["", "x", "a.b.c", "..", &good[..good.len() - 5]] {
        assert_eq!(
            ask(&jwt, text).await,
            AuthenticatorAnswer::Ignore,
            "{text:?}"
        );
    }
    let unsigned = token("none", None, &json!({}), &|_| Vec::new());
    assert_eq!(ask(&jwt, &unsigned).await, AuthenticatorAnswer::Ignore);
}

#[tokio::test]
async fn required_claims_must_fit_the_client() {
    let jwt = by(json!({"secret": std::str::from_utf8(SECRET).unwrap(),
        "required_claims": {"sub": "${username}", "aud": "tidegate"}}))
    .unwrap();
    let ask = async |claims| ask(&jwt, &hs256(claims)).await;
    assert!(matches!(
        ask(json!({"sub": "ann", "aud": ["x", "tidegate"]})).await,
        AuthenticatorAnswer::Allow(_)
    ));
    assert_eq!(
        ask(json!({"sub": "bob", "aud": "tidegate"})).await,
        AuthenticatorAnswer::Deny
    );
    assert_eq!(ask(json!({"sub": "ann"})).await, AuthenticatorAnswer::Deny);
    // A client without a name does not match a token without one.
    let nameless = LoginRequest {
        username: None,
        ..request(&hs256(json!({"aud": "tidegate", "sub": ""})))
    };
    assert_eq!(jwt.check(&nameless).await, Ok(AuthenticatorAnswer::Deny));
}

#[tokio::test]
async fn names_can_come_from_the_token() {
    let jwt = by(json!({"secret": std::str::from_utf8(SECRET).unwrap(),
        "claims": {"username": "sub", "client_id": "device"}}))
    .unwrap();
    let granted = identity(ask(&jwt, &hs256(json!({"sub": "eve", "device": "d1"}))).await);
    assert_eq!(granted.username.as_deref(), Some("eve"));
    assert_eq!(granted.client_id.as_deref(), Some("d1"));
    assert_eq!(
        ask(&jwt, &hs256(json!({"sub": "eve"}))).await,
        AuthenticatorAnswer::Deny
    );
    let jwt = by(json!({"secret": std::str::from_utf8(SECRET).unwrap(), "from": "username"}));
    let jwt = jwt.unwrap();
    let as_name = |claims| LoginRequest {
        username: Some(hs256(claims)),
        password: None,
        ..LoginRequest::default()
    };
    let granted = jwt.check(&as_name(json!({"sub": "eve"}))).await.unwrap();
    assert_eq!(identity(granted).username.as_deref(), Some("eve"));
    let granted = jwt.check(&as_name(json!({}))).await.unwrap();
    assert!(identity(granted).is_anonymous, "a token is no name");
}

static EC: LazyLock<EcdsaKeyPair> = LazyLock::new(|| {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap()
});

fn es256(kid: Option<&str>) -> String {
    let sign = |message: &[u8]| {
        let signed = EC.sign(&SystemRandom::new(), message).unwrap();
        signed.as_ref().to_vec()
    };
    token("ES256", kid, &json!({}), &sign)
}

fn ec_jwk(kid: &str) -> Value {
    let point = EC.public_key().as_ref();
    json!({"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig",
        "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..])})
}

fn ed25519() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

#[tokio::test]
async fn a_key_set_in_a_file_is_read_again_when_it_changes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let edwards = json!({"kty": "OKP", "crv": "Ed25519", "kid": "ed",
        "x": URL_SAFE_NO_PAD.encode(ed25519().public_key())});
    let write = |keys: &[&Value]| {
        std::fs::write(file.path(), json!({"keys": keys}).to_string()).unwrap();
    };
    write(&[&edwards, &json!({"kty": "unknown"})]);
    let jwt = by(json!({"jwks_file": file.path()})).unwrap();
    let signed = token("EdDSA", Some("ed"), &json!({}), &|message| {
        ed25519().sign(message).as_ref().to_vec()
    });
    assert!(matches!(
        ask(&jwt, &signed).await,
        AuthenticatorAnswer::Allow(_)
    ));
    assert_eq!(
        ask(&jwt, &es256(Some("ec"))).await,
        AuthenticatorAnswer::Ignore
    );
    write(&[&ec_jwk("ec")]);
    jwt.keys.force_reload();
    assert!(matches!(
        ask(&jwt, &es256(Some("ec"))).await,
        AuthenticatorAnswer::Allow(_)
    ));
    assert_eq!(
        ask(&jwt, &es256(Some("other"))).await,
        AuthenticatorAnswer::Ignore
    );
    assert_eq!(ask(&jwt, &signed).await, AuthenticatorAnswer::Ignore);
    std::fs::write(file.path(), "{}").unwrap();
    jwt.keys.force_reload();
    assert!(matches!(
        ask(&jwt, &es256(Some("ec"))).await,
        AuthenticatorAnswer::Allow(_)
    ));
}

#[tokio::test]
async fn a_public_key_is_never_taken_for_a_secret() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json!({"keys": [ec_jwk("ec")]}).to_string()).unwrap();
    let jwt = by(json!({"jwks_file": file.path()})).unwrap();
    let public = EC.public_key().as_ref().to_vec();
    let forged = token("HS256", Some("ec"), &json!({}), &|message| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &public);
        hmac::sign(&key, message).as_ref().to_vec()
    });
    assert_eq!(ask(&jwt, &forged).await, AuthenticatorAnswer::Ignore);
}

#[tokio::test]
async fn only_configured_algorithms_are_accepted() {
    let jwt = by(json!({"secret": std::str::from_utf8(SECRET).unwrap(), "algorithms": ["HS512"]}));
    assert_eq!(
        ask(&jwt.unwrap(), &hs256(json!({}))).await,
        AuthenticatorAnswer::Ignore
    );
}

/// Output of `openssl genrsa 2048`, created for this test.
const RSA_PRIVATE: &str = include_str!("test_rsa_private.pem");
const RSA_PUBLIC: &str = include_str!("test_rsa_public.pem");

#[tokio::test]
async fn rsa_keys_in_pem_check_both_paddings() {
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::pki_types::pem::PemObject as _;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), RSA_PUBLIC).unwrap();
    let jwt = by(json!({"public_key_file": file.path()})).unwrap();
    let private = PrivatePkcs8KeyDer::from_pem_slice(RSA_PRIVATE.as_bytes()).unwrap();
    let pair = signature::RsaKeyPair::from_pkcs8(private.secret_pkcs8_der()).unwrap();
    let sign = |padding: &'static dyn signature::RsaEncoding, message: &[u8]| {
        let mut signed = vec![0; pair.public().modulus_len()];
        pair.sign(padding, &SystemRandom::new(), message, &mut signed)
            .unwrap();
        signed
    };
    let pkcs1 = |message: &[u8]| sign(&signature::RSA_PKCS1_SHA256, message);
    let pss = |message: &[u8]| sign(&signature::RSA_PSS_SHA384, message);
    let good = token("RS256", None, &json!({}), &pkcs1);
    assert!(matches!(
        ask(&jwt, &good).await,
        AuthenticatorAnswer::Allow(_)
    ));
    let good = token("PS384", None, &json!({}), &pss);
    assert!(matches!(
        ask(&jwt, &good).await,
        AuthenticatorAnswer::Allow(_)
    ));
    let bad = token("RS512", None, &json!({}), &pkcs1);
    assert_eq!(ask(&jwt, &bad).await, AuthenticatorAnswer::Ignore);
}

#[tokio::test]
async fn invalid_settings_are_rejected() {
    let error = |settings| by(settings).err().unwrap();
    assert!(error(json!({})).starts_with("give exactly one of"));
    assert!(error(json!({"secret": "a", "jwks_url": "http://h"})).starts_with("give exactly one"));
    assert!(error(json!({"secret": ""})).starts_with("secret: "));
    assert!(error(json!({"secret": "?", "secret_base64": true})).starts_with("secret: "));
    assert!(error(json!({"public_key_file": "/nowhere"})).contains("cannot be read"));
    let wrong = json!({"secret": "a", "required_claims": {"a": "${b}"}});
    assert!(error(wrong).starts_with("required_claims: a: unknown"));
    let shown = format!(
        "{:?}",
        crate::json::parse::<JwtSettings>(&json!({"secret": "pencil"}))
    );
    assert!(!shown.contains("pencil"), "{shown}");
}
