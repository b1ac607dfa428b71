//! Handles control messages of devices on the thread for device jobs.

use std::sync::Arc;

use bumpalo::Bump;
use serde_json::{Map, Value, json};

use super::control_request::{AttributeKeys, ControlRequest};
use super::device_job_queue::ControlJob;
use super::platform_state::Platform;
use crate::command::{EncodedDownlink, Recipient};
use crate::device::Device;
use crate::id::id_for_name;
use crate::ingest::DeviceMessage;
use crate::protocol::{
    self, ControlMessage, DeviceProtocol, DownlinkMessage, DownlinkTarget, KeySlot, MessageVisitor,
    RawValue, RowInfo, TopicKind,
};
use crate::registry::RegistryError;
use crate::{AttributeScope, NewDevice, WritePrecondition};

/// Description of products that were created because a gateway named them.
pub(super) const CREATED_FOR_GATEWAY: &str = "Created for devices behind a gateway";
/// Maximum number of devices that one message may register.
const MAX_NEW_DEVICES: usize = 1000;

impl Platform {
    pub(super) fn run_control_job(&self, sent: &ControlJob) {
        if let Err(error) = self.try_control_job(sent) {
            tracing::warn!(device = sent.subject.0, %error, "device control message failed");
        }
    }

    fn try_control_job(&self, sent: &ControlJob) -> Result<(), RegistryError> {
        let registry = self.registry();
        let Some(device) = registry.by_no(sent.subject)? else {
            return Ok(());
        };
        let states = &self.inner.parts.states;
        let now_ms = sent.now_ms.max(0) as u64;
        match &sent.request {
            ControlRequest::Attributes(json) => {
                let values = parse_object(json).into_iter().collect();
                registry.set_attributes(&device, AttributeScope::Client, values)?;
            }
            ControlRequest::AttributesRequest { id, client, shared } => {
                let client = self.selected_attributes(&device, AttributeScope::Client, client)?;
                let shared = self.selected_attributes(&device, AttributeScope::Shared, shared)?;
                let downlink = DownlinkMessage::AttributesResponse {
                    id,
                    client_json: client.as_deref(),
                    shared_json: shared.as_deref(),
                };
                self.send_downlink(sent, &device, &downlink)?;
            }
            ControlRequest::Call { id, method } => {
                let json = answer_rpc(method, sent.now_ms);
                self.send_downlink(
                    sent,
                    &device,
                    &DownlinkMessage::RpcResponse { id, json: &json },
                )?;
            }
            ControlRequest::TimeSync { id } => {
                self.send_downlink(sent, &device, &DownlinkMessage::Time { id })?
            }
            ControlRequest::Event { id, ts_ms, data } => {
                if device.product.get().storage().enabled {
                    let ts_ms = ts_ms.unwrap_or(sent.now_ms);
                    registry.append_event(device.no, id, ts_ms, data)?;
                }
            }
            // For a device with its own connection, the connection determines this.
            ControlRequest::Online if sent.subject != sent.sender => {
                states.connect_child(&device, sent.sender, now_ms);
            }
            ControlRequest::Offline if sent.subject != sent.sender => {
                states.disconnect_child(&device, now_ms)
            }
            ControlRequest::Online | ControlRequest::Offline => {}
            ControlRequest::Registered { name } => {
                if sent.subject != sent.sender {
                    states.connect_child(&device, sent.sender, now_ms);
                }
                if let Some(name) = name.as_deref().filter(|name| *name != device.name()) {
                    let mut changed = registry.to_new_device(&device)?;
                    changed.name = name.into();
                    registry.put(changed, WritePrecondition::Revision(device.revision))?;
                }
            }
            ControlRequest::Unregistered if sent.subject != sent.sender => {
                let mut changed = registry.to_new_device(&device)?;
                changed.parent = None;
                registry.put(changed, WritePrecondition::Revision(device.revision))?;
                states.disconnect_child(&device, now_ms);
            }
            ControlRequest::Unregistered => {}
            ControlRequest::Tags(json) => {
                let mut changed = registry.to_new_device(&device)?;
                for (key, value) in parse_object(json) {
                    match value {
                        Value::Null => {
                            changed.tags.remove(&key);
                        }
                        Value::String(text) => {
                            changed.tags.insert(key, text);
                        }
                        other => {
                            changed.tags.insert(key, other.to_string());
                        }
                    }
                }
                registry.put(changed, WritePrecondition::Revision(device.revision))?;
            }
            ControlRequest::Claim {
                secret,
                duration_ms,
            } => registry.offer_claim(device.no, secret, *duration_ms, now_ms)?,
        }
        Ok(())
    }

