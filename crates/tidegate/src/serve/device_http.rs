//! Requests of devices over HTTP, authenticated by access token.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use api::{
    AttributeUpdate, DeviceCaller, DeviceHttpBackend, DeviceHttpError, DevicePostKind, NextCommand,
    PendingDeviceCommand, RequestedAttributes,
};
use devices::command::{CommandAnswer, Commands, EncodedDownlink, Recipient};
use devices::platform::{DeviceIngress, IngressError, Platform, answer_rpc};
use devices::{
    AttributeScope, Device, DeviceAuthenticator, DeviceLookup, PresentedCredentials, RegistryError,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::Objects;
use wall_clock::now_ms;

use super::attribute_polls::AttributePolls;
use super::pipeline_outputs::NodePipelineOutputs;

const TELEMETRY: &str = "v1/devices/me/telemetry";
/// Maximum number of idle ingresses kept for reuse.
const MAX_IDLE_INGRESSES: usize = 64;

pub(super) struct DeviceHttpService {
    platform: Platform,
    directory: Arc<DeviceAuthenticator>,
    commands: Commands,
    outputs: Arc<NodePipelineOutputs>,
    attribute_polls: Arc<AttributePolls>,
    ingresses: Mutex<Vec<DeviceIngress>>,
}

/// Duration of a claim if the device gives none, in milliseconds.
const DEFAULT_CLAIM_MS: u64 = 24 * 3600 * 1000;

#[derive(Deserialize)]
struct RpcRequestBody {
    method: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ClaimOfferBody {
    secret_key: Option<String>,
    duration_ms: Option<u64>,
}

fn malformed_error(error: &serde_json::Error) -> DeviceHttpError {
    DeviceHttpError::Malformed(format!("The body is invalid: {error}"))
}

fn unavailable_error(error: &RegistryError) -> DeviceHttpError {
    DeviceHttpError::Unavailable(error.to_string())
}

impl DeviceHttpService {
    pub(super) fn new(
        platform: Platform,
        directory: Arc<DeviceAuthenticator>,
        commands: Commands,
        objects: &Objects,
        others: Arc<NodePipelineOutputs>,
    ) -> Self {
        Self {
            attribute_polls: AttributePolls::follow(directory.registry(), objects, others.clone()),
            platform,
            directory,
            commands,
            outputs: others,
            ingresses: Mutex::default(),
        }
    }

    fn authenticate(&self, caller: &DeviceCaller) -> Result<Arc<Device>, DeviceHttpError> {
        let shown = PresentedCredentials {
            client_id: "",
            username: Some(&caller.token),
            password: None,
            common_name: None,
            now_ms: 0,
        };
        let found = match self.directory.find_in_memory(&shown) {
            DeviceLookup::WouldBlock => {
                let found = self.directory.find_blocking(&shown);
                found.map_err(|error| unavailable_error(&error))?
            }
            found => found,
        };
        match found {
            DeviceLookup::Device(admission) => Ok(admission.device),
            DeviceLookup::NotADevice
            | DeviceLookup::Rejected
            | DeviceLookup::Provisioning
            | DeviceLookup::WouldBlock => Err(DeviceHttpError::UnknownDevice),
        }
    }

    /// Submits a message on a ThingsBoard topic.
    fn submit(
        &self,
        device: &Arc<Device>,
        topic: &str,
        body: &[u8],
    ) -> Result<(), DeviceHttpError> {
        let kept = self.lock_ingresses().pop();
        let Some(mut ingress) = kept.or_else(|| self.platform.ingress()) else {
            return Err(DeviceHttpError::Busy);
        };
        let taken = ingress.submit(device, topic, body);
        let mut ingresses = self.lock_ingresses();
        if ingresses.len() < MAX_IDLE_INGRESSES {
            ingresses.push(ingress);
        }
        drop(ingresses);
        taken.map_err(|error| match error {
            IngressError::Malformed(reason) => DeviceHttpError::Malformed(reason),
            IngressError::ProtocolNotAllowed => DeviceHttpError::Malformed(error.to_string()),
            IngressError::Busy => DeviceHttpError::Busy,
            IngressError::StorageFull => DeviceHttpError::StorageFull,
            IngressError::QuotaReached => DeviceHttpError::QuotaReached,
            IngressError::Stopping => DeviceHttpError::Unavailable(error.to_string()),
        })
    }

    fn lock_ingresses(&self) -> std::sync::MutexGuard<'_, Vec<DeviceIngress>> {
        let ingresses = self.ingresses.lock();
        ingresses.unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceHttpBackend for DeviceHttpService {
    fn device(&self, caller: &DeviceCaller) -> Result<Arc<Device>, DeviceHttpError> {
        self.authenticate(caller)
    }

    fn post_data(
        &self,
        caller: &DeviceCaller,
        what: DevicePostKind,
        body: &[u8],
    ) -> Result<(), DeviceHttpError> {
        let topic = match what {
            DevicePostKind::Telemetry => TELEMETRY,
            DevicePostKind::Attributes => "v1/devices/me/attributes",
        };
        self.submit(&self.authenticate(caller)?, topic, body)
    }

    fn store_telemetry(&self, device: &str, body: &[u8]) -> Result<(), DeviceHttpError> {
        let device = self.directory.registry().device(device);
        let device = device.map_err(|error| unavailable_error(&error))?;
        self.submit(
            &device.ok_or(DeviceHttpError::UnknownDevice)?,
            TELEMETRY,
            body,
        )
    }

    fn attributes(
        &self,
        caller: &DeviceCaller,
        client: Option<&str>,
        shared: Option<&str>,
    ) -> Result<RequestedAttributes, DeviceHttpError> {
        let device = self.authenticate(caller)?;
        let wants_all = client.is_none() && shared.is_none();
        let mut answer = RequestedAttributes::default();
        for (part, scope, keys) in [
            (&mut answer.client, AttributeScope::Client, client),
            (&mut answer.shared, AttributeScope::Shared, shared),
        ] {
            if keys.is_none() && !wants_all {
                continue;
            }
            let found = self.directory.registry().attributes(&device, scope);
            let found = found
                .map_err(|error| unavailable_error(&error))?
                .into_iter();
            let is_wanted = |key: &str| keys.is_none_or(|keys| keys.split(',').any(|k| k == key));
            let values: Map<String, Value> = found
                .filter(|attribute| is_wanted(&attribute.key))
                .map(|attribute| (attribute.key, attribute.value))
                .collect();
            *part = Some(values).filter(|values| !values.is_empty());
        }
        Ok(answer)
    }

    fn attribute_update(&self, caller: &DeviceCaller) -> Result<AttributeUpdate, DeviceHttpError> {
        let device = self.authenticate(caller)?;
        let poll = self.attribute_polls.wait(device.no);
        // The token may have been replaced before the poll was registered; from now on a change ends the poll.
        self.authenticate(caller)?;
        Ok(Box::pin(poll.change()))
    }

    fn next_command(&self, caller: &DeviceCaller) -> Result<NextCommand, DeviceHttpError> {
        let device = self.authenticate(caller)?;
        let mut poller = self
            .commands
            .poller(device.no)
            .ok_or(DeviceHttpError::Busy)?;
        // The token may have been replaced before the poll was registered; from now on a change ends the poll.
        self.authenticate(caller)?;
        let given = self.commands.take_next(device.no);
        let given = given.map_err(|error| DeviceHttpError::Unavailable(error.to_string()))?;
        Ok(match given {
            Some(command) => {
                let pending = PendingDeviceCommand {
                    id: command.id.at_device(),
                    method: command.method,
                    params: command.params,
                };
                // Logged under the topic that MQTT would have used.
                let downlink = EncodedDownlink {
                    topic: format!("v1/devices/me/rpc/request/{}", pending.id),
                    payload: json!(pending).to_string(),
                    needs_subscription: false,
                    log_recipient: Recipient::if_logged(&device),
                };
                self.outputs.pending_log_entry(&downlink).write();
                NextCommand::Command(pending)
            }
            None => NextCommand::None(Box::pin(async move { poller.wait().await })),
        })
    }

    fn answer_command(
        &self,
        caller: &DeviceCaller,
        id: &str,
        body: &[u8],
    ) -> Result<(), DeviceHttpError> {
        let device = self.authenticate(caller)?;
        let text = std::str::from_utf8(body)
            .map_err(|_| DeviceHttpError::Malformed("The body is not UTF-8".to_owned()))?;
        let body = match serde_json::from_str::<Value>(text) {
            Ok(_) => text.to_owned(),
            Err(_) => Value::from(text).to_string(),
        };
        let answer = CommandAnswer {
            kind: None,
            id: Some(id.to_owned()),
            is_success: true,
            body: Some(body),
            code: None,
            message: None,
        };
        self.commands.submit_answer(device.no, answer);
        let (done, is_done) = mpsc::channel();
        self.commands.settle(Box::new(move || _ = done.send(())));
        let stored = is_done.recv();
        stored.map_err(|_| DeviceHttpError::Unavailable("the node is stopping".to_owned()))
    }

    fn call_platform(&self, caller: &DeviceCaller, body: &[u8]) -> Result<Value, DeviceHttpError> {
        self.authenticate(caller)?;
        let call: RpcRequestBody =
            serde_json::from_slice(body).map_err(|error| malformed_error(&error))?;
        let answer = answer_rpc(&call.method, now_ms() as i64);
        Ok(serde_json::from_str(&answer).unwrap_or(Value::Null))
    }

    fn offer_claim(&self, caller: &DeviceCaller, body: &[u8]) -> Result<(), DeviceHttpError> {
        let device = self.authenticate(caller)?;
        let offer: ClaimOfferBody = match body {
            b"" => ClaimOfferBody::default(),
            body => serde_json::from_slice(body).map_err(|error| malformed_error(&error))?,
        };
        let secret = offer.secret_key.unwrap_or_default();
        let duration_ms = offer.duration_ms.unwrap_or(DEFAULT_CLAIM_MS);
        let registry = self.directory.registry();
        let offered = registry.offer_claim(device.no, &secret, duration_ms, now_ms());
        offered.map_err(|error| unavailable_error(&error))
    }

    fn provision_device(&self, from: IpAddr, body: &[u8]) -> Result<Value, Value> {
        self.platform.provision(Some(from), body)
    }
}
