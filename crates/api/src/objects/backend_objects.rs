//! Objects the API keeps but does not understand: who may connect over MQTT and what they may do there. Those who
//! enforce these rules say what fits, over [`ObjectBackend`].

use std::sync::Arc;

use schemars::SchemaGenerator;
use serde_json::Value;

use super::{Declared, ObjectKind, ObjectKindNames, PrepareFuture, PreparedObject};
use crate::access::Role;
use crate::call;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;
use store::Objects;

/// A kind of objects whose meaning is known elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendObjectKind {
    /// Who may log in over MQTT with a password.
    User,
    /// How those who connect prove who they are.
    Authenticator,
    /// Who may publish and subscribe what.
    AclRule,
    /// Who is shut out.
    Ban,
    /// What is done with messages.
    Rule,
    /// An outside system.
    Connector,
    /// What is written to one.
    Sink,
    /// What is received from one.
    Source,
    /// What devices of a kind have in common.
    Product,
    /// Who is told of alarms.
    Notification,
    /// What happens to what devices report.
    Chain,
    /// Devices that belong together.
    DeviceGroup,
    /// Systems that are asked for values of devices.
    PullSource,
}

impl BackendObjectKind {
    /// Its name in the store.
    pub fn storage_kind(self) -> &'static str {
        kind_names(self).kind
    }

    /// The field that holds the id.
    pub fn id_field(self) -> &'static str {
        kind_names(self).id_field
    }
}

/// What a client wrote is not an object of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectValidationError {
    /// The path of the field, such as `password` or `topics[2]`; empty: the object as a whole.
    pub field: String,
    /// What is wrong and what was expected, as a sentence.
    pub detail: String,
}

/// An object that the configuration declares: the API shows it and does not change it.
#[derive(Debug, Clone)]
pub struct DeclaredObject {
    pub id: String,
    /// In the form in which a stored object of the kind is kept, secrets included.
    pub value: Value,
    /// Which part of the configuration declares it: `file`, `environment` or `command_line`.
    pub origin: &'static str,
    /// Where, such as `tidegate.toml:42`.
    pub declared_at: String,
}

/// Who understands these objects. Called on threads that may block.
pub trait ObjectBackend: Send + Sync + 'static {
    /// From what a client wrote, without the id, to what is stored. `current` is what is stored now: secrets that are
    /// left out stay what they are.
    fn prepare(
        &self,
        kind: BackendObjectKind,
        id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError>;

    /// Whether no other object has what has to be unique of an accepted one. If one has, the answer is 409.
    fn check_unique(
        &self,
        kind: BackendObjectKind,
        id: &str,
        stored: &Value,
    ) -> Result<(), ObjectValidationError> {
        let _ = (kind, id, stored);
        Ok(())
    }

    /// Whether an object may go, or why not.
    fn check_removal(&self, kind: BackendObjectKind, id: &str) -> Result<(), String> {
        let _ = (kind, id);
        Ok(())
    }

    /// What an accepted object hardly means as it is written, for the answer to whoever wrote it.
    fn warnings(&self, kind: BackendObjectKind, stored: &Value) -> Vec<String> {
        let _ = (kind, stored);
        Vec::new()
    }

    /// The objects of this kind that the configuration declares.
    fn declared(&self, kind: BackendObjectKind) -> Vec<DeclaredObject> {
        let _ = kind;
        Vec::new()
    }

    /// What is shown of a stored object: everything but its secrets.
    fn public_view(&self, kind: BackendObjectKind, stored: &Value) -> Value;

    /// JSON schemas (2020-12) of objects: of what is written and what is shown. They hold no references.
    fn schemas(&self, kind: BackendObjectKind) -> (Value, Value);
}

