//! The whole file.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::command_definition::CommandDefinition;
use super::document::SourceDocument;
use super::error::{DefinitionError, DefinitionErrors};
use super::firmware_definition::FirmwareDefinition;
use super::fleet_definition::{FleetDefinition, ProductDefinition};
use super::object_definition::ObjectDefinition;
use super::phase_definition::PhaseDefinition;
use super::target_definition::TargetDefinition;
use super::verify_definition::VerifyDefinition;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SimulationDefinition {
    /// What it simulates, for lists of simulations.
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default = "default_seed")]
    pub(crate) seed: u64,
    #[serde(default)]
    pub(crate) target: TargetDefinition,
    #[serde(default)]
    pub(crate) product: BTreeMap<String, ProductDefinition>,
    /// Other objects that are created on the node, in this order.
    #[serde(default)]
    pub(crate) object: Vec<ObjectDefinition>,
    /// Images for the devices of a product.
    #[serde(default)]
    pub(crate) firmware: BTreeMap<String, FirmwareDefinition>,
    #[serde(default)]
    pub(crate) fleet: BTreeMap<String, FleetDefinition>,
    /// Commands that the simulator sends.
    #[serde(default)]
    pub(crate) command: Vec<CommandDefinition>,
    #[serde(default)]
    pub(crate) phase: Vec<PhaseDefinition>,
    pub(crate) verify: Option<VerifyDefinition>,
}

fn default_seed() -> u64 {
    1
}

impl SimulationDefinition {
    /// Reads the fields of a document.
    pub(crate) fn read(document: &SourceDocument) -> Result<Self, DefinitionErrors> {
        serde_path_to_error::deserialize(document.value()).map_err(|error| {
            let path = error.path().to_string();
            let path = if path == "." { "" } else { &path };
            let message = rules::with_suggestion(&error.inner().to_string());
            document.errors(vec![DefinitionError::new(path, message)])
        })
    }
}
