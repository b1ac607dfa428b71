//! Devices of the registry as clients: who they are is known elsewhere, over [`DeviceDirectory`].
//!
//! The authenticator `devices` stands right behind `users` unless the configuration gives it another place. Those that are in
//! the directory's memory are answered on the shard; the others by a thread that may read the disk, many at a time (`lookups.rs`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use broker::hooks::Action;

use crate::authenticator::{Answer, Answering, Authenticator, Failure, Identity, Request};
use crate::password::Checker;

/// What a client shows.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLogin<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    password: Option<&'a [u8]>,
    /// Of its verified certificate.
    pub common_name: Option<&'a str>,
    pub peer: Option<SocketAddr>,
}

impl<'a> DeviceLogin<'a> {
    pub fn password(&self) -> Option<&'a [u8]> {
        self.password
    }
}

/// Who a client is.
pub enum DeviceAnswer {
    NoDevice,
    /// A device, but not with this.
    Refused,
    Device(Box<DeviceIdentity>),
    /// Not to be said without a look at the disk, or time.
    Cold,
}

/// A device that is let in.
pub struct DeviceIdentity {
    /// What it is called from now on, so that no credential of it is shown; `None`: it has no name yet.
    pub name: Option<DeviceName>,
    /// For `${client_attrs.NAME}` in rules.
    pub attributes: Vec<(Box<str>, Box<str>)>,
    /// When it has to go, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    pub rights: Arc<dyn DeviceRights>,
}

/// Which device it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    pub id: Box<str>,
    pub product: Box<str>,
}

impl DeviceName {
    /// The user name of the device's sessions. It stays when a credential or the product changes.
    fn username(&self) -> String {
        format!("device:{}", self.id)
    }
}

/// What one device may do by what it is. What it may not, rules may still allow; what neither allows is denied.
pub trait DeviceRights: Send + Sync {
    fn may(&self, action: &Action<'_>) -> bool;
}

/// Knows the devices.
pub trait DeviceDirectory: Send + Sync {
    /// Whether a client that shows this may be a device at all. Called on a shard: cheap.
    fn concerns(&self, username: Option<&str>, common_name: Option<&str>) -> bool;

    /// From memory. Called on a shard.
    fn find(&self, login: &DeviceLogin<'_>) -> DeviceAnswer;

    /// From the disk; `Cold`: it takes more time than that. Called on a thread that may wait, with others that wait behind this one.
    fn look_up(&self, login: &DeviceLogin<'_>) -> Result<DeviceAnswer, String>;

    /// From the disk; may take its time. An error is told to the log.
    fn find_cold(&self, login: &DeviceLogin<'_>) -> Result<DeviceAnswer, String>;
}

/// Where the directory is found, once there is one.
pub(crate) type Place = Arc<OnceLock<Arc<dyn DeviceDirectory>>>;

/// Rights of a device in an [`Identity`].
#[derive(Clone)]
pub(crate) struct Rights {
    pub(crate) rights: Arc<dyn DeviceRights>,
    pub(crate) name: Option<DeviceName>,
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rights of a device")
    }
}

impl PartialEq for Rights {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rights, &other.rights)
    }
}

impl Eq for Rights {}

pub(crate) struct Devices {
    pub(crate) place: Place,
    pub(crate) checker: Checker,
}

fn login(request: &Request) -> DeviceLogin<'_> {
    DeviceLogin {
        client_id: &request.client_id,
        username: request.username.as_deref(),
        password: request.password.as_ref().map(|password| &*password.0),
        common_name: request.common_name.as_deref(),
        peer: request.peer,
    }
}

/// `None`: it is still to be asked.
fn answer(found: DeviceAnswer) -> Option<Answer> {
    Some(match found {
        DeviceAnswer::NoDevice => Answer::Ignore,
        DeviceAnswer::Refused => Answer::Deny,
        DeviceAnswer::Cold => return None,
        DeviceAnswer::Device(device) => Answer::Allow(Box::new(Identity {
            username: device.name.as_ref().map(DeviceName::username),
            // One that asks to be registered is nobody yet.
            is_anonymous: device.name.is_none(),
            attributes: device.attributes,
            expires_at_ms: device.expires_at_ms,
            rights: Some(Rights {
                rights: device.rights,
                name: device.name,
            }),
            ..Identity::default()
        })),
    })
}

impl Authenticator for Devices {
    fn concerns(&self, request: &Request) -> bool {
        let (username, common_name) = (request.username.as_deref(), request.common_name.as_deref());
        (self.place.get()).is_some_and(|directory| directory.concerns(username, common_name))
    }

    fn check_now(&self, request: &Request) -> Option<Answer> {
        match self.place.get() {
            Some(directory) => answer(directory.find(&login(request))),
            None => Some(Answer::Ignore),
        }
    }

    fn looks_up(&self) -> bool {
        true
    }

    fn takes_tokens(&self) -> bool {
        true
    }

    fn look_up(&self, request: &Request) -> Option<Result<Answer, Failure>> {
        let directory = self.place.get()?;
        match directory.look_up(&login(request)) {
            Ok(found) => answer(found).map(Ok),
            Err(why) => Some(Err(Failure(why))),
        }
    }

    fn check<'a>(&'a self, request: &'a Request) -> Answering<'a, Result<Answer, Failure>> {
        Box::pin(async move {
            let Some(directory) = self.place.get().cloned() else {
                return Ok(Answer::Ignore);
            };
            let request = request.clone();
            let found = self
                .checker
                .run_for(move || directory.find_cold(&login(&request)))
                .await;
            let unread = || Failure::new("the devices could not be read");
            let found = found.ok_or_else(unread)?.map_err(Failure::new)?;
            answer(found).ok_or_else(unread)
        })
    }
}
