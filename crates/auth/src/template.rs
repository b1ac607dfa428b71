//! Texts with `${...}` placeholders for fields of a login request.

use outbound::url_encoding::url_encode;

use crate::authenticator::LoginRequest;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateField {
    ClientId,
    Username,
    Password,
    CommonName,
    PeerHost,
    PeerPort,
    Listener,
    Attribute(Box<str>),
}

impl TemplateField {
    pub(crate) fn from_name(name: &str) -> Result<Self, String> {
        Ok(match name {
            "clientid" | "client_id" => Self::ClientId,
            "username" => Self::Username,
            "password" => Self::Password,
            "cert_common_name" => Self::CommonName,
            "peerhost" => Self::PeerHost,
            "peerport" => Self::PeerPort,
            "listener" => Self::Listener,
            _ => match name.strip_prefix("client_attrs.") {
                Some(attribute) => Self::Attribute(attribute.into()),
                None => {
                    return Err(format!(
                        "unknown placeholder ${{{name}}}; there are ${{clientid}}, ${{username}}, ${{password}}, \
                         ${{cert_common_name}}, ${{peerhost}}, ${{peerport}}, ${{listener}}, ${{client_attrs.NAME}}"
                    ));
                }
            },
        })
    }

    /// `None` if the client does not have the field.
    pub(crate) fn value_for(&self, request: &LoginRequest) -> Option<String> {
        match self {
            Self::ClientId => Some(request.client_id.clone()),
            Self::Username => request.username.clone(),
            Self::Password => {
                let bytes = &request.password.as_ref()?.0;
                String::from_utf8(bytes.clone()).ok()
            }
            Self::CommonName => request.common_name.clone(),
            Self::PeerHost => Some(request.peer?.ip().to_canonical().to_string()),
            Self::PeerPort => Some(request.peer?.port().to_string()),
            Self::Listener => Some(request.listener.clone()),
            Self::Attribute(name) => {
                let mut attributes = request.attributes.iter();
                let found = attributes.find(|(known, _)| known == name);
                found.map(|(_, value)| value.to_string())
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplateSegment {
    Text(String),
    Field(TemplateField),
}

/// A text with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<TemplateSegment>);

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, behind) = after.split_once('}').ok_or("a ${ without its }")?;
            if !before.is_empty() {
                parts.push(TemplateSegment::Text(before.to_owned()));
            }
            parts.push(TemplateSegment::Field(TemplateField::from_name(name)?));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(TemplateSegment::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// Fills in the fields of one client. A missing field becomes an empty text. Returns `None` if the template is
    /// a single placeholder and its field is missing.
    pub(crate) fn fill(&self, request: &LoginRequest) -> Option<String> {
        if let [TemplateSegment::Field(field)] = &self.0[..] {
            return field.value_for(request);
        }
        let parts = self.0.iter().map(|part| match part {
            TemplateSegment::Text(text) => text.clone(),
            TemplateSegment::Field(field) => field.value_for(request).unwrap_or_default(),
        });
        Some(parts.collect())
    }

    /// Like [`fill`](Self::fill), with each value URL-encoded.
    pub(crate) fn fill_url(&self, request: &LoginRequest) -> String {
        let parts = self.0.iter().map(|part| match part {
            TemplateSegment::Text(text) => text.clone(),
            TemplateSegment::Field(field) => {
                url_encode(&field.value_for(request).unwrap_or_default())
            }
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::Password;

    fn request() -> LoginRequest {
        LoginRequest {
            client_id: "c 1".into(),
            username: Some("' OR 1=1 --".into()),
            password: Some(Password(b"pencil".to_vec())),
            ..LoginRequest::default()
        }
    }

    #[test]
    fn values_in_urls_are_encoded() {
        let template = Template::parse("http://h/${clientid}?u=${username}").unwrap();
        let url = template.fill_url(&request());
        assert_eq!(url, "http://h/c%201?u=%27%20OR%201%3D1%20--");
    }

    #[test]
    fn missing_fields_become_empty() {
        let request = LoginRequest::default();
        assert_eq!(Template::parse("${username}").unwrap().fill(&request), None);
        let mixed = Template::parse("u:${username}").unwrap();
        assert_eq!(mixed.fill(&request), Some("u:".into()));
        assert_eq!(
            Template::parse("").unwrap().fill(&request),
            Some(String::new())
        );
    }
}
