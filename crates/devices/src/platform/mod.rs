//! The registry and the pipeline put together: products become profiles, clients become speakers, and what devices say besides telemetry
//! goes to attributes, states, tags and claims.

mod control_handler;
mod control_request;
mod device_connections;
mod device_jobs;
mod ingress;
mod profiles;
mod provisioning;
mod provisioning_attempts;
mod reporter;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use broker::hooks::{Client, DurableCallback, PeerAddress};
use series::{DeviceNo, Point};

use crate::chain::Chains;
use crate::command::EncodedDownlink;
use crate::hooks::DeviceClients;
use crate::id::id_for_name;
use crate::ingest::{
    DeviceHandle, DeviceMessage, DeviceRef, DeviceResolver, Pipeline, PipelineOutputs,
    ProductProfile,
};
use crate::live::LiveTelemetry;
use crate::protocol::{ControlMessage, DeviceProtocol};
use crate::{
    Device, DeviceAdmission, DeviceAuthenticator, DeviceChange, DeviceStates, ProductId, Registry,
    now_ms,
};

pub use ingress::{DeviceIngress, IngressError};

use control_request::ControlRequest;
use device_connections::DeviceConnections;
use device_jobs::{DeviceJob, DeviceJobQueue};
use profiles::ProductNumbers;
use provisioning_attempts::ProvisioningAttempts;

pub use control_handler::answer_rpc;
pub use provisioning::{Registration, RegistrationLog};
pub use reporter::Reporter;

/// Sends a message to one client, or sends it away.
pub trait ClientMessenger: Send + Sync {
    /// Never waits.
    fn send(&self, client_id: &str, letter: EncodedDownlink);

    /// Ends the connections of clients. Never waits.
    fn disconnect(&self, client_ids: &[Box<str>]);
}

/// Creates products. May wait.
pub trait ProductFactory: Send + Sync {
    /// Whether it was created; it is known to the registry then.
    fn create(&self, id: &str, product: &serde_json::Value) -> bool;
}

/// What the platform is made of.
pub struct PlatformParts {
    pub registry: Registry,
    pub directory: Arc<DeviceAuthenticator>,
    pub states: DeviceStates,
    pub live: Arc<LiveTelemetry>,
    pub chains: Chains,
    /// Everybody else: rules, sinks, alarms.
    pub outputs: Arc<dyn PipelineOutputs>,
    pub messenger: Arc<dyn ClientMessenger>,
    pub registration_log: Arc<dyn RegistrationLog>,
    /// Whether a gateway may register devices by speaking of them.
    pub may_gateways_register: bool,
    pub product_factory: Arc<dyn ProductFactory>,
    /// Products there may be that gateways have caused to be created; 0: they cause none.
    pub max_gateway_products: usize,
}

/// Clones are the same platform.
#[derive(Clone)]
pub struct Platform {
    inner: Arc<PlatformInner>,
}

struct PlatformInner {
    parts: PlatformParts,
    product_numbers: ProductNumbers,
    pipeline: OnceLock<Arc<Pipeline>>,
    connections: DeviceConnections,
    jobs: DeviceJobQueue,
    provisioning_attempts: ProvisioningAttempts,
}

