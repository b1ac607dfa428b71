//! The HTTP API of a node: health, metrics, what is connected and subscribed, who may connect, and everything that can
//! be changed at run time. It runs on the control plane and asks the shards by messages.
//!
//! `routes` is the table of what there is; the router, the checks and the OpenAPI document come from it.

mod access;
mod alarm_tools;
mod app;
mod audit;
mod call;
mod client_address;
mod command_tools;
mod config;
mod connections;
mod connector_tools;
mod device_door;
mod device_tools;
mod endpoint;
mod exposition;
mod fleet_tools;
mod gate;
mod landing;
mod node;
mod objects;
mod openapi;
mod parameters;
mod problem;
mod process;
mod resources;
mod routes;
mod rule_tools;
mod server;
mod socket;
mod telemetry_tools;

pub use access::new_local_token;
pub use access::{FirstOperator, FirstOperatorError, NoRandomness, Role, ensure_first_operator};
pub use alarm_tools::{AlarmNews, AlarmPage, AlarmProblem, AlarmQuery, AlarmTools, NoAlarmTools};
pub use app::Parts;
pub use audit::{NodeAction, append_to_audit};
pub use client_address::{ForwardedHeader, TrustedProxies};
pub use command_tools::{
    CommandEnd, CommandQuery, CommandRequest, CommandRows, CommandTools, CommandWish,
    NoCommandTools, TakenCommand,
};
pub use config::{Anonymous, HttpConfig, LiveConfig, Openness};
pub use connector_tools::{Asking, ConnectorTools, NoConnectorTools, PostRefused, Posted, Tested};
pub use device_door::{
    AttributeUpdate, DeviceDoor, DevicePost, DoorProblem, Knock, NextCommand, NoDeviceDoor,
};
pub use device_tools::{
    AttributeNews, DeviceEventQuery, DevicePage, DeviceProblem, DeviceQuery, DeviceTools,
    ExportedDevices, NoDeviceTools, ShownDevice,
};
pub use fleet_tools::{FleetTools, NoFleetTools, Pulled};
pub use node::{Answer, Node, NotReady, Program, SettingError, SettingInfo};
pub use node::{AuthenticatorFailure, AuthenticatorInfo, AuthenticatorState};
pub use objects::{DeclaredObject, Invalid, ObjectRules, RuledKind};
pub use rule_tools::{NoRuleTools, RuleTools};
pub use server::{Error, bind, serve};
pub use socket::HttpListener;
pub use telemetry_tools::{
    CalendarUnit, Function, IntervalLength, IntervalQuery, IntervalRow, LiveItem, LiveRows,
    NoTelemetryTools, Refusal, Refusals, RowQuery, Sample, TelemetryProblem, TelemetryTools,
};
