//! Simulation files: what a user writes, before anything is compiled or checked across fields.

mod command_definition;
mod document;
mod error;
mod firmware_definition;
mod fleet_definition;
mod object_definition;
mod phase_definition;
mod quantity;
mod script_definition;
mod simulation_definition;
mod state_definition;
mod target_definition;
mod verify_definition;

pub(crate) use command_definition::CommandDefinition;
pub(crate) use document::SourceDocument;
pub(crate) use error::DefinitionError;
pub use error::DefinitionErrors;
pub(crate) use firmware_definition::FirmwareDefinition;
pub(crate) use fleet_definition::{
    DeviceProtocol, FleetDefinition, FleetTransport, ProductDefinition, ReconnectDefinition,
    RequestKind, ResponseDefinition, SendDefinition, SendKind, SendStart,
};
pub(crate) use object_definition::ObjectDefinition;
pub(crate) use phase_definition::{FaultDefinition, FaultKind, PhaseCurve, PhaseDefinition};
pub(crate) use quantity::{NumberRange, TimeRange, TimeSpan};
pub(crate) use script_definition::ScriptDefinition;
pub(crate) use simulation_definition::SimulationDefinition;
pub(crate) use state_definition::{
    AreaDefinition, GeneratorTable, ReplayDefinition, ReplayStart, RouteDefinition, RouteEnd,
    RouteStart, Scalar, StateDefinition,
};
pub(crate) use target_definition::TargetDefinition;
pub(crate) use verify_definition::VerifyDefinition;
