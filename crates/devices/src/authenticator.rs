//! Whether a client is a device: asked once per connect, answered from memory for those that came lately.
//!
//! A name that is not in memory may be on the disk or nowhere: the answer is [`DeviceLookup::WouldBlock`] then, and
//! [`DeviceAuthenticator::find_blocking`] is to be asked on a thread that may wait.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::credential::{
    Credential, PROVISION_USERNAME, PasswordSecret, SecretDigester, SecureLogin, random_bytes,
    verify_password,
};
use crate::device::Device;
use crate::product::{CredentialKind, SharedSecure};
use crate::registry::{DeviceName, Registry, RegistryError};

/// Devices that were let in and did not become connected: they are forgotten beyond this many.
const MAX_ADMITTED: usize = 65_536;

/// What a client shows.
#[derive(Clone, Copy)]
pub struct PresentedCredentials<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// Of its verified certificate.
    pub common_name: Option<&'a str>,
    pub now_ms: u64,
}

/// Who it is.
#[derive(Debug, Clone)]
pub enum DeviceLookup {
    /// No device, as far as anybody knows.
    NotADevice,
    /// A device, but not with this.
    Rejected,
    Device(DeviceAdmission),
    /// It may do nothing but ask to be registered.
    Provisioning,
    /// It takes a look at the disk, or time.
    WouldBlock,
}

/// A device that is let in.
#[derive(Debug, Clone)]
pub struct DeviceAdmission {
    pub device: Arc<Device>,
    pub kind: CredentialKind,
    /// The end of its token's life.
    pub expires_at_ms: Option<u64>,
    /// It has proved itself with what its product has for all devices, as it was then.
    pub(crate) shared_secure: Option<SharedSecure>,
}

impl DeviceAdmission {
    #[must_use]
    pub fn new(device: Arc<Device>, kind: CredentialKind) -> Self {
        Self {
            device,
            kind,
            expires_at_ms: None,
            shared_secure: None,
        }
    }

    /// Whether a device that was let in like this would be let in again, as the registry has it `now`.
    pub(crate) fn is_still_valid(&self, now: &Device) -> bool {
        let product = now.product.get();
        let has_shared = match &self.shared_secure {
            None => true,
            Some(shared) => {
                product.definition.secure.as_ref() == Some(shared)
                    && !(now.credentials.iter()).any(|known| known.kind() == CredentialKind::Secure)
            }
        };
        let mut shown = self.device.credentials.iter();
        has_shared
            && now.is_admitted()
            && now.product.id() == self.device.product.id()
            && product.allows_credential(self.kind)
            && shown.all(|known| known.kind() != self.kind || now.credentials.contains(known))
    }
}

/// Finds devices by what clients show.
pub struct DeviceAuthenticator {
    registry: Registry,
    /// For passwords that were found right; of this process alone.
    verified: SecretDigester,
    /// Let in, and not yet connected.
    admitted: Mutex<PendingAdmissions>,
}

/// What an answer may take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LookupEffort {
    Memory,
    /// A look at the disk.
    Disk,
    /// That, and some 30 ms for a chosen password.
    Hashing,
}

impl DeviceAuthenticator {
    pub fn new(registry: Registry) -> Result<Self, RegistryError> {
        let key: [u8; 32] = random_bytes().map_err(|error| RegistryError::Invalid {
            field: "key".to_owned(),
            message: error.to_string(),
        })?;
        Ok(Self {
            registry,
            verified: SecretDigester::new(&key),
            admitted: Mutex::default(),
        })
    }

    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Whether a client that shows this may be a device.
    #[inline]
    #[must_use]
    pub fn may_be_device(&self, username: Option<&str>, common_name: Option<&str>) -> bool {
        self.registry.has_products() && (username.is_some() || common_name.is_some())
    }

    /// From memory alone.
    #[must_use]
    pub fn find_in_memory(&self, shown: &PresentedCredentials<'_>) -> DeviceLookup {
        // Memory alone does not fail.
        self.find_with_effort(shown, LookupEffort::Memory)
            .unwrap_or(DeviceLookup::WouldBlock)
    }

    /// From the disk if it has to be; [`DeviceLookup::WouldBlock`]: there is a chosen password to be checked.
    pub fn find_on_disk(
        &self,
        shown: &PresentedCredentials<'_>,
    ) -> Result<DeviceLookup, RegistryError> {
        self.find_with_effort(shown, LookupEffort::Disk)
    }

