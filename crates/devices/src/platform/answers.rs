//! What the desk does about what devices say.

use std::sync::Arc;

use bumpalo::Bump;
use serde_json::{Map, Value, json};

use super::Platform;
use super::desk::Sent;
use super::errand::{Errand, Keys};
use crate::command::{Letter, Recipient};
use crate::dialect::{self, Addressee, Ears, Kind, Raw, RowInfo, Said, Slot, Tell};
use crate::id::id_for_name;
use crate::ingest::Message;
use crate::{Device, Expected, NewDevice, RegistryError, Scope};

/// The description of products that were created because a gateway has named them.
pub(super) const CREATED_FOR_GATEWAY: &str = "Created for devices behind a gateway";
/// Devices that one message may bring along.
const MAX_NEW: usize = 1000;

impl Platform {
    pub(super) fn run_errand(&self, sent: &Sent) {
        if let Err(error) = self.try_errand(sent) {
            tracing::warn!(device = sent.about.0, %error, "what a device said could not be taken");
        }
    }

    fn try_errand(&self, sent: &Sent) -> Result<(), RegistryError> {
        let registry = self.registry();
        let Some(device) = registry.by_no(sent.about)? else {
            return Ok(());
        };
        let states = &self.inner.parts.states;
        let now_ms = sent.now_ms.max(0) as u64;
        match &sent.what {
            Errand::Attributes(json) => {
                let values = members(json).into_iter().collect();
                registry.set_attributes(&device, Scope::Client, values)?;
            }
            Errand::AttributesRequest { id, client, shared } => {
                let client = self.wanted(&device, Scope::Client, client)?;
                let shared = self.wanted(&device, Scope::Shared, shared)?;
                let tell = Tell::AttributesResponse {
                    id,
                    client_json: client.as_deref(),
                    shared_json: shared.as_deref(),
                };
                self.tell(sent, &device, &tell)?;
            }
            Errand::Call { id, method } => {
                let json = answer_call(method, sent.now_ms);
                self.tell(sent, &device, &Tell::RpcResponse { id, json: &json })?;
            }
            Errand::TimeSync { id } => self.tell(sent, &device, &Tell::Time { id })?,
            Errand::Event { id, ts_ms, data } => {
                if device.product.get().storage().enabled {
                    let ts_ms = ts_ms.unwrap_or(sent.now_ms);
                    registry.append_event(device.no, id, ts_ms, data)?;
                }
            }
            // Of a device with a connection of its own, that says it.
            Errand::Here if sent.about != sent.by => {
                states.child_connected(&device, sent.by, now_ms);
            }
            Errand::Gone if sent.about != sent.by => states.child_disconnected(&device, now_ms),
            Errand::Here | Errand::Gone => {}
            Errand::Registered { name } => {
                if sent.about != sent.by {
                    states.child_connected(&device, sent.by, now_ms);
                }
                if let Some(name) = name.as_deref().filter(|name| *name != device.name()) {
                    let mut changed = registry.as_written(&device)?;
                    changed.name = name.into();
                    registry.put(changed, Expected::Revision(device.revision))?;
                }
            }
            Errand::Unregistered if sent.about != sent.by => {
                let mut changed = registry.as_written(&device)?;
                changed.parent = None;
                registry.put(changed, Expected::Revision(device.revision))?;
                states.child_disconnected(&device, now_ms);
            }
            Errand::Unregistered => {}
            Errand::Tags(json) => {
                let mut changed = registry.as_written(&device)?;
                for (key, value) in members(json) {
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
                registry.put(changed, Expected::Revision(device.revision))?;
            }
            Errand::Claim {
                secret,
                duration_ms,
            } => registry.offer_claim(device.no, secret, *duration_ms, now_ms)?,
        }
        Ok(())
    }

    fn wanted(
        &self,
        device: &Device,
        scope: Scope,
        keys: &Keys,
    ) -> Result<Option<String>, RegistryError> {
        if !keys.is_wanted() {
            return Ok(None);
        }
        let attributes = self.registry().attributes(device, scope)?.into_iter();
        let values: Map<String, Value> = attributes
            .filter(|attribute| keys.has(&attribute.key))
            .map(|attribute| (attribute.key, attribute.value))
            .collect();
        // A scope without any of what was asked for is left out, as ThingsBoard does.
        Ok((!values.is_empty()).then(|| Value::Object(values).to_string()))
    }

    /// Tells the client on whose connection something came.
    fn tell(&self, sent: &Sent, about: &Device, tell: &Tell<'_>) -> Result<(), RegistryError> {
        let Some(client_id) = self.client_of(sent.by) else {
            return Ok(());
        };
        let gateway = match sent.about == sent.by {
            true => None,
            false => self.registry().by_no(sent.by)?,
        };
        let gateway = gateway.as_deref();
        let to = Addressee {
            product: about.product.id().as_str(),
            device: match gateway {
                Some(_) => about.name_at_gateway(),
                None => about.id.as_str(),
            },
            gateway: gateway.map(|gateway| (gateway.product.id().as_str(), gateway.id.as_str())),
        };
        let (mut topic, mut payload) = (String::new(), String::new());
        // A dialect that cannot say it cannot ask for it either.
        if dialect::write(
            sent.dialect,
            &to,
            tell,
            // It may have waited in a mailbox.
            crate::now_ms() as i64,
            &mut topic,
            &mut payload,
        )
        .is_ok()
        {
            let letter = Letter {
                topic,
                payload,
                subscribes: false,
                logged: Recipient::if_logged(gateway.unwrap_or(about)),
            };
            self.inner.parts.teller.tell(&client_id, letter);
        }
        Ok(())
    }

    /// Brings the devices a gateway speaks of to hand, and registers those nobody knows if that is allowed.
    pub(super) fn find_children(&self, message: &Message<'_>) {
        let gateway = match self.registry().by_no(message.by.no) {
            Ok(Some(gateway)) => gateway,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(gateway = message.by.id, %error, "a gateway cannot be read");
                return;
            }
        };
        let names = names_in(message);
        for name in names.iter().take(MAX_NEW) {
            if let Err(error) = self.find_child(&gateway, name, message) {
                let gateway = gateway.id.as_str();
                tracing::debug!(gateway, name, %error, "a gateway speaks of a device that cannot be registered");
            }
        }
    }

