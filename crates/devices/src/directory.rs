//! Whether a client is a device: asked once per connect, answered from memory for those that came lately.
//!
//! A name that is not in memory may be on the disk or nowhere: the answer is [`Found::Cold`] then, and
//! [`Directory::find_cold`] is to be asked on a thread that may wait.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::credential::{
    Credential, Digester, PROVISION_USERNAME, Secret, SecureLogin, is_password, random_bytes,
};
use crate::device::Device;
use crate::product::{CredentialKind, SharedSecure};
use crate::registry::{Name, Registry, RegistryError};

/// Devices that were let in and did not become connected: they are forgotten beyond this many.
const MAX_ADMITTED: usize = 65_536;

/// What a client shows.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// Of its verified certificate.
    pub common_name: Option<&'a str>,
    pub now_ms: u64,
}

/// Who it is.
#[derive(Debug, Clone)]
pub enum Found {
    /// No device, as far as anybody knows.
    Nobody,
    /// A device, but not with this.
    Refused,
    Device(Admission),
    /// It may do nothing but ask to be registered.
    Provisioning,
    /// It takes a look at the disk, or time.
    Cold,
}

/// A device that is let in.
#[derive(Debug, Clone)]
pub struct Admission {
    pub device: Arc<Device>,
    pub kind: CredentialKind,
    /// The end of its token's life.
    pub expires_at_ms: Option<u64>,
    /// It has proved itself with what its product has for all devices, as it was then.
    pub(crate) shared_secure: Option<SharedSecure>,
}

impl Admission {
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
    pub(crate) fn still_holds(&self, now: &Device) -> bool {
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
            && now.is_let_in()
            && now.product.id() == self.device.product.id()
            && product.takes(self.kind)
            && shown.all(|known| known.kind() != self.kind || now.credentials.contains(known))
    }
}

/// Finds devices by what clients show.
pub struct Directory {
    registry: Registry,
    /// For passwords that were found right; of this process alone.
    verified: Digester,
    /// Let in, and not yet connected.
    admitted: Mutex<Admitted>,
}

/// What an answer may take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effort {
    Memory,
    /// A look at the disk.
    Disk,
    /// That, and some 30 ms for a chosen password.
    Time,
}

