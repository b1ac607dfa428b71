//! The state shared by all handlers: the backends of the node and the program, the store, and the
//! API's own state.

use std::sync::Arc;
use std::time::SystemTime;

use broker::ListenerTls;
use store::Objects;
use tokio::sync::{Mutex, watch};

use crate::access::AccessState;
use crate::alarm_backend::AlarmBackend;
use crate::command_backend::CommandBackend;
use crate::config::{AnonymousRole, RouteOpenness, SharedHttpConfig};
use crate::connection_tracker::ConnectionTracker;
use crate::connector_backend::ConnectorBackend;
use crate::device_backend::DeviceBackend;
use crate::device_http_backend::DeviceHttpBackend;
use crate::fleet_backend::FleetBackend;
use crate::node_backend::{NodeBackend, ProgramBackend};
use crate::objects::ObjectBackend;
use crate::rule_backend::RuleBackend;
use crate::telemetry_backend::TelemetryBackend;

/// The components the API is built from; the program provides all of them.
pub struct ApiParts {
    pub node: Arc<dyn NodeBackend>,
    pub program: Arc<dyn ProgramBackend>,
    pub objects: Objects,
    pub rules: Arc<dyn ObjectBackend>,
    /// If set, HTTP is served over TLS only.
    pub tls: Option<Arc<ListenerTls>>,
    pub rule_backend: Arc<dyn RuleBackend>,
    pub connector_backend: Arc<dyn ConnectorBackend>,
    pub device_backend: Arc<dyn DeviceBackend>,
    pub telemetry_backend: Arc<dyn TelemetryBackend>,
    pub alarm_backend: Arc<dyn AlarmBackend>,
    pub device_http_backend: Arc<dyn DeviceHttpBackend>,
    pub fleet_backend: Arc<dyn FleetBackend>,
    pub command_backend: Arc<dyn CommandBackend>,
    /// The token from the data directory that grants the admin role to requests from this machine.
    pub local_token: Option<String>,
}

pub(crate) struct ApiState {
    pub(crate) node: Arc<dyn NodeBackend>,
    pub(crate) program: Arc<dyn ProgramBackend>,
    pub(crate) objects: Objects,
    pub(crate) config: SharedHttpConfig,
    /// The role of requests without credentials.
    pub(crate) anonymous: AnonymousRole,
    pub(crate) rules: Arc<dyn ObjectBackend>,
    pub(crate) rule_backend: Arc<dyn RuleBackend>,
    pub(crate) connector_backend: Arc<dyn ConnectorBackend>,
    pub(crate) device_backend: Arc<dyn DeviceBackend>,
    pub(crate) telemetry_backend: Arc<dyn TelemetryBackend>,
    pub(crate) alarm_backend: Arc<dyn AlarmBackend>,
    pub(crate) device_http_backend: Arc<dyn DeviceHttpBackend>,
    /// Tracks concurrent connections and requests.
    pub(crate) connections: Arc<ConnectionTracker>,
    pub(crate) fleet_backend: Arc<dyn FleetBackend>,
    pub(crate) command_backend: Arc<dyn CommandBackend>,
    pub(crate) access: AccessState,
    pub(crate) started: SystemTime,
    /// Whether the API is bound to loopback or to a Unix socket.
    pub(crate) is_local: bool,
    /// Whether the API is bound to loopback; then only loopback host names are answered.
    pub(crate) loopback_only: bool,
    /// Held while an object changes, so that preconditions are checked against the current version
    /// and the audit log contains the changes in order.
    pub(crate) changing: Mutex<()>,
    /// Becomes true when the API must stop.
    pub(crate) stopping: watch::Receiver<bool>,
    /// The OpenAPI document; the next field is the page that shows it.
    pub(crate) document: String,
    pub(crate) docs_page: String,
}

impl ApiState {
    /// Whether a route with this setting accepts requests without credentials.
    pub(crate) fn is_open(&self, openness: RouteOpenness) -> bool {
        match openness {
            RouteOpenness::Open => true,
            RouteOpenness::OpenOnLoopback => self.is_local,
            RouteOpenness::Viewers => false,
        }
    }
}
