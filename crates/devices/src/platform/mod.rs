//! The registry and the pipeline put together: products become profiles, clients become speakers, and what devices say besides telemetry
//! goes to attributes, states, tags and claims.

mod answers;
mod attempts;
mod connections;
mod desk;
mod entrance;
mod errand;
mod profiles;
mod provisioning;
mod report;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use broker::hooks::{Client, Peer, Settled};
use series::{DeviceNo, Point};

use crate::chain::Chains;
use crate::command::Letter;
use crate::dialect::{Dialect, Said};
use crate::hooks::Clients;
use crate::id::id_for_name;
use crate::ingest::{Family, Message, Outside, Pipeline, Profile, Speaker, Voice};
use crate::live::Live;
use crate::{Admission, Device, DeviceChange, Directory, ProductId, Registry, States, now_ms};

pub use entrance::{Entrance, NotTaken};

use attempts::ProvisioningAttempts;
use connections::Connections;
use desk::{Desk, Job};
use errand::Errand;
use profiles::Numbers;

pub use answers::answer_call;
pub use provisioning::{Registration, RegistrationLog};
pub use report::Reporter;

/// Sends a message to one client, or sends it away.
pub trait Teller: Send + Sync {
    /// Never waits.
    fn tell(&self, client_id: &str, letter: Letter);

    /// Ends the connections of clients. Never waits.
    fn send_away(&self, client_ids: &[Box<str>]);
}

/// Creates products. May wait.
pub trait ProductMaker: Send + Sync {
    /// Whether it was created; it is known to the registry then.
    fn create(&self, id: &str, product: &serde_json::Value) -> bool;
}

/// What the platform is made of.
pub struct Parts {
    pub registry: Registry,
    pub directory: Arc<Directory>,
    pub states: States,
    pub live: Arc<Live>,
    pub chains: Chains,
    /// Everybody else: rules, sinks, alarms.
    pub outside: Arc<dyn Outside>,
    pub teller: Arc<dyn Teller>,
    pub registration_log: Arc<dyn RegistrationLog>,
    /// Whether a gateway may register devices by speaking of them.
    pub gateways_register: bool,
    pub products: Arc<dyn ProductMaker>,
    /// Products there may be that gateways have caused to be created; 0: they cause none.
    pub max_gateway_products: usize,
}

/// Clones are the same platform.
#[derive(Clone)]
pub struct Platform {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Parts,
    numbers: Numbers,
    pipeline: OnceLock<Arc<Pipeline>>,
    connections: Connections,
    desk: Desk,
    provisioning_attempts: ProvisioningAttempts,
}

impl Platform {
    /// Starts the desk's thread; [`Platform::begin`] is to follow.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(parts: Parts) -> std::io::Result<Self> {
        let platform = Self {
            inner: Arc::new(Inner {
                parts,
                numbers: Numbers::default(),
                pipeline: OnceLock::new(),
                connections: Connections::default(),
                desk: Desk::default(),
                provisioning_attempts: ProvisioningAttempts::default(),
            }),
        };
        desk::start(&platform)?;
        Ok(platform)
    }

    /// From now on messages are worked off by this pipeline, which was opened with [`Platform::profiles`].
    pub fn begin(&self, pipeline: Arc<Pipeline>) {
        // The first one stays.
        let _ = self.inner.pipeline.set(pipeline);
    }

    /// Ends the desk's thread when it has done what waits for it.
    pub fn stop(&self) {
        self.inner.desk.stop();
    }

    pub fn live(&self) -> &Arc<Live> {
        &self.inner.parts.live
    }

    /// Waits until the desk has nothing to do.
    pub fn settle(&self) {
        self.inner.desk.settle();
    }

    fn registry(&self) -> &Registry {
        &self.inner.parts.registry
    }

    /// The client as which a device is connected; of several the youngest.
    pub fn client_of(&self, device: DeviceNo) -> Option<Box<str>> {
        self.inner.connections.last(device)
    }

    /// The clients whose connections end because their device was removed or disabled, belongs to another product now, or does not
    /// have the credential any more with which they connected.
    pub fn ended_by(&self, change: &DeviceChange<'_>) -> Vec<Box<str>> {
        let connections = &self.inner.connections;
        match change {
            DeviceChange::Created(_) => Vec::new(),
            DeviceChange::Removed(device) => connections.of_device(device.no, |_| true),
            DeviceChange::Updated(device) => {
                connections.of_device(device.no, |admission| !admission.still_holds(device))
            }
        }
    }

    /// The same for all devices of a product that was changed or removed.
    pub fn ended_by_product(&self, id: &ProductId) -> Vec<Box<str>> {
        let is_there = self.registry().product(id.as_str()).is_some();
        let connections = &self.inner.connections;
        connections.of_product(id, |admission| {
            !is_there || !admission.still_holds(&admission.device)
        })
    }

    /// Looks again whether a client may be the device it was let in as.
    fn look_again(&self, admission: &Admission, client_id: &str) {
        let stays = match self.registry().by_no(admission.device.no) {
            Ok(None) => false,
            Ok(Some(now)) => admission.still_holds(&now),
            Err(error) => {
                tracing::error!(%error, "a device that connects cannot be read; it is disconnected");
                false
            }
        };
        if !stays {
            self.inner.parts.teller.send_away(&[client_id.into()]);
        }
    }

    pub fn speaker_of(&self, device: &Device) -> Speaker {
        Speaker {
            no: device.no,
            product: self.number_of(device.product.id()),
            id: device.id.clone(),
        }
    }
}

impl Clients for Platform {
    fn is_in_use(&self) -> bool {
        self.registry().has_products()
    }

