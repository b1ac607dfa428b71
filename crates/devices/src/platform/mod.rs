//! The device platform: connects registry and pipeline. Products become profiles, clients become devices, and
//! control messages update attributes, states, tags and claims.

mod control_handler;
mod control_request;
mod device_connections;
mod device_job_queue;
mod device_jobs;
mod endpoint_devices;
mod ingress;
mod platform_state;
mod product_numbers;
mod profiles;
mod provisioning;
mod provisioning_attempts;
mod registration_log;
mod reporter;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use hooks::{Client, DurableCallback, PeerAddress};
use namespaces::CountedConnection;
use series::{DeviceNo, Point};

use wall_clock::now_ms;

use crate::DeviceChange;
use crate::authenticator::DeviceAdmission;
use crate::device::Device;
use crate::device_hooks::DeviceClients;
use crate::id::{ProductId, id_for_name};
use crate::ingest::{
    DeviceHandle, DeviceMessage, DeviceRef, DeviceResolver, OwnedDeviceMessage, Pipeline,
    PipelineOutputs, ProductProfile, SettleScope,
};
use crate::live::LiveTelemetry;
use crate::protocol::{ControlMessage, DeviceProtocol};

pub use endpoint_devices::{EndpointDevice, EndpointDeviceError};
pub use ingress::{DeviceIngress, IngressError};

use control_request::ControlRequest;
use device_connections::DeviceConnections;
use device_job_queue::{ControlJob, DeviceJob, DeviceJobQueue};
use platform_state::PlatformInner;
use product_numbers::ProductNumbers;
use provisioning_attempts::ProvisioningAttempts;

pub use control_handler::answer_rpc;
pub use platform_state::{ClientMessenger, Platform, PlatformParts, ProductFactory};
pub use registration_log::{Registration, RegistrationLog};
pub use reporter::Reporter;

