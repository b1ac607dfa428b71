//! How a device is told something: by which client, and in the words of which of its product's dialects.
//!
//! Which dialect a device speaks shows in what it subscribes to: the node tries one after the other, and a client that has not
//! subscribed to the topic of one gets nothing by it. Devices of JetLinks need not subscribe where they come from: for those
//! that nothing else is known of than that they are of this kind, the node subscribes to the topic they would.

use std::collections::VecDeque;

use series::DeviceNo;

use crate::credential::Credential;
use crate::device::Device;
use crate::dialect::{self, Addressee, Dialect, Tell};
use crate::id::{DeviceId, ProductId};
use crate::product::{Dialect as Spoken, Product};
use crate::registry::{Registry, RegistryError};

/// A message in the words of one dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub topic: String,
    pub payload: String,
    /// The client would hear it without having subscribed: the node is to subscribe for it.
    pub subscribes: bool,
    /// Who gets it, if its product keeps a log of messages.
    pub logged: Option<Recipient>,
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
pub enum Handed {
    /// It is not connected, or does not listen there.
    NotHeard,
    /// It was put on its way. Whether it will be told when the client has it.
    Sent { is_watched: bool },
    /// Not now, and why.
    Later(String),
    /// It cannot be told this, and why.
    Never(String),
}

/// Takes what came of telling a client something. Dropped without a word it says that it may be tried later.
pub struct Handover(Option<Box<dyn FnOnce(Handed) + Send>>);

impl Handover {
    pub(super) fn new(done: impl FnOnce(Handed) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }

    pub fn done(mut self, handed: Handed) {
        if let Some(done) = self.0.take() {
            done(handed);
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Handed::Later(
                "the node did not say what came of it".to_owned(),
            ));
        }
    }
}

/// The clients of the node.
pub trait Reach: Send + Sync {
    /// The client as which a device is connected.
    fn client_of(&self, device: DeviceNo) -> Option<Box<str>>;

    /// Whether a device is here, by itself or behind its gateway.
    fn is_online(&self, device: DeviceNo) -> bool;

    /// Sends a message to one client, if it is connected and listens there. Does not wait. `acked` is called when the client has it,
    /// where that was promised.
    fn tell(
        &self,
        client_id: &str,
        letter: Letter,
        done: Handover,
        acked: Box<dyn FnOnce() + Send>,
    );
}

/// The ways to tell a device something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) client_id: Box<str>,
    /// In each dialect that has words for it; the first that is heard is enough.
    pub(super) letters: VecDeque<Letter>,
}

/// How a device is told something now; `None`: it is not here.
pub(super) fn address(
    registry: &Registry,
    reach: &dyn Reach,
    device: &Device,
    tell: &Tell<'_>,
    now_ms: u64,
) -> Result<Option<Address>, RegistryError> {
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
    let to = Addressee {
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
        if dialect::write(dialect, &to, tell, now_ms, &mut topic, &mut payload).is_ok() {
            letters.push_back(Letter {
                topic,
                payload,
                subscribes,
                logged: Recipient::if_logged(speaker),
            });
        }
    };
    for (spoken, dialect) in [
        (Spoken::Own, Dialect::Own),
        (Spoken::Jetlinks, Dialect::JetLinks),
        (Spoken::Thingsboard, Dialect::ThingsBoard),
    ] {
        if product.speaks(spoken) {
            write(dialect, false);
        }
    }
    if hears_unasked(speaker, &product) {
        write(Dialect::JetLinks, true);
    }
    Ok(Some(Address { client_id, letters }))
}

/// Whether the device was made for JetLinks, as far as anybody can know.
fn hears_unasked(device: &Device, product: &Product) -> bool {
    let others = [Spoken::Own, Spoken::Thingsboard];
    let is_secure = |credential: &Credential| matches!(credential, Credential::Secure { .. });
    let shows_secure = device.credentials.iter().any(is_secure)
        || (device.credentials.is_empty() && product.definition.secure.is_some());
    product.speaks(Spoken::Jetlinks)
        && (shows_secure || !others.into_iter().any(|other| product.speaks(other)))
}
