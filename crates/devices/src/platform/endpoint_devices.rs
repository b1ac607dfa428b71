//! Devices that are connected to relay endpoints. A connection identifies itself as a device; the endpoint vouches for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use wall_clock::now_ms;

use super::platform_state::Platform;
use crate::authenticator::DeviceAdmission;
use crate::device::Device;
use crate::id::id_for_name;
use crate::protocol::DeviceProtocol;
use crate::registry::RegistryError;
use crate::{NewDevice, WritePrecondition};

/// Default name of a device: this and the first characters of its id.
const DEFAULT_NAME: &str = "Device";
const DEFAULT_NAME_ID_CHARS: usize = 4;

/// A device as it identifies itself at an endpoint.
#[derive(Debug, Clone, Copy)]
pub struct EndpointDevice<'a> {
    /// Id of the endpoint.
    pub endpoint: &'a str,
    /// Namespace of the endpoint. Its devices belong to the same one.
    pub namespace: &'a str,
    /// Product of the endpoint's devices; `None`: a product of its own, which is created for the first device.
    pub product: Option<&'a str>,
    /// The id that the device uses at this endpoint.
    pub device: &'a str,
    /// Used only for a new device.
    pub name: Option<&'a str>,
}

/// Why a client cannot be a device of an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointDeviceError {
    #[error("the product {0:?} of this endpoint does not exist")]
    NoProduct(String),
    #[error("the device or its product belongs to another namespace than the endpoint")]
    OtherNamespace,
    #[error("the node cannot create a product for the devices of this endpoint")]
    ProductNotCreated,
    #[error(
        "the endpoint needs a product for its devices, and cannot create one: {0}. Or name an existing product in its field `product`"
    )]
    NoRoomForProduct(String),
    #[error("the device, its product or its namespace is disabled")]
    Disabled,
    #[error("the product of the device does not allow the protocol \"relay\"")]
    ProtocolNotAllowed,
    #[error("a device behind a gateway cannot identify itself")]
    BehindGateway,
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl EndpointDevice<'_> {
    /// The id in the registry. Endpoint ids contain no colon, so that devices of different endpoints differ.
    fn registry_id(&self) -> String {
        id_for_name(&format!("{}:{}", self.endpoint, self.device)).into_owned()
    }

    fn default_name(&self) -> String {
        let start: String = self.device.chars().take(DEFAULT_NAME_ID_CHARS).collect();
        format!("{DEFAULT_NAME} {start}")
    }
}

impl Platform {
    /// The registered device that a client identifies itself as; a new one is registered. May wait.
    ///
    /// # Errors
    /// If the device may not connect, or cannot be registered.
    pub fn endpoint_device(
        &self,
        identity: &EndpointDevice<'_>,
    ) -> Result<Arc<Device>, EndpointDeviceError> {
        let registry = self.registry();
        let id = identity.registry_id();
        let device = match registry.device(&id)? {
            Some(device) => device,
            None => self.register_endpoint_device(identity, id)?,
        };
        if !device.is_in_namespace(identity.namespace) {
            return Err(EndpointDeviceError::OtherNamespace);
        }
        if device.parent.is_some() {
            return Err(EndpointDeviceError::BehindGateway);
        }
        if !device.is_admitted() {
            return Err(EndpointDeviceError::Disabled);
        }
        if !(device.product.get()).allows_protocol(DeviceProtocol::Relay) {
            return Err(EndpointDeviceError::ProtocolNotAllowed);
        }
        Ok(device)
    }

    fn register_endpoint_device(
        &self,
        identity: &EndpointDevice<'_>,
        id: String,
    ) -> Result<Arc<Device>, EndpointDeviceError> {
        let registry = self.registry();
        let product = match identity.product {
            Some(product) => product.to_owned(),
            None => self.own_product(identity)?,
        };
        let Some(slot) = registry.product(&product) else {
            return Err(EndpointDeviceError::NoProduct(product));
        };
        if slot.get().namespace() != identity.namespace {
            return Err(EndpointDeviceError::OtherNamespace);
        }
        let name = identity.name.filter(|name| !name.trim().is_empty());
        let device = NewDevice {
            id,
            product,
            name: name.map_or_else(|| identity.default_name(), str::to_owned),
            group: None,
            tags: BTreeMap::from([("endpoint".to_owned(), identity.endpoint.to_owned())]),
            parent: None,
            enabled: true,
            gateway: false,
            // It can connect to the endpoint only.
            credentials: Some(Vec::new()),
        };
        let device = registry.put(device, WritePrecondition::Absent)?.device;
        tracing::info!(
            device = device.id.as_str(),
            endpoint = identity.endpoint,
            "device registered at a relay endpoint"
        );
        Ok(device)
    }

    /// The product of an endpoint that names none.
    fn own_product(&self, identity: &EndpointDevice<'_>) -> Result<String, EndpointDeviceError> {
        let (registry, endpoint) = (self.registry(), identity.endpoint);
        let id = id_for_name(&format!("relay-{endpoint}")).into_owned();
        if registry.product(&id).is_some() {
            return Ok(id);
        }
        let checked = registry.check_room_for_product(identity.namespace);
        checked.map_err(EndpointDeviceError::NoRoomForProduct)?;
        let product = json!({
            "name": format!("Relay endpoint {endpoint}"),
            "description": "Created for the devices of a relay endpoint",
            "namespace": identity.namespace,
            "protocols": ["relay"],
        });
        match self.inner.parts.product_factory.create(&id, &product) {
            true => Ok(id),
            false => Err(EndpointDeviceError::ProductNotCreated),
        }
    }

    /// A client of an endpoint is connected as this device from now on, until [`Platform::detach_endpoint_client`]. The
    /// device calls itself `alias`. Returns `false` if the device was removed or may no longer connect.
    pub fn attach_endpoint_client(
        &self,
        device: &Arc<Device>,
        client_id: &str,
        alias: &str,
    ) -> bool {
        let connections = &self.inner.connections;
        let admission = DeviceAdmission::by_endpoint(Arc::clone(device));
        // As for MQTT clients: registered first, then checked for a change that did not find this connection.
        connections.add(admission.clone(), client_id, Some(alias));
        let is_valid = match self.registry().by_no(device.no) {
            Ok(Some(now)) => admission.is_still_valid(&now),
            Ok(None) | Err(_) => false,
        };
        if !is_valid {
            connections.remove(device.no, client_id);
            return false;
        }
        let parts = &self.inner.parts;
        parts.states.connect(device, now_ms());
        let handle = self.handle_of(device);
        parts.outputs.notify_reachable(handle.as_device_ref(), None);
        true
    }

    /// The client of an endpoint is no longer connected as this device.
    pub fn detach_endpoint_client(&self, device: &Device, client_id: &str, reason: &'static str) {
        if let Some(device) = self.inner.connections.remove(device.no, client_id) {
            self.inner
                .parts
                .states
                .disconnect(&device, reason, now_ms());
        }
    }
}
