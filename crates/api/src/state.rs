//! What every handler can ask: the node, the program, the store, and what the API remembers itself.

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

/// What the API is made of; the program has it all.
pub struct ApiParts {
    pub node: Arc<dyn NodeBackend>,
    pub program: Arc<dyn ProgramBackend>,
    pub objects: Objects,
    pub rules: Arc<dyn ObjectBackend>,
    /// With it HTTP is served over TLS only.
    pub tls: Option<Arc<ListenerTls>>,
    pub rule_backend: Arc<dyn RuleBackend>,
    pub connector_backend: Arc<dyn ConnectorBackend>,
    pub device_backend: Arc<dyn DeviceBackend>,
    pub telemetry_backend: Arc<dyn TelemetryBackend>,
    pub alarm_backend: Arc<dyn AlarmBackend>,
    pub device_http_backend: Arc<dyn DeviceHttpBackend>,
    pub fleet_backend: Arc<dyn FleetBackend>,
    pub command_backend: Arc<dyn CommandBackend>,
    /// The token in the data directory that makes its owner an admin, for requests from this machine.
    pub local_token: Option<String>,
}

pub(crate) struct ApiState {
    pub(crate) node: Arc<dyn NodeBackend>,
    pub(crate) program: Arc<dyn ProgramBackend>,
    pub(crate) objects: Objects,
    pub(crate) config: SharedHttpConfig,
    /// What those may do who show no credentials.
    pub(crate) anonymous: AnonymousRole,
    pub(crate) rules: Arc<dyn ObjectBackend>,
    pub(crate) rule_backend: Arc<dyn RuleBackend>,
    pub(crate) connector_backend: Arc<dyn ConnectorBackend>,
    pub(crate) device_backend: Arc<dyn DeviceBackend>,
    pub(crate) telemetry_backend: Arc<dyn TelemetryBackend>,
    pub(crate) alarm_backend: Arc<dyn AlarmBackend>,
    pub(crate) device_http_backend: Arc<dyn DeviceHttpBackend>,
    /// Connections and requests at once.
    pub(crate) connections: Arc<ConnectionTracker>,
    pub(crate) fleet_backend: Arc<dyn FleetBackend>,
    pub(crate) command_backend: Arc<dyn CommandBackend>,
    pub(crate) access: AccessState,
    pub(crate) started: SystemTime,
    /// Bound to loopback or a Unix socket.
    pub(crate) is_local: bool,
    /// Bound to loopback: only loopback names are answered.
    pub(crate) loopback_only: bool,
    /// Held while an object changes: conditions are checked against what is there, and the audit log has the order of
    /// the changes.
    pub(crate) changing: Mutex<()>,
    /// True from when the API shall end on.
    pub(crate) stopping: watch::Receiver<bool>,
    /// The OpenAPI document and the page that shows it.
    pub(crate) document: String,
    pub(crate) docs_page: String,
}

impl ApiState {
    /// Whether a route with this setting lets in who has no credentials.
    pub(crate) fn is_open(&self, openness: RouteOpenness) -> bool {
        match openness {
            RouteOpenness::Open => true,
            RouteOpenness::OpenOnLoopback => self.is_local,
            RouteOpenness::Viewers => false,
        }
    }
}
