//! Assignments: which devices are to install a package.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::definition_error::{DefinitionError, check_length, read_definition};

/// The kind of the configuration objects that define assignments.
pub const ASSIGNMENT_KIND: &str = "firmware_assignment";
/// Maximum number of assignments of a node.
pub const MAX_ASSIGNMENTS: usize = 10_000;

/// Assigns a package to a product, a device group or a device; exactly one of them is set. For a device, its own
/// assignment overrides those of its groups, and these override that of its product.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignmentDefinition {
    /// Id of the firmware package.
    #[schemars(length(min = 1, max = 256))]
    pub package: String,
    /// Id of the product, which is that of the package.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub product: Option<String>,
    /// Id of the device group. Members of other products than that of the package are ignored.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub group: Option<String>,
    /// Id of the device.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub device: Option<String>,
    /// Namespace of the assignment, the package and the target. Cannot change.
    #[serde(default = "namespaces::default_id")]
    #[schemars(length(min = 1, max = 64))]
    pub namespace: String,
}

/// To what a package is assigned.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AssignmentTarget {
    Product(String),
    Group(String),
    Device(String),
    /// By a campaign that has notified the device.
    Campaign(u32),
}

impl AssignmentTarget {
    /// Description for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Product(id) => format!("the product {id:?}"),
            Self::Group(id) => format!("the device group {id:?}"),
            Self::Device(id) => format!("the device {id:?}"),
            Self::Campaign(id) => format!("the campaign {id}"),
        }
    }
}

impl AssignmentDefinition {
    /// # Errors
    /// Names the invalid field.
    pub(crate) fn read(value: &Value) -> Result<Self, DefinitionError> {
        let read: Self = read_definition(value)?;
        check_length("package", &read.package, (1, 256))?;
        read.target()?;
        Ok(read)
    }

    pub(crate) fn target(&self) -> Result<AssignmentTarget, DefinitionError> {
        match (&self.product, &self.group, &self.device) {
            (Some(product), None, None) => Ok(AssignmentTarget::Product(product.clone())),
            (None, Some(group), None) => Ok(AssignmentTarget::Group(group.clone())),
            (None, None, Some(device)) => Ok(AssignmentTarget::Device(device.clone())),
            _ => Err(DefinitionError::new(
                "",
                "expected exactly one of product, group and device",
            )),
        }
    }
}
