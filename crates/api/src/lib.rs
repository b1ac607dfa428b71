//! The HTTP API of a node: health, metrics, clients, subscriptions, access control, configuration
//! objects and the device platform.
//!
//! The API runs on the control plane and queries the shards by messages. `routes` contains the
//! route table; the router, the access checks and the OpenAPI document are generated from it.

mod access;
mod alarm_service;
mod alarm_watch;
mod audit;
mod blocking;
mod call;
mod changed_settings;
mod client_address;
mod cluster_backend;
mod cluster_calls;
mod cluster_clients;
mod cluster_files;
mod cluster_lists;
mod cluster_live;
mod cluster_rebalance;
mod cluster_telemetry;
mod command_service;
mod config;
mod connection_tracker;
mod console_page;
mod device_http_backend;
mod device_presences;
mod device_service;
mod endpoint;
mod endpoint_place;
mod endpoint_scope;
mod file_body;
mod history_recorder;
mod job_files;
mod jobs;
mod landing_page;
mod live_sessions;
mod live_watches;
mod local_caller;
mod merged_answers;
mod merged_calls;
mod merged_endpoints;
mod merged_intervals;
mod merged_pages;
mod node_backend;
mod node_calls;
mod node_files;
mod node_intervals;
mod node_lists;
mod node_live;
mod node_requests;
mod node_telemetry;
mod object_nodes;
mod object_store;
mod objects;
mod openapi;
mod origin_guard;
mod peer_ip;
mod problem_details;
mod process_metrics;
mod prometheus;
mod query_parameters;
mod resources;
mod routes;
mod server;
mod shared_value;
mod simulation_backend;
mod simulation_runs;
mod socket;
mod sorted_list;
mod state;
mod telemetry_backend;
mod telemetry_sources;
mod unwritten_entries;

pub use access::{
    API_KEY_KIND, FirstOperator, FirstOperatorError, OPERATOR_KIND, Role, ensure_first_operator,
    new_local_token, watch_owner_bans,
};
pub use alarm_service::AlarmService;
pub use audit::{NodeAction, append_node_action};
pub use client_address::{ForwardedHeader, TrustedProxies};
pub use cluster_backend::{
    ClusterAdoption, ClusterBackend, ClusterChangeError, ClusterDrain, ClusterKeptTelemetry,
    ClusterMember, ClusterMessages, ClusterNats, ClusterNatsServer, ClusterObjects, ClusterServer,
    ClusterServers, ClusterServersError, ClusterServersFuture, ClusterSessionCopy, ClusterStandby,
    ClusterStatus, ClusterTelemetryCopy, EvictFuture, NatsConnectionState, NodeAnswerFuture,
    NodeCallFuture, NodeCallHandler, StandbyState, TelemetryCopyPlace, TelemetryCopyState,
};
pub use cluster_rebalance::{
    ClusterRebalance, RebalanceChangeFuture, RebalanceError, RebalanceExclusion, RebalanceFuture,
    RebalanceNode, RebalanceRun, RebalanceState,
};
pub use command_service::CommandService;
pub use config::{AnonymousRole, HttpConfig, RouteOpenness, SharedHttpConfig};
pub use console_page::{ConsoleFile, ConsoleSite};
pub use device_http_backend::{
    AttributeUpdate, DeviceCaller, DeviceHttpBackend, DeviceHttpError, DevicePostKind, NextCommand,
    PendingDeviceCommand, RequestedAttributes,
};
pub use device_service::DeviceService;
pub use node_backend::{AuthenticatorFailure, AuthenticatorInfo, AuthenticatorState};
pub use node_backend::{
    BackupInfo, ConfiguredValue, JobProgress, ListenerBackend, ListenerChangeError, NodeBackend,
    NodeFuture, NotReadyReason, ProgramBackend, QuarantinedFile, QuarantinedPart,
    SettingChangeError, SettingInfo, StoredCertificate, StoredListener,
};
pub use node_requests::answer_node_request;
pub use objects::{
    BackendObjectKind, DASHBOARD_KIND, DeclaredObject, INVITE_KIND, ObjectBackend,
    ObjectValidationError,
};
pub use server::{HttpServerError, bind, serve};
pub use simulation_backend::{
    NodeCaller, ReadyMadeSimulation, SimulationAction, SimulationBackend, SimulationCondition,
    SimulationFailure, SimulationLogLine, SimulationObserver, SimulationPhase,
    SimulationPhaseState, SimulationProgress, SimulationStage, SimulationTask,
};
pub use socket::HttpListener;
pub use state::ApiParts;
pub use telemetry_backend::{
    CalendarUnit, CopyCoverage, DeviceRejectionList, ImportedRow, IntervalLength, IntervalQuery,
    IntervalRow, LiveTelemetryItem, LiveTelemetryStream, RejectionInfo, RowQuery, TelemetryBackend,
    TelemetryBackendError, TelemetryCopy, TelemetryReader, TelemetrySample, TelemetryTable,
};
