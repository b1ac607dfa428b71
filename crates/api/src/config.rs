//! The settings of the HTTP API. Every bound it enforces stands here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use broker::config::BindAddress;

use crate::access::Role;
use crate::client_address::{ForwardedHeader, TrustedProxies};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Port 0 lets the system choose.
    pub bind: BindAddress,
    /// Each connection begins with a PROXY protocol header (version 1 or 2).
    pub proxy_protocol: bool,
    /// Proxies whose `forwarded_header` says where a request comes from.
    pub trusted_proxies: TrustedProxies,
    pub forwarded_header: ForwardedHeader,
    /// What those may do who show no credentials; on loopback addresses only.
    pub anonymous: AnonymousRole,
    pub metrics_access: RouteOpenness,
    pub docs_access: RouteOpenness,
    pub max_body_bytes: usize,
    /// Of a backup that is restored.
    pub max_restore_bytes: usize,
    /// Connections at once, those of streams and long polls aside. One more closes the one that has been idle for the
    /// longest time.
    pub max_connections: usize,
    /// The same from one address, or one IPv6 network of 64 bits; trusted proxies and Unix sockets aside.
    pub max_connections_per_address: usize,
    /// Requests being answered at once, by class.
    pub max_health_requests: usize,
    pub max_login_requests: usize,
    pub max_operator_requests: usize,
    pub max_device_requests: usize,
    /// Of one class from one address; never more than half of the class.
    pub max_requests_per_address: usize,
    /// Streams of events at once.
    pub max_event_streams: usize,
    /// The same of one operator or API key.
    pub max_event_streams_per_holder: usize,
    /// Devices' requests that wait for a command.
    pub max_long_polls: usize,
    pub max_long_polls_per_device: usize,
    /// Seconds for a request to be answered, its body included, and for a graceful stop.
    pub request_timeout_s: u32,
    /// Seconds for a request's head to arrive; an idle connection is closed after it.
    pub header_timeout_s: u32,
    /// Seconds for a request's body to arrive.
    pub body_timeout_s: u32,
    /// Seconds a client may leave what is sent to it unread.
    pub write_timeout_s: u32,
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
            bind: bind.into(),
            proxy_protocol: false,
            trusted_proxies: TrustedProxies::default(),
            forwarded_header: ForwardedHeader::default(),
            anonymous: AnonymousRole::None,
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
            max_event_streams_per_holder: 16,
            max_long_polls: 1000,
            max_long_polls_per_device: 2,
            request_timeout_s: 10,
            header_timeout_s: 10,
            body_timeout_s: 10,
            write_timeout_s: 10,
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
pub struct SharedHttpConfig(Arc<ArcSwap<HttpConfig>>);

impl SharedHttpConfig {
    pub fn new(config: HttpConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// Other settings, for what begins from now on. Addresses, `anonymous` and the numbers of connections, requests and
    /// streams stay as they were when the API began.
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

/// The role of those who show no credentials.
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
    /// None.
    Open,
    /// None if HTTP is bound to a loopback address.
    OpenOnLoopback,
    /// Those of a viewer.
    Viewers,
}
