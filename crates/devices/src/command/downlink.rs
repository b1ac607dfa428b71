//! Downlink: the client through which a device is reached, and the message in each protocol of its product.
//!
//! The subscriptions of a device show which protocol it uses: the node tries one after the other, and a client that
//! has not subscribed to the topic of a protocol receives nothing. JetLinks devices need not subscribe. If a device
//! is known to be of this type and nothing else, the node subscribes on its behalf.

use std::collections::VecDeque;

use hooks::relay::RELAY_TOPIC_PREFIX;
use series::DeviceNo;

use crate::credential::Credential;
use crate::device::Device;
use crate::id::{DeviceId, ProductId};
use crate::product::Product;
use crate::protocol::{self, DeviceProtocol, DownlinkMessage, DownlinkTarget};
use crate::registry::{Registry, RegistryError};

/// A message encoded in one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedDownlink {
    pub topic: String,
    pub payload: String,
    /// The client expects the message without having subscribed, so the node has to subscribe for it.
    pub needs_subscription: bool,
    /// The device for the message log, if its product keeps one.
    pub log_recipient: Option<Recipient>,
}

/// The device that a message is for: the client's own device or a child device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    pub device: DeviceId,
    pub product: ProductId,
}

impl Recipient {
    /// Returns `None` if its product keeps no message log.
    #[must_use]
    pub fn if_logged(device: &Device) -> Option<Self> {
        let is_logged = device.product.get().storage().device_log;
        is_logged.then(|| Self {
            device: device.id.clone(),
            product: device.product.id().clone(),
        })
    }
}

/// Result of sending a message to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownlinkOutcome {
    /// The client is not connected, or has no matching subscription.
    Unreachable,
    /// The message was sent. `expects_ack`: an acknowledgement will be reported.
    Sent { expects_ack: bool },
    /// The message cannot be sent now, with the reason.
    RetryLater(String),
    /// The message can never be sent to this client, with the reason.
    Rejected(String),
}

/// Receives the result of sending a message. If it is dropped without a result, it reports
/// [`DownlinkOutcome::RetryLater`].
pub struct DownlinkCompletion(Option<Box<dyn FnOnce(DownlinkOutcome) + Send>>);

impl DownlinkCompletion {
    pub(super) fn new(done: impl FnOnce(DownlinkOutcome) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }

    pub fn complete(mut self, outcome: DownlinkOutcome) {
        if let Some(done) = self.0.take() {
            done(outcome);
        }
    }
}

impl Drop for DownlinkCompletion {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(DownlinkOutcome::RetryLater(
                "the node did not report a result".to_owned(),
            ));
        }
    }
}

/// Access to the clients of the node.
pub trait DownlinkTransport: Send + Sync {
    /// The id of the client that is connected as this device.
    fn client_of(&self, device: DeviceNo) -> Option<Box<str>>;

    /// The id by which the device is addressed on that client's connection, if it is not its id in the registry.
    fn alias_of(&self, device: DeviceNo) -> Option<Box<str>> {
        let _ = device;
        None
    }

    /// Whether a device is online, directly or behind its gateway.
    fn is_online(&self, device: DeviceNo) -> bool;

    /// Sends a message to one client if it is connected and has a matching subscription. Does not block. `acked` is
    /// called when the client has acknowledged the message, if that was announced.
    fn send(
        &self,
        client_id: &str,
        encoded: EncodedDownlink,
        done: DownlinkCompletion,
        acked: Box<dyn FnOnce() + Send>,
    );
}

/// The ways to send a message to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DownlinkPlan {
    pub(super) client_id: Box<str>,
    /// The message in each protocol that supports it; the first one that reaches the client is used.
    pub(super) encodings: VecDeque<EncodedDownlink>,
}

/// Plans how to send a message to a device now; `None`: the device is not online.
pub(super) fn plan_downlink(
    registry: &Registry,
    transport: &dyn DownlinkTransport,
    device: &Device,
    message: &DownlinkMessage<'_>,
    now_ms: u64,
) -> Result<Option<DownlinkPlan>, RegistryError> {
    let (client_id, gateway) = match (transport.client_of(device.no), device.parent) {
        (Some(client_id), _) => (client_id, None),
        (None, Some(parent)) if transport.is_online(device.no) => {
            match (transport.client_of(parent), registry.by_no(parent)?) {
                (Some(client_id), Some(gateway)) => (client_id, Some(gateway)),
                _ => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    let speaker = gateway.as_deref().unwrap_or(device);
    let product = speaker.product.get();
    let is_relay = client_id.starts_with(RELAY_TOPIC_PREFIX);
    let alias = match is_relay {
        true => transport.alias_of(device.no),
        false => None,
    };
    let to = DownlinkTarget {
        product: device.product.id().as_str(),
        device: match (&gateway, &alias) {
            (Some(_), _) => device.name_at_gateway(),
            (None, Some(alias)) => alias,
            (None, None) => device.id.as_str(),
        },
        gateway: (gateway.as_deref())
            .map(|gateway| (gateway.product.id().as_str(), gateway.id.as_str())),
    };
    let mut encodings = VecDeque::new();
    let mut write = |protocol, subscribes| {
        let (mut topic, mut payload) = (String::new(), String::new());
        let now_ms = now_ms as i64;
        // Protocols that do not support the message are skipped.
        if protocol::encode_downlink(protocol, &to, message, now_ms, &mut topic, &mut payload)
            .is_ok()
        {
            encodings.push_back(EncodedDownlink {
                topic,
                payload,
                needs_subscription: subscribes,
                log_recipient: Recipient::if_logged(speaker),
            });
        }
    };
    // A connection of a relay endpoint has no subscriptions of its own and no children.
    let candidates: &[_] = match (is_relay, &gateway) {
        (true, Some(_)) => &[],
        (true, None) => &[DeviceProtocol::Relay],
        (false, _) => &[
            DeviceProtocol::Native,
            DeviceProtocol::JetLinks,
            DeviceProtocol::ThingsBoard,
        ],
    };
    for &protocol in candidates {
        if product.allows_protocol(protocol) {
            write(protocol, false);
        }
    }
    if !is_relay && receives_without_subscription(speaker, &product) {
        write(DeviceProtocol::JetLinks, true);
    }
    Ok(Some(DownlinkPlan {
        client_id,
        encodings,
    }))
}

/// Whether the device, as far as known, uses the JetLinks protocol only.
fn receives_without_subscription(device: &Device, product: &Product) -> bool {
    let others = [
        DeviceProtocol::Native,
        DeviceProtocol::ThingsBoard,
        DeviceProtocol::Relay,
    ];
    let is_secure = |credential: &Credential| matches!(credential, Credential::Secure { .. });
    let shows_secure = device.credentials.iter().any(is_secure)
        || (device.credentials.is_empty() && product.definition.secure.is_some());
    product.allows_protocol(DeviceProtocol::JetLinks)
        && (shows_secure
            || !others
                .into_iter()
                .any(|other| product.allows_protocol(other)))
}