impl Platform {
    /// Starts the desk's thread; [`Platform::attach_pipeline`] is to follow.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(parts: PlatformParts) -> std::io::Result<Self> {
        let platform = Self {
            inner: Arc::new(PlatformInner {
                parts,
                product_numbers: ProductNumbers::default(),
                pipeline: OnceLock::new(),
                connections: DeviceConnections::default(),
                jobs: DeviceJobQueue::default(),
                provisioning_attempts: ProvisioningAttempts::default(),
            }),
        };
        device_jobs::start_worker(&platform)?;
        Ok(platform)
    }

    /// From now on messages are worked off by this pipeline, which was opened with [`Platform::profiles`].
    pub fn attach_pipeline(&self, pipeline: Arc<Pipeline>) {
        // The first one stays.
        let _ = self.inner.pipeline.set(pipeline);
    }

    /// Ends the desk's thread when it has done what waits for it.
    pub fn stop(&self) {
        self.inner.jobs.stop();
    }

    pub fn live(&self) -> &Arc<LiveTelemetry> {
        &self.inner.parts.live
    }

    /// Waits until the desk has nothing to do.
    pub fn wait_idle(&self) {
        self.inner.jobs.wait_idle();
    }

    fn registry(&self) -> &Registry {
        &self.inner.parts.registry
    }

    /// The client as which a device is connected; of several the youngest.
    pub fn client_of(&self, device: DeviceNo) -> Option<Box<str>> {
        self.inner.connections.youngest(device)
    }

    /// The clients whose connections end because their device was removed or disabled, belongs to another product now, or does not
    /// have the credential any more with which they connected.
    pub fn connections_to_close(&self, change: &DeviceChange<'_>) -> Vec<Box<str>> {
        let connections = &self.inner.connections;
        match change {
            DeviceChange::Created(_) => Vec::new(),
            DeviceChange::Removed(device) => connections.select_for_device(device.no, |_| true),
            DeviceChange::Updated(device) => connections
                .select_for_device(device.no, |admission| !admission.is_still_valid(device)),
        }
    }

    /// The same for all devices of a product that was changed or removed.
    pub fn connections_to_close_for_product(&self, id: &ProductId) -> Vec<Box<str>> {
        let is_there = self.registry().product(id.as_str()).is_some();
        let connections = &self.inner.connections;
        connections.select_for_product(id, |admission| {
            !is_there || !admission.is_still_valid(&admission.device)
        })
    }

    /// Looks again whether a client may be the device it was let in as.
    fn recheck_admission(&self, admission: &DeviceAdmission, client_id: &str) {
        let stays = match self.registry().by_no(admission.device.no) {
            Ok(None) => false,
            Ok(Some(now)) => admission.is_still_valid(&now),
            Err(error) => {
                tracing::error!(%error, "a device that connects cannot be read; it is disconnected");
                false
            }
        };
        if !stays {
            self.inner.parts.messenger.disconnect(&[client_id.into()]);
        }
    }

    pub fn handle_of(&self, device: &Device) -> DeviceHandle {
        DeviceHandle {
            no: device.no,
            product: self.number_of(device.product.id()),
            id: device.id.clone(),
        }
    }
}

impl DeviceClients for Platform {
    fn is_in_use(&self) -> bool {
        self.registry().has_products()
    }

    fn device_for(&self, client: &Client<'_>) -> Option<Arc<DeviceHandle>> {
        if !self.is_in_use() {
            return None;
        }
        let peer = match client.peer {
            Some(PeerAddress::Tcp(address)) => Some(address),
            Some(PeerAddress::Unix) | None => None,
        };
        let parts = &self.inner.parts;
        let is_named = client.username.is_some();
        let directory = &parts.directory;
        let admission = directory.take_admission(peer, client.client_id, is_named)?;
        let device = Arc::clone(&admission.device);
        let speaker = Arc::new(self.handle_of(&device));
        let connections = &self.inner.connections;
        // Whoever hears that it is here may want to tell it something.
        connections.add(admission.clone(), client.client_id);
        // Whoever changed it or its product before it stood there did not see it.
        if !self.registry().is_current(&device) || !admission.is_still_valid(&device) {
            let client_id = client.client_id.into();
            let job = DeviceJob::RecheckAdmission(Box::new(admission), client_id);
            self.inner.jobs.push(job);
        }
        parts.states.connect(&device, now_ms());
        // It may have subscribed in an earlier connection.
        parts
            .outputs
            .notify_reachable(speaker.as_device_ref(), None);
        Some(speaker)
    }

    fn has_product(&self, id: &str) -> bool {
        self.registry().product(id).is_some()
    }

    fn record_activity(&self, device: &DeviceHandle, now_ms: u64) {
        self.inner.parts.states.record_activity(device.no, now_ms);
    }

    fn request_provisioning(&self, client: &Client<'_>, request: &[u8]) {
        let desk = &self.inner.jobs;
        if self.registry().has_provisioning() && !desk.is_full() {
            desk.push(DeviceJob::Provision {
                client_id: client.client_id.into(),
                from: match client.peer {
                    Some(PeerAddress::Tcp(address)) => Some(address.ip().to_canonical()),
                    Some(PeerAddress::Unix) | None => None,
                },
                request: request.into(),
            });
        }
    }

