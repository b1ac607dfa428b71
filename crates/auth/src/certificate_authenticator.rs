//! Authenticates a client by the verified TLS certificate it presented.

use serde::Deserialize;

use crate::authenticator::{
    AnswerFuture, AuthBackendError, AuthenticatedIdentity, Authenticator, AuthenticatorAnswer,
    LoginRequest,
};

/// The name of the certificate to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CertificateNameSource {
    #[default]
    CommonName,
    /// The first subject alternative name.
    AlternativeName,
}

/// What the name is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CertificateNameUse {
    #[default]
    Username,
    ClientId,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CertificateAuthenticator {
    pub(crate) from: CertificateNameSource,
    #[serde(rename = "as")]
    pub(crate) becomes: CertificateNameUse,
}

impl Authenticator for CertificateAuthenticator {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        self.certificate_name(request).is_some()
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        let answer = match self.certificate_name(request) {
            None => AuthenticatorAnswer::Ignore,
            Some(name) => {
                let username = matches!(
                    self.becomes,
                    CertificateNameUse::Username | CertificateNameUse::Both
                );
                let client_id = matches!(
                    self.becomes,
                    CertificateNameUse::ClientId | CertificateNameUse::Both
                );
                AuthenticatorAnswer::Allow(Box::new(AuthenticatedIdentity {
                    username: username.then(|| name.to_owned()),
                    client_id: client_id.then(|| name.to_owned()),
                    ..AuthenticatedIdentity::default()
                }))
            }
        };
        Box::pin(std::future::ready(Ok(answer)))
    }
}

impl CertificateAuthenticator {
    fn certificate_name<'a>(&self, request: &'a LoginRequest) -> Option<&'a str> {
        let name = match self.from {
            CertificateNameSource::CommonName => request.common_name.as_deref(),
            CertificateNameSource::AlternativeName => {
                request.alternative_names.first().map(String::as_str)
            }
        };
        name.filter(|name| !name.is_empty() && !name.contains('\0'))
    }
}
