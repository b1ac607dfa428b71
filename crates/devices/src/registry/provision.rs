//! Self-registration (provisioning) and claiming of devices.

use series::DeviceNo;

use super::keys::DeviceName;
use super::new_device::{NewDevice, WritePrecondition};
use super::{Registry, RegistryError};
use crate::credential::{IssuedCredential, NewCredential};
use crate::device::{Device, DeviceClaim};
use crate::id::id_for_name;
use crate::product::{Product, ProvisionMode};
use std::sync::Arc;

/// Maximum duration of a claim.
const MAX_CLAIM_MS: u64 = 30 * 24 * 3600 * 1000;

/// A registration request of a device.
#[derive(Clone)]
pub struct ProvisionRequest<'a> {
    pub key: &'a str,
    pub secret: &'a str,
    /// Name of the device, which becomes its id if it is a valid one. `None`: the node generates an id.
    pub device: Option<&'a str>,
    /// `None`: the node generates a token.
    pub credential: Option<NewCredential>,
    pub is_gateway: bool,
}

/// Result of a registration.
#[derive(Debug, Clone)]
pub struct ProvisionedDevice {
    pub device: Arc<Device>,
    /// `false`: the device existed and got new credentials.
    pub was_created: bool,
    /// `None`: the device uses the credential that it sent.
    pub issued: Option<IssuedCredential>,
}

/// The same error for a wrong key, secret or name, so that clients cannot find out which devices exist.
fn rejection() -> RegistryError {
    RegistryError::Invalid {
        field: "provisioning".to_owned(),
        message: "key, secret and device do not match".to_owned(),
    }
}

/// Checks that a secret chosen by a device is hard to guess, and that a token fits into a URL path.
fn check_chosen_secret(credential: &NewCredential, min_bytes: usize) -> Result<(), RegistryError> {
    let (field, secret) = match credential {
        NewCredential::Token { token: Some(token) } => ("token", token),
        NewCredential::Password {
            password: Some(password),
            ..
        } => ("password", password),
        _ => return Ok(()),
    };
    let wrong = |message: String| RegistryError::Invalid {
        field: field.to_owned(),
        message,
    };
    if secret.len() < min_bytes {
        return Err(wrong(format!(
            "expected at least {min_bytes} bytes, found {}; leave it out to have one generated",
            secret.len()
        )));
    }
    let is_in_url =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@|".contains(&byte);
    if field == "token" && !secret.bytes().all(is_in_url) {
        return Err(wrong(
            "expected ASCII letters, digits and -._~!$&'()*+,;=:@| only".to_owned(),
        ));
    }
    Ok(())
}

impl Registry {
    fn provisioning_product(&self, key: &str, secret: &str) -> Option<Arc<Product>> {
        let inner = &self.inner;
        self.products().into_iter().find_map(|slot| {
            let product = slot.get();
            let provisioning = product.definition.provisioning.as_ref()?;
            let digester = inner.digester();
            // Constant time for each wrong secret.
            let is_right = provisioning.key == key
                && digester.matches(
                    secret.as_bytes(),
                    &digester.digest(provisioning.secret.as_bytes()),
                );
            (is_right && slot.admits_devices()).then(|| Arc::clone(&product))
        })
    }

