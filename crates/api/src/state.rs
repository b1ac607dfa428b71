//! The state shared by all handlers: the backends of the node and the program, the store, and the
//! API's own state.

use std::sync::Arc;
use std::time::SystemTime;

use broker::ListenerTls;
use connect::ConnectorService;
use devices::pull::PullScheduler;
use engine::Engine;
use namespaces::Namespaces;
use relay::RelayService;
use store::Objects;
use tokio::sync::{Mutex, watch};

use crate::access::AccessState;
use crate::alarm_service::AlarmService;
use crate::command_service::CommandService;
use crate::config::{AnonymousRole, RouteOpenness, SharedHttpConfig};
use crate::connection_tracker::ConnectionTracker;
use crate::device_http_backend::DeviceHttpBackend;
use crate::device_service::DeviceService;
use crate::node_backend::{NodeBackend, ProgramBackend};
use crate::objects::ObjectBackend;
use crate::telemetry_backend::TelemetryBackend;
use crate::unwritten_entries::UnwrittenEntries;

/// The components the API is built from; the program provides all of them.
pub struct ApiParts {
    pub node: Arc<dyn NodeBackend>,
    pub program: Arc<dyn ProgramBackend>,
    pub objects: Objects,
    pub namespaces: Namespaces,
    pub object_backend: Arc<dyn ObjectBackend>,
    /// If set, HTTP is served over TLS only.
    pub tls: Option<Arc<ListenerTls>>,
    pub engine: Engine,
    pub connectors: ConnectorService,
    pub devices: DeviceService,
    pub telemetry_backend: Arc<dyn TelemetryBackend>,
    pub alarms: AlarmService,
    pub device_http_backend: Arc<dyn DeviceHttpBackend>,
    pub pulls: PullScheduler,
    pub relay: RelayService,
    pub commands: CommandService,
    /// The token from the data directory that grants the admin role to requests from this machine.
    pub local_token: Option<String>,
}

pub(crate) struct ApiState {
    pub(crate) node: Arc<dyn NodeBackend>,
    pub(crate) program: Arc<dyn ProgramBackend>,
    pub(crate) objects: Objects,
    pub(crate) namespaces: Namespaces,
    pub(crate) config: SharedHttpConfig,
    /// The role of requests without credentials.
    pub(crate) anonymous_role: AnonymousRole,
    pub(crate) object_backend: Arc<dyn ObjectBackend>,
    pub(crate) engine: Engine,
    pub(crate) connectors: ConnectorService,
    pub(crate) devices: DeviceService,
    pub(crate) telemetry_backend: Arc<dyn TelemetryBackend>,
    pub(crate) alarms: AlarmService,
    pub(crate) device_http_backend: Arc<dyn DeviceHttpBackend>,
    /// Tracks concurrent connections and requests.
    pub(crate) connections: Arc<ConnectionTracker>,
    pub(crate) pulls: PullScheduler,
    pub(crate) relay: RelayService,
    pub(crate) commands: CommandService,
    pub(crate) access: AccessState,
    pub(crate) started: SystemTime,
    /// Whether the API is bound to loopback or to a Unix socket.
    pub(crate) is_local: bool,
    /// Whether the API is bound to loopback; then only loopback host names are answered.
    pub(crate) loopback_only: bool,
    /// Held while an object changes, so that preconditions are checked against the current version
    /// and the audit log contains the changes in order.
    pub(crate) changing: Mutex<()>,
    pub(crate) unwritten_audit_entries: UnwrittenEntries,
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
