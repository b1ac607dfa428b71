//! The interface between the API and the components that interpret configuration objects.

use namespaces::Quota;
use serde_json::Value;

use super::kind_names::{NodeField, ObjectKindNames, ObjectOwner, QuotaCount};
use crate::access::Role;

/// A kind of objects that is interpreted outside the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendObjectKind {
    /// A user who may log in over MQTT with a password.
    User,
    /// A method of authenticating MQTT clients.
    Authenticator,
    /// A rule about what clients may publish and subscribe to.
    AclRule,
    /// A client, user or address that may not connect.
    Ban,
    /// A rule of the rule engine.
    Rule,
    /// A connection to an external system.
    Connector,
    /// A target for rows in an external system.
    Sink,
    /// An origin of messages in an external system.
    Source,
    /// Common properties of devices of one kind.
    Product,
    /// A notification about alarms.
    Notification,
    /// A rule chain for the data of devices.
    RuleChain,
    /// A group of devices.
    DeviceGroup,
    /// A relay endpoint.
    RelayEndpoint,
    /// A system that is queried for values of devices.
    PullSource,
    /// A part of the node that belongs to somebody.
    Namespace,
    /// An image for devices of a product.
    Firmware,
    /// The devices that install a firmware package.
    FirmwareAssignment,
}

impl BackendObjectKind {
    /// Name of the kind in the store.
    pub fn storage_kind(self) -> &'static str {
        kind_names(self).kind
    }

    pub(crate) fn names(self) -> ObjectKindNames {
        kind_names(self)
    }

    /// Name of the field with the id.
    pub fn id_field(self) -> &'static str {
        kind_names(self).id_field
    }
}

/// Why the JSON of a request is not a valid object of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectValidationError {
    /// Path of the field, such as `password` or `topics[2]`; empty: the object as a whole.
    pub field: String,
    /// What is wrong and what was expected, as a sentence.
    pub detail: String,
}

/// An object declared in the configuration. The API shows it but cannot change it.
#[derive(Debug, Clone)]
pub struct DeclaredObject {
    pub id: String,
    /// The object in its stored form, secrets included.
    pub value: Value,
    /// Origin of the declaration: `file`, `environment` or `command_line`.
    pub origin: &'static str,
    /// Place of the declaration, such as `tidegate.toml:42`.
    pub declared_at: String,
}

/// Validates and interprets objects. A trait, because the program joins five crates with the objects that its configuration
/// declares, and depends on this crate. Methods are called on threads that may block.
pub trait ObjectBackend: Send + Sync + 'static {
    /// Converts the JSON of a request, without the id, to the stored form. `current` is the stored
    /// object; omitted secrets keep their values.
    fn prepare(
        &self,
        kind: BackendObjectKind,
        id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError>;

    /// Whether the unique fields of an accepted object are unused by other objects. Otherwise the
    /// response is 409.
    fn check_unique(
        &self,
        kind: BackendObjectKind,
        id: &str,
        stored: &Value,
    ) -> Result<(), ObjectValidationError> {
        let _ = (kind, id, stored);
        Ok(())
    }

    /// Whether all objects exist that a value of this stored kind names.
    fn check_references_exist(
        &self,
        kind: &'static str,
        value: &Value,
    ) -> Result<(), ObjectValidationError> {
        let _ = (kind, value);
        Ok(())
    }

    /// Whether an object may be deleted; the error is the reason.
    fn check_removal(&self, kind: BackendObjectKind, id: &str) -> Result<(), String> {
        let _ = (kind, id);
        Ok(())
    }

    /// Probable mistakes in an accepted object, returned to the caller that wrote it.
    fn warnings(&self, kind: BackendObjectKind, stored: &Value) -> Vec<String> {
        let _ = (kind, stored);
        Vec::new()
    }

    /// The objects of this kind that the configuration declares.
    fn declared(&self, kind: BackendObjectKind) -> Vec<DeclaredObject> {
        let _ = kind;
        Vec::new()
    }

    /// A stored object without its secrets.
    fn public_view(&self, kind: BackendObjectKind, stored: &Value) -> Value;

    /// JSON schemas (2020-12) of the written and the shown object. They contain no references.
    fn schemas(&self, kind: BackendObjectKind) -> (Value, Value);
}

