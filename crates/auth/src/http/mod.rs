//! Authentication and rules from an HTTP service, which receives one request per client.

mod client;

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use outbound::url_encoding::url_encode;
use secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value};

pub(crate) use client::HttpClient;

use crate::authenticator::{
    AnswerFuture, AuthBackendError, AuthenticatedIdentity, Authenticator, AuthenticatorAnswer,
    LoginRequest,
};
use crate::json;
use crate::rule_sources::RuleSource;
use crate::rules::AclRule;
use crate::template::Template;

const MAX_ATTRIBUTES: usize = 64;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpSettings {
    /// The URL; placeholders are allowed after the host.
    url: String,
    #[serde(default)]
    method: HttpMethod,
    #[serde(default)]
    headers: BTreeMap<String, Secret>,
    /// Names and values to send, with placeholders; in the body of a POST or the query string of a
    /// GET.
    #[serde(default)]
    body: Option<BTreeMap<String, String>>,
    /// PEM file of certificate authorities to trust instead of those of the system.
    #[serde(default)]
    tls_ca: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HttpMethod {
    #[default]
    Post,
    Get,
}

/// A request about a client.
pub(crate) struct HttpQuery {
    client: HttpClient,
    method: Method,
    url: Template,
    headers: HeaderMap,
    fields: Vec<(String, Template)>,
}

impl HttpQuery {
    /// `usual`: the fields to send if the settings name none.
    pub(crate) fn new(settings: &HttpSettings, usual: &[&str]) -> Result<Self, String> {
        let rest = settings
            .url
            .strip_prefix("http://")
            .or_else(|| settings.url.strip_prefix("https://"))
            .ok_or("url: expected one that begins with http:// or https://")?;
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        if host.is_empty() || host.contains('$') {
            return Err("url: expected a host without placeholders".into());
        }
        let url = Template::parse(&settings.url).map_err(|error| format!("url: {error}"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let wrong = |_| format!("headers: {name:?} is not a header that can be sent");
            let header: HeaderName = name.parse().map_err(|_| wrong(()))?;
            let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| wrong(()))?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let given = settings.body.clone().unwrap_or_else(|| {
            let usual = usual.iter();
            usual
                .map(|name| ((*name).to_owned(), format!("${{{name}}}")))
                .collect()
        });
        let fields = given.into_iter().map(|(name, text)| {
            let template = Template::parse(&text).map_err(|e| format!("body: {name}: {e}"))?;
            Ok((name, template))
        });
        Ok(Self {
            client: HttpClient::new(&settings.url, settings.tls_ca.as_deref())?,
            method: match settings.method {
                HttpMethod::Post => Method::POST,
                HttpMethod::Get => Method::GET,
            },
            url,
            headers,
            fields: fields.collect::<Result<_, String>>()?,
        })
    }

    /// Sends the request; returns the status and the JSON body, if any.
    async fn query(
        &self,
        request: &LoginRequest,
    ) -> Result<(u16, Option<Value>), AuthBackendError> {
        let mut url = self.url.fill_url(request);
        let values = self.fields.iter().map(|(name, template)| {
            let value = template.fill(request);
            (name, value)
        });
        let json = if self.method == Method::GET {
            for (name, value) in values {
                let mark = if url.contains('?') { '&' } else { '?' };
                let value = url_encode(&value.unwrap_or_default());
                url.push_str(&format!("{mark}{}={value}", url_encode(name)));
            }
            None
        } else {
            let fields: Map<String, Value> = values
                .map(|(name, value)| (name.clone(), value.map_or(Value::Null, Value::String)))
                .collect();
            Some(Value::Object(fields).to_string().into_bytes())
        };
        let answer = self
            .client
            .send(self.method.clone(), &url, &self.headers, json)
            .await?;
        let body = match answer.body.is_empty() {
            true => None,
            false => serde_json::from_slice(&answer.body).ok(),
        };
        Ok((answer.status.as_u16(), body))
    }
}

/// The response to an authentication request.
#[derive(Deserialize)]
struct HttpAuthResponse {
    result: HttpAuthResult,
    #[serde(default)]
    is_superuser: bool,
    #[serde(default)]
    client_attrs: Map<String, Value>,
    /// Seconds since 1970.
    #[serde(default)]
    expire_at: Option<f64>,
    #[serde(default)]
    acl: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum HttpAuthResult {
    Allow,
    Deny,
    Ignore,
}

/// Names and values for `${client_attrs.NAME}`.
pub(crate) fn parse_attributes(response: &Map<String, Value>) -> Vec<(Box<str>, Box<str>)> {
    let texts = response.iter().filter_map(|(name, value)| match value {
        Value::String(text) => Some((name.as_str().into(), text.as_str().into())),
        Value::Number(number) => Some((name.as_str().into(), number.to_string().into())),
        _ => None,
    });
    texts.take(MAX_ATTRIBUTES).collect()
}

fn parse_answer(body: &Value) -> Result<AuthenticatorAnswer, AuthBackendError> {
    let response: HttpAuthResponse = json::parse(body).map_err(|_| {
        AuthBackendError::new("the answer has no \"result\" of allow, deny or ignore")
    })?;
    match response.result {
        HttpAuthResult::Ignore => return Ok(AuthenticatorAnswer::Ignore),
        HttpAuthResult::Deny => return Ok(AuthenticatorAnswer::Deny),
        HttpAuthResult::Allow => {}
    }
    let rules = response.acl.as_ref().filter(|acl| !acl.is_null());
    let rules = match rules {
        Some(acl) => AclRule::list_from_json(acl)
            .map_err(|e| AuthBackendError(format!("the answer's acl: {e}")))?,
        None => Vec::new(),
    };
    Ok(AuthenticatorAnswer::Allow(Box::new(
        AuthenticatedIdentity {
            is_superuser: response.is_superuser,
            attributes: parse_attributes(&response.client_attrs),
            expires_at_ms: response.expire_at.map(|at_s| (at_s * 1000.0) as u64),
            rules,
            ..AuthenticatedIdentity::default()
        },
    )))
}

pub(crate) struct HttpAuthenticator(HttpQuery);

impl HttpAuthenticator {
    pub(crate) fn new(settings: &HttpSettings) -> Result<Self, String> {
        let usual = ["clientid", "username", "password"];
        Ok(Self(HttpQuery::new(settings, &usual)?))
    }
}

impl Authenticator for HttpAuthenticator {
    fn applies_to(&self, _request: &LoginRequest) -> bool {
        // The service may identify clients by other data than a user name.
        true
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(async move {
            match self.0.query(request).await? {
                (200, Some(body)) => parse_answer(&body),
                (200, None) => Err(AuthBackendError::new("the answer 200 has no JSON in it")),
                (204, _) => Ok(AuthenticatorAnswer::allow()),
                (401 | 403, _) => Ok(AuthenticatorAnswer::Deny),
                (404, _) => Ok(AuthenticatorAnswer::Ignore),
                (status, _) => Err(AuthBackendError(format!(
                    "it answered with status {status}"
                ))),
            }
        })
    }
}

/// Fetches the rules of a client.
pub(crate) struct HttpRuleSource(HttpQuery);

impl HttpRuleSource {
    pub(crate) fn new(settings: &HttpSettings) -> Result<Self, String> {
        let usual = ["clientid", "username", "peerhost"];
        Ok(Self(HttpQuery::new(settings, &usual)?))
    }
}

impl RuleSource for HttpRuleSource {
    fn fetch_rules<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<AclRule>, AuthBackendError>> {
        Box::pin(async move {
            match self.0.query(request).await? {
                (200, Some(body)) => {
                    let rules = match &body {
                        Value::Object(fields) => fields.get("acl").unwrap_or(&body),
                        _ => &body,
                    };
                    AclRule::list_from_json(rules)
                        .map_err(|error| AuthBackendError(format!("the answer's rules: {error}")))
                }
                (200, None) => Err(AuthBackendError::new("the answer 200 has no JSON in it")),
                // The service has no rules for this client.
                (204 | 404, _) => Ok(Vec::new()),
                (status, _) => Err(AuthBackendError(format!(
                    "it answered with status {status}"
                ))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_are_read() {
        let answer = parse_answer(&json!({"result": "allow", "is_superuser": true,
            "client_attrs": {"site": "a", "floor": 2, "odd": []}, "expire_at": 12.5,
            "acl": [{"permission": "allow", "action": "publish", "topic": "t"}]}));
        let Ok(AuthenticatorAnswer::Allow(identity)) = answer else {
            panic!("{answer:?}");
        };
        assert!(identity.is_superuser);
        assert_eq!(identity.attributes.len(), 2);
        assert_eq!(identity.expires_at_ms, Some(12_500));
        assert_eq!(identity.rules.len(), 1);
        assert_eq!(
            parse_answer(&json!({"result": "deny"})),
            Ok(AuthenticatorAnswer::Deny)
        );
        assert_eq!(
            parse_answer(&json!({"result": "ignore"})),
            Ok(AuthenticatorAnswer::Ignore)
        );
    }

    #[test]
    fn an_invalid_response_rejects_the_client() {
        for body in [
            json!({"result": "yes"}),
            json!({}),
            json!("allow"),
            json!({"result": "allow", "is_superuser": "yes"}),
            json!({"result": "allow", "acl": [{"permission": "sure"}]}),
        ] {
            assert!(parse_answer(&body).is_err(), "{body}");
        }
    }

    #[test]
    fn invalid_settings_are_rejected() {
        let error = |settings: Value| {
            let settings: HttpSettings = json::parse(&settings).unwrap();
            HttpQuery::new(&settings, &[]).err().unwrap()
        };
        assert!(error(json!({"url": "ftp://x"})).starts_with("url: "));
        assert!(error(json!({"url": "http://${clientid}/"})).starts_with("url: "));
        assert!(error(json!({"url": "http://h/${user}"})).starts_with("url: unknown"));
        let header = json!({"url": "http://h", "headers": {"a b": "secret"}});
        let message = error(header);
        assert!(
            message.starts_with("headers: ") && !message.contains("secret"),
            "{message}"
        );
        let body = json!({"url": "http://h", "body": {"x": "${y}"}});
        assert!(error(body).starts_with("body: x: unknown"));
    }
}