    fn find_child(
        &self,
        gateway: &Arc<Device>,
        name: &str,
        message: &Message<'_>,
    ) -> Result<(), RegistryError> {
        let registry = self.registry();
        let may_register = self.inner.parts.gateways_register && gateway.is_gateway();
        let id = id_for_name(name);
        // Whoever is found is at hand from now on.
        if registry.device(&id)?.is_some() || !may_register {
            return Ok(());
        }
        let (product, display) = hints(message);
        let product = product.and_then(|kind| self.product_of_kind(&kind, gateway));
        // The gateway is told of it by the name it has given.
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
        registry.put(device, Expected::Absent)?;
        // What was written is to be read once, to be at hand.
        registry.device(&id)?;
        Ok(())
    }

    /// The product for devices that their gateway says are of this kind. It is created if there is none and there may be more;
    /// `None`: they get the product of their gateway.
    fn product_of_kind(&self, kind: &str, gateway: &Device) -> Option<String> {
        let id = id_for_name(kind);
        if self.registry().product(&id).is_some() {
            return Some(id.into_owned());
        }
        let parts = &self.inner.parts;
        // ThingsBoard's word for no kind in particular.
        if kind == "default" {
            return None;
        }
        let products = self.registry().products();
        let created = products
            .iter()
            .filter(|slot| slot.get().definition.description == CREATED_FOR_GATEWAY);
        if created.count() >= parts.max_gateway_products {
            return None;
        }
        let product = json!({"name": kind, "description": CREATED_FOR_GATEWAY});
        if !parts.products.create(&id, &product) {
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

/// The product and the name of a device, where a message that registers it says them.
fn hints(message: &Message<'_>) -> (Option<String>, Option<String>) {
    let said: Value = serde_json::from_slice(message.payload).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let headers = &said["headers"];
    let product = text(&said["type"]).or_else(|| text(&headers["productId"]));
    match dialect::route(message.topic).map(|route| route.kind) {
        Some(Kind::Gateway(_) | Kind::Register) => (product, text(&headers["deviceName"])),
        _ => (None, None),
    }
}

/// What calls of devices to the platform are answered with.
#[must_use]
pub fn answer_call(method: &str, now_ms: i64) -> String {
    match method {
        // Client libraries ask this to learn how fast they may be; the node's limits hold anyhow.
        "getSessionLimits" => {
            r#"{"maxPayloadSize":65536,"maxInflightMessages":100,"rateLimits":{}}"#.to_owned()
        }
        "getCurrentTime" => now_ms.to_string(),
        _ => r#"{"error":"There is no such method."}"#.to_owned(),
    }
}

fn members(json: &str) -> Map<String, Value> {
    // It was checked when it was read.
    serde_json::from_str(json).unwrap_or_default()
}

/// The devices behind the speaker that a message is about.
fn names_in(message: &Message<'_>) -> Vec<String> {
    let Some(route) = dialect::route(message.topic) else {
        return Vec::new();
    };
    let named = route
        .child
        .or_else(|| route.device.filter(|device| *device != message.by.id));
    if let Some(name) = named {
        return vec![name.to_owned()];
    }
    let arena = Bump::new();
    let mut names = Names(Vec::new());
    // What is wrong with it has been told.
    let _ = dialect::read(&route, message.payload, &arena, &mut names);
    names.0
}

/// Hears names alone.
struct Names(Vec<String>);

impl<'a> Ears<'a> for Names {
    fn about(&mut self, child: Option<&'a str>) -> bool {
        self.0.extend(child.map(str::to_owned));
        false
    }

    fn key(&mut self, _: usize, _: &[u8], _: &str) -> Slot {
        0
    }

    fn value(&mut self, _: Slot, _: Raw<'a>) {}

    fn row(&mut self, _: RowInfo) {}

    fn discard(&mut self) {}

    fn said(&mut self, _: Said<'a>) {}
}