    fn selected_attributes(
        &self,
        device: &Device,
        scope: AttributeScope,
        keys: &AttributeKeys,
    ) -> Result<Option<String>, RegistryError> {
        if !keys.is_wanted() {
            return Ok(None);
        }
        let attributes = self.registry().attributes(device, scope)?.into_iter();
        let values: Map<String, Value> = attributes
            .filter(|attribute| keys.contains(&attribute.key))
            .map(|attribute| (attribute.key, attribute.value))
            .collect();
        // A scope without any of the requested attributes is omitted, as in ThingsBoard.
        Ok((!values.is_empty()).then(|| Value::Object(values).to_string()))
    }

    /// Sends a message to the client on whose connection a request arrived.
    fn send_downlink(
        &self,
        sent: &ControlJob,
        about: &Device,
        downlink: &DownlinkMessage<'_>,
    ) -> Result<(), RegistryError> {
        let Some(client_id) = self.client_of(sent.sender) else {
            return Ok(());
        };
        let gateway = match sent.subject == sent.sender {
            true => None,
            false => self.registry().by_no(sent.sender)?,
        };
        let gateway = gateway.as_deref();
        let to = DownlinkTarget {
            product: about.product.id().as_str(),
            device: match gateway {
                Some(_) => about.name_at_gateway(),
                None => about.id.as_str(),
            },
            gateway: gateway.map(|gateway| (gateway.product.id().as_str(), gateway.id.as_str())),
        };
        let (mut topic, mut payload) = (String::new(), String::new());
        // A protocol without this message has no request for it either.
        if protocol::encode_downlink(
            sent.protocol,
            &to,
            downlink,
            // The request may have waited in a mailbox.
            wall_clock::now_ms() as i64,
            &mut topic,
            &mut payload,
        )
        .is_ok()
        {
            let encoded = EncodedDownlink {
                topic,
                payload,
                // The request shows that the client expects the reply. ThingsBoard's server does not look at
                // subscriptions, and its own client may ask before it has subscribed.
                needs_subscription: matches!(
                    sent.protocol,
                    DeviceProtocol::ThingsBoard | DeviceProtocol::JetLinks
                ),
                log_recipient: Recipient::if_logged(gateway.unwrap_or(about)),
            };
            self.inner.parts.messenger.send(&client_id, encoded);
        }
        Ok(())
    }

