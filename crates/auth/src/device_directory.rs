//! The registry of devices as authentication sees it: [`DeviceDirectory`], logins, and the permissions of a device.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use hooks::ClientAction;

/// The credentials of a client.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLogin<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub(crate) password: Option<&'a [u8]>,
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
    /// The credentials match, but the namespace of the device has as many connections as it may have.
    QuotaExceeded,
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
    pub(crate) fn username(&self) -> String {
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

/// The permissions of a device in an authenticated identity.
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
