//! Evaluates the claims of a token whose signature has been verified.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::authenticator::{AuthenticatedIdentity, AuthenticatorAnswer, LoginRequest};
use crate::http::parse_attributes;
use crate::rules::AclRule;
use crate::template::Template;

/// Names of the claims to evaluate.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClaimSettings {
    /// Claim with ACL rules for this client.
    acl: String,
    /// Claim with the user name, which replaces the one sent by the client.
    username: Option<String>,
    /// Claim with the client id, which replaces the one sent by the client.
    client_id: Option<String>,
    is_superuser: String,
    attributes: String,
    /// Whether tokens without an expiry (`exp`) are rejected.
    require_expiry: bool,
    /// Tolerated clock difference in seconds.
    leeway_s: u64,
}

impl Default for ClaimSettings {
    fn default() -> Self {
        Self {
            acl: "acl".into(),
            username: None,
            client_id: None,
            is_superuser: "is_superuser".into(),
            attributes: "client_attrs".into(),
            require_expiry: false,
            leeway_s: 0,
        }
    }
}

pub(super) struct ClaimMapping {
    settings: ClaimSettings,
    required: Vec<(String, Template)>,
    has_no_name: bool,
}

impl ClaimMapping {
    pub(super) fn new(
        settings: &ClaimSettings,
        required: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        if settings.leeway_s > 3600 {
            return Err("claims: leeway_s: expected 0 to 3600".into());
        }
        let required = required.iter().map(|(claim, text)| {
            let template =
                Template::parse(text).map_err(|e| format!("required_claims: {claim}: {e}"))?;
            Ok((claim.clone(), template))
        });
        Ok(Self {
            settings: settings.clone(),
            required: required.collect::<Result<_, String>>()?,
            has_no_name: false,
        })
    }

    /// Requires a name in the token: the token was sent as the user name, so the client has no other
    /// name.
    pub(super) fn require_name(&mut self) {
        self.has_no_name = true;
        self.settings.username.get_or_insert_with(|| "sub".into());
    }

    pub(super) fn evaluate(
        &self,
        claims: &Map<String, Value>,
        request: &LoginRequest,
        now_ms: u64,
    ) -> AuthenticatorAnswer {
        match self.build_identity(claims, request, now_ms) {
            Ok(identity) => AuthenticatorAnswer::Allow(Box::new(identity)),
            Err(why) => {
                tracing::debug!(client_id = request.client_id, why, "token rejected");
                AuthenticatorAnswer::Deny
            }
        }
    }

    fn build_identity(
        &self,
        claims: &Map<String, Value>,
        request: &LoginRequest,
        now_ms: u64,
    ) -> Result<AuthenticatedIdentity, &'static str> {
        let settings = &self.settings;
        let leeway_ms = settings.leeway_s * 1000;
        let expires_at_ms = match parse_time_ms(claims, "exp")? {
            Some(at_ms) if at_ms.saturating_add(leeway_ms) <= now_ms => {
                return Err("it has expired (exp)");
            }
            Some(at_ms) => Some(at_ms.saturating_add(leeway_ms)),
            None if settings.require_expiry => return Err("it has no expiry (exp)"),
            None => None,
        };
        if parse_time_ms(claims, "nbf")?.is_some_and(|at_ms| at_ms > now_ms + leeway_ms) {
            return Err("it is not valid yet (nbf)");
        }
        for (claim, template) in &self.required {
            let wanted = template.fill(request).filter(|wanted| !wanted.is_empty());
            let is_it = |value: &Value| wanted.is_some() && value.as_str() == wanted.as_deref();
            let is_there = match claims.get(claim) {
                Some(Value::Array(values)) => values.iter().any(is_it),
                Some(value) => is_it(value),
                None => false,
            };
            if !is_there {
                return Err("a required claim is missing or has a different value");
            }
        }
        let name = |claim: &Option<String>| -> Result<Option<String>, &'static str> {
            let Some(claim) = claim else { return Ok(None) };
            match claims.get(claim) {
                Some(Value::String(name)) if !name.is_empty() && !name.contains('\0') => {
                    Ok(Some(name.clone()))
                }
                _ => Err("the claim for the client's name is missing or not a string"),
            }
        };
        let username = name(&settings.username);
        let rules = match claims.get(&settings.acl) {
            None | Some(Value::Null) => Vec::new(),
            Some(acl) => AclRule::list_from_json(acl).map_err(|_| "its rules are invalid")?,
        };
        Ok(AuthenticatedIdentity {
            is_anonymous: self.has_no_name && username.is_err(),
            username: match username {
                Err(_) if self.has_no_name => None,
                username => username?,
            },
            client_id: name(&settings.client_id)?,
            is_superuser: claims.get(&settings.is_superuser) == Some(&Value::Bool(true)),
            expires_at_ms,
            attributes: match claims.get(&settings.attributes) {
                Some(Value::Object(attributes)) => parse_attributes(attributes),
                _ => Vec::new(),
            },
            rules,
            device: None,
        })
    }
}

/// A time in seconds since 1970; fractions and numeric texts are accepted.
fn parse_time_ms(claims: &Map<String, Value>, claim: &str) -> Result<Option<u64>, &'static str> {
    let seconds = match claims.get(claim) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.parse().ok(),
        Some(_) => None,
    };
    match seconds {
        Some(seconds) if seconds >= 0.0 => Ok(Some((seconds * 1000.0) as u64)),
        _ => Err("exp or nbf is not a time"),
    }
}