impl Directory {
    pub fn new(registry: Registry) -> Result<Self, RegistryError> {
        let key: [u8; 32] = random_bytes().map_err(|error| RegistryError::Invalid {
            field: "key".to_owned(),
            message: error.to_string(),
        })?;
        Ok(Self {
            registry,
            verified: Digester::new(&key),
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
    pub fn concerns(&self, username: Option<&str>, common_name: Option<&str>) -> bool {
        self.registry.has_products() && (username.is_some() || common_name.is_some())
    }

    /// From memory alone.
    #[must_use]
    pub fn find(&self, shown: &Shown<'_>) -> Found {
        // Memory alone does not fail.
        self.look(shown, Effort::Memory).unwrap_or(Found::Cold)
    }

    /// From the disk if it has to be; [`Found::Cold`]: there is a chosen password to be checked.
    pub fn look_up(&self, shown: &Shown<'_>) -> Result<Found, RegistryError> {
        self.look(shown, Effort::Disk)
    }

    /// From the disk if it has to be; may take some 30 ms for a chosen password.
    pub fn find_cold(&self, shown: &Shown<'_>) -> Result<Found, RegistryError> {
        self.look(shown, Effort::Time)
    }

    fn device(&self, name: &Name<'_>, effort: Effort) -> Result<Option<Arc<Device>>, Miss> {
        let registry = &self.registry.inner;
        match effort {
            Effort::Disk | Effort::Time => registry.find(name).map_err(Miss::Failed),
            Effort::Memory => match registry.hot(name) {
                Some(device) => {
                    registry.count_hit();
                    Ok(Some(device))
                }
                None => Err(Miss::Cold),
            },
        }
    }

    fn look(&self, shown: &Shown<'_>, effort: Effort) -> Result<Found, RegistryError> {
        match self.search(shown, effort) {
            Ok(found) => Ok(found),
            Err(Miss::Cold) => Ok(Found::Cold),
            Err(Miss::Failed(error)) => Err(error),
        }
    }

    fn search(&self, shown: &Shown<'_>, effort: Effort) -> Result<Found, Miss> {
        if let Some(name) = shown.common_name
            && let Some(device) = self.device(&Name::CommonName(name), effort)?
        {
            return Ok(admit(device, CredentialKind::Certificate, None));
        }
        let Some(username) = shown.username else {
            return Ok(Found::Nobody);
        };
        let password = shown.password.unwrap_or_default();
        if let Some(login) = SecureLogin::read(username, password) {
            return match self.device(&Name::Id(shown.client_id), effort)? {
                Some(device) => Ok(secure(device, &login, shown.now_ms)),
                None => Ok(Found::Nobody),
            };
        }
        if password.starts_with(b"eyJ")
            && let Some(device) = self.device(&Name::Id(shown.client_id), effort)?
            && let Some(found) = jwt(&device, password, shown.now_ms)
        {
            return Ok(found);
        }
        if password.is_empty() {
            let digest = self.registry.inner.digest(username.as_bytes());
            if let Some(device) = self.device(&Name::Token(&digest), effort)? {
                return Ok(admit(device, CredentialKind::Token, None));
            }
            if username == PROVISION_USERNAME && self.registry.has_provisioning() {
                return Ok(Found::Provisioning);
            }
            return Ok(Found::Nobody);
        }
        match self.device(&Name::Username(username), effort)? {
            None => Ok(Found::Nobody),
            Some(device) => self.by_password(device, username, password, effort),
        }
    }

    fn by_password(
        &self,
        device: Arc<Device>,
        username: &str,
        password: &[u8],
        effort: Effort,
    ) -> Result<Found, Miss> {
        let secret = device.credentials.iter().find_map(|known| match known {
            Credential::Password {
                username: name,
                secret,
            } if **name == *username => Some(secret),
            _ => None,
        });
        let is_right = match secret {
            None => false,
            Some(Secret::Digest(digest)) => self.registry.inner.digester().is(password, digest),
            Some(Secret::Hash(hash)) => {
                let known = device.verified.get();
                if known.is_some_and(|digest| self.verified.is(password, digest)) {
                    true
                } else if effort < Effort::Time {
                    return Err(Miss::Cold);
                } else {
                    let is_right = is_password(hash, password);
                    if is_right {
                        let _ = device.verified.set(self.verified.digest(password));
                    }
                    is_right
                }
            }
        };
        Ok(match is_right {
            true => admit(device, CredentialKind::Password, None),
            false => Found::Refused,
        })
    }

    /// The device of a client that was let in, until [`Directory::take_admitted`] asks.
    pub fn remember(&self, peer: Option<SocketAddr>, shown: &Shown<'_>, admission: Admission) {
        let mut admitted = self.lock_admitted();
        if admitted.young.len() >= MAX_ADMITTED / 2 {
            // Whoever is let in and does not connect while so many do is not coming.
            admitted.old = std::mem::take(&mut admitted.young);
        }
        let is_named = shown.username.is_some();
        let connection = Connection::of(peer, shown.client_id);
        admitted.young.insert(connection, (admission, is_named));
    }

    /// A new client is at the door: whoever was let in on such a connection before did not come.
    pub fn forget(&self, peer: Option<SocketAddr>, client_id: &str) {
        self.lock_admitted().remove(peer, client_id);
    }

    /// Which device the client is that is connected now; `None`: none. Asked once per connection. `is_named`: it has a user name.
    #[must_use]
    pub fn take_admitted(
        &self,
        peer: Option<SocketAddr>,
        client_id: &str,
        is_named: bool,
    ) -> Option<Admission> {
        let (admission, was_named) = self.lock_admitted().remove(peer, client_id)?;
        // One that shows nothing was not asked about, and is not who was here before.
        (is_named || !was_named).then_some(admission)
    }

    fn lock_admitted(&self) -> MutexGuard<'_, Admitted> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Devices that were let in, and whether they said a user name; in two generations.
#[derive(Default)]
struct Admitted {
    young: HashMap<Connection, (Admission, bool), RandomState>,
    old: HashMap<Connection, (Admission, bool), RandomState>,
}

impl Admitted {
    fn remove(&mut self, peer: Option<SocketAddr>, client_id: &str) -> Option<(Admission, bool)> {
        if self.young.is_empty() && self.old.is_empty() {
            return None;
        }
        let connection = Connection::of(peer, client_id);
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
enum Connection {
    From(SocketAddr),
    Of(Box<str>),
}

impl Connection {
    fn of(peer: Option<SocketAddr>, client_id: &str) -> Self {
        match peer {
            Some(peer) => Self::From(peer),
            None => Self::Of(client_id.into()),
        }
    }
}

enum Miss {
    Cold,
    Failed(RegistryError),
}

fn admit(device: Arc<Device>, kind: CredentialKind, expires_at_ms: Option<u64>) -> Found {
    let takes = device.product.get().takes(kind);
    if !device.is_let_in() || !takes {
        return Found::Refused;
    }
    Found::Device(Admission {
        expires_at_ms,
        ..Admission::new(device, kind)
    })
}

fn secure(device: Arc<Device>, login: &SecureLogin<'_>, now_ms: u64) -> Found {
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
        .is_some_and(|(id, key)| login.is_of(id, key, now_ms, window_s));
    match is_right {
        true => match admit(device, CredentialKind::Secure, None) {
            Found::Device(admission) => Found::Device(Admission {
                shared_secure: shared,
                ..admission
            }),
            other => other,
        },
        false => Found::Refused,
    }
}

/// `None`: the device has no key for tokens.
fn jwt(device: &Arc<Device>, token: &[u8], now_ms: u64) -> Option<Found> {
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
        (true, None) => Some(Found::Refused),
        (true, ends) => Some(admit(Arc::clone(device), CredentialKind::Jwt, ends)),
    }
}
