//! Who may come in and what they may do: authenticators, rules, bans and limits on trying.
//!
//! [`Auth`] hangs on the broker's hooks. What can be decided at once is decided on the shard; what takes time (a
//! password, a database, a web server) is asked on the I/O runtime, in a bounded number of places, with time-outs. Whoever
//! cannot be asked lets nobody in. Rules are compiled for each session, so that a publication costs some ten nanoseconds.

mod authenticator;
mod bans;
mod breaker;
mod cache;
mod certificate;
mod chain;
mod database;
mod decoy;
mod devices;
mod door;
mod guarded;
mod http;
mod json;
mod jwt;
mod limits;
mod lookups;
pub mod objects;
pub mod password;
mod password_file;
pub mod rules;
mod schemas;
mod secret;
mod service;
mod settings;
mod sources;
mod tally;
mod template;
mod tls;
mod users;
mod windows;

pub use bans::{Ban, Banned};
pub use devices::{
    DeviceAnswer, DeviceDirectory, DeviceIdentity, DeviceLogin, DeviceName, DeviceRights,
};
pub use service::{Auth, SettingsError};
pub use settings::{Invalid, Limits, NoMatch, OnDenial, Settings};
pub use tally::{AuthenticatorError, AuthenticatorStatus};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}
