//! The settings of the HTTP API. Every bound it enforces stands here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::access::Role;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Port 0 lets the system choose.
    pub bind: SocketAddr,
    /// What those may do who show no credentials; on loopback addresses only.
    pub anonymous: Anonymous,
    pub metrics_access: Openness,
    pub docs_access: Openness,
    pub max_body_bytes: usize,
    /// Of a backup that is restored.
    pub max_restore_bytes: usize,
    /// Connections at once; more wait in the kernel.
    pub max_connections: usize,
    /// Streams of events at once.
    pub max_event_streams: usize,
    /// Seconds for a request's head to arrive, for its answer to be made, and for a graceful stop.
    pub request_timeout_s: u32,
    /// Seconds a token of a login is good for.
    pub token_ttl_s: u32,
    /// Seconds the token is good for that gets the next one, on ThingsBoard's paths.
    pub refresh_token_ttl_s: u32,
    /// Failed logins from one address within `failed_login_window_s`; then it has to wait.
    pub max_failed_logins: u32,
    pub failed_login_window_s: u32,
    /// Entries of the audit log; one more ends the oldest.
    pub max_audit_entries: u64,
}

impl HttpConfig {
    /// The defaults at the given address.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            anonymous: Anonymous::None,
            metrics_access: Openness::OpenOnLoopback,
            docs_access: Openness::OpenOnLoopback,
            max_body_bytes: 1 << 20,
            max_restore_bytes: 64 << 20,
            max_connections: 256,
            max_event_streams: 64,
            request_timeout_s: 10,
            token_ttl_s: 3600,
            refresh_token_ttl_s: 604_800,
            max_failed_logins: 10,
            failed_login_window_s: 300,
            max_audit_entries: 100_000,
        }
    }
}

/// The settings as they are now, shared by the API and those who may change them.
#[derive(Debug, Clone)]
pub struct LiveConfig(Arc<ArcSwap<HttpConfig>>);

impl LiveConfig {
    pub fn new(config: HttpConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// Other settings, for what begins from now on. `bind`, `anonymous`, `max_connections` and `max_event_streams` stay
    /// as they were when the API began.
    pub fn set(&self, config: HttpConfig) {
        self.0.store(Arc::new(config));
    }

    pub fn get(&self) -> Arc<HttpConfig> {
        self.0.load_full()
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.0.load().request_timeout_s.into())
    }
}

/// The role of those who show no credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anonymous {
    #[default]
    None,
    Viewer,
    Admin,
}

impl Anonymous {
    pub(crate) fn role(self) -> Option<Role> {
        match self {
            Self::None => None,
            Self::Viewer => Some(Role::Viewer),
            Self::Admin => Some(Role::Admin),
        }
    }
}

/// Whether a route needs credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Openness {
    /// None.
    Open,
    /// None if HTTP is bound to a loopback address.
    OpenOnLoopback,
    /// Those of a viewer.
    Viewers,
}