    /// From the disk if it has to be; may take some 30 ms for a chosen password.
    pub fn find_blocking(
        &self,
        shown: &PresentedCredentials<'_>,
    ) -> Result<DeviceLookup, RegistryError> {
        self.find_with_effort(shown, LookupEffort::Hashing)
    }

    fn find_device(
        &self,
        name: &DeviceName<'_>,
        effort: LookupEffort,
    ) -> Result<Option<Arc<Device>>, LookupError> {
        let registry = &self.registry.inner;
        match effort {
            LookupEffort::Disk | LookupEffort::Hashing => {
                registry.find(name).map_err(LookupError::Failed)
            }
            LookupEffort::Memory => match registry.cached(name) {
                Some(device) => {
                    registry.count_hit();
                    Ok(Some(device))
                }
                None => Err(LookupError::WouldBlock),
            },
        }
    }

    fn find_with_effort(
        &self,
        shown: &PresentedCredentials<'_>,
        effort: LookupEffort,
    ) -> Result<DeviceLookup, RegistryError> {
        match self.try_find(shown, effort) {
            Ok(found) => Ok(found),
            Err(LookupError::WouldBlock) => Ok(DeviceLookup::WouldBlock),
            Err(LookupError::Failed(error)) => Err(error),
        }
    }

    fn try_find(
        &self,
        shown: &PresentedCredentials<'_>,
        effort: LookupEffort,
    ) -> Result<DeviceLookup, LookupError> {
        if let Some(name) = shown.common_name
            && let Some(device) = self.find_device(&DeviceName::CommonName(name), effort)?
        {
            return Ok(admit(device, CredentialKind::Certificate, None));
        }
        let Some(username) = shown.username else {
            return Ok(DeviceLookup::NotADevice);
        };
        let password = shown.password.unwrap_or_default();
        if let Some(login) = SecureLogin::parse(username, password) {
            return match self.find_device(&DeviceName::Id(shown.client_id), effort)? {
                Some(device) => Ok(check_secure_login(device, &login, shown.now_ms)),
                None => Ok(DeviceLookup::NotADevice),
            };
        }
        if password.starts_with(b"eyJ")
            && let Some(device) = self.find_device(&DeviceName::Id(shown.client_id), effort)?
            && let Some(found) = check_jwt(&device, password, shown.now_ms)
        {
            return Ok(found);
        }
        if password.is_empty() {
            let digest = self.registry.inner.digest(username.as_bytes());
            if let Some(device) = self.find_device(&DeviceName::Token(&digest), effort)? {
                return Ok(admit(device, CredentialKind::Token, None));
            }
            if username == PROVISION_USERNAME && self.registry.has_provisioning() {
                return Ok(DeviceLookup::Provisioning);
            }
            return Ok(DeviceLookup::NotADevice);
        }
        match self.find_device(&DeviceName::Username(username), effort)? {
            None => Ok(DeviceLookup::NotADevice),
            Some(device) => self.check_password(device, username, password, effort),
        }
    }

    fn check_password(
        &self,
        device: Arc<Device>,
        username: &str,
        password: &[u8],
        effort: LookupEffort,
    ) -> Result<DeviceLookup, LookupError> {
        let secret = device.credentials.iter().find_map(|known| match known {
            Credential::Password {
                username: name,
                secret,
            } if **name == *username => Some(secret),
            _ => None,
        });
        let is_right = match secret {
            None => false,
            Some(PasswordSecret::Digest(digest)) => {
                self.registry.inner.digester().matches(password, digest)
            }
            Some(PasswordSecret::Hash(hash)) => {
                let known = device.verified_password_digest.get();
                if known.is_some_and(|digest| self.verified.matches(password, digest)) {
                    true
                } else if effort < LookupEffort::Hashing {
                    return Err(LookupError::WouldBlock);
                } else {
                    let is_right = verify_password(hash, password);
                    if is_right {
                        let _ = device
                            .verified_password_digest
                            .set(self.verified.digest(password));
                    }
                    is_right
                }
            }
        };
        Ok(match is_right {
            true => admit(device, CredentialKind::Password, None),
            false => DeviceLookup::Rejected,
        })
    }

    /// The device of a client that was let in, until [`DeviceAuthenticator::take_admission`] asks.
    pub fn add_admission(
        &self,
        peer: Option<SocketAddr>,
        shown: &PresentedCredentials<'_>,
        admission: DeviceAdmission,
    ) {
        let mut admitted = self.lock_admitted();
        if admitted.young.len() >= MAX_ADMITTED / 2 {
            // Whoever is let in and does not connect while so many do is not coming.
            admitted.old = std::mem::take(&mut admitted.young);
        }
        let is_named = shown.username.is_some();
        let connection = ConnectionKey::from_client(peer, shown.client_id);
        admitted.young.insert(connection, (admission, is_named));
    }

