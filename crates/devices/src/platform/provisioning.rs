//! Device self-registration in ThingsBoard's format. The request is a JSON object with the product's key and
//! secret; the answer contains credentials or the reason for a failure. Transports are implemented elsewhere.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Value, json};

use super::platform_state::Platform;
use super::registration_log::Registration;
use crate::credential::{IssuedCredential, NewCredential};
use crate::device::Device;
use crate::presence::DeviceStates;
use crate::registry::{ProvisionRequest, Registry, RegistryError};

/// Larger requests are rejected.
const MAX_REQUEST_BYTES: usize = 16 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProvisioningPayload {
    provision_device_key: String,
    provision_device_secret: String,
    device_name: Option<String>,
    credentials_type: Option<String>,
    token: Option<String>,
    username: Option<String>,
    password: Option<String>,
    #[serde(default)]
    gateway: Option<bool>,
}

/// The product's key in a request; empty if the request is invalid.
pub(super) fn key_of(request: &[u8]) -> String {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Key {
        provision_device_key: String,
    }
    match request.len() > MAX_REQUEST_BYTES {
        true => String::new(),
        false => serde_json::from_slice(request)
            .map_or_else(|_| String::new(), |key: Key| key.provision_device_key),
    }
}

impl Platform {
    /// Registers the requesting device. `Err` also contains an answer: nothing was registered. May wait.
    ///
    /// # Errors
    /// If the request is invalid, key, secret and name do not match, or the store fails.
    pub fn provision(&self, from: Option<IpAddr>, request: &[u8]) -> Result<Value, Value> {
        let parts = &self.inner.parts;
        provision(
            &parts.registry,
            &parts.states,
            request,
            |device, was_created| {
                parts.registration_log.record(&Registration {
                    device,
                    was_created,
                    peer_address: from,
                });
            },
        )
    }
}

fn provision(
    registry: &Registry,
    states: &DeviceStates,
    request: &[u8],
    registered: impl FnOnce(&Device, bool),
) -> Result<Value, Value> {
    let failure = |why: &str| json!({"status": "FAILURE", "errorMsg": why});
    if request.len() > MAX_REQUEST_BYTES {
        return Err(failure("the request is too long"));
    }
    let wanted: ProvisioningPayload = serde_json::from_slice(request)
        .map_err(|error| failure(&format!("the request cannot be read: {error}")))?;
    let (credential, given) = match wanted.credentials_type.as_deref() {
        None | Some("ACCESS_TOKEN") => {
            let given = wanted.token.as_ref();
            let given = given.map(|token| ("ACCESS_TOKEN", Value::from(token.as_str())));
            (
                NewCredential::Token {
                    token: wanted.token,
                },
                given,
            )
        }
        Some("MQTT_BASIC") => {
            let (username, password) = (wanted.username, wanted.password);
            let both = username.as_deref().zip(password.as_deref());
            let given = both.map(|(name, password)| {
                (
                    "MQTT_BASIC",
                    json!({"userName": name, "password": password}),
                )
            });
            (NewCredential::Password { username, password }, given)
        }
        Some(_) => {
            return Err(failure(
                "credentialsType: expected ACCESS_TOKEN or MQTT_BASIC",
            ));
        }
    };
    let provision = ProvisionRequest {
        key: &wanted.provision_device_key,
        secret: &wanted.provision_device_secret,
        device: wanted.device_name.as_deref(),
        credential: Some(credential),
        is_gateway: wanted.gateway.unwrap_or_default(),
    };
    let provisioned = registry.provision(provision, &|no| states.was_seen(no));
    let provisioned = provisioned.map_err(|error| {
        if !matches!(error, RegistryError::Invalid { .. }) {
            tracing::warn!(%error, "device provisioning failed");
        }
        failure(&error.to_string())
    })?;
    let device = provisioned.device.name();
    registered(&provisioned.device, provisioned.was_created);
    let (kind, value) = match (provisioned.issued, given) {
        (Some(IssuedCredential::Token { token }), _) => ("ACCESS_TOKEN", Value::from(token)),
        (Some(IssuedCredential::Password { username, password }), _) => {
            let value = json!({"userName": username, "password": password});
            ("MQTT_BASIC", value)
        }
        (_, Some(given)) => given,
        // No other kind can be requested.
        (_, None) => return Err(failure("no credentials were created")),
    };
    Ok(json!({
        "status": "SUCCESS",
        "credentialsType": kind,
        "credentialsValue": value,
        "deviceName": device,
    }))
}

