//! Authentication and authorisation of MQTT clients: authenticators, ACL rules, bans and login limits.
//!
//! [`AuthService`] implements the broker's hooks. Checks that need no waiting run on the shard. Slow checks (password
//! hashes, databases, web servers) run on the I/O runtime with bounded concurrency and time-outs. If a backend cannot
//! be reached, the client is rejected. Rules are compiled once per session, so the check of a publication costs some ten
//! nanoseconds.

mod answer_cache;
mod auth_hooks;
mod auth_state;
mod authenticator;
mod authenticator_chain;
mod backend_guard;
mod bans;
mod certificate_authenticator;
mod circuit_breaker;
mod database;
mod decoy_check;
mod device_authenticator;
mod device_directory;
mod disk_lookup_threads;
mod disk_lookups;
mod http;
mod json;
mod jwt;
mod lockout;
mod login;
mod login_limits;
mod login_outcome;
mod login_trial;
mod object_schemas;
pub mod objects;
pub mod password;
mod password_file;
mod rule_sources;
pub mod rules;
mod service;
mod settings;
mod tally;
mod template;
mod tls;
mod users;

pub use bans::{Ban, BanTarget};
pub use device_directory::{
    DeviceDirectory, DeviceIdentity, DeviceLogin, DeviceLookupResult, DevicePermissions,
    OwnedClientDevice,
};
pub use login_trial::{LoginTrial, LoginTrialError, TrialAnswer, TrialCredentials};
pub use rules::{DeniedAction, DeniedActionQuery};
pub use service::{AuthService, AuthSettingsError};
pub use settings::{AuthLimits, AuthObjectError, AuthSettings, DenialPolicy, NoMatchPolicy};
pub use tally::{AuthenticatorError, AuthenticatorStatus};
