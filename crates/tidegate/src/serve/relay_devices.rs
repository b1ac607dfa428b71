//! Devices on connections of relay endpoints: handles their messages on two threads that may block.
//!
//! The threads have queues of their own, so that devices at relay endpoints do not delay those of MQTT. Requests read telemetry, and have
//! a thread of their own, so that they do not delay data and replies to commands.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use devices::Device;
use devices::ingest::SubmitOutcome;
use devices::platform::{DeviceIngress, EndpointDevice, Platform};
use devices::protocol::{relay_ack_topic, relay_data_topic};
use relay::{DeviceConnection, DeviceMessage, DeviceRequest, Identity, RelayDevices, RequestError};

use super::relay_requests::RelayRequestHandler;

/// Number and size of waiting messages from which further ones are rejected.
const MAX_WAITING_MESSAGES: usize = 10_000;
const MAX_WAITING_BYTES: usize = 16 << 20;
/// Number of waiting requests, of all connections, from which further ones are rejected.
const MAX_WAITING_REQUESTS: usize = 1000;
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
    /// Not among `messages`; each one until it is answered.
    requests: AtomicUsize,
    is_stopping: AtomicBool,
}

enum RelayDeviceJob {
    Message(Arc<DeviceConnection>, DeviceMessage),
    Closed(Arc<DeviceConnection>, &'static str),
    Stop,
}

/// A request of a device that has identified itself.
struct RequestJob {
    connection: Arc<DeviceConnection>,
    device: Arc<Device>,
    request: DeviceRequest,
}

/// The threads, and the queue to the first of them.
#[derive(Clone)]
pub(super) struct NodeRelayDevices {
    pub(super) queue: RelayDeviceQueue,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl NodeRelayDevices {
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(
        requests: RelayRequestHandler,
        ingress: DeviceIngress,
    ) -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel();
        let (request_jobs, waiting_requests) = mpsc::channel();
        let load = Arc::<QueueLoad>::default();
        let mut worker = RelayDeviceWorker {
            platform: requests.platform().clone(),
            requests: request_jobs,
            ingress,
            load: load.clone(),
            devices: HashMap::new(),
        };
        let builder = thread::Builder::new().name("relay-devices".to_owned());
        let devices_thread = builder.spawn(move || worker.run(&waiting))?;
        let request_load = load.clone();
        let builder = thread::Builder::new().name("relay-requests".to_owned());
        // It ends when the first thread has ended and the queue is empty.
        let requests_thread =
            builder.spawn(move || answer_requests(&requests, &waiting_requests, &request_load))?;
        Ok(Self {
            queue: RelayDeviceQueue { jobs, load },
            threads: Arc::new(Mutex::new(vec![devices_thread, requests_thread])),
        })
    }

    /// Ends the threads when their queues are empty. All connections must be closed.
    pub(super) fn stop(&self) {
        self.queue.load.is_stopping.store(true, Relaxed);
        let _ = self.queue.jobs.send(RelayDeviceJob::Stop);
        let threads =
            std::mem::take(&mut *(self.threads.lock()).unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(thread = name, "a thread panicked; this is a bug");
            }
        }
    }
}

impl QueueLoad {
    /// Counts a message, unless too many wait.
    fn add(&self, message: &DeviceMessage) -> bool {
        if let DeviceMessage::Request(_) = message {
            let has_room = self.requests.load(Relaxed) < MAX_WAITING_REQUESTS;
            if has_room {
                self.requests.fetch_add(1, Relaxed);
            }
            return has_room;
        }
        if self.messages.load(Relaxed) >= MAX_WAITING_MESSAGES
            || self.bytes.load(Relaxed) >= MAX_WAITING_BYTES
        {
            return false;
        }
        self.messages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(message.payload_bytes(), Relaxed);
        true
    }

    /// A message is taken from the queue. Requests count until they are answered.
    fn remove(&self, message: &DeviceMessage) {
        if !matches!(message, DeviceMessage::Request(_)) {
            self.messages.fetch_sub(1, Relaxed);
            self.bytes.fetch_sub(message.payload_bytes(), Relaxed);
        }
    }

    fn remove_request(&self) {
        self.requests.fetch_sub(1, Relaxed);
    }
}

impl RelayDevices for RelayDeviceQueue {
    fn submit(&self, connection: &Arc<DeviceConnection>, message: DeviceMessage) -> bool {
        if !self.load.add(&message) {
            return false;
        }
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
    platform: Platform,
    requests: mpsc::Sender<RequestJob>,
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
                    self.load.remove(&message);
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
                let job = RequestJob {
                    connection: connection.clone(),
                    device: known.device.clone(),
                    request,
                };
                if let Err(mpsc::SendError(job)) = self.requests.send(job) {
                    let message = "The node does not answer requests any more.";
                    let error = internal_error(message);
                    (job.connection).respond(&job.request.request_id, Err(error));
                    self.load.remove_request();
                }
            }
            (DeviceMessage::Request(DeviceRequest { request_id, .. }), None) => {
                connection.respond(&request_id, Err(not_identified()));
                self.load.remove_request();
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
        let platform = self.platform.clone();
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
            (self.platform).detach_endpoint_client(&known.device, client_id, reason);
        }
    }
}

fn answer_requests(
    requests: &RelayRequestHandler,
    waiting: &mpsc::Receiver<RequestJob>,
    load: &QueueLoad,
) {
    while let Ok(job) = waiting.recv() {
        let answer = std::panic::AssertUnwindSafe(|| requests.answer(&job.device, &job.request));
        let result = std::panic::catch_unwind(answer).unwrap_or_else(|_| {
            tracing::error!("a request at a relay endpoint panicked; this is a bug");
            Err(internal_error("An error in the node ended this request."))
        });
        load.remove_request();
        job.connection.respond(&job.request.request_id, result);
    }
}

fn internal_error(message: &str) -> RequestError {
    RequestError {
        code: "INTERNAL_ERROR",
        message: message.to_owned(),
    }
}

fn not_identified() -> RequestError {
    RequestError {
        code: "DEVICE_NOT_IDENTIFIED",
        message: "The device could not be identified; send identify again.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn request() -> DeviceMessage {
        DeviceMessage::Request(DeviceRequest {
            request_id: Value::from(1),
            request_type: "status_sync".to_owned(),
            params: Value::Null,
        })
    }

    #[test]
    fn waiting_requests_take_no_room_of_other_messages() {
        let load = QueueLoad::default();
        let accepted = (0..2 * MAX_WAITING_REQUESTS).filter(|_| load.add(&request()));
        assert_eq!(accepted.count(), MAX_WAITING_REQUESTS);
        // They count until they are answered.
        load.remove(&request());
        assert!(!load.add(&request()));
        load.remove_request();
        assert!(load.add(&request()));
        let data = |bytes: usize| DeviceMessage::Data {
            payload: vec![0; bytes].into(),
            received_ms: 0,
        };
        let accepted = (0..2 * MAX_WAITING_MESSAGES).filter(|_| load.add(&data(1)));
        assert_eq!(accepted.count(), MAX_WAITING_MESSAGES);
        load.remove(&data(1));
        assert!(load.add(&data(MAX_WAITING_BYTES)));
        load.remove(&data(1));
        assert!(!load.add(&data(1)), "too many bytes wait");
    }
}