const PRODUCT_COUNTS: [QuotaCount; 2] = [
    QuotaCount::objects(Quota::Products),
    QuotaCount {
        quota: Quota::AlarmRules,
        count: |product| product["alarms"].as_array().map_or(0, Vec::len) as u64,
    },
];
/// Rule chains and sinks belong to the node.
const PRODUCT_NODE_FIELDS: [NodeField; 3] = [
    NodeField {
        pointer: "/chain",
        is_own: |_, _| false,
    },
    NodeField {
        pointer: "/storage/sinks",
        is_own: |_, _| false,
    },
    NodeField {
        pointer: "/storage/log_sinks",
        is_own: |_, _| false,
    },
];
/// Sinks and topics belong to the node, except for topics below `namespaces/` and the id.
const NOTIFICATION_NODE_FIELDS: [NodeField; 1] = [NodeField {
    pointer: "/to",
    is_own: |to, namespace| {
        let topic = to.pointer("/mqtt/topic").and_then(Value::as_str);
        let below =
            topic.and_then(|topic| topic.strip_prefix("namespaces/")?.strip_prefix(namespace));
        below.is_some_and(|below| below.starts_with('/'))
    },
}];
const GROUP_COUNTS: [QuotaCount; 1] = [QuotaCount::objects(Quota::Groups)];
const ENDPOINT_COUNTS: [QuotaCount; 1] = [QuotaCount::objects(Quota::Endpoints)];
const FIRMWARE_COUNTS: [QuotaCount; 1] = [QuotaCount::objects(Quota::FirmwarePackages)];
const ASSIGNMENT_COUNTS: [QuotaCount; 1] = [QuotaCount::objects(Quota::FirmwareAssignments)];
const NOTIFICATION_COUNTS: [QuotaCount; 1] = [QuotaCount::objects(Quota::Notifications)];