    fn notify_subscribed(&self, device: &DeviceHandle, filter: &str) {
        let outside = &self.inner.parts.outputs;
        outside.notify_reachable(device.as_device_ref(), Some(filter));
    }

    fn notify_disconnected(
        &self,
        device: &DeviceHandle,
        client: &Client<'_>,
        reason: &'static str,
    ) {
        let connections = &self.inner.connections;
        if let Some(device) = connections.remove(device.no, client.client_id) {
            let states = &self.inner.parts.states;
            states.disconnect(&device, reason, now_ms());
        }
    }
}

impl DeviceResolver for Platform {
    fn resolve_child(&self, gateway: DeviceRef<'_>, name: &str) -> Option<Arc<DeviceHandle>> {
        let registry = self.registry();
        // Most names are ids.
        let device = registry.cached(name).or_else(|| match id_for_name(name) {
            Cow::Borrowed(_) => None,
            Cow::Owned(id) => registry.cached(&id),
        })?;
        if device.parent != Some(gateway.no) || !device.is_admitted() {
            return None;
        }
        let states = &self.inner.parts.states;
        states.mark_child_active(&device, gateway.no, now_ms());
        Some(Arc::new(self.handle_of(&device)))
    }

    fn load_children(&self, message: &DeviceMessage<'_>) {
        self.load_children(message);
    }

    fn resolve_device(&self, device: DeviceNo) -> Option<Arc<DeviceHandle>> {
        let device = self.registry().by_no(device);
        let device = device.unwrap_or_else(|error| {
            tracing::error!(%error, "a device that has messages in a mailbox cannot be read");
            None
        })?;
        Some(Arc::new(self.handle_of(&device)))
    }
}

impl PipelineOutputs for Platform {
    fn wants_rows(&self) -> bool {
        let parts = &self.inner.parts;
        parts.live.is_watched() || parts.outputs.wants_rows()
    }

    fn publish_row(
        &self,
        speaker: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let parts = &self.inner.parts;
        if parts.live.is_watched() {
            parts.live.publish_row(speaker.no, ts_ms, points);
        }
        if parts.outputs.wants_rows() {
            parts.outputs.publish_row(speaker, profile, ts_ms, points);
        }
    }

    fn handle_control_message(
        &self,
        by: DeviceRef<'_>,
        about: DeviceRef<'_>,
        dialect: DeviceProtocol,
        said: &ControlMessage<'_>,
        now_ms: i64,
    ) {
        let outside = &self.inner.parts.outputs;
        outside.handle_control_message(by, about, dialect, said, now_ms);
        if let Some(what) = ControlRequest::from_message(said) {
            let sent = device_jobs::ControlJob {
                sender: by.no,
                subject: about.no,
                dialect,
                now_ms,
                request: what,
            };
            match self.inner.jobs.is_worker_thread() {
                true => self.run_control_job(&sent),
                false => self.inner.jobs.push(DeviceJob::Control(sent)),
            }
        }
    }

    fn defer_message(&self, message: &DeviceMessage<'_>) -> bool {
        self.inner.jobs.push(DeviceJob::deferred(message));
        true
    }

    fn log_message(
        &self,
        by: DeviceRef<'_>,
        profile: &ProductProfile,
        topic: &str,
        payload: &[u8],
        now_ms: i64,
    ) {
        let outside = &self.inner.parts.outputs;
        outside.log_message(by, profile, topic, payload, now_ms);
    }

    fn evaluate_alarms(
        &self,
        speaker: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let outside = &self.inner.parts.outputs;
        outside.evaluate_alarms(speaker, profile, ts_ms, points);
    }

    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        let outside = &self.inner.parts.outputs;
        outside.republish(topic, payload, qos, retain);
    }

    fn write_to_sink(&self, name: &str, row: rules::Value<'_>) {
        self.inner.parts.outputs.write_to_sink(name, row);
    }

    fn settle(&self, done: DurableCallback) {
        // What the desk does may leave something with the others.
        let outside = Arc::clone(&self.inner.parts.outputs);
        let then = Box::new(move || outside.settle(done));
        self.inner.jobs.settle(then);
    }

    fn is_unsettled(&self) -> bool {
        self.inner.parts.outputs.is_unsettled()
    }

    fn is_full(&self) -> bool {
        self.inner.jobs.is_full() || self.inner.parts.outputs.is_full()
    }
}