    /// Loads the devices that a gateway's message names, and registers unknown ones if that is permitted.
    pub(super) fn load_children(&self, message: &DeviceMessage<'_>) {
        let gateway = match self.registry().by_no(message.sender.no) {
            Ok(Some(gateway)) => gateway,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(gateway = message.sender.id, %error, "gateway lookup failed; its child devices are not loaded");
                return;
            }
        };
        let names = child_names(message);
        for name in names.iter().take(MAX_NEW_DEVICES) {
            if let Err(error) = self.load_child(&gateway, name, message) {
                let gateway = gateway.id.as_str();
                tracing::debug!(gateway, name, %error, "registration of a child device failed");
            }
        }
    }

    fn load_child(
        &self,
        gateway: &Arc<Device>,
        name: &str,
        message: &DeviceMessage<'_>,
    ) -> Result<(), RegistryError> {
        let registry = self.registry();
        let may_register = self.inner.parts.may_gateways_register && gateway.is_gateway();
        let id = id_for_name(name);
        // A device that is read here stays in the cache.
        if registry.device(&id)?.is_some() || !may_register {
            return Ok(());
        }
        let (product, display) = registration_hints(message);
        let product = product.and_then(|kind| self.product_for_kind(&kind, gateway));
        // Messages to the gateway use the name that it has given.
        let own_name = (id != name).then(|| name.to_owned());
        let device = NewDevice {
            id: id.to_string(),
            product: product.unwrap_or_else(|| gateway.product.id().to_string()),
            name: own_name.or(display).unwrap_or_default(),
            group: gateway.group.as_deref().map(str::to_owned),
            tags: Default::default(),
            parent: Some(gateway.id.to_string()),
            enabled: true,
            gateway: false,
            credentials: Some(Vec::new()),
        };
        registry.put(device, WritePrecondition::Absent)?;
        // Reads the new device once, so that it is cached.
        registry.device(&id)?;
        Ok(())
    }

    /// The product for devices of a type that their gateway states. The product is created if it does not
    /// exist and the limit permits; `None`: they get the product of their gateway.
    fn product_for_kind(&self, kind: &str, gateway: &Device) -> Option<String> {
        let id = id_for_name(kind);
        let own = gateway.product.get();
        let namespace = own.namespace();
        if let Some(known) = self.registry().product(&id) {
            // A product of another namespace is not for these devices.
            return (known.get().namespace() == namespace).then(|| id.into_owned());
        }
        let parts = &self.inner.parts;
        // ThingsBoard's name for no particular type.
        if kind == "default" {
            return None;
        }
        let products = self.registry().products();
        let created = products
            .iter()
            .filter(|slot| slot.get().definition.description == CREATED_FOR_GATEWAY);
        if created.count() >= parts.max_gateway_products
            || self.registry().check_room_for_product(namespace).is_err()
        {
            return None;
        }
        let product =
            json!({"name": kind, "description": CREATED_FOR_GATEWAY, "namespace": namespace});
        if !parts.product_factory.create(&id, &product) {
            return None;
        }
        let gateway = gateway.id.as_str();
        tracing::info!(
            product = &*id,
            gateway,
            "product created for devices behind a gateway"
        );
        Some(id.into_owned())
    }
}

/// The product and the name of a device, where a message that registers it contains them.
fn registration_hints(message: &DeviceMessage<'_>) -> (Option<String>, Option<String>) {
    let body: Value = serde_json::from_slice(message.payload).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let headers = &body["headers"];
    let product = text(&body["type"]).or_else(|| text(&headers["productId"]));
    match protocol::parse_device_topic(message.topic).map(|route| route.kind) {
        Some(TopicKind::Gateway(_) | TopicKind::Register) => {
            (product, text(&headers["deviceName"]))
        }
        _ => (None, None),
    }
}

/// The answers to RPC requests of devices to the platform.
#[must_use]
pub fn answer_rpc(method: &str, now_ms: i64) -> String {
    match method {
        // Client libraries ask for the permitted rates; the node enforces its limits in any case.
        "getSessionLimits" => {
            r#"{"maxPayloadSize":65536,"maxInflightMessages":100,"rateLimits":{}}"#.to_owned()
        }
        "getCurrentTime" => now_ms.to_string(),
        _ => r#"{"error":"There is no such method."}"#.to_owned(),
    }
}

fn parse_object(json: &str) -> Map<String, Value> {
    // It was validated when it was decoded.
    serde_json::from_str(json).unwrap_or_default()
}

/// The child devices that a message is about.
fn child_names(message: &DeviceMessage<'_>) -> Vec<String> {
    let Some(route) = protocol::parse_device_topic(message.topic) else {
        return Vec::new();
    };
    let named = route
        .child
        .or_else(|| route.device.filter(|device| *device != message.sender.id));
    if let Some(name) = named {
        return vec![name.to_owned()];
    }
    let arena = Bump::new();
    let mut names = ChildNameCollector(Vec::new());
    // Errors of the message have already been reported.
    let _ = protocol::decode_message(&route, message.payload, &arena, &mut names);
    names.0
}

/// Collects names only.
struct ChildNameCollector(Vec<String>);

impl<'a> MessageVisitor<'a> for ChildNameCollector {
    fn enter_device(&mut self, child: Option<&'a str>) -> bool {
        self.0.extend(child.map(str::to_owned));
        false
    }

    fn resolve_key(&mut self, _: usize, _: &[u8], _: &str) -> KeySlot {
        0
    }

    fn visit_value(&mut self, _: KeySlot, _: RawValue<'a>) {}

    fn finish_row(&mut self, _: RowInfo) {}

    fn discard_row(&mut self) {}

    fn visit_control_message(&mut self, _: ControlMessage<'a>) {}
}
