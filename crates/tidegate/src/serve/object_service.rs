//! Dispatches the objects of the API to the crates that interpret them. These are `auth` for users, authenticators, ACL
//! rules and bans, `engine` for rules, `connect` for connectors and sinks.

use std::sync::LazyLock;

use ::devices::ProductDefinition;
use ::devices::alarm::MAX_NOTIFICATIONS;
use ::devices::pull::PullSourceDefinition;
use api::{BackendObjectKind, DeclaredObject, ObjectBackend, ObjectValidationError};
use auth::{AuthService, objects};
use engine::Engine;
use relay::EndpointDefinition;
use secret::{SecretError, SecretFields};
use serde_json::{Value, json};

use super::fleet_service::{FleetKind, FleetService};
use super::node_connectors::{self, NodeConnectors};
use super::node_devices::{NodeDevices, inline_schema};
use super::node_firmware::{FirmwareKind, NodeFirmware};
use super::notifications;
use super::object_references::ObjectReferences;
use super::relay_endpoints;

pub(super) struct ObjectService {
    pub(super) auth: AuthService,
    pub(super) engine: Engine,
    pub(super) connectors: NodeConnectors,
    pub(super) devices: NodeDevices,
    pub(super) fleet: FleetService,
    pub(super) firmware: NodeFirmware,
    pub(super) uses: ObjectReferences,
}

/// The name of a kind in `auth`.
fn auth_kind(kind: BackendObjectKind) -> Option<&'static str> {
    match kind {
        BackendObjectKind::User => Some(objects::USER),
        BackendObjectKind::Authenticator => Some(objects::AUTHENTICATOR),
        BackendObjectKind::AclRule => Some(objects::ACL_RULE),
        BackendObjectKind::Ban => Some(objects::BAN),
        BackendObjectKind::Rule
        | BackendObjectKind::Connector
        | BackendObjectKind::Sink
        | BackendObjectKind::Source
        | BackendObjectKind::Product
        | BackendObjectKind::Notification
        | BackendObjectKind::RuleChain
        | BackendObjectKind::DeviceGroup
        | BackendObjectKind::RelayEndpoint
        | BackendObjectKind::PullSource
        | BackendObjectKind::Namespace
        | BackendObjectKind::Firmware
        | BackendObjectKind::FirmwareAssignment => None,
    }
}

/// The secrets of an object that are stored as they are written. `None` for kinds without such secrets, and for connectors of
/// an unknown type. A rule has no secrets; those of its sinks are in the sinks.
fn secret_fields(kind: BackendObjectKind, value: &Value) -> Option<&'static SecretFields> {
    static PRODUCT: LazyLock<SecretFields> =
        LazyLock::new(|| SecretFields::from_schemas([&inline_schema::<ProductDefinition>()], &[]));
    static PULL_SOURCE: LazyLock<SecretFields> = LazyLock::new(|| {
        let schema = inline_schema::<PullSourceDefinition>();
        SecretFields::from_schemas([&schema], &["url", "hosts"])
    });
    match kind {
        BackendObjectKind::Product => Some(&PRODUCT),
        BackendObjectKind::PullSource => Some(&PULL_SOURCE),
        _ => match node_connectors::object_kind(kind) {
            Some(object) => connect::objects::secret_fields(object, value),
            None => objects::secret_fields(auth_kind(kind)?),
        },
    }
}

fn secret_error(error: SecretError) -> ObjectValidationError {
    ObjectValidationError {
        field: error.field,
        detail: format!("{}.", error.detail),
    }
}

impl ObjectService {
    /// Validates an object without its references.
    fn prepare_without_references(
        &self,
        kind: BackendObjectKind,
        id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        if let Some(object) = node_connectors::object_kind(kind) {
            return self.connectors.prepare(object, id, input);
        }
        if let Some(kind) = FleetKind::from_object_kind(kind) {
            return self.fleet.prepare(kind, id, &input, current);
        }
        if let Some(kind) = FirmwareKind::from_object_kind(kind) {
            if current.is_none() {
                let (name, most) = kind.storage_kind_and_limit();
                self.fleet.check_capacity(name, most)?;
            }
            return self.firmware.prepare(kind, &input, current);
        }
        if kind == BackendObjectKind::Product {
            let product = self.devices.prepare_product(id, input)?;
            self.fleet.check_retention(id, &product)?;
            return Ok(product);
        }
        if kind == BackendObjectKind::RelayEndpoint {
            if current.is_none() {
                self.fleet
                    .check_capacity(kind.storage_kind(), relay::MAX_ENDPOINTS)?;
            }
            return relay_endpoints::prepare(id, input, current);
        }
        if kind == BackendObjectKind::Notification {
            if current.is_none() {
                self.fleet
                    .check_capacity(kind.storage_kind(), MAX_NOTIFICATIONS)?;
            }
            return notifications::prepare(&input);
        }
        let Some(name) = auth_kind(kind) else {
            return self
                .engine
                .prepare_rule(id, &input)
                .map_err(to_validation_error);
        };
        let accepted = self.auth.prepare_object(name, input, current);
        accepted.map_err(|error| {
            // `field: what is wrong`
            let (field, detail) = match error.message.split_once(": ") {
                Some((field, detail)) if is_field_name(field) => (field, detail),
                _ => ("", error.message.as_str()),
            };
            ObjectValidationError {
                field: field.to_owned(),
                detail: detail.to_owned(),
            }
        })
    }
}