    fn device_of(&self, client: &Client<'_>) -> Option<Arc<Speaker>> {
        if !self.is_in_use() {
            return None;
        }
        let peer = match client.peer {
            Some(Peer::Tcp(address)) => Some(address),
            Some(Peer::Unix) | None => None,
        };
        let parts = &self.inner.parts;
        let is_named = client.username.is_some();
        let directory = &parts.directory;
        let admission = directory.take_admitted(peer, client.client_id, is_named)?;
        let device = Arc::clone(&admission.device);
        let speaker = Arc::new(self.speaker_of(&device));
        let connections = &self.inner.connections;
        // Whoever hears that it is here may want to tell it something.
        connections.add(admission.clone(), client.client_id);
        // Whoever changed it or its product before it stood there did not see it.
        if !self.registry().is_current(&device) || !admission.still_holds(&device) {
            let client_id = client.client_id.into();
            let job = Job::LookAgain(Box::new(admission), client_id);
            self.inner.desk.push(job);
        }
        parts.states.connected(&device, now_ms());
        // It may have subscribed in an earlier connection.
        parts.outside.listens(speaker.voice(), None);
        Some(speaker)
    }

    fn has_product(&self, id: &str) -> bool {
        self.registry().product(id).is_some()
    }

    fn seen(&self, device: &Speaker, now_ms: u64) {
        self.inner.parts.states.reported(device.no, now_ms);
    }

    fn provision(&self, client: &Client<'_>, request: &[u8]) {
        let desk = &self.inner.desk;
        if self.registry().has_provisioning() && !desk.is_full() {
            desk.push(Job::Provision {
                client_id: client.client_id.into(),
                from: match client.peer {
                    Some(Peer::Tcp(address)) => Some(address.ip().to_canonical()),
                    Some(Peer::Unix) | None => None,
                },
                request: request.into(),
            });
        }
    }

    fn subscribed(&self, device: &Speaker, filter: &str) {
        let outside = &self.inner.parts.outside;
        outside.listens(device.voice(), Some(filter));
    }

    fn gone(&self, device: &Speaker, client: &Client<'_>, reason: &'static str) {
        let connections = &self.inner.connections;
        if let Some(device) = connections.remove(device.no, client.client_id) {
            let states = &self.inner.parts.states;
            states.disconnected(&device, reason, now_ms());
        }
    }
}

impl Family for Platform {
    fn child(&self, gateway: Voice<'_>, name: &str) -> Option<Arc<Speaker>> {
        let registry = self.registry();
        // Most names are ids.
        let device = registry.hot(name).or_else(|| match id_for_name(name) {
            Cow::Borrowed(_) => None,
            Cow::Owned(id) => registry.hot(&id),
        })?;
        if device.parent != Some(gateway.no) || !device.is_let_in() {
            return None;
        }
        let states = &self.inner.parts.states;
        states.heard_behind(&device, gateway.no, now_ms());
        Some(Arc::new(self.speaker_of(&device)))
    }

    fn bring(&self, message: &Message<'_>) {
        self.find_children(message);
    }

    fn speaker(&self, device: DeviceNo) -> Option<Arc<Speaker>> {
        let device = self.registry().by_no(device);
        let device = device.unwrap_or_else(|error| {
            tracing::error!(%error, "a device that has messages in a mailbox cannot be read");
            None
        })?;
        Some(Arc::new(self.speaker_of(&device)))
    }
}

impl Outside for Platform {
    fn wants_rows(&self) -> bool {
        let parts = &self.inner.parts;
        parts.live.is_watched() || parts.outside.wants_rows()
    }

    fn stored(&self, speaker: Voice<'_>, profile: &Profile, ts_ms: i64, points: &[Point<'_>]) {
        let parts = &self.inner.parts;
        if parts.live.is_watched() {
            parts.live.stored(speaker.no, ts_ms, points);
        }
        if parts.outside.wants_rows() {
            parts.outside.stored(speaker, profile, ts_ms, points);
        }
    }

    fn said(
        &self,
        by: Voice<'_>,
        about: Voice<'_>,
        dialect: Dialect,
        said: &Said<'_>,
        now_ms: i64,
    ) {
        let outside = &self.inner.parts.outside;
        outside.said(by, about, dialect, said, now_ms);
        if let Some(what) = Errand::of(said) {
            let sent = desk::Sent {
                by: by.no,
                about: about.no,
                dialect,
                now_ms,
                what,
            };
            match self.inner.desk.is_here() {
                true => self.run_errand(&sent),
                false => self.inner.desk.push(Job::Errand(sent)),
            }
        }
    }

    fn later(&self, message: &Message<'_>) -> bool {
        self.inner.desk.push(Job::again(message));
        true
    }

    fn logged(&self, by: Voice<'_>, profile: &Profile, topic: &str, payload: &[u8], now_ms: i64) {
        let outside = &self.inner.parts.outside;
        outside.logged(by, profile, topic, payload, now_ms);
    }

    fn alarm(&self, speaker: Voice<'_>, profile: &Profile, ts_ms: i64, points: &[Point<'_>]) {
        let outside = &self.inner.parts.outside;
        outside.alarm(speaker, profile, ts_ms, points);
    }

    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        let outside = &self.inner.parts.outside;
        outside.republish(topic, payload, qos, retain);
    }

    fn sink(&self, name: &str, row: rules::Value<'_>) {
        self.inner.parts.outside.sink(name, row);
    }

    fn settle(&self, done: Settled) {
        // What the desk does may leave something with the others.
        let outside = Arc::clone(&self.inner.parts.outside);
        let then = Box::new(move || outside.settle(done));
        self.inner.desk.settle_later(then);
    }

    fn is_unsettled(&self) -> bool {
        self.inner.parts.outside.is_unsettled()
    }

    fn is_full(&self) -> bool {
        self.inner.desk.is_full() || self.inner.parts.outside.is_full()
    }
}
