//! Firmware of the node: opens it, and validates its objects.

use std::sync::Arc;

use anyhow::Context as _;
use api::{BackendObjectKind, ObjectValidationError};
use broker::BrokerHandle;
use broker::control::{ControlError, DirectDelivery, PublishRequest};
use bytes::Bytes;
use devices::command::{DownlinkTransport, send_to_device};
use devices::protocol::DownlinkMessage;
use devices::{Device, Registry};
use firmware::{
    AssignmentDefinition, ChunkRejection, ChunkSender, DefinitionError, DeviceMessenger,
    FirmwareDefinition, FirmwareService, FirmwareSettings,
};
use serde_json::Value;
use store::Objects;
use tokio::runtime::Handle;
use transfer::FileService;

use super::client_subscription::subscribe_for_client;
use super::node_commands::NodeCommands;
use super::node_devices::{NodeDevices, inline_schema};

/// A kind of objects that is validated here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirmwareKind {
    Package,
    Assignment,
}

impl FirmwareKind {
    pub(super) fn from_object_kind(kind: BackendObjectKind) -> Option<Self> {
        match kind {
            BackendObjectKind::Firmware => Some(Self::Package),
            BackendObjectKind::FirmwareAssignment => Some(Self::Assignment),
            _ => None,
        }
    }

    /// The kind's name in the store, and the maximum number of objects.
    pub(super) fn storage_kind_and_limit(self) -> (&'static str, usize) {
        match self {
            Self::Package => (firmware::KIND, firmware::MAX_PACKAGES),
            Self::Assignment => (firmware::ASSIGNMENT_KIND, firmware::MAX_ASSIGNMENTS),
        }
    }

    pub(super) fn schemas(self) -> (Value, Value) {
        let schema = match self {
            Self::Package => inline_schema::<FirmwareDefinition>(),
            Self::Assignment => inline_schema::<AssignmentDefinition>(),
        };
        secret::written_and_shown_schemas(schema)
    }
}

/// The firmware of the node.
#[derive(Clone)]
pub(super) struct NodeFirmware {
    pub(super) service: FirmwareService,
}

fn to_validation_error(error: DefinitionError) -> ObjectValidationError {
    ObjectValidationError {
        field: error.field,
        detail: format!("{}.", error.detail),
    }
}

impl NodeFirmware {
    /// Reads the packages of the store.
    pub(super) fn open(
        objects: &Objects,
        registry: Registry,
        files: FileService,
        settings: &FirmwareSettings,
        declared_groups: &[(String, Value)],
    ) -> anyhow::Result<Self> {
        let service = FirmwareService::open(objects, registry, files, settings, declared_groups)?;
        Ok(Self { service })
    }

    /// Serves devices from now on.
    pub(super) fn start(
        &self,
        devices: &NodeDevices,
        commands: &NodeCommands,
        broker: BrokerHandle,
    ) -> anyhow::Result<()> {
        // The states must not keep the transport, which contains them.
        let (service, transport) = (self.service.clone(), Arc::downgrade(&commands.transport()));
        devices.states.add_observer(Box::new(move |change| {
            let no = change.device.no;
            let has_client =
                |transport: Arc<dyn DownlinkTransport>| transport.client_of(no).is_some();
            // `notify_reachable` reports each connection to this node, because a device that has restarted may connect before its
            // former connection has ended.
            if change.is_online && !transport.upgrade().is_some_and(has_client) {
                service.device_reachable(no);
            }
        }));
        let messenger = Arc::new(DownlinkMessenger {
            registry: devices.registry.clone(),
            transport: commands.transport(),
        });
        let sender = Arc::new(BrokerChunkSender {
            broker,
            runtime: Handle::current(),
        });
        let started = self.service.start(sender, messenger);
        started.context("cannot start the threads for firmware")
    }

    /// Converts the JSON of a request to the stored form.
    pub(super) fn prepare(
        &self,
        kind: FirmwareKind,
        input: &Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        let stored = match kind {
            FirmwareKind::Package => {
                let package = self.service.prepare_package(input, current);
                serde_json::to_value(package.map_err(to_validation_error)?)
            }
            FirmwareKind::Assignment => {
                let assignment = self.service.prepare_assignment(input);
                serde_json::to_value(assignment.map_err(to_validation_error)?)
            }
        };
        stored.map_err(|error| ObjectValidationError {
            field: String::new(),
            detail: format!("The object cannot be stored: {error}."),
        })
    }

    pub(super) fn check_assignment_is_unique(
        &self,
        id: &str,
        stored: &Value,
    ) -> Result<(), ObjectValidationError> {
        let checked = self.service.check_assignment_is_unique(id, stored);
        checked.map_err(to_validation_error)
    }
}

/// Sends chunks to clients of the broker.
struct BrokerChunkSender {
    broker: BrokerHandle,
    runtime: Handle,
}

impl ChunkSender for BrokerChunkSender {
    fn send(&self, client_id: &str, topic: String, payload: Bytes, rejected: ChunkRejection) {
        let publication = PublishRequest {
            topic,
            payload,
            // With QoS 1, each chunk would be stored for the session. A device repeats a request without an answer.
            qos: 0,
            ..PublishRequest::default()
        };
        let (broker, runtime) = (self.broker.clone(), self.runtime.clone());
        let (client, again) = (client_id.to_owned(), publication.clone());
        let done = move |sent: Result<Option<DirectDelivery>, ControlError>| match sent {
            Err(rejection @ ControlError::InvalidField { .. }) => rejected(rejection.to_string()),
            Ok(None) => {
                runtime.spawn(subscribe_and_send(broker, client, again));
            }
            Ok(Some(_)) | Err(_) => {}
        };
        (self.broker).send_to_connected_client(client_id, publication, done, || {});
    }
}

/// Sends a chunk to a client that has not subscribed to it. ThingsBoard's own client subscribes to `v2/fw/response/+`,
/// which does not match the topics of chunks.
async fn subscribe_and_send(broker: BrokerHandle, client_id: String, chunk: PublishRequest) {
    let prefixes = ["v2/fw/response/", "v2/sw/response/"].into_iter();
    let mut prefixes = prefixes.filter(|prefix| chunk.topic.starts_with(prefix));
    let Some(prefix) = prefixes.next() else {
        return;
    };
    let filter = format!("{prefix}+/chunk/+");
    if let Some(Ok(_)) = subscribe_for_client(&broker, &client_id, filter, 0).await {
        broker.send_to_connected_client(&client_id, chunk, |_| {}, || {});
    }
}

/// Sends messages to devices as commands are sent.
struct DownlinkMessenger {
    registry: Registry,
    transport: Arc<dyn DownlinkTransport>,
}

impl DeviceMessenger for DownlinkMessenger {
    fn send(&self, device: &Device, message: &DownlinkMessage<'_>) {
        send_to_device(&self.registry, &self.transport, device, message);
    }
}
