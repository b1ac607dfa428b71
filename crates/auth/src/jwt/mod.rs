//! Authentication by JSON Web Tokens: signature, validity period and claims.

mod claim_mapping;
mod key_set;
#[cfg(test)]
mod tests;
mod token;
mod verification_key;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::runtime::Handle;

use secret::Secret;

use crate::authenticator::{
    AnswerFuture, AuthBackendError, Authenticator, AuthenticatorAnswer, LoginRequest,
};
use crate::http::HttpClient;
use claim_mapping::ClaimMapping;
use key_set::{KeySet, KeySource};
use token::ParsedToken;
use verification_key::VerificationKey;

/// Longer texts are not treated as tokens.
const MAX_TOKEN_BYTES: usize = 32 * 1024;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JwtSettings {
    /// Shared secret for HS256, HS384 and HS512.
    #[serde(default)]
    secret: Option<Secret>,
    #[serde(default)]
    secret_file: Option<PathBuf>,
    #[serde(default)]
    secret_base64: bool,
    /// PEM file with a public key or a certificate.
    #[serde(default)]
    public_key_file: Option<PathBuf>,
    /// A JSON Web Key Set, from a file or a URL.
    #[serde(default)]
    jwks_file: Option<PathBuf>,
    #[serde(default)]
    jwks_url: Option<String>,
    #[serde(default = "default_jwks_refresh_s")]
    jwks_refresh_s: u64,
    /// PEM file of certificate authorities to trust for `jwks_url` instead of those of the system.
    #[serde(default)]
    tls_ca: Option<PathBuf>,
    /// Where the client sends the token.
    #[serde(default)]
    from: TokenLocation,
    /// Accepted algorithms; empty: all that fit the keys.
    #[serde(default)]
    algorithms: Vec<String>,
    #[serde(default)]
    claims: claim_mapping::ClaimSettings,
    /// Claims and their required values, with placeholders.
    #[serde(default)]
    required_claims: BTreeMap<String, String>,
}

fn default_jwks_refresh_s() -> u64 {
    300
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TokenLocation {
    #[default]
    Password,
    Username,
}

pub(crate) struct JwtAuthenticator {
    keys: Arc<KeySet>,
    token_location: TokenLocation,
    algorithms: Vec<String>,
    claims: ClaimMapping,
}

impl JwtAuthenticator {
    pub(crate) fn new(settings: &JwtSettings, runtime: &Handle) -> Result<Self, String> {
        let secret = Secret::from_setting(
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
            let key =
                VerificationKey::from_secret(&bytes).map_err(|error| format!("secret: {error}"))?;
            origins.push(KeySource::Fixed(Some(key)));
        }
        if let Some(path) = &settings.public_key_file {
            origins.push(KeySource::Pem(path.clone()));
        }
        if let Some(path) = &settings.jwks_file {
            origins.push(KeySource::File(path.clone()));
        }
        if let Some(url) = &settings.jwks_url {
            let client = HttpClient::new(url, settings.tls_ca.as_deref())?;
            let url = url.clone();
            origins.push(KeySource::Url { url, client });
        }
        let Ok([origin]) = <[KeySource; 1]>::try_from(origins) else {
            return Err(
                "give exactly one of secret, secret_file, public_key_file, jwks_file, jwks_url"
                    .into(),
            );
        };
        if !(1..=86_400).contains(&settings.jwks_refresh_s) {
            return Err("jwks_refresh_s: expected 1 to 86400".into());
        }
        let refresh = Duration::from_secs(settings.jwks_refresh_s);
        let mut claims = ClaimMapping::new(&settings.claims, &settings.required_claims)?;
        if settings.from == TokenLocation::Username {
            // The token itself is not a name.
            claims.require_name();
        }
        Ok(Self {
            keys: KeySet::start(origin, refresh, runtime)?,
            token_location: settings.from,
            algorithms: settings.algorithms.clone(),
            claims,
        })
    }

    fn token_of<'a>(&self, request: &'a LoginRequest) -> Option<&'a str> {
        let token = match self.token_location {
            TokenLocation::Username => request.username.as_deref()?,
            TokenLocation::Password => std::str::from_utf8(&request.password.as_ref()?.0).ok()?,
        };
        (token.len() <= MAX_TOKEN_BYTES && token.matches('.').count() == 2).then_some(token)
    }

    async fn check_token(
        &self,
        request: &LoginRequest,
    ) -> Result<AuthenticatorAnswer, AuthBackendError> {
        let Some(token) = self.token_of(request).and_then(ParsedToken::parse) else {
            return Ok(AuthenticatorAnswer::Ignore);
        };
        let is_taken = self.algorithms.is_empty() || self.algorithms.contains(&token.algorithm);
        if !is_taken || !self.keys.verify_token(&token).await? {
            // Another authenticator may have the key.
            return Ok(AuthenticatorAnswer::Ignore);
        }
        Ok(self
            .claims
            .evaluate(&token.claims, request, wall_clock::now_ms()))
    }
}

impl Authenticator for JwtAuthenticator {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        self.token_of(request).is_some()
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(self.check_token(request))
    }
}
