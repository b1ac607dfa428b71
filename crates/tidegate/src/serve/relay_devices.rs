//! Devices on connections of relay endpoints: handles their messages on a thread that may block.
//!
//! The thread has a queue of its own, so that devices at relay endpoints do not delay those of MQTT.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use devices::Device;
use devices::ingest::SubmitOutcome;
use devices::platform::{DeviceIngress, EndpointDevice};
use devices::protocol::{relay_ack_topic, relay_data_topic};
use relay::{DeviceConnection, DeviceMessage, DeviceRequest, Identity, RelayDevices, RequestError};

use super::relay_requests::RelayRequestHandler;

/// Number and size of waiting messages from which further ones are rejected.
const MAX_WAITING_MESSAGES: usize = 10_000;
const MAX_WAITING_BYTES: usize = 16 << 20;
/// How long the thread waits for room in the pipeline before it checks whether the node stops.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The queue of messages. Clones share it.
#[derive(Clone)]
pub(super) struct RelayDeviceQueue {
    jobs: mpsc::Sender<RelayDeviceJob>,
    load: Arc<QueueLoad>,
}

#[derive(Default)]
struct QueueLoad {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    is_stopping: AtomicBool,
}

enum RelayDeviceJob {
    Message(Arc<DeviceConnection>, DeviceMessage),
    Closed(Arc<DeviceConnection>, &'static str),
    Stop,
}

/// The thread, and the queue to it.
#[derive(Clone)]
pub(super) struct NodeRelayDevices {
    pub(super) queue: RelayDeviceQueue,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl NodeRelayDevices {
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        requests: RelayRequestHandler,
        ingress: DeviceIngress,
    ) -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel();
        let load = Arc::<QueueLoad>::default();
        let mut worker = RelayDeviceWorker {
            requests,
            ingress,
            load: load.clone(),
            devices: HashMap::new(),
        };
        let builder = thread::Builder::new().name("relay-devices".to_owned());
        let thread = builder.spawn(move || worker.run(&waiting))?;
        Ok(Self {
            queue: RelayDeviceQueue { jobs, load },
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    /// Ends the thread when the queue is empty. All connections must be closed.
    pub(super) fn stop(&self) {
        self.queue.load.is_stopping.store(true, Relaxed);
        let _ = self.queue.jobs.send(RelayDeviceJob::Stop);
        let thread = (self.thread.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the relay-devices thread panicked; this is a bug");
        }
    }
}

impl RelayDevices for RelayDeviceQueue {
    fn submit(&self, connection: &Arc<DeviceConnection>, message: DeviceMessage) -> bool {
        let load = &self.load;
        if load.messages.load(Relaxed) >= MAX_WAITING_MESSAGES
            || load.bytes.load(Relaxed) >= MAX_WAITING_BYTES
        {
            return false;
        }
        load.messages.fetch_add(1, Relaxed);
        load.bytes.fetch_add(message.payload_bytes(), Relaxed);
        let job = RelayDeviceJob::Message(Arc::clone(connection), message);
        self.jobs.send(job).is_ok()
    }

    // Never rejected: there is one per connection, and without it the device would stay online.
    fn closed(&self, connection: &Arc<DeviceConnection>, reason: &'static str) {
        let job = RelayDeviceJob::Closed(Arc::clone(connection), reason);
        // The node has stopped: no device is online any more.
        let _ = self.jobs.send(job);
    }
}

/// The device that a connection has identified itself as.
struct ConnectedDevice {
    device: Arc<Device>,
    data_topic: String,
    ack_topic: String,
}

struct RelayDeviceWorker {
    requests: RelayRequestHandler,
    ingress: DeviceIngress,
    load: Arc<QueueLoad>,
    /// By client id; at most one for each connection.
    devices: HashMap<String, ConnectedDevice>,
}

impl RelayDeviceWorker {
    fn run(&mut self, waiting: &mpsc::Receiver<RelayDeviceJob>) {
        while let Ok(job) = waiting.recv() {
            let handle = std::panic::AssertUnwindSafe(|| match job {
                RelayDeviceJob::Message(connection, message) => {
                    self.load.messages.fetch_sub(1, Relaxed);
                    self.load.bytes.fetch_sub(message.payload_bytes(), Relaxed);
                    self.handle_message(&connection, message);
                    true
                }
                RelayDeviceJob::Closed(connection, reason) => {
                    self.detach(connection.client_id(), reason);
                    true
                }
                RelayDeviceJob::Stop => false,
            });
            match std::panic::catch_unwind(handle) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => {
                    tracing::error!(
                        "a message at a relay endpoint panicked; it is skipped; this is a bug"
                    );
                }
            }
        }
    }

    fn handle_message(&mut self, connection: &Arc<DeviceConnection>, message: DeviceMessage) {
        let known = self.devices.get(connection.client_id());
        match (message, known) {
            (DeviceMessage::Identify(identity), _) => self.identify(connection, &identity),
            (
                DeviceMessage::Data {
                    payload,
                    received_ms,
                },
                Some(known),
            ) => {
                let (device, topic) = (known.device.clone(), known.data_topic.clone());
                match self.pass(&device, &topic, &payload, received_ms) {
                    SubmitOutcome::Accepted => {}
                    SubmitOutcome::StorageFull => {
                        connection.warn_not_stored("The telemetry store has no room");
                    }
                    SubmitOutcome::QuotaReached => connection.warn_not_stored(
                        "The quota telemetry_megabytes of the namespace is reached",
                    ),
                }
            }
            (
                DeviceMessage::ControlAck {
                    payload,
                    received_ms,
                },
                Some(known),
            ) => {
                let (device, topic) = (known.device.clone(), known.ack_topic.clone());
                // Not telemetry: neither room nor a quota is needed.
                let _ = self.pass(&device, &topic, &payload, received_ms);
            }
            (DeviceMessage::Request(request), Some(known)) => {
                let result = self.requests.answer(connection, &known.device, &request);
                connection.respond(&request.request_id, result);
            }
            (DeviceMessage::Request(DeviceRequest { request_id, .. }), None) => {
                connection.respond(&request_id, Err(not_identified()));
            }
            // The client has received the error.
            (DeviceMessage::Data { .. } | DeviceMessage::ControlAck { .. }, None) => {}
        }
    }

    fn pass(
        &mut self,
        device: &Arc<Device>,
        topic: &str,
        payload: &[u8],
        received_ms: u64,
    ) -> SubmitOutcome {
        // Meanwhile the queue fills, and clients are notified that their data are not stored.
        while self.ingress.is_saturated() && !self.load.is_stopping.load(Relaxed) {
            self.ingress.wait_for_room(STOP_CHECK_INTERVAL);
        }
        self.ingress.pass(device, topic, payload, received_ms)
    }

    fn identify(&mut self, connection: &Arc<DeviceConnection>, identity: &Identity) {
        let (endpoint, client_id) = (connection.endpoint(), connection.client_id());
        let (namespace, product) = (connection.namespace(), connection.product());
        let wanted = EndpointDevice {
            endpoint,
            namespace: &namespace,
            product: product.as_deref(),
            device: &identity.device_id,
            name: identity.device_name.as_deref(),
        };
        let platform = self.requests.platform().clone();
        let device = match platform.endpoint_device(&wanted) {
            Ok(device) => device,
            Err(error) => {
                self.detach(client_id, "identify_failed");
                tracing::debug!(endpoint, device = identity.device_id, %error, "a client could not identify itself as a device");
                let message = format!("The device cannot be identified: {error}.");
                connection.reject_identity(&message);
                return;
            }
        };
        let is_known =
            (self.devices.get(client_id)).is_some_and(|known| known.device.no == device.no);
        if !is_known {
            self.detach(client_id, "identified_as_other");
            // The client learns who it is before it gets commands.
            connection.confirm_identity(&identity.device_id, device.name(), device.id.as_str());
            if !platform.attach_endpoint_client(&device, client_id, &identity.device_id) {
                connection.reject_identity("The device has just been changed.");
                return;
            }
            let known = ConnectedDevice {
                device,
                data_topic: relay_data_topic(endpoint),
                ack_topic: relay_ack_topic(endpoint),
            };
            self.devices.insert(client_id.to_owned(), known);
        } else {
            connection.confirm_identity(&identity.device_id, device.name(), device.id.as_str());
        }
    }

    fn detach(&mut self, client_id: &str, reason: &'static str) {
        if let Some(known) = self.devices.remove(client_id) {
            let platform = self.requests.platform();
            platform.detach_endpoint_client(&known.device, client_id, reason);
        }
    }
}

fn not_identified() -> RequestError {
    RequestError {
        code: "DEVICE_NOT_IDENTIFIED",
        message: "The device could not be identified; send identify again.".to_owned(),
    }
}