pub(super) fn backend_object_kinds(rules: &Arc<dyn ObjectBackend>) -> Vec<BackendObjects> {
    [
        BackendObjectKind::User,
        BackendObjectKind::Authenticator,
        BackendObjectKind::AclRule,
        BackendObjectKind::Ban,
        BackendObjectKind::Rule,
        BackendObjectKind::Connector,
        BackendObjectKind::Sink,
        BackendObjectKind::Source,
        BackendObjectKind::Product,
        BackendObjectKind::Notification,
        BackendObjectKind::Chain,
        BackendObjectKind::DeviceGroup,
        BackendObjectKind::PullSource,
    ]
    .into_iter()
    .map(|kind| of(kind, rules))
    .collect()
}

pub(super) fn of(kind: BackendObjectKind, rules: &Arc<dyn ObjectBackend>) -> BackendObjects {
    BackendObjects {
        kind,
        names: kind_names(kind),
        declared: rules
            .declared(kind)
            .into_iter()
            .map(|object| (object.id.clone(), object))
            .collect(),
        rules: rules.clone(),
    }
}

pub(super) struct BackendObjects {
    kind: BackendObjectKind,
    names: ObjectKindNames,
    /// By id.
    declared: Declared,
    rules: Arc<dyn ObjectBackend>,
}

fn kind_names(kind: BackendObjectKind) -> ObjectKindNames {
    match kind {
        BackendObjectKind::User => ObjectKindNames {
            kind: "user",
            path: "users",
            singular: "a user",
            plural: "users",
            type_name: "User",
            id_field: "username",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Those who may connect over MQTT with a name and a password.",
        },
        BackendObjectKind::Authenticator => ObjectKindNames {
            kind: "authenticator",
            path: "authenticators",
            singular: "an authenticator",
            plural: "authenticators",
            type_name: "Authenticator",
            id_field: "id",
            tag: "rules",
            // They say where the credentials of others are kept.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            description: "Ways in which those who connect over MQTT prove who they are, asked one after the other.",
        },
        BackendObjectKind::AclRule => ObjectKindNames {
            kind: "acl_rule",
            path: "acl-rules",
            singular: "an ACL rule",
            plural: "ACL rules",
            type_name: "AclRule",
            id_field: "id",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: Some("rule-"),
            description: "Who may publish and subscribe what. The first rule that fits decides.",
        },
        BackendObjectKind::Ban => ObjectKindNames {
            kind: "ban",
            path: "bans",
            singular: "a ban",
            plural: "bans",
            type_name: "Ban",
            id_field: "id",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: Some("ban-"),
            description: "Clients, users and addresses that are shut out.",
        },
        BackendObjectKind::Rule => ObjectKindNames {
            kind: "rule",
            path: "rules",
            singular: "a rule",
            plural: "rules",
            type_name: "Rule",
            id_field: "name",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Statements over what happens, and what is done with what comes out.",
        },
        BackendObjectKind::Connector => ObjectKindNames {
            kind: "connector",
            path: "connectors",
            singular: "a connector",
            plural: "connectors",
            type_name: "Connector",
            id_field: "name",
            tag: "connectors",
            // They say where the credentials of others are kept.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            description: "Outside systems with their addresses and credentials, shared by sinks.",
        },
        BackendObjectKind::Sink => ObjectKindNames {
            kind: "sink",
            path: "sinks",
            singular: "a sink",
            plural: "sinks",
            type_name: "Sink",
            id_field: "name",
            tag: "connectors",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "What rules send their outputs to: which connector, what is written there, and how.",
        },
        BackendObjectKind::Source => ObjectKindNames {
            kind: "source",
            path: "sources",
            singular: "a source",
            plural: "sources",
            type_name: "Source",
            id_field: "name",
            tag: "connectors",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "What is received from outside systems, for rules with FROM \"$bridges/TYPE:NAME\".",
        },
        BackendObjectKind::Product => ObjectKindNames {
            kind: "product",
            path: "products",
            singular: "a product",
            plural: "products",
            type_name: "Product",
            id_field: "id",
            tag: "devices",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "What devices of a kind have in common: their thing model, topics, credentials and storage.",
        },
        BackendObjectKind::Notification => ObjectKindNames {
            kind: "notification",
            path: "notifications",
            singular: "a notification",
            plural: "notifications",
            type_name: "Notification",
            id_field: "name",
            tag: "alarms",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Who is told of which alarms, and how: by a sink (a webhook, mail ...) or by a message.",
        },
        BackendObjectKind::Chain => ObjectKindNames {
            kind: "chain",
            path: "chains",
            singular: "a rule chain",
            plural: "rule chains",
            type_name: "Chain",
            id_field: "id",
            tag: "devices",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "What happens to each row that devices report, node by node. A product names its chain; the one called root is for \
                    those that name none.",
        },
        BackendObjectKind::DeviceGroup => ObjectKindNames {
            kind: "device_group",
            path: "device-groups",
            singular: "a group of devices",
            plural: "groups of devices",
            type_name: "DeviceGroup",
            id_field: "id",
            tag: "devices",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            description: "Devices that belong together: some that are named, and all of a product or with some tags.",
        },
        BackendObjectKind::PullSource => ObjectKindNames {
            kind: "pull_source",
            path: "pull-sources",
            singular: "a pull source",
            plural: "pull sources",
            type_name: "PullSource",
            id_field: "name",
            tag: "devices",
            // They say where the credentials of others are kept, and make the node ask any address.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            description: "Systems that are asked on a schedule for values of devices: Prometheus, HTTP servers, IPMI.",
        },
    }
}

