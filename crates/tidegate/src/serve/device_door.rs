//! Devices that come by HTTP, found by the access token they show.

use std::sync::{Arc, Mutex, PoisonError};

use api::{DeviceDoor, DevicePost, DoorProblem, Knock};
use devices::platform::{Entrance, NotTaken, Platform};
use devices::{Device, Directory, Found, RegistryError, Scope, Shown};
use serde_json::{Map, Value};

/// Entrances that are kept for the next one.
const MAX_KEPT: usize = 64;

pub(super) struct Door {
    platform: Platform,
    directory: Arc<Directory>,
    entrances: Mutex<Vec<Entrance>>,
}

fn unavailable(error: &RegistryError) -> DoorProblem {
    DoorProblem::Unavailable(error.to_string())
}

impl Door {
    pub(super) fn new(platform: Platform, directory: Arc<Directory>) -> Self {
        Self {
            platform,
            directory,
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
            Found::Cold if !knock.is_suspect => {
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

    fn entrances(&self) -> std::sync::MutexGuard<'_, Vec<Entrance>> {
        let entrances = self.entrances.lock();
        entrances.unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceDoor for Door {
    fn post(&self, knock: &Knock, what: DevicePost, body: &[u8]) -> Result<(), DoorProblem> {
        let device = self.device(knock)?;
        let kept = self.entrances().pop();
        let Some(mut entrance) = kept.or_else(|| self.platform.entrance()) else {
            return Err(DoorProblem::Busy);
        };
        let topic = match what {
            DevicePost::Telemetry => "v1/devices/me/telemetry",
            DevicePost::Attributes => "v1/devices/me/attributes",
        };
        let taken = entrance.take(&device, topic, body);
        let mut entrances = self.entrances();
        if entrances.len() < MAX_KEPT {
            entrances.push(entrance);
        }
        drop(entrances);
        taken.map_err(|error| match error {
            NotTaken::Malformed(reason) => DoorProblem::Malformed(reason),
            NotTaken::Dialect => DoorProblem::Malformed(error.to_string()),
            NotTaken::Busy => DoorProblem::Busy,
        })
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
            if !values.is_empty() || keys.is_some() {
                answer.insert(name.to_owned(), Value::Object(values));
            }
        }
        Ok(Value::Object(answer))
    }
}