    /// A new client is at the door: whoever was let in on such a connection before did not come.
    pub fn remove_admission(&self, peer: Option<SocketAddr>, client_id: &str) {
        self.lock_admitted().remove(peer, client_id);
    }

    /// Which device the client is that is connected now; `None`: none. Asked once per connection. `is_named`: it has a user name.
    #[must_use]
    pub fn take_admission(
        &self,
        peer: Option<SocketAddr>,
        client_id: &str,
        is_named: bool,
    ) -> Option<DeviceAdmission> {
        let (admission, was_named) = self.lock_admitted().remove(peer, client_id)?;
        // One that shows nothing was not asked about, and is not who was here before.
        (is_named || !was_named).then_some(admission)
    }

    fn lock_admitted(&self) -> MutexGuard<'_, PendingAdmissions> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Devices that were let in, and whether they said a user name; in two generations.
#[derive(Default)]
struct PendingAdmissions {
    young: HashMap<ConnectionKey, (DeviceAdmission, bool), RandomState>,
    old: HashMap<ConnectionKey, (DeviceAdmission, bool), RandomState>,
}

impl PendingAdmissions {
    fn remove(
        &mut self,
        peer: Option<SocketAddr>,
        client_id: &str,
    ) -> Option<(DeviceAdmission, bool)> {
        if self.young.is_empty() && self.old.is_empty() {
            return None;
        }
        let connection = ConnectionKey::from_client(peer, client_id);
        let earlier = match self.old.is_empty() {
            true => None,
            false => self.old.remove(&connection),
        };
        self.young.remove(&connection).or(earlier)
    }
}

/// A connection has an address of its own; without one, its client id has to do. The client id may be given after the client
/// was let in.
#[derive(PartialEq, Eq, Hash)]
enum ConnectionKey {
    Peer(SocketAddr),
    ClientId(Box<str>),
}

impl ConnectionKey {
    fn from_client(peer: Option<SocketAddr>, client_id: &str) -> Self {
        match peer {
            Some(peer) => Self::Peer(peer),
            None => Self::ClientId(client_id.into()),
        }
    }
}

enum LookupError {
    WouldBlock,
    Failed(RegistryError),
}

fn admit(device: Arc<Device>, kind: CredentialKind, expires_at_ms: Option<u64>) -> DeviceLookup {
    let takes = device.product.get().allows_credential(kind);
    if !device.is_admitted() || !takes {
        return DeviceLookup::Rejected;
    }
    DeviceLookup::Device(DeviceAdmission {
        expires_at_ms,
        ..DeviceAdmission::new(device, kind)
    })
}

fn check_secure_login(device: Arc<Device>, login: &SecureLogin<'_>, now_ms: u64) -> DeviceLookup {
    let product = device.product.get();
    let window_s = product.definition.secure_window_s;
    let own = device.credentials.iter().find_map(|known| match known {
        Credential::Secure { id, key } => Some((&**id, &**key)),
        _ => None,
    });
    let shared = match own {
        Some(_) => None,
        None => product.definition.secure.clone(),
    };
    drop(product);
    let is_right = own
        .or(shared
            .as_ref()
            .map(|secure| (&*secure.secure_id, &*secure.secure_key)))
        .is_some_and(|(id, key)| login.is_valid_for(id, key, now_ms, window_s));
    match is_right {
        true => match admit(device, CredentialKind::Secure, None) {
            DeviceLookup::Device(admission) => DeviceLookup::Device(DeviceAdmission {
                shared_secure: shared,
                ..admission
            }),
            other => other,
        },
        false => DeviceLookup::Rejected,
    }
}

/// `None`: the device has no key for tokens.
fn check_jwt(device: &Arc<Device>, token: &[u8], now_ms: u64) -> Option<DeviceLookup> {
    let mut keys = device.credentials.iter().filter_map(|known| match known {
        Credential::Jwt { key } => Some(key),
        _ => None,
    });
    let mut has_key = false;
    let ends = keys.find_map(|key| {
        has_key = true;
        key.check(token, device.id.as_str(), now_ms)
    });
    match (has_key, ends) {
        (false, _) => None,
        (true, None) => Some(DeviceLookup::Rejected),
        (true, ends) => Some(admit(Arc::clone(device), CredentialKind::Jwt, ends)),
    }
}
