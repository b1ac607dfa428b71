//! A listener that is created while the node runs. Its definition has the keys of `[[listener]]`, and is validated like
//! one; certificates are named by their ids.

use std::path::{Path, PathBuf};

use broker::config::ListenerConfig;
use serde_json::Value as Json;

use super::config_draft::ConfigDraft;
use super::config_error::ValueOrigin;
use super::setting_kind::RawValue;
use super::{tls_files, validation};

/// An error in a definition: the field, and what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DefinitionError {
    pub(crate) field: String,
    pub(crate) message: String,
}

const CERTIFICATE: &str = "tls.certificate";
const CLIENT_CA: &str = "tls.client_ca";
const PRIVATE_KEY: &str = "tls.private_key";

/// The ids of the certificates that a definition names.
pub(crate) fn certificates_of(definition: &Json) -> impl Iterator<Item = &str> {
    let tls = &definition["tls"];
    [&tls["certificate"], &tls["client_ca"]]
        .into_iter()
        .filter_map(Json::as_str)
}

/// Validates a definition. `certificate_file` returns the file of a certificate with this id, if there is one.
pub(crate) fn added_listener(
    name: &str,
    definition: &Json,
    max_packet_size: u32,
    certificate_file: impl Fn(&str) -> Option<PathBuf>,
) -> Result<ListenerConfig, DefinitionError> {
    let mut draft = ConfigDraft::defaults();
    draft.listeners.clear();
    let origin = ValueOrigin::Default;
    draft.declare_listener(name, &origin);
    first_error(name, &mut draft)?;
    for (key, value) in flat_fields(definition)? {
        let full = |key: &str| format!("listener.{name}.{key}");
        if key == PRIVATE_KEY {
            return Err(DefinitionError {
                field: key,
                message: "the private key belongs to the certificate; leave this field out".into(),
            });
        }
        let mut raw = RawValue::from_json(&value);
        if key == CERTIFICATE || key == CLIENT_CA {
            let file = value.as_str().and_then(&certificate_file);
            let Some(file) = file else {
                let message = format!(
                    "there is no certificate {value}; expected the id of one, such as those that \
                     `tidegate ctl certificates list` shows"
                );
                return Err(DefinitionError {
                    field: key,
                    message,
                });
            };
            raw = RawValue::String(file.display().to_string());
            if key == CERTIFICATE {
                // The file contains both.
                draft.assign(&full(PRIVATE_KEY), &raw, &origin, Path::new(""));
            }
        }
        draft.assign(&full(&key), &raw, &origin, Path::new(""));
    }
    first_error(name, &mut draft)?;
    let listener = draft.listeners.remove(0);
    let finished = validation::finish_listener(listener, max_packet_size, &mut draft);
    first_error(name, &mut draft)?;
    finished.ok_or_else(|| DefinitionError {
        field: "bind".into(),
        message:
            "expected an address such as \"0.0.0.0:8883\"; to close a listener, stop or remove it"
                .into(),
    })
}

/// The fields with their keys as in `tidegate.toml`.
fn flat_fields(definition: &Json) -> Result<Vec<(String, Json)>, DefinitionError> {
    let Json::Object(fields) = definition else {
        return Err(DefinitionError {
            field: String::new(),
            message: "expected an object with the settings of a listener".into(),
        });
    };
    let mut flat = Vec::new();
    for (key, value) in fields {
        match (key.as_str(), value) {
            (_, Json::Null) => {}
            ("tls", Json::Object(tls)) => {
                let set = tls.iter().filter(|(_, value)| !value.is_null());
                flat.extend(set.map(|(key, value)| (format!("tls.{key}"), value.clone())));
            }
            _ => flat.push((key.clone(), value.clone())),
        }
    }
    Ok(flat)
}

fn first_error(name: &str, draft: &mut ConfigDraft) -> Result<(), DefinitionError> {
    if draft.errors.is_empty() {
        return Ok(());
    }
    let error = draft.errors.remove(0);
    let prefix = format!("listener.{name}");
    let field = error.key.strip_prefix(&prefix).unwrap_or(&error.key);
    let field = field.trim_start_matches('.').to_owned();
    let message = match field.as_str() {
        CERTIFICATE if error.message.starts_with("missing") => {
            "missing; a protocol with TLS needs the id of a certificate".to_owned()
        }
        _ => error.message,
    };
    Err(DefinitionError { field, message })
}

/// Checks a file with a certificate chain and, with `has_key`, its private key. The error names the part.
pub(crate) fn check_certificate_file(path: &Path, has_key: bool) -> Result<(), DefinitionError> {
    tls_files::check_combined_file(path, has_key).map_err(|(setting, message)| DefinitionError {
        field: setting.trim_start_matches("tls.").to_owned(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listener(name: &str, definition: &Json) -> Result<ListenerConfig, DefinitionError> {
        added_listener(name, definition, 1 << 20, |_| None)
    }

    fn field_of(definition: Json) -> String {
        listener("public", &definition).unwrap_err().field
    }

    #[test]
    fn a_definition_has_the_settings_of_the_configuration() {
        let definition = json!({
            "protocol": "ws", "bind": "127.0.0.1:9001", "websocket_path": "/mqtt", "max_connections": 5,
            "allow_anonymous": true, "tls": null,
        });
        let listener = listener("public", &definition).unwrap();
        assert_eq!(listener.name, "public");
        assert_eq!(listener.max_connections, 5);
        assert_eq!(listener.websocket_path.as_deref(), Some("/mqtt"));
        assert_eq!(listener.allow_anonymous, Some(true));
    }

    #[test]
    fn errors_name_the_field() {
        assert_eq!(field_of(json!({"protocol": "mqtt"})), "bind");
        assert_eq!(field_of(json!({"bind": "off"})), "bind");
        assert_eq!(
            field_of(json!({"bind": "127.0.0.1:1", "max_connections": 0})),
            "max_connections"
        );
        assert_eq!(
            field_of(json!({"bind": "127.0.0.1:1", "colour": 1})),
            "colour"
        );
        assert_eq!(
            field_of(json!({"bind": "127.0.0.1:1", "protocol": "mqtts"})),
            "tls.certificate"
        );
        let named =
            json!({"bind": "127.0.0.1:1", "protocol": "mqtts", "tls": {"certificate": "none"}});
        assert_eq!(field_of(named), "tls.certificate");
        let with_key = json!({"bind": "127.0.0.1:1", "tls": {"private_key": "/etc/key.pem"}});
        assert_eq!(field_of(with_key), "tls.private_key");
        assert!(listener("Not a name", &json!({"bind": "127.0.0.1:1"})).is_err());
        assert_eq!(field_of(json!(["bind"])), "");
    }
}
