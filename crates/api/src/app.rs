//! What every handler can ask: the node, the program, the store, and what the API remembers itself.

use std::sync::Arc;
use std::time::SystemTime;

use broker::ListenerTls;
use store::Objects;
use tokio::sync::{Mutex, watch};

use crate::access::Gatekeeper;
use crate::alarm_tools::AlarmTools;
use crate::command_tools::CommandTools;
use crate::config::{Anonymous, LiveConfig, Openness};
use crate::connections::Connections;
use crate::connector_tools::ConnectorTools;
use crate::device_door::DeviceDoor;
use crate::device_tools::DeviceTools;
use crate::fleet_tools::FleetTools;
use crate::node::{Node, Program};
use crate::objects::ObjectRules;
use crate::rule_tools::RuleTools;
use crate::telemetry_tools::TelemetryTools;

/// What the API is made of; the program has it all.
pub struct Parts {
    pub node: Arc<dyn Node>,
    pub program: Arc<dyn Program>,
    pub objects: Objects,
    pub rules: Arc<dyn ObjectRules>,
    /// With it HTTP is served over TLS only.
    pub tls: Option<Arc<ListenerTls>>,
    pub rule_tools: Arc<dyn RuleTools>,
    pub connector_tools: Arc<dyn ConnectorTools>,
    pub device_tools: Arc<dyn DeviceTools>,
    pub telemetry_tools: Arc<dyn TelemetryTools>,
    pub alarm_tools: Arc<dyn AlarmTools>,
    pub device_door: Arc<dyn DeviceDoor>,
    pub fleet_tools: Arc<dyn FleetTools>,
    pub command_tools: Arc<dyn CommandTools>,
    /// The token in the data directory that makes its owner an admin, for requests from this machine.
    pub local_token: Option<String>,
}

pub(crate) struct App {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) program: Arc<dyn Program>,
    pub(crate) objects: Objects,
    pub(crate) config: LiveConfig,
    /// What those may do who show no credentials.
    pub(crate) anonymous: Anonymous,
    pub(crate) rules: Arc<dyn ObjectRules>,
    pub(crate) rule_tools: Arc<dyn RuleTools>,
    pub(crate) connector_tools: Arc<dyn ConnectorTools>,
    pub(crate) device_tools: Arc<dyn DeviceTools>,
    pub(crate) telemetry_tools: Arc<dyn TelemetryTools>,
    pub(crate) alarm_tools: Arc<dyn AlarmTools>,
    pub(crate) device_door: Arc<dyn DeviceDoor>,
    /// Connections and requests at once.
    pub(crate) connections: Arc<Connections>,
    pub(crate) fleet_tools: Arc<dyn FleetTools>,
    pub(crate) command_tools: Arc<dyn CommandTools>,
    pub(crate) gatekeeper: Gatekeeper,
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

impl App {
    /// Whether a route with this setting lets in who has no credentials.
    pub(crate) fn is_open(&self, openness: Openness) -> bool {
        match openness {
            Openness::Open => true,
            Openness::OpenOnLoopback => self.is_local,
            Openness::Viewers => false,
        }
    }
}
