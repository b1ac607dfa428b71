//! How a device is told something: by which client, and in the words of which of its product's dialects.
//!
//! Which dialect a device speaks shows in what it subscribes to: the node tries one after the other, and a client that has not
//! subscribed to the topic of one gets nothing by it. Devices of JetLinks need not subscribe where they come from: for those
//! that nothing else is known of than that they are of this kind, the node subscribes to the topic they would.

use std::collections::VecDeque;

use series::DeviceNo;

use crate::credential::Credential;
use crate::device::Device;
use crate::id::{DeviceId, ProductId};
use crate::product::{Product, ProductProtocol as Spoken};
use crate::protocol::{self, DeviceProtocol, DownlinkMessage, DownlinkTarget};
use crate::registry::{Registry, RegistryError};

/// A message in the words of one dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedDownlink {
    pub topic: String,
    pub payload: String,
    /// The client would hear it without having subscribed: the node is to subscribe for it.
    pub needs_subscription: bool,
    /// Who gets it, if its product keeps a log of messages.
    pub log_recipient: Option<Recipient>,
}

/// A device that is told something, itself or for one behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    pub device: DeviceId,
    pub product: ProductId,
}

impl Recipient {
    /// `None`: its product keeps no log.
    #[must_use]
    pub fn if_logged(device: &Device) -> Option<Self> {
        let is_logged = device.product.get().storage().device_log;
        is_logged.then(|| Self {
            device: device.id.clone(),
            product: device.product.id().clone(),
        })
    }
}

/// What came of telling a client something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownlinkOutcome {
    /// It is not connected, or does not listen there.
    Unreachable,
    /// It was put on its way. Whether it will be told when the client has it.
    Sent { expects_ack: bool },
    /// Not now, and why.
    RetryLater(String),
    /// It cannot be told this, and why.
    Rejected(String),
}

/// Takes what came of telling a client something. Dropped without a word it says that it may be tried later.
pub struct DownlinkCompletion(Option<Box<dyn FnOnce(DownlinkOutcome) + Send>>);

impl DownlinkCompletion {
    pub(super) fn new(done: impl FnOnce(DownlinkOutcome) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }

    pub fn complete(mut self, handed: DownlinkOutcome) {
        if let Some(done) = self.0.take() {
            done(handed);
        }
    }
}

impl Drop for DownlinkCompletion {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(DownlinkOutcome::RetryLater(
                "the node did not say what came of it".to_owned(),
            ));
        }
    }
}

/// The clients of the node.
pub trait DownlinkTransport: Send + Sync {
    /// The client as which a device is connected.
    fn client_of(&self, device: DeviceNo) -> Option<Box<str>>;

    /// Whether a device is here, by itself or behind its gateway.
    fn is_online(&self, device: DeviceNo) -> bool;

    /// Sends a message to one client, if it is connected and listens there. Does not wait. `acked` is called when the client has it,
    /// where that was promised.
    fn send(
        &self,
        client_id: &str,
        letter: EncodedDownlink,
        done: DownlinkCompletion,
        acked: Box<dyn FnOnce() + Send>,
    );
}

/// The ways to tell a device something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DownlinkPlan {
    pub(super) client_id: Box<str>,
    /// In each dialect that has words for it; the first that is heard is enough.
    pub(super) encodings: VecDeque<EncodedDownlink>,
}

/// How a device is told something now; `None`: it is not here.
pub(super) fn plan_downlink(
    registry: &Registry,
    reach: &dyn DownlinkTransport,
    device: &Device,
    tell: &DownlinkMessage<'_>,
    now_ms: u64,
) -> Result<Option<DownlinkPlan>, RegistryError> {
    let (client_id, gateway) = match (reach.client_of(device.no), device.parent) {
        (Some(client_id), _) => (client_id, None),
        (None, Some(parent)) if reach.is_online(device.no) => {
            match (reach.client_of(parent), registry.by_no(parent)?) {
                (Some(client_id), Some(gateway)) => (client_id, Some(gateway)),
                _ => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    let speaker = gateway.as_deref().unwrap_or(device);
    let product = speaker.product.get();
    let to = DownlinkTarget {
        product: device.product.id().as_str(),
        device: match gateway {
            Some(_) => device.name_at_gateway(),
            None => device.id.as_str(),
        },
        gateway: (gateway.as_deref())
            .map(|gateway| (gateway.product.id().as_str(), gateway.id.as_str())),
    };
    let mut letters = VecDeque::new();
    let mut write = |dialect, subscribes| {
        let (mut topic, mut payload) = (String::new(), String::new());
        let now_ms = now_ms as i64;
        // A dialect without words for it is not one to tell it in.
        if protocol::encode_downlink(dialect, &to, tell, now_ms, &mut topic, &mut payload).is_ok() {
            letters.push_back(EncodedDownlink {
                topic,
                payload,
                needs_subscription: subscribes,
                log_recipient: Recipient::if_logged(speaker),
            });
        }
    };
    for (spoken, dialect) in [
        (Spoken::Own, DeviceProtocol::Native),
        (Spoken::Jetlinks, DeviceProtocol::JetLinks),
        (Spoken::Thingsboard, DeviceProtocol::ThingsBoard),
    ] {
        if product.allows_protocol(spoken) {
            write(dialect, false);
        }
    }
    if receives_without_subscription(speaker, &product) {
        write(DeviceProtocol::JetLinks, true);
    }
    Ok(Some(DownlinkPlan {
        client_id,
        encodings: letters,
    }))
}

/// Whether the device was made for JetLinks, as far as anybody can know.
fn receives_without_subscription(device: &Device, product: &Product) -> bool {
    let others = [Spoken::Own, Spoken::Thingsboard];
    let is_secure = |credential: &Credential| matches!(credential, Credential::Secure { .. });
    let shows_secure = device.credentials.iter().any(is_secure)
        || (device.credentials.is_empty() && product.definition.secure.is_some());
    product.allows_protocol(Spoken::Jetlinks)
        && (shows_secure
            || !others
                .into_iter()
                .any(|other| product.allows_protocol(other)))
}
