//! Devices that come by HTTP, found by the access token they show.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use api::{AttributeUpdate, DeviceDoor, DevicePost, DoorProblem, Knock, NextCommand};
use devices::command::{Answer, Commands, Letter, Recipient};
use devices::platform::{Entrance, NotTaken, Platform, answer_call};
use devices::{Device, Directory, Found, RegistryError, Scope, Shown};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::attribute_polls::AttributePolls;
use super::devices::now_ms;
use super::outside::Others;

const TELEMETRY: &str = "v1/devices/me/telemetry";
/// Entrances that are kept for the next one.
const MAX_KEPT: usize = 64;

pub(super) struct Door {
    platform: Platform,
    directory: Arc<Directory>,
    commands: Commands,
    others: Arc<Others>,
    attribute_polls: Arc<AttributePolls>,
    entrances: Mutex<Vec<Entrance>>,
}

/// How long a claim is offered if the device does not say.
const CLAIM_MS: u64 = 24 * 3600 * 1000;

#[derive(Deserialize)]
struct Call {
    method: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Offer {
    secret_key: Option<String>,
    duration_ms: Option<u64>,
}

fn malformed(error: &serde_json::Error) -> DoorProblem {
    DoorProblem::Malformed(format!("The body cannot be read: {error}"))
}

fn unavailable(error: &RegistryError) -> DoorProblem {
    DoorProblem::Unavailable(error.to_string())
}

impl Door {
    pub(super) fn new(
        platform: Platform,
        directory: Arc<Directory>,
        commands: Commands,
        others: Arc<Others>,
    ) -> Self {
        Self {
            attribute_polls: AttributePolls::follow(directory.registry(), others.clone()),
            platform,
            directory,
            commands,
            others,
            entrances: Mutex::default(),
        }
    }

    fn device(&self, knock: &Knock) -> Result<Arc<Device>, DoorProblem> {
        let shown = Shown {
            client_id: "",
            username: Some(&knock.token),
            password: None,
            common_name: None,
            now_ms: 0,
        };
        let found = match self.directory.find(&shown) {
            Found::Cold => {
                let found = self.directory.find_cold(&shown);
                found.map_err(|error| unavailable(&error))?
            }
            found => found,
        };
        match found {
            Found::Device(admission) => Ok(admission.device),
            Found::Nobody | Found::Refused | Found::Provisioning | Found::Cold => {
                Err(DoorProblem::Nobody)
            }
        }
    }

    /// Takes a message on a topic of ThingsBoard's.
    fn take(&self, device: &Arc<Device>, topic: &str, body: &[u8]) -> Result<(), DoorProblem> {
        let kept = self.entrances().pop();
        let Some(mut entrance) = kept.or_else(|| self.platform.entrance()) else {
            return Err(DoorProblem::Busy);
        };
        let taken = entrance.take(device, topic, body);
        let mut entrances = self.entrances();
        if entrances.len() < MAX_KEPT {
            entrances.push(entrance);
        }
        drop(entrances);
        taken.map_err(|error| match error {
            NotTaken::Malformed(reason) => DoorProblem::Malformed(reason),
            NotTaken::Dialect => DoorProblem::Malformed(error.to_string()),
            NotTaken::Busy => DoorProblem::Busy,
            NotTaken::NoRoom => DoorProblem::NoRoom,
        })
    }

