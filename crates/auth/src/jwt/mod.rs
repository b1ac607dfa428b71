//! JSON Web Tokens as passwords: who signed them, until when they hold, what they say about the client.

mod claims;
mod key;
mod key_set;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use crate::authenticator::{Answer, Answering, Authenticator, Failure, Request};
use crate::http::HttpClient;
use crate::secret::Secret;
use claims::Claims;
use key::Key;
use key_set::{KeySet, Origin};

/// Longer ones are no tokens.
const MAX_TOKEN_BYTES: usize = 32 * 1024;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JwtSettings {
    /// For HS256, HS384 and HS512.
    #[serde(default)]
    secret: Option<Secret>,
    #[serde(default)]
    secret_file: Option<PathBuf>,
    #[serde(default)]
    secret_base64: bool,
    /// PEM file with a public key or a certificate.
    #[serde(default)]
    public_key_file: Option<PathBuf>,
    /// A JSON Web Key Set, as a file or at a URL.
    #[serde(default)]
    jwks_file: Option<PathBuf>,
    #[serde(default)]
    jwks_url: Option<String>,
    #[serde(default = "refresh_s")]
    jwks_refresh_s: u64,
    /// PEM file of the authorities to trust for `jwks_url` instead of those of the system.
    #[serde(default)]
    tls_ca: Option<PathBuf>,
    /// Where the token is.
    #[serde(default)]
    from: TokenFrom,
    /// The only algorithms that are taken; empty: all that fit the keys.
    #[serde(default)]
    algorithms: Vec<String>,
    #[serde(default)]
    claims: claims::ClaimSettings,
    /// Claims that must have a value, with placeholders.
    #[serde(default)]
    required_claims: BTreeMap<String, String>,
}

fn refresh_s() -> u64 {
    300
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TokenFrom {
    #[default]
    Password,
    Username,
}

pub(crate) struct JwtAuthenticator {
    keys: Arc<KeySet>,
    from: TokenFrom,
    algorithms: Vec<String>,
    claims: Claims,
}

impl JwtAuthenticator {
    pub(crate) fn new(settings: &JwtSettings, runtime: &Handle) -> Result<Self, String> {
        let secret = Secret::of_setting(
            "secret",
            settings.secret.as_ref(),
            settings.secret_file.as_ref(),
        )?;
        let mut origins = Vec::new();
        if let Some(secret) = secret {
            let bytes = match settings.secret_base64 {
                false => secret.reveal().as_bytes().to_vec(),
                true => STANDARD
                    .decode(secret.reveal())
                    .map_err(|_| "secret: expected base64, since secret_base64 is set")?,
            };
            let key = Key::secret(&bytes).map_err(|error| format!("secret: {error}"))?;
            origins.push(Origin::Fixed(Some(key)));
        }
        if let Some(path) = &settings.public_key_file {
            origins.push(Origin::Pem(path.clone()));
        }
        if let Some(path) = &settings.jwks_file {
            origins.push(Origin::File(path.clone()));
        }
        if let Some(url) = &settings.jwks_url {
            let client = HttpClient::new(url, settings.tls_ca.as_deref())?;
            let url = url.clone();
            origins.push(Origin::Url { url, client });
        }
        let Ok([origin]) = <[Origin; 1]>::try_from(origins) else {
            return Err(
                "give exactly one of secret, secret_file, public_key_file, jwks_file, jwks_url"
                    .into(),
            );
        };
        if !(1..=86_400).contains(&settings.jwks_refresh_s) {
            return Err("jwks_refresh_s: expected 1 to 86400".into());
        }
        let refresh = Duration::from_secs(settings.jwks_refresh_s);
        let mut claims = Claims::new(&settings.claims, &settings.required_claims)?;
        if settings.from == TokenFrom::Username {
            // The token itself is no name.
            claims.needs_name();
        }
        Ok(Self {
            keys: KeySet::start(origin, refresh, runtime)?,
            from: settings.from,
            algorithms: settings.algorithms.clone(),
            claims,
        })
    }

    fn token<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let token = match self.from {
            TokenFrom::Username => request.username.as_deref()?,
            TokenFrom::Password => std::str::from_utf8(&request.password.as_ref()?.0).ok()?,
        };
        (token.len() <= MAX_TOKEN_BYTES && token.matches('.').count() == 2).then_some(token)
    }

    async fn check_token(&self, request: &Request) -> Result<Answer, Failure> {
        let Some(token) = self.token(request).and_then(Token::parse) else {
            return Ok(Answer::Ignore);
        };
        let is_taken = self.algorithms.is_empty() || self.algorithms.contains(&token.algorithm);
        if !is_taken || !self.keys.have_signed(&token).await? {
            // Somebody else may know who signed it.
            return Ok(Answer::Ignore);
        }
        Ok(self.claims.judge(&token.claims, request, crate::now_ms()))
    }
}

impl Authenticator for JwtAuthenticator {
    fn concerns(&self, request: &Request) -> bool {
        self.token(request).is_some()
    }

    fn check<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
        Box::pin(self.check_token(request))
    }
}

/// A token taken apart; nothing of it is proven yet.
pub(crate) struct Token<'a> {
    algorithm: String,
    key_id: Option<String>,
    /// What is signed.
    message: &'a [u8],
    signature: Vec<u8>,
    claims: Map<String, Value>,
}

#[derive(Deserialize)]
struct Head {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that must be understood: there are none here.
    #[serde(default)]
    crit: Option<Value>,
}

impl<'a> Token<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (message, signature) = text.rsplit_once('.')?;
        let (head, claims) = message.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let head: Head = serde_json::from_slice(&decode(head)?).ok()?;
        if head.crit.is_some() {
            return None;
        }
        Some(Self {
            algorithm: head.alg,
            key_id: head.kid,
            message: message.as_bytes(),
            signature: decode(signature)?,
            claims: serde_json::from_slice(&decode(claims)?).ok()?,
        })
    }
}
