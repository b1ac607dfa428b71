//! The thread that answers requests of devices for chunks over MQTT.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use devices::DeviceNo;

use crate::chunk_queue::ChunkRequest;
use crate::device_state::{InstallReport, InstallState};
use crate::metrics::ChunkTransport;
use crate::package::FirmwareType;
use crate::service::FirmwareService;
use crate::thingsboard::{ChunkTopic, error_topic};

/// Maximum number of clients whose last chunk size is known.
const MAX_KNOWN_SIZES: usize = 65_536;
/// Steps of the progress that are recorded, in percent.
const PROGRESS_STEP: u8 = 10;

/// Receives the reason why a message cannot be sent.
pub type ChunkRejection = Box<dyn FnOnce(String) + Send>;

/// Sends messages to clients of devices.
pub trait ChunkSender: Send + Sync {
    /// Sends a message to one client, if it is connected and has a matching subscription. It calls `rejected` if the
    /// message is too large for the client. Never blocks.
    fn send(&self, client_id: &str, topic: String, payload: Bytes, rejected: ChunkRejection);
}

/// The state of the thread.
pub(crate) struct ChunkWorker {
    pub(crate) service: FirmwareService,
    pub(crate) sender: Arc<dyn ChunkSender>,
    /// By client and type: the request id, and the chunk size that was last used with it.
    sizes: HashMap<(Box<str>, FirmwareType), (Box<str>, u64)>,
    /// Recorded progress of downloads.
    progress: HashMap<(DeviceNo, FirmwareType), u8>,
}

impl ChunkWorker {
    pub(crate) fn new(service: FirmwareService, sender: Arc<dyn ChunkSender>) -> Self {
        Self {
            service,
            sender,
            sizes: HashMap::new(),
            progress: HashMap::new(),
        }
    }

    /// Answers requests until the node stops.
    pub(crate) fn run(mut self) {
        while let Some(request) = self.service.chunk_queue().next() {
            if let Err(rejection) = self.answer(&request) {
                self.service.metrics().count_rejected_request();
                self.send_error(&request.client_id, request.kind, rejection);
            }
        }
    }

    fn send_error(&self, client_id: &str, kind: FirmwareType, text: String) {
        // No one is notified if the error does not fit.
        let rejected = Box::new(|_| {});
        (self.sender).send(client_id, error_topic(kind), text.into(), rejected);
    }

    /// The chunk size of a request: a number, or nothing for the one that was used before. 0 stands for the whole image.
    fn chunk_size(&mut self, request: &ChunkRequest, id: &str) -> Result<u64, String> {
        let key = (request.client_id.clone(), request.kind);
        let text = str::from_utf8(&request.payload).unwrap_or("?").trim();
        if text.is_empty() {
            let known = self.sizes.get(&key).filter(|(known, _)| **known == *id);
            return Ok(known.map_or(0, |(_, size)| *size));
        }
        let size = text.parse().map_err(|_| {
            format!("the chunk size is {text:?}; expected a number of bytes, 0 for the whole image")
        })?;
        if self.sizes.len() >= MAX_KNOWN_SIZES && !self.sizes.contains_key(&key) {
            self.sizes.clear();
        }
        self.sizes.insert(key, (id.into(), size));
        Ok(size)
    }

    fn answer(&mut self, request: &ChunkRequest) -> Result<(), String> {
        let topic = ChunkTopic::parse(&request.topic).ok_or_else(|| {
            let prefix = request.kind.prefix();
            format!("expected the topic v2/{prefix}/request/ID/chunk/INDEX")
        })?;
        let size = self.chunk_size(request, topic.request_id)?;
        let device = self.service.registry().device(&request.device);
        let device = device.map_err(|error| format!("the device cannot be read now: {error}"))?;
        let Some(device) = device else {
            return Ok(());
        };
        let Some(assigned) = self.service.assigned(&device, request.kind) else {
            let kind = request.kind.name();
            return Err(format!("no {kind} is assigned to this device"));
        };
        let package = assigned.package;
        let size = if size == 0 { package.size } else { size };
        let start = topic.index.saturating_mul(size).min(package.size);
        let end = start.saturating_add(size).min(package.size);
        let max_bytes = self.service.max_chunk_bytes();
        if end - start > max_bytes {
            return Err(format!(
                "the chunk has {} bytes; ask for chunks of at most {max_bytes} bytes",
                end - start
            ));
        }
        let len = end - start;
        let chunk = (self.service).read_chunk(&package, start, len, ChunkTransport::Mqtt);
        let chunk = chunk.map_err(|error| format!("the image cannot be read now: {error}"))?;
        self.record_progress(device.no, request.kind, end, package.size);
        let (service, sender) = (self.service.clone(), self.sender.clone());
        let (client_id, kind) = (request.client_id.clone(), request.kind);
        let rejected = move |reason: String| {
            service.metrics().count_rejected_request();
            let text = format!("the chunk cannot be sent: {reason}; ask for smaller chunks");
            sender.send(&client_id, error_topic(kind), text.into(), Box::new(|_| {}));
        };
        (self.sender).send(
            &request.client_id,
            topic.response(),
            chunk,
            Box::new(rejected),
        );
        Ok(())
    }

    fn record_progress(&mut self, device: DeviceNo, kind: FirmwareType, end: u64, size: u64) {
        let percent = (u128::from(end) * 100 / u128::from(size.max(1))) as u8;
        let step = percent - percent % PROGRESS_STEP;
        let key = (device, kind);
        if self.progress.get(&key) == Some(&step) {
            return;
        }
        if self.progress.len() >= MAX_KNOWN_SIZES && !self.progress.contains_key(&key) {
            self.progress.clear();
        }
        self.progress.insert(key, step);
        let report = InstallReport {
            state: Some(InstallState::Downloading.name().to_owned()),
            progress: Some(percent),
            ..InstallReport::default()
        };
        self.service.report(device, kind, report);
    }
}