    fn entrances(&self) -> std::sync::MutexGuard<'_, Vec<Entrance>> {
        let entrances = self.entrances.lock();
        entrances.unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceDoor for Door {
    fn post(&self, knock: &Knock, what: DevicePost, body: &[u8]) -> Result<(), DoorProblem> {
        let topic = match what {
            DevicePost::Telemetry => TELEMETRY,
            DevicePost::Attributes => "v1/devices/me/attributes",
        };
        self.take(&self.device(knock)?, topic, body)
    }

    fn report(&self, device: &str, body: &[u8]) -> Result<(), DoorProblem> {
        let device = self.directory.registry().device(device);
        let device = device.map_err(|error| unavailable(&error))?;
        self.take(&device.ok_or(DoorProblem::Nobody)?, TELEMETRY, body)
    }

    fn attributes(
        &self,
        knock: &Knock,
        client: Option<&str>,
        shared: Option<&str>,
    ) -> Result<Value, DoorProblem> {
        let device = self.device(knock)?;
        let wants_all = client.is_none() && shared.is_none();
        let mut answer = Map::new();
        for (name, scope, keys) in [
            ("client", Scope::Client, client),
            ("shared", Scope::Shared, shared),
        ] {
            if keys.is_none() && !wants_all {
                continue;
            }
            let found = self.directory.registry().attributes(&device, scope);
            let found = found.map_err(|error| unavailable(&error))?.into_iter();
            let is_wanted = |key: &str| keys.is_none_or(|keys| keys.split(',').any(|k| k == key));
            let values: Map<String, Value> = found
                .filter(|attribute| is_wanted(&attribute.key))
                .map(|attribute| (attribute.key, attribute.value))
                .collect();
            if !values.is_empty() {
                answer.insert(name.to_owned(), Value::Object(values));
            }
        }
        Ok(Value::Object(answer))
    }

    fn attribute_update(&self, knock: &Knock) -> Result<AttributeUpdate, DoorProblem> {
        let device = self.device(knock)?;
        Ok(Box::pin(self.attribute_polls.wait(device.no).change()))
    }

    fn next_command(&self, knock: &Knock) -> Result<NextCommand, DoorProblem> {
        let device = self.device(knock)?;
        let mut asker = self.commands.asker(device.no).ok_or(DoorProblem::Busy)?;
        let given = self.commands.give(device.no);
        let given = given.map_err(|error| DoorProblem::Unavailable(error.to_string()))?;
        Ok(match given {
            Some(command) => {
                let value = json!({
                    "id": command.id,
                    "method": command.method,
                    "params": command.params,
                });
                // On the topic where it would have come by MQTT.
                let letter = Letter {
                    topic: format!("v1/devices/me/rpc/request/{}", command.id.0),
                    payload: value.to_string(),
                    subscribes: false,
                    logged: Recipient::if_logged(&device),
                };
                self.others.log_of(&letter).write();
                NextCommand::Command(value)
            }
            None => NextCommand::None(Box::pin(async move { asker.woken().await })),
        })
    }

    fn answer(&self, knock: &Knock, id: &str, body: &[u8]) -> Result<(), DoorProblem> {
        let device = self.device(knock)?;
        let text = std::str::from_utf8(body)
            .map_err(|_| DoorProblem::Malformed("The body is not UTF-8".to_owned()))?;
        let body = match serde_json::from_str::<Value>(text) {
            Ok(_) => text.to_owned(),
            Err(_) => Value::from(text).to_string(),
        };
        let answer = Answer {
            kind: None,
            id: Some(id.to_owned()),
            is_success: true,
            body: Some(body),
            code: None,
            message: None,
        };
        self.commands.take_answer(device.no, answer);
        Ok(())
    }

    fn call(&self, knock: &Knock, body: &[u8]) -> Result<Value, DoorProblem> {
        self.device(knock)?;
        let call: Call = serde_json::from_slice(body).map_err(|error| malformed(&error))?;
        let answer = answer_call(&call.method, now_ms() as i64);
        Ok(serde_json::from_str(&answer).unwrap_or(Value::Null))
    }

    fn offer(&self, knock: &Knock, body: &[u8]) -> Result<(), DoorProblem> {
        let device = self.device(knock)?;
        let offer: Offer = match body {
            b"" => Offer::default(),
            body => serde_json::from_slice(body).map_err(|error| malformed(&error))?,
        };
        let secret = offer.secret_key.unwrap_or_default();
        let duration_ms = offer.duration_ms.unwrap_or(CLAIM_MS);
        let registry = self.directory.registry();
        let offered = registry.offer_claim(device.no, &secret, duration_ms, now_ms());
        offered.map_err(|error| unavailable(&error))
    }

    fn provision(&self, from: IpAddr, body: &[u8]) -> Result<Value, Value> {
        self.platform.provision(Some(from), body)
    }
}