impl ObjectKind for BackendObjects {
    fn names(&self) -> &ObjectKindNames {
        &self.names
    }

    /// Bans are not declared: they come and go while the node runs.
    fn declared(&self) -> Option<&Declared> {
        (self.kind != BackendObjectKind::Ban).then_some(&self.declared)
    }

    /// A rule object of EMQX is known by its `id` and may have a `name` besides.
    fn foreign_id_field(&self) -> Option<&'static str> {
        (self.kind == BackendObjectKind::Rule).then_some("id")
    }

    fn schemas(&self, _generator: &mut SchemaGenerator) -> (Value, Value) {
        self.rules.schemas(self.kind)
    }

    fn prepare<'a>(
        &'a self,
        _app: &'a ApiState,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> PrepareFuture<'a> {
        let (rules, kind) = (self.rules.clone(), self.kind);
        let (id, current) = (id.to_owned(), current.cloned());
        Box::pin(async move {
            // It may hash a password or look at files.
            let accept = move || {
                let stored = rules.prepare(kind, &id, input, current.as_ref());
                let stored = stored.map_err(|invalid| match invalid.field.as_str() {
                    "" => ProblemDetails::unprocessable(invalid.detail),
                    field => {
                        ProblemDetails::invalid_field(field, format!("{field}: {}", invalid.detail))
                    }
                })?;
                let unique = rules.check_unique(kind, &id, &stored);
                unique.map_err(|ObjectValidationError { field, detail }| {
                    ProblemDetails::conflict(format!("{field}: {detail}"))
                })?;
                let warnings = rules.warnings(kind, &stored);
                Ok((stored, warnings))
            };
            let accepted = call::run_blocking(accept, "The object cannot be checked now.").await?;
            let (stored, warnings) = accepted?;
            let mut accept = PreparedObject::from(stored);
            if !warnings.is_empty() {
                accept
                    .shown_once
                    .insert("warnings".to_owned(), warnings.into());
            }
            Ok(accept)
        })
    }

    fn public_view(&self, _app: &ApiState, stored: &Value) -> Value {
        self.rules.public_view(self.kind, stored)
    }

    fn check_change(
        &self,
        _: &Objects,
        id: &str,
        next: Option<&Value>,
    ) -> Result<(), ProblemDetails> {
        match next {
            Some(_) => Ok(()),
            None => self
                .rules
                .check_removal(self.kind, id)
                .map_err(ProblemDetails::conflict),
        }
    }
}
