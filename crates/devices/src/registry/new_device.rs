//! New devices as an operator writes them, and the checks that depend on no other device.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{RegistryError, RegistryInner, product_id};
use crate::credential::{Credential, IssuedCredential, NewCredential};
use crate::device::{Device, MAX_CREDENTIALS, MAX_NAME_BYTES, MAX_TAG_BYTES, MAX_TAGS};
use crate::id::DeviceId;
use crate::product::CredentialKind;

/// A complete device as written by the operator.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDevice {
    /// Id, unique in the node; 1 to 64 bytes without `/`, `+`, `#` and blanks.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub id: String,
    /// Id of the product.
    #[schemars(length(min = 1, max = 64))]
    pub product: String,
    /// Display name; default: the id.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub name: String,
    /// Id of the device's group.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub group: Option<String>,
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub tags: BTreeMap<String, String>,
    /// Id of the gateway in front of the device.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub parent: Option<String>,
    /// Whether the device may connect.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
    /// Whether the device may have child devices.
    #[serde(default)]
    pub gateway: bool,
    /// Credentials; `null`: a present device keeps its credentials, and a new one gets a generated token or the
    /// shared credential of the product.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub credentials: Option<Vec<NewCredential>>,
}

fn default_enabled() -> bool {
    true
}

/// Precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePrecondition {
    Any,
    Absent,
    /// The device exists with this revision.
    Revision(u32),
    /// The device exists with this version, see [`Registry::version_of`](super::Registry::version_of).
    Version(u64),
}

/// Result of writing a device.
#[derive(Debug, Clone)]
pub struct DeviceWriteOutcome {
    pub device: Arc<Device>,
    /// Generated credentials, which are shown only once.
    pub issued: Vec<IssuedCredential>,
    pub was_created: bool,
}

/// The stored form of a credential, and the form shown once.
pub(super) type PreparedCredential = (Credential, Option<IssuedCredential>);

/// A new device with the stored form of its credentials.
pub(super) struct PreparedDevice {
    pub(super) device: NewDevice,
    pub(super) credentials: Option<Vec<PreparedCredential>>,
}

pub(super) fn invalid(field: &str, message: impl Into<String>) -> RegistryError {
    RegistryError::Invalid {
        field: field.to_owned(),
        message: message.into(),
    }
}

impl RegistryInner {
    /// Validates and prepares what does not depend on other devices.
    pub(super) fn prepare(
        &self,
        device: NewDevice,
        issues: bool,
    ) -> Result<PreparedDevice, RegistryError> {
        DeviceId::new(&device.id).map_err(|error| invalid("id", error.to_string()))?;
        let product = product_id(&device.product)?;
        let Some(product) = self.product(product.as_str()) else {
            return Err(RegistryError::NotFound {
                what: "product",
                id: device.product.clone(),
            });
        };
        if device.name.len() > MAX_NAME_BYTES {
            return Err(invalid(
                "name",
                format!("expected at most {MAX_NAME_BYTES} bytes"),
            ));
        }
        if device.tags.len() > MAX_TAGS {
            return Err(invalid("tags", format!("expected at most {MAX_TAGS} tags")));
        }
        for (key, value) in &device.tags {
            let is_right = |text: &str| text.len() <= MAX_TAG_BYTES && !text.contains('\0');
            if key.is_empty() || !is_right(key) || !is_right(value) {
                let message =
                    format!("{key:?}: expected at most {MAX_TAG_BYTES} bytes without NUL");
                return Err(invalid("tags", message));
            }
        }
        if let Some(group) = &device.group {
            DeviceId::new(group).map_err(|error| invalid("group", error.to_string()))?;
        }
        let product = product.get();
        let wanted = device.credentials.clone();
        let wanted = match wanted {
            None => None,
            Some(wanted) if wanted.len() > MAX_CREDENTIALS => {
                let message = format!("expected at most {MAX_CREDENTIALS} credentials");
                return Err(invalid("credentials", message));
            }
            Some(wanted) => Some(wanted),
        };
        let digester = self.digester_for_writing();
        let mut credentials = None;
        if let Some(wanted) = wanted {
            let mut sealed = Vec::with_capacity(wanted.len());
            for credential in wanted {
                let kind = credential.kind();
                if !product.allows_credential(kind) {
                    let message = format!("the product does not allow credentials of type {kind}");
                    return Err(invalid("credentials", message));
                }
                if kind == CredentialKind::Token && !issues && is_generated(&credential) {
                    continue;
                }
                sealed.push(credential.into_stored(&device.id, &digester)?);
            }
            credentials = Some(sealed);
        }
        Ok(PreparedDevice {
            device,
            credentials,
        })
    }

    /// Credentials of a new device that is written without any.
    pub(super) fn default_credentials(
        &self,
        device: &NewDevice,
        issues: bool,
    ) -> Result<Vec<PreparedCredential>, RegistryError> {
        let product = self.product(&device.product);
        let wants_token = product.is_some_and(|product| {
            let product = product.get();
            product.allows_credential(CredentialKind::Token) && product.definition.secure.is_none()
        });
        if !wants_token || !issues || device.parent.is_some() {
            return Ok(Vec::new());
        }
        let token = NewCredential::Token { token: None };
        let digester = self.digester_for_writing();
        Ok(vec![token.into_stored(&device.id, &digester)?])
    }
}

fn is_generated(credential: &NewCredential) -> bool {
    matches!(credential, NewCredential::Token { token: None })
}