impl ObjectBackend for ObjectService {
    fn prepare(
        &self,
        kind: BackendObjectKind,
        id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        let stored = kind.storage_kind();
        let input = match secret_fields(kind, &input) {
            Some(fields) => fields.restore(input, current).map_err(secret_error)?,
            None => input,
        };
        let accepted = self.prepare_without_references(kind, id, input, current)?;
        self.uses.check_references_exist(stored, &accepted)?;
        Ok(accepted)
    }

    fn check_references_exist(
        &self,
        kind: &'static str,
        value: &Value,
    ) -> Result<(), ObjectValidationError> {
        self.uses.check_references_exist(kind, value)
    }

    fn declared(&self, kind: BackendObjectKind) -> Vec<DeclaredObject> {
        let declared = self.uses.of_kind(kind.storage_kind());
        declared
            .map(|object| DeclaredObject {
                id: object.id.clone(),
                value: object.value.clone(),
                origin: object.origin.part(),
                declared_at: object.origin.place(),
            })
            .collect()
    }

    fn public_view(&self, kind: BackendObjectKind, stored: &Value) -> Value {
        match (kind, secret_fields(kind, stored)) {
            (_, Some(fields)) => fields.mask(stored.clone()),
            (BackendObjectKind::User, None) => objects::user_view(stored.clone()),
            (BackendObjectKind::RelayEndpoint, None) => EndpointDefinition::public_view(stored),
            // The type is unknown to this program, and therefore also which fields are secret.
            (BackendObjectKind::Connector, None) => json!({"type": stored["type"]}),
            (_, None) => stored.clone(),
        }
    }

    fn schemas(&self, kind: BackendObjectKind) -> (Value, Value) {
        if let Some(object) = node_connectors::object_kind(kind) {
            return connect::objects::schemas(object);
        }
        if let Some(kind) = FleetKind::from_object_kind(kind) {
            return kind.schemas();
        }
        if let Some(kind) = FirmwareKind::from_object_kind(kind) {
            return kind.schemas();
        }
        if kind == BackendObjectKind::Product {
            let schema = inline_schema::<ProductDefinition>();
            return secret::written_and_shown_schemas(schema);
        }
        if kind == BackendObjectKind::Notification {
            return notifications::schemas();
        }
        if kind == BackendObjectKind::RelayEndpoint {
            return relay_endpoints::schemas();
        }
        match auth_kind(kind) {
            Some(name) => objects::schemas(name),
            None => self.engine.schemas(),
        }
    }

    fn check_unique(
        &self,
        kind: BackendObjectKind,
        id: &str,
        stored: &Value,
    ) -> Result<(), ObjectValidationError> {
        match kind {
            BackendObjectKind::Product => self.devices.check_product_is_unique(id, stored),
            BackendObjectKind::FirmwareAssignment => {
                self.firmware.check_assignment_is_unique(id, stored)
            }
            _ => Ok(()),
        }
    }

    fn warnings(&self, kind: BackendObjectKind, stored: &Value) -> Vec<String> {
        match kind {
            BackendObjectKind::Rule => self.engine.warnings(stored),
            _ => Vec::new(),
        }
    }

    fn check_removal(&self, kind: BackendObjectKind, id: &str) -> Result<(), String> {
        if kind == BackendObjectKind::Namespace && id == namespaces::DEFAULT {
            return Err("The default namespace cannot be deleted.".to_owned());
        }
        if kind == BackendObjectKind::Firmware
            && let Some((campaign, node)) = self.firmware.service.campaign_of_package(id)
        {
            let place = node.map_or_else(String::new, |node| format!(" of the node {node:?}"));
            return Err(format!(
                "The firmware package {id:?} is used by the campaign {campaign}{place}; delete that first."
            ));
        }
        self.uses.check_unreferenced(kind.storage_kind(), id)
    }
}

fn is_field_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

fn to_validation_error(problem: engine::RuleDefinitionError) -> ObjectValidationError {
    ObjectValidationError {
        field: problem.field,
        detail: problem.detail,
    }
}
