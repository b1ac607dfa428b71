//! A client that showed a certificate the listener trusts is who the certificate says.

use serde::Deserialize;

use crate::authenticator::{Answer, Answering, Authenticator, Failure, Identity, Request};

/// Which name of the certificate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum From {
    #[default]
    CommonName,
    /// The first subject alternative name.
    AlternativeName,
}

/// What the name becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum As {
    #[default]
    Username,
    ClientId,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CertificateSettings {
    pub(crate) from: From,
    #[serde(rename = "as")]
    pub(crate) becomes: As,
}

impl Authenticator for CertificateSettings {
    fn concerns(&self, request: &Request) -> bool {
        self.name_of(request).is_some()
    }

    fn check<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
        let answer = match self.name_of(request) {
            None => Answer::Ignore,
            Some(name) => {
                let username = matches!(self.becomes, As::Username | As::Both);
                let client_id = matches!(self.becomes, As::ClientId | As::Both);
                Answer::Allow(Box::new(Identity {
                    username: username.then(|| name.to_owned()),
                    client_id: client_id.then(|| name.to_owned()),
                    ..Identity::default()
                }))
            }
        };
        Box::pin(std::future::ready(Ok(answer)))
    }
}

impl CertificateSettings {
    fn name_of<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let name = match self.from {
            From::CommonName => request.common_name.as_deref(),
            From::AlternativeName => request.alternative_names.first().map(String::as_str),
        };
        name.filter(|name| !name.is_empty() && !name.contains('\0'))
    }
}
