//! The configuration of the HTTP API, including every limit it enforces.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use broker::config::BindAddress;

use crate::access::Role;
use crate::client_address::{ForwardedHeader, TrustedProxies};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// With port 0 the system chooses a port.
    pub bind: BindAddress,
    /// Whether each connection begins with a PROXY protocol header (version 1 or 2).
    pub proxy_protocol: bool,
    /// Proxies whose `forwarded_header` names the client.
    pub trusted_proxies: TrustedProxies,
    pub forwarded_header: ForwardedHeader,
    /// The role of requests without credentials; on loopback addresses only.
    pub anonymous_role: AnonymousRole,
    pub metrics_access: RouteOpenness,
    pub docs_access: RouteOpenness,
    pub max_body_bytes: usize,
    /// Maximum size of a backup to restore, in bytes.
    pub max_restore_bytes: usize,
    /// Maximum number of connections, without event streams and long polls. One more closes the
    /// connection that has been idle for the longest time.
    pub max_connections: usize,
    /// The same per address, or per IPv6 /64 network. Trusted proxies and Unix sockets are exempt.
    pub max_connections_per_address: usize,
    /// Maximum number of concurrent requests, by class.
    pub max_health_requests: usize,
    pub max_login_requests: usize,
    pub max_operator_requests: usize,
    pub max_device_requests: usize,
    /// Maximum number of concurrent requests of one class from one address; never more than half of
    /// the class.
    pub max_requests_per_address: usize,
    /// Maximum number of concurrent event streams.
    pub max_event_streams: usize,
    /// Maximum number of concurrent event streams per operator or API key.
    pub max_event_streams_per_identity: usize,
    /// Maximum number of concurrent device requests that wait for a command.
    pub max_long_polls: usize,
    pub max_long_polls_per_device: usize,
    /// Seconds to answer a request, including its body, and seconds for a graceful stop.
    pub request_timeout_s: u32,
    /// Seconds for a request head to arrive; an idle connection is closed after the same time.
    pub header_timeout_s: u32,
    /// Seconds for a request body to arrive.
    pub body_timeout_s: u32,
    /// Seconds that a client may leave sent data unread.
    pub write_timeout_s: u32,
    /// Whether people may register themselves with an invite.
    pub registration_enabled: bool,
    /// Validity of a login token, in seconds.
    pub token_ttl_s: u32,
    /// Validity of a refresh token on the ThingsBoard paths, in seconds.
    pub refresh_token_ttl_s: u32,
    /// Maximum number of failed logins from one address within `failed_login_window_s`; further
    /// attempts must wait.
    pub max_failed_logins: u32,
    pub failed_login_window_s: u32,
    /// Maximum number of audit log entries; one more deletes the oldest.
    pub max_audit_entries: u64,
    /// Days for which the node keeps its own metrics; 0: it records none.
    pub history_days: u32,
}

impl HttpConfig {
    /// The default configuration at the given address.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind: bind.into(),
            proxy_protocol: false,
            trusted_proxies: TrustedProxies::default(),
            forwarded_header: ForwardedHeader::default(),
            anonymous_role: AnonymousRole::None,
            metrics_access: RouteOpenness::OpenOnLoopback,
            docs_access: RouteOpenness::OpenOnLoopback,
            max_body_bytes: 1 << 20,
            max_restore_bytes: 64 << 20,
            max_connections: 1024,
            max_connections_per_address: 256,
            max_health_requests: 64,
            max_login_requests: 32,
            max_operator_requests: 128,
            max_device_requests: 256,
            max_requests_per_address: 64,
            max_event_streams: 64,
            max_event_streams_per_identity: 16,
            max_long_polls: 1000,
            max_long_polls_per_device: 2,
            request_timeout_s: 10,
            header_timeout_s: 10,
            body_timeout_s: 10,
            write_timeout_s: 10,
            registration_enabled: false,
            token_ttl_s: 3600,
            refresh_token_ttl_s: 604_800,
            max_failed_logins: 10,
            failed_login_window_s: 300,
            max_audit_entries: 100_000,
            history_days: 7,
        }
    }
}

/// The current configuration, shared by the API and the components that may change it.
#[derive(Debug, Clone)]
pub struct SharedHttpConfig(Arc<ArcSwap<HttpConfig>>);

impl SharedHttpConfig {
    pub fn new(config: HttpConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// Replaces the configuration for requests that begin from now on. Addresses, `anonymous_role` and
    /// the limits on connections, requests and streams keep their start-up values.
    pub fn set(&self, config: HttpConfig) {
        self.0.store(Arc::new(config));
    }

    pub fn get(&self) -> Arc<HttpConfig> {
        self.0.load_full()
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.0.load().request_timeout_s.into())
    }

    pub(crate) fn header_timeout(&self) -> Duration {
        Duration::from_secs(self.0.load().header_timeout_s.into())
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_secs(self.0.load().body_timeout_s.into())
    }

    pub(crate) fn write_timeout(&self) -> Duration {
        Duration::from_secs(self.0.load().write_timeout_s.into())
    }
}

/// The role of requests without credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnonymousRole {
    #[default]
    None,
    Viewer,
    Admin,
}

impl AnonymousRole {
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
pub enum RouteOpenness {
    /// No credentials are needed.
    Open,
    /// No credentials are needed if HTTP is bound to a loopback address.
    OpenOnLoopback,
    /// The credentials of a viewer or a higher role are needed.
    Viewers,
}
