//! The state shared by all handlers: the backends of the node and the program, the store, and the
//! API's own state.

use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use auth::AuthService;
use axum::Router;
use broker::ListenerTls;
use connect::ConnectorService;
use devices::pull::PullScheduler;
use engine::Engine;
use firmware::FirmwareService;
use namespaces::Namespaces;
use observe::{NodeHistory, Observer};
use relay::RelayService;
use store::Objects;
use tokio::sync::{Mutex, Semaphore, watch};
use transfer::FileService;

use crate::access::AccessState;
use crate::alarm_service::AlarmService;
use crate::command_service::CommandService;
use crate::config::{AnonymousRole, RouteOpenness, SharedHttpConfig};
use crate::connection_tracker::ConnectionTracker;
use crate::console_page::ConsoleSite;
use crate::device_http_backend::DeviceHttpBackend;
use crate::device_service::DeviceService;
use crate::jobs::Jobs;
use crate::live_sessions::LiveSessions;
use crate::live_watches::ClusterLive;
use crate::node_backend::{NodeBackend, ProgramBackend};
use crate::objects::ObjectBackend;
use crate::simulation_runs::SimulationRuns;
use crate::telemetry_backend::TelemetryBackend;
use crate::unwritten_entries::UnwrittenEntries;

/// The components the API is built from; the program provides all of them.
pub struct ApiParts {
    pub node: Arc<dyn NodeBackend>,
    pub program: Arc<dyn ProgramBackend>,
    pub objects: Objects,
    pub namespaces: Namespaces,
    pub object_backend: Arc<dyn ObjectBackend>,
    /// Of MQTT clients.
    pub auth: AuthService,
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
    pub files: FileService,
    pub firmware: FirmwareService,
    pub observer: Observer,
    pub history: NodeHistory,
    pub commands: CommandService,
    pub console: Arc<dyn ConsoleSite>,
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
    pub(crate) auth: AuthService,
    pub(crate) engine: Engine,
    pub(crate) connectors: ConnectorService,
    pub(crate) devices: DeviceService,
    pub(crate) telemetry_backend: Arc<dyn TelemetryBackend>,
    /// Permits for threads that wait for the telemetry of other nodes. The threads have them, since a request may end before.
    pub(crate) cluster_reads: Arc<Semaphore>,
    /// The same for threads that write exports.
    pub(crate) cluster_exports: Arc<Semaphore>,
    /// Permits for pieces of files that this node gets from other nodes at a time.
    pub(crate) file_pieces: Semaphore,
    /// What subscribers of this node watch at other nodes.
    pub(crate) live: Arc<ClusterLive>,
    /// What other nodes watch at this one.
    pub(crate) live_sessions: LiveSessions,
    pub(crate) alarms: AlarmService,
    pub(crate) device_http_backend: Arc<dyn DeviceHttpBackend>,
    /// Tracks concurrent connections and requests.
    pub(crate) connections: Arc<ConnectionTracker>,
    pub(crate) pulls: PullScheduler,
    pub(crate) relay: RelayService,
    pub(crate) files: FileService,
    pub(crate) firmware: FirmwareService,
    pub(crate) observer: Observer,
    pub(crate) history: NodeHistory,
    pub(crate) jobs: Jobs,
    pub(crate) simulations: SimulationRuns,
    pub(crate) commands: CommandService,
    pub(crate) console: Arc<dyn ConsoleSite>,
    /// Whether HTTP is served over TLS.
    pub(crate) is_tls: bool,
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
    /// Creates the routes for requests of the program itself.
    pub(crate) local_router: fn(&Arc<ApiState>) -> Router,
    /// Creates the routes for requests that other nodes pass on.
    pub(crate) node_router: fn(&Arc<ApiState>) -> Router,
    pub(crate) documentation: LazyDocumentation,
}

/// Generated by the first request for it: it takes several MiB, and most nodes never serve it.
pub(crate) type LazyDocumentation =
    LazyLock<ApiDocumentation, Box<dyn FnOnce() -> ApiDocumentation + Send>>;

/// The documentation of the API.
pub(crate) struct ApiDocumentation {
    /// The OpenAPI document as JSON.
    pub(crate) document: String,
    /// The page that shows it.
    pub(crate) page: String,
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
