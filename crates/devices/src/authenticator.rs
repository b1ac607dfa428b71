//! Decides whether a client is a device. Called once per connect, and answered from memory for recently used devices.
//!
//! A name that is not in memory may be on disk or may not exist. The result is then [`DeviceLookup::WouldBlock`], and
//! the caller repeats the lookup with [`DeviceAuthenticator::find_blocking`] on a thread that may block.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use secret::random_bytes;

use crate::credential::{
    Credential, PROVISION_USERNAME, PasswordSecret, SecretDigester, SecureLogin, verify_password,
};
use crate::device::Device;
use crate::product::{CredentialKind, SharedSecure};
use crate::protocol::DeviceProtocol;
use crate::registry::{DeviceName, Registry, RegistryError};

/// Maximum number of admitted devices that have not completed their connect; beyond it, the oldest are dropped.
const MAX_ADMITTED: usize = 65_536;

/// Credentials that a client presents.
#[derive(Clone, Copy)]
pub struct PresentedCredentials<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// Common name of the verified client certificate.
    pub common_name: Option<&'a str>,
    pub now_ms: u64,
}

/// Result of a device lookup.
#[derive(Debug, Clone)]
pub enum DeviceLookup {
    /// No known device matches.
    NotADevice,
    /// A device matches, but the credentials are wrong.
    Rejected,
    Device(DeviceAdmission),
    /// The client may only request registration.
    Provisioning,
    /// The lookup needs to read the disk or to compute a hash.
    WouldBlock,
}

/// A device whose credentials are accepted.
#[derive(Debug, Clone)]
pub struct DeviceAdmission {
    pub device: Arc<Device>,
    /// The credential shown; `None`: a relay endpoint, whose address and key the client has presented, identifies the device.
    pub kind: Option<CredentialKind>,
    /// Expiry of its JWT.
    pub expires_at_ms: Option<u64>,
    /// The product's shared secure credential that the device has used, as it was at that time.
    pub(crate) shared_secure: Option<SharedSecure>,
}

impl DeviceAdmission {
    #[must_use]
    pub fn new(device: Arc<Device>, kind: CredentialKind) -> Self {
        Self {
            device,
            kind: Some(kind),
            expires_at_ms: None,
            shared_secure: None,
        }
    }

    /// Admits a device on the connection of a relay endpoint.
    pub(crate) fn by_endpoint(device: Arc<Device>) -> Self {
        Self {
            device,
            kind: None,
            expires_at_ms: None,
            shared_secure: None,
        }
    }

    /// Whether the device `now` in the registry would still be admitted with the same credential.
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
        let is_credential_valid = match self.kind {
            None => product.allows_protocol(DeviceProtocol::Relay),
            Some(kind) => {
                product.allows_credential(kind)
                    && shown.all(|known| known.kind() != kind || now.credentials.contains(known))
            }
        };
        has_shared
            && now.is_admitted()
            && now.product.id() == self.device.product.id()
            && is_credential_valid
    }
}

/// Identifies devices by the credentials that clients present.
pub struct DeviceAuthenticator {
    registry: Registry,
    /// Digests of verified passwords, with a key of this process.
    verified: SecretDigester,
    /// Admitted devices that are not connected yet.
    admitted: Mutex<PendingAdmissions>,
}

/// How much work a lookup may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LookupEffort {
    Memory,
    /// Reads from disk.
    Disk,
    /// Reads from disk and about 30 ms for an argon2 hash.
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

    /// Whether a client with these credentials may be a device.
    #[inline]
    #[must_use]
    pub fn may_be_device(&self, username: Option<&str>, common_name: Option<&str>) -> bool {
        self.registry.has_products() && (username.is_some() || common_name.is_some())
    }

    /// Looks the device up in memory only.
    #[must_use]
    pub fn find_in_memory(&self, shown: &PresentedCredentials<'_>) -> DeviceLookup {
        // A lookup in memory does not fail.
        self.find_with_effort(shown, LookupEffort::Memory)
            .unwrap_or(DeviceLookup::WouldBlock)
    }

    /// Looks the device up, on disk if necessary. Returns [`DeviceLookup::WouldBlock`] if an argon2 hash has to be
    /// computed.
    pub fn find_on_disk(
        &self,
        shown: &PresentedCredentials<'_>,
    ) -> Result<DeviceLookup, RegistryError> {
        self.find_with_effort(shown, LookupEffort::Disk)
    }

    /// Looks the device up, on disk if necessary. May take about 30 ms for an argon2 hash.
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

    /// The device with this access token.
    fn find_token(
        &self,
        token: &str,
        effort: LookupEffort,
    ) -> Result<Option<Arc<Device>>, LookupError> {
        let mut found = Ok(None);
        // More than one only if nodes of a cluster have registered devices before they met.
        for digest in self.registry.inner.digester().digests(token.as_bytes()) {
            match self.find_device(&DeviceName::Token(&digest), effort) {
                Ok(None) => {}
                Err(LookupError::WouldBlock) => found = Err(LookupError::WouldBlock),
                other => return other,
            }
        }
        found
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
            if let Some(device) = self.find_token(username, effort)? {
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

    /// Remembers an admitted device until [`DeviceAuthenticator::take_admission`] fetches it.
    pub fn add_admission(
        &self,
        peer: Option<SocketAddr>,
        shown: &PresentedCredentials<'_>,
        admission: DeviceAdmission,
    ) {
        let mut admitted = self.lock_admitted();
        if admitted.young.len() >= MAX_ADMITTED / 2 {
            // Drops the older generation: with so many admissions since, those clients will not complete their
            // connect.
            admitted.old = std::mem::take(&mut admitted.young);
        }
        let is_named = shown.username.is_some();
        let connection = ConnectionKey::from_client(peer, shown.client_id);
        admitted.young.insert(connection, (admission, is_named));
    }

    /// Discards an admission that an earlier connect on the same connection has left behind.
    pub fn remove_admission(&self, peer: Option<SocketAddr>, client_id: &str) {
        self.lock_admitted().remove(peer, client_id);
    }

    /// Returns the device of a client that has just connected, or `None`. Called once per connection. `is_named`: the
    /// client sent a user name.
    #[must_use]
    pub fn take_admission(
        &self,
        peer: Option<SocketAddr>,
        client_id: &str,
        is_named: bool,
    ) -> Option<DeviceAdmission> {
        let (admission, was_named) = self.lock_admitted().remove(peer, client_id)?;
        // A client without a user name did not go through authentication, so an admission with a user name belongs to
        // an earlier client.
        (is_named || !was_named).then_some(admission)
    }

    fn lock_admitted(&self) -> MutexGuard<'_, PendingAdmissions> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Admitted devices and whether they sent a user name, in two generations.
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

/// Key of a connection: its peer address or, without one, the client id. The broker may assign the client id after
/// the admission.
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
    let window_s = product.definition.secure_max_clock_skew_s;
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

/// Returns `None` if the device has no key for JWTs.
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