impl Platform {
    /// Starts the thread for device jobs; call [`Platform::attach_pipeline`] next.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(parts: PlatformParts) -> std::io::Result<Self> {
        let platform = Self {
            inner: Arc::new(PlatformInner {
                parts,
                product_numbers: ProductNumbers::default(),
                pipeline: OnceLock::new(),
                connections: DeviceConnections::default(),
                jobs: DeviceJobQueue::default(),
                provisioning_attempts: ProvisioningAttempts::new(),
            }),
        };
        device_jobs::start_worker(&platform)?;
        Ok(platform)
    }

    /// Processes messages with this pipeline from now on. It must have been opened with
    /// [`Platform::profiles`].
    pub fn attach_pipeline(&self, pipeline: Arc<Pipeline>) {
        // The first pipeline stays.
        let _ = self.inner.pipeline.set(pipeline);
    }

    /// Ends the thread for device jobs when the queue is empty.
    pub fn stop(&self) {
        self.inner.jobs.stop();
    }

    pub fn live(&self) -> &Arc<LiveTelemetry> {
        &self.inner.parts.live
    }

    /// Waits until no device job is queued or running.
    pub fn wait_idle(&self) {
        self.inner.jobs.wait_idle();
    }

    /// The client id under which a device is connected; of several, the youngest.
    pub fn client_of(&self, device: DeviceNo) -> Option<Box<str>> {
        self.inner.connections.newest_client_id(device)
    }

    /// The id that a device uses on its youngest connection, if it is not its id in the registry.
    pub fn alias_of(&self, device: DeviceNo) -> Option<Box<str>> {
        self.inner.connections.newest_alias(device)
    }

    /// The clients to disconnect after a change of their device. It was removed or disabled, belongs to
    /// another product, or no longer has the credential with which they connected.
    pub fn connections_to_close(&self, change: &DeviceChange<'_>) -> Vec<Box<str>> {
        let connections = &self.inner.connections;
        match change {
            DeviceChange::Created(_) => Vec::new(),
            DeviceChange::Removed(device) => connections.select_for_device(device.no, |_| true),
            DeviceChange::Updated(device) => connections
                .select_for_device(device.no, |admission| !admission.is_still_valid(device)),
        }
    }

    /// The clients to disconnect after the removal or change of a product.
    pub fn connections_to_close_for_product(&self, id: &ProductId) -> Vec<Box<str>> {
        let is_there = self.registry().product(id.as_str()).is_some();
        let connections = &self.inner.connections;
        connections.select_for_product(id, |admission| {
            !is_there || !admission.is_still_valid(&admission.device)
        })
    }

    /// Checks again whether a client may act as the device for which it was admitted.
    fn recheck_admission(&self, admission: &DeviceAdmission, client_id: &str) {
        let stays = match self.registry().by_no(admission.device.no) {
            Ok(None) => false,
            Ok(Some(now)) => admission.is_still_valid(&now),
            Err(error) => {
                tracing::error!(%error, "device lookup on connect failed; client disconnected");
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

    fn device_for(
        &self,
        client: &Client<'_>,
    ) -> Option<(Arc<DeviceHandle>, Option<CountedConnection>)> {
        if !self.is_in_use() {
            return None;
        }
        let peer = match client.peer {
            Some(PeerAddress::Tcp(address)) => Some(address),
            Some(PeerAddress::Unix | PeerAddress::Memory) | None => None,
        };
        let parts = &self.inner.parts;
        let is_named = client.username.is_some();
        let directory = &parts.directory;
        let admission = directory.take_admission(peer, client.client_id, is_named)?;
        let device = Arc::clone(&admission.device);
        let handle = Arc::new(self.handle_of(&device));
        let connections = &self.inner.connections;
        // An observer of the state may send to the device, so the connection must be registered first.
        connections.add(admission.clone(), client.client_id, None);
        // A change of the device or its product before the registration did not find this connection.
        if !self.registry().is_current(&device) || !admission.is_still_valid(&device) {
            let client_id = client.client_id.into();
            let job = DeviceJob::RecheckAdmission(Box::new(admission), client_id);
            self.inner.jobs.push(job);
        }
        parts.states.connect(&device, now_ms());
        // The session may have subscriptions of an earlier connection.
        parts.outputs.notify_reachable(handle.as_device_ref(), None);
        let product = device.product.get();
        let usage = self.registry().namespace_usage(product.namespace());
        Some((handle, usage.map(|usage| usage.connect())))
    }

    fn has_product(&self, id: &str) -> bool {
        self.registry().product(id).is_some()
    }

    fn record_activity(&self, device: &DeviceHandle, now_ms: u64) {
        self.inner.parts.states.record_activity(device.no, now_ms);
    }

    fn request_provisioning(&self, client: &Client<'_>, request: &[u8]) {
        let jobs = &self.inner.jobs;
        if self.registry().has_provisioning() && !jobs.is_full() {
            jobs.push(DeviceJob::Provision {
                client_id: client.client_id.into(),
                from: match client.peer {
                    Some(PeerAddress::Tcp(address)) => Some(address.ip().to_canonical()),
                    Some(PeerAddress::Unix | PeerAddress::Memory) | None => None,
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
            tracing::error!(%error, "device lookup for a mailbox message failed; message skipped");
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
        device: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let parts = &self.inner.parts;
        if parts.live.is_watched() {
            parts.live.publish_row(device.no, ts_ms, points);
        }
        if parts.outputs.wants_rows() {
            parts.outputs.publish_row(device, profile, ts_ms, points);
        }
    }

    fn handle_control_message(
        &self,
        by: DeviceRef<'_>,
        about: DeviceRef<'_>,
        protocol: DeviceProtocol,
        message: &ControlMessage<'_>,
        now_ms: i64,
    ) {
        let outside = &self.inner.parts.outputs;
        outside.handle_control_message(by, about, protocol, message, now_ms);
        if let Some(what) = ControlRequest::from_message(message) {
            let sent = ControlJob {
                sender: by.no,
                subject: about.no,
                protocol,
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
        let message = OwnedDeviceMessage::new(message);
        self.inner.jobs.push(DeviceJob::Deferred(message));
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
        device: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let outside = &self.inner.parts.outputs;
        outside.evaluate_alarms(device, profile, ts_ms, points);
    }

    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        let outside = &self.inner.parts.outputs;
        outside.republish(topic, payload, qos, retain);
    }

    fn write_to_sink(&self, name: &str, row: rules::Value<'_>) {
        self.inner.parts.outputs.write_to_sink(name, row);
    }

    fn settle(&self, scope: SettleScope, done: DurableCallback) {
        // Device jobs may pass something to the outputs.
        let outside = Arc::clone(&self.inner.parts.outputs);
        let then = Box::new(move || outside.settle(scope, done));
        self.inner.jobs.settle(then);
    }

    fn is_unsettled(&self) -> bool {
        self.inner.parts.outputs.is_unsettled()
    }

    fn is_full(&self) -> bool {
        self.inner.jobs.is_full() || self.inner.parts.outputs.is_full()
    }
}