    /// Registers a device that presents its product's key and secret. A registered device gets new credentials if
    /// `was_seen` returns `false`: it has never connected and never reported. Reads and writes the disk.
    ///
    /// # Errors
    /// Fails if key, secret and device do not match, if the chosen token or password is not allowed, or if the store
    /// fails.
    pub fn provision(
        &self,
        wanted: ProvisionRequest<'_>,
        was_seen: &dyn Fn(DeviceNo) -> Result<bool, RegistryError>,
    ) -> Result<ProvisionedDevice, RegistryError> {
        let product = self
            .provisioning_product(wanted.key, wanted.secret)
            .ok_or_else(rejection)?;
        let mode = product.definition.provisioning.as_ref().map(|p| p.mode);
        let id = wanted.device.map(id_for_name);
        let known = match &id {
            Some(id) => self.device(id)?,
            None => None,
        };
        let credential = wanted
            .credential
            .unwrap_or(NewCredential::Token { token: None });
        check_chosen_secret(&credential, self.inner.config.min_provisioned_secret_bytes)?;
        let (device, expected) = match (mode, known) {
            (Some(ProvisionMode::AllowNew), None) => {
                let name = wanted.device.filter(|name| id.as_deref() != Some(*name));
                let name = name.unwrap_or_default().to_owned();
                let id = match id {
                    Some(id) => id.into_owned(),
                    None => crate::credential::generate_token().map_err(|_| rejection())?,
                };
                let device = NewDevice {
                    id,
                    product: product.id.to_string(),
                    name,
                    group: None,
                    tags: Default::default(),
                    parent: None,
                    enabled: true,
                    gateway: wanted.is_gateway,
                    credentials: Some(vec![credential]),
                };
                (device, WritePrecondition::Absent)
            }
            (Some(ProvisionMode::CheckExisting), Some(known)) => {
                let is_of_product = *known.product.id() == product.id;
                let was_seen = known.was_activated || was_seen(known.no)?;
                if !is_of_product || !known.is_enabled || was_seen {
                    return Err(rejection());
                }
                let mut device = self.to_new_device(&known)?;
                device.credentials = Some(vec![credential]);
                (device, WritePrecondition::Revision(known.revision))
            }
            _ => return Err(rejection()),
        };
        // Clients must not find out by trying whether a token or user name is in use.
        let mut written = self.put(device, expected).map_err(|error| match error {
            RegistryError::NameTaken { .. }
            | RegistryError::Exists { .. }
            | RegistryError::Conflict { .. } => rejection(),
            other => other,
        })?;
        Ok(ProvisionedDevice {
            was_created: written.was_created,
            device: written.device,
            issued: written.issued.pop(),
        })
    }

    /// The definition of a device without its credentials.
    pub fn to_new_device(&self, device: &Device) -> Result<NewDevice, RegistryError> {
        let parent = match device.parent {
            None => None,
            Some(no) => self.by_no(no)?.map(|parent| parent.id.to_string()),
        };
        let tags = device.tags.iter();
        Ok(NewDevice {
            id: device.id.to_string(),
            product: device.product.id().to_string(),
            name: device.name.to_string(),
            group: device.group.as_deref().map(str::to_owned),
            tags: tags.map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            parent,
            enabled: device.is_enabled,
            gateway: device.is_gateway,
            credentials: None,
        })
    }

    /// Allows claiming the device with this secret for a limited time. With an empty secret, knowing the id is
    /// enough.
    pub fn offer_claim(
        &self,
        no: DeviceNo,
        secret: &str,
        duration_ms: u64,
        now_ms: u64,
    ) -> Result<(), RegistryError> {
        let digester = self.inner.digester_for_writing();
        let digest = digester.digest(secret.as_bytes());
        let until_ms = now_ms.saturating_add(duration_ms.min(MAX_CLAIM_MS));
        self.inner.update_device(no, |device| {
            device.claim = Some(DeviceClaim { digest, until_ms });
            Ok(())
        })?;
        self.inner.wait_until_shared();
        Ok(())
    }

    /// Claims a device: it joins this group. The secret is valid once.
    pub fn claim(
        &self,
        id: &str,
        secret: &str,
        group: &str,
        now_ms: u64,
    ) -> Result<Arc<Device>, RegistryError> {
        let group = crate::id::DeviceId::new(group).map_err(|error| RegistryError::Invalid {
            field: "group".to_owned(),
            message: error.to_string(),
        })?;
        let rejected = || RegistryError::Invalid {
            field: "claim".to_owned(),
            message: "device and secret do not match, or the claim has expired".to_owned(),
        };
        let device = self.inner.find(&DeviceName::Id(id))?.ok_or_else(rejected)?;
        let digester = self.inner.digester();
        let claimed = self.inner.update_device(device.no, |device| {
            let claim = device.claim.take().ok_or_else(rejected)?;
            if claim.until_ms < now_ms || !digester.matches(secret.as_bytes(), &claim.digest) {
                return Err(rejected());
            }
            device.group = Some(group.as_str().into());
            Ok(())
        })?;
        self.inner.wait_until_shared();
        Ok(claimed)
    }
}
