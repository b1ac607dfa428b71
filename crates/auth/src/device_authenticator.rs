//! Authenticates devices of the registry, which is accessed over [`DeviceDirectory`].
//!
//! The authenticator `devices` follows `users` unless the configuration places it elsewhere. Devices in the directory's
//! memory are answered on the shard. Others are looked up in batches on threads that may read the disk
//! (`disk_lookups.rs`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use broker::hooks::ClientAction;

use crate::authenticator::{
    AnswerFuture, AuthBackendError, AuthenticatedIdentity, Authenticator, AuthenticatorAnswer,
    LoginRequest,
};
use crate::password::PasswordCheckPool;

/// The credentials of a client.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLogin<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    password: Option<&'a [u8]>,
    /// Common name of the verified certificate.
    pub common_name: Option<&'a str>,
    pub peer: Option<SocketAddr>,
}

impl<'a> DeviceLogin<'a> {
    pub fn password(&self) -> Option<&'a [u8]> {
        self.password
    }
}

/// The result of a lookup.
pub enum DeviceLookupResult {
    NoDevice,
    /// The device exists, but the credentials do not match.
    WrongCredentials,
    Device(Box<DeviceIdentity>),
    /// The answer needs a disk read or a slow check.
    NotInMemory,
}

/// An authenticated device.
pub struct DeviceIdentity {
    /// The device's name, used from now on so that no credential appears as a user name; `None` if it has no name yet.
    pub name: Option<OwnedClientDevice>,
    /// Values for `${client_attrs.NAME}` in rules.
    pub attributes: Vec<(Box<str>, Box<str>)>,
    /// When the connection is closed, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    pub permissions: Arc<dyn DevicePermissions>,
}

/// Identifies a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedClientDevice {
    pub id: Box<str>,
    pub product: Box<str>,
}

impl OwnedClientDevice {
    /// The user name of the device's sessions. It does not change with credentials or the product.
    fn username(&self) -> String {
        format!("device:{}", self.id)
    }
}

/// The permissions that a device has by itself. Rules may allow more; what neither allows is denied.
pub trait DevicePermissions: Send + Sync {
    fn is_allowed(&self, action: &ClientAction<'_>) -> bool;
}

/// The registry of devices as seen by the authenticator.
pub trait DeviceDirectory: Send + Sync {
    /// Whether these credentials can belong to a device. Called on a shard: must be cheap.
    fn may_be_device(&self, username: Option<&str>, common_name: Option<&str>) -> bool;

    /// Looks up in memory. Called on a shard.
    fn find_in_memory(&self, login: &DeviceLogin<'_>) -> DeviceLookupResult;

    /// Looks up on disk; `NotInMemory` if more than disk reads is needed. Called on a blocking thread while further
    /// lookups wait behind this one.
    fn find_on_disk(&self, login: &DeviceLogin<'_>) -> Result<DeviceLookupResult, String>;

    /// Looks up on disk and performs slow checks. Errors are logged by the caller.
    fn find_blocking(&self, login: &DeviceLogin<'_>) -> Result<DeviceLookupResult, String>;
}

/// The device directory, once it is set.
pub(crate) type DeviceDirectorySlot = Arc<OnceLock<Arc<dyn DeviceDirectory>>>;

/// The permissions of a device in an [`AuthenticatedIdentity`].
#[derive(Clone)]
pub(crate) struct DeviceGrant {
    pub(crate) permissions: Arc<dyn DevicePermissions>,
    pub(crate) name: Option<OwnedClientDevice>,
}

impl fmt::Debug for DeviceGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rights of a device")
    }
}

impl PartialEq for DeviceGrant {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.permissions, &other.permissions)
    }
}

impl Eq for DeviceGrant {}

pub(crate) struct DeviceDirectoryAuthenticator {
    pub(crate) directory: DeviceDirectorySlot,
    pub(crate) checker: PasswordCheckPool,
}

fn device_login(request: &LoginRequest) -> DeviceLogin<'_> {
    DeviceLogin {
        client_id: &request.client_id,
        username: request.username.as_deref(),
        password: request.password.as_ref().map(|password| &*password.0),
        common_name: request.common_name.as_deref(),
        peer: request.peer,
    }
}

/// `None` if the answer is not available yet.
fn to_answer(found: DeviceLookupResult) -> Option<AuthenticatorAnswer> {
    Some(match found {
        DeviceLookupResult::NoDevice => AuthenticatorAnswer::Ignore,
        DeviceLookupResult::WrongCredentials => AuthenticatorAnswer::Deny,
        DeviceLookupResult::NotInMemory => return None,
        DeviceLookupResult::Device(device) => {
            AuthenticatorAnswer::Allow(Box::new(AuthenticatedIdentity {
                username: device.name.as_ref().map(OwnedClientDevice::username),
                // A client that only requests registration has no identity yet.
                is_anonymous: device.name.is_none(),
                attributes: device.attributes,
                expires_at_ms: device.expires_at_ms,
                device: Some(DeviceGrant {
                    permissions: device.permissions,
                    name: device.name,
                }),
                ..AuthenticatedIdentity::default()
            }))
        }
    })
}

impl Authenticator for DeviceDirectoryAuthenticator {
    fn applies_to(&self, request: &LoginRequest) -> bool {
        let (username, common_name) = (request.username.as_deref(), request.common_name.as_deref());
        (self.directory.get())
            .is_some_and(|directory| directory.may_be_device(username, common_name))
    }

    fn check_now(&self, request: &LoginRequest) -> Option<AuthenticatorAnswer> {
        match self.directory.get() {
            Some(directory) => to_answer(directory.find_in_memory(&device_login(request))),
            None => Some(AuthenticatorAnswer::Ignore),
        }
    }

    fn uses_disk_lookup(&self) -> bool {
        true
    }

    fn accepts_tokens(&self) -> bool {
        true
    }

    fn look_up_on_disk(
        &self,
        request: &LoginRequest,
    ) -> Option<Result<AuthenticatorAnswer, AuthBackendError>> {
        let directory = self.directory.get()?;
        match directory.find_on_disk(&device_login(request)) {
            Ok(found) => to_answer(found).map(Ok),
            Err(why) => Some(Err(AuthBackendError(why))),
        }
    }

    fn check<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<AuthenticatorAnswer, AuthBackendError>> {
        Box::pin(async move {
            let Some(directory) = self.directory.get().cloned() else {
                return Ok(AuthenticatorAnswer::Ignore);
            };
            let request = request.clone();
            let found = self
                .checker
                .run_for(move || directory.find_blocking(&device_login(&request)))
                .await;
            let unread = || AuthBackendError::new("the devices could not be read");
            let found = found.ok_or_else(unread)?.map_err(AuthBackendError::new)?;
            to_answer(found).ok_or_else(unread)
        })
    }
}