#[cfg(test)]
mod tests {
    use store::{ExpectedVersion, Store, StoreConfig};

    use super::*;
    use crate::{PRODUCT_KIND, RegistryConfig};

    #[test]
    fn devices_with_key_and_secret_are_registered_once() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(directory.path(), StoreConfig::default()).unwrap();
        let registry = Registry::open(store.objects(), RegistryConfig::default()).unwrap();
        let states = DeviceStates::new(registry.clone());
        let product = json!({"provisioning": {"mode": "allow_new", "key": "new-meters", "secret": "0123456789abcdef"}});
        let objects = store.objects();
        objects
            .put(PRODUCT_KIND, "p", product, ExpectedVersion::Any)
            .unwrap();
        let ask = |mut request: Value| {
            request["provisionDeviceKey"] = "new-meters".into();
            let secret = request.get("secret").cloned();
            let secret = secret.unwrap_or_else(|| "0123456789abcdef".into());
            request["provisionDeviceSecret"] = secret;
            let request = request.to_string();
            provision(&registry, &states, request.as_bytes(), |_, _| ())
        };
        let made = ask(json!({"deviceName": "a"})).unwrap();
        let token = made["credentialsValue"].as_str().unwrap();
        let device = registry.by_token(token).unwrap().unwrap();
        assert_eq!(
            (made["credentialsType"].as_str(), device.id.as_str()),
            (Some("ACCESS_TOKEN"), "a")
        );
        let own = json!({"deviceName": "b", "credentialsType": "ACCESS_TOKEN", "token": "TOKEN-OF-DEVICE-B"});
        assert_eq!(ask(own).unwrap()["credentialsValue"], "TOKEN-OF-DEVICE-B");
        let basic = json!({"credentialsType": "MQTT_BASIC", "username": "u", "password": "a long password!"});
        let expected = json!({"userName": "u", "password": "a long password!"});
        assert_eq!(ask(basic).unwrap()["credentialsValue"], expected);
        let named = ask(json!({"deviceName": "Device A"})).unwrap();
        assert_eq!(named["deviceName"], "Device A");
        let device = registry.by_token(named["credentialsValue"].as_str().unwrap());
        let device = device.unwrap().unwrap();
        assert!(device.id.as_str().starts_with("Device-A-"), "{}", device.id);
        for rejected in [
            json!({"deviceName": "Device A"}),
            json!({"deviceName": "a"}),
            json!({"deviceName": "c", "secret": "wrong"}),
            json!({"deviceName": "c", "credentialsType": "X509_CERTIFICATE"}),
            json!({"deviceName": 5}),
            json!({"deviceName": "c", "token": "provision"}),
            json!({"deviceName": "c", "token": "T"}),
            json!({"deviceName": "c", "token": "fifteen-bytes-x"}),
            json!({"deviceName": "c", "token": "a token/with/levels"}),
            json!({"deviceName": "c", "credentialsType": "MQTT_BASIC", "username": "c", "password": "short"}),
            json!({"deviceName": "c", "credentialsType": "MQTT_BASIC", "username": "provision"}),
            // A token in use by another device: the answer is the same as for a wrong secret.
            json!({"deviceName": "c", "token": "TOKEN-OF-DEVICE-B"}),
            json!({"deviceName": "x".repeat(300)}),
        ] {
            let answer = ask(rejected).unwrap_err();
            assert_eq!(answer["status"], "FAILURE", "{answer}");
        }
        assert_eq!(registry.count(), 4);
    }
}
