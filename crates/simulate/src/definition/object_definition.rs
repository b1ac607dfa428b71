//! Configuration objects of a node besides products and devices, such as dashboards.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Kinds of objects that a simulation may create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ObjectKind {
    DeviceGroups,
    Dashboards,
    Rules,
    Endpoints,
}

impl ObjectKind {
    /// The collection in the API.
    pub(crate) fn collection(self) -> &'static str {
        match self {
            Self::DeviceGroups => "device-groups",
            Self::Dashboards => "dashboards",
            Self::Rules => "rules",
            Self::Endpoints => "endpoints",
        }
    }

    /// The field that describes an object to people.
    pub(crate) fn description_field(self) -> &'static str {
        match self {
            Self::Endpoints => "name",
            Self::DeviceGroups | Self::Dashboards | Self::Rules => "description",
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ObjectDefinition {
    pub(crate) kind: ObjectKind,
    pub(crate) id: String,
    /// Fields of the object as in the API.
    #[serde(default)]
    pub(crate) fields: Map<String, Value>,
}