pub(super) fn kind_names(kind: BackendObjectKind) -> ObjectKindNames {
    match kind {
        BackendObjectKind::User => ObjectKindNames {
            kind: "user",
            path: "users",
            singular: "a user",
            plural: "users",
            type_name: "User",
            id_field: "username",
            tag: "rules",
            owner: ObjectOwner::Node,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Clients that may connect over MQTT with a user name and a password.",
        },
        BackendObjectKind::Authenticator => ObjectKindNames {
            kind: "authenticator",
            path: "authenticators",
            singular: "an authenticator",
            plural: "authenticators",
            type_name: "Authenticator",
            id_field: "id",
            tag: "rules",
            owner: ObjectOwner::Node,
            node_fields: &[],
            // Authenticators name the systems that store credentials.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            description: "Methods of authenticating MQTT clients, evaluated in order.",
        },
        BackendObjectKind::AclRule => ObjectKindNames {
            kind: "acl_rule",
            path: "acl-rules",
            singular: "an ACL rule",
            plural: "ACL rules",
            type_name: "AclRule",
            id_field: "id",
            tag: "rules",
            owner: ObjectOwner::Node,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: Some("rule-"),
            description: "Rules about who may publish and subscribe to what. The first matching rule decides.",
        },
        BackendObjectKind::Ban => ObjectKindNames {
            kind: "ban",
            path: "bans",
            singular: "a ban",
            plural: "bans",
            type_name: "Ban",
            id_field: "id",
            tag: "rules",
            owner: ObjectOwner::Node,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: Some("ban-"),
            description: "Clients, users and addresses that may not connect.",
        },
        BackendObjectKind::Rule => ObjectKindNames {
            kind: "rule",
            path: "rules",
            singular: "a rule",
            plural: "rules",
            type_name: "Rule",
            id_field: "name",
            tag: "rules",
            owner: ObjectOwner::Node,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "SQL statements over events, and actions on their results.",
        },
        BackendObjectKind::Connector => ObjectKindNames {
            kind: "connector",
            path: "connectors",
            singular: "a connector",
            plural: "connectors",
            type_name: "Connector",
            id_field: "name",
            tag: "connectors",
            owner: ObjectOwner::Node,
            node_fields: &[],
            // Connectors contain credentials of external systems.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            description: "Addresses and credentials of external systems, shared by sinks.",
        },
        BackendObjectKind::Sink => ObjectKindNames {
            kind: "sink",
            path: "sinks",
            singular: "a sink",
            plural: "sinks",
            type_name: "Sink",
            id_field: "name",
            tag: "connectors",
            owner: ObjectOwner::Node,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Targets of rule outputs: the connector, and what is written there and how.",
        },
        BackendObjectKind::Source => ObjectKindNames {
            kind: "source",
            path: "sources",
            singular: "a source",
            plural: "sources",
            type_name: "Source",
            id_field: "name",
            tag: "connectors",
            owner: ObjectOwner::Node,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Messages received from external systems, for rules with FROM \"$bridges/TYPE:NAME\".",
        },
        BackendObjectKind::Product => ObjectKindNames {
            kind: "product",
            path: "products",
            singular: "a product",
            plural: "products",
            type_name: "Product",
            id_field: "id",
            tag: "devices",
            owner: ObjectOwner::Namespace(&PRODUCT_COUNTS),
            node_fields: &PRODUCT_NODE_FIELDS,
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Common properties of devices of one kind: thing model, topics, credentials and storage.",
        },
        BackendObjectKind::Notification => ObjectKindNames {
            kind: "notification",
            path: "notifications",
            singular: "a notification",
            plural: "notifications",
            type_name: "Notification",
            id_field: "name",
            tag: "alarms",
            owner: ObjectOwner::Namespace(&NOTIFICATION_COUNTS),
            node_fields: &NOTIFICATION_NODE_FIELDS,
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Recipients of alarms: a sink (webhook, mail ...) or an MQTT message.",
        },
        BackendObjectKind::RuleChain => ObjectKindNames {
            kind: "rule_chain",
            path: "rule-chains",
            singular: "a rule chain",
            plural: "rule chains",
            type_name: "RuleChain",
            id_field: "id",
            tag: "devices",
            owner: ObjectOwner::Node,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Processing of each row that devices report, node by node. A product names its rule chain; the one called root is for \
                    those that name none.",
        },
        BackendObjectKind::DeviceGroup => ObjectKindNames {
            kind: "device_group",
            path: "device-groups",
            singular: "a device group",
            plural: "device groups",
            type_name: "DeviceGroup",
            id_field: "id",
            tag: "devices",
            owner: ObjectOwner::Namespace(&GROUP_COUNTS),
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Sets of devices: named ones, and all of a product or with given tags.",
        },
        BackendObjectKind::RelayEndpoint => ObjectKindNames {
            kind: "endpoint",
            path: "endpoints",
            singular: "a relay endpoint",
            plural: "relay endpoints",
            type_name: "RelayEndpoint",
            id_field: "id",
            tag: "relay",
            owner: ObjectOwner::Namespace(&ENDPOINT_COUNTS),
            read: Role::Viewer,
            write: Role::Operator,
            // The id is the address: it must not be guessed.
            node_fields: &[],
            id_prefix: Some(""),
            description: "Rooms of WebSocket connections: each message of one goes to all others.",
        },
        BackendObjectKind::PullSource => ObjectKindNames {
            kind: "pull_source",
            path: "pull-sources",
            singular: "a pull source",
            plural: "pull sources",
            type_name: "PullSource",
            id_field: "name",
            tag: "devices",
            owner: ObjectOwner::Node,
            node_fields: &[],
            // Pull sources contain credentials and can make the node query any address.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            description: "Systems that are queried on a schedule for values of devices: Prometheus, HTTP servers, IPMI.",
        },
        BackendObjectKind::Namespace => ObjectKindNames {
            kind: namespaces::KIND,
            path: "namespaces",
            singular: "a namespace",
            plural: "namespaces",
            type_name: "Namespace",
            id_field: "id",
            tag: "access",
            owner: ObjectOwner::IsNamespace,
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Admin,
            id_prefix: None,
            description: "Parts of the node that belong to different people, with quotas. Everything that names no \
                          namespace belongs to `default`.",
        },
        BackendObjectKind::Firmware => ObjectKindNames {
            kind: firmware::KIND,
            path: "firmware",
            singular: "a firmware package",
            plural: "firmware packages",
            type_name: "FirmwarePackage",
            id_field: "id",
            tag: "firmware",
            owner: ObjectOwner::Namespace(&FIRMWARE_COUNTS),
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Firmware and software for devices of a product. The image is an uploaded file, which is verified when the \
                          package is written, and kept while the package exists.",
        },
        BackendObjectKind::FirmwareAssignment => ObjectKindNames {
            kind: firmware::ASSIGNMENT_KIND,
            path: "firmware-assignments",
            singular: "a firmware assignment",
            plural: "firmware assignments",
            type_name: "FirmwareAssignment",
            id_field: "id",
            tag: "firmware",
            owner: ObjectOwner::Namespace(&ASSIGNMENT_COUNTS),
            node_fields: &[],
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: Some("assignment-"),
            description: "Firmware packages assigned to products, device groups and devices. The assignment of a device overrides \
                          those of its groups, and these override that of its product.",
        },
    }
}
