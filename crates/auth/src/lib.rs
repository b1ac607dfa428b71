//! Who may come in and what they may do: authenticators, rules, bans and limits on trying.
//!
//! [`AuthService`] hangs on the broker's hooks. What can be decided at once is decided on the shard; what takes time (a
//! password, a database, a web server) is asked on the I/O runtime, in a bounded number of places, with time-outs. Whoever
//! cannot be asked lets nobody in. Rules are compiled for each session, so that a publication costs some ten nanoseconds.

mod answer_cache;
mod auth_hooks;
mod authenticator;
mod authenticator_chain;
mod backend_guard;
mod bans;
mod certificate_authenticator;
mod circuit_breaker;
mod database;
mod decoy_check;
mod device_authenticator;
mod disk_lookups;
mod http;
mod json;
mod jwt;
mod lockout;
mod login_limits;
mod object_schemas;
pub mod objects;
pub mod password;
mod password_file;
mod rule_sources;
pub mod rules;
mod secret;
mod service;
mod settings;
mod tally;
mod template;
mod tls;
mod users;

pub use bans::{Ban, BanTarget};
pub use device_authenticator::{
    DeviceDirectory, DeviceIdentity, DeviceLogin, DeviceLookupResult, DevicePermissions,
    OwnedClientDevice,
};
pub use service::{AuthService, AuthSettingsError};
pub use settings::{AuthLimits, AuthObjectError, AuthSettings, DenialPolicy, NoMatchPolicy};
pub use tally::{AuthenticatorError, AuthenticatorStatus};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}
