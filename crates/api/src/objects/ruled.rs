//! Objects the API keeps but does not understand: who may connect over MQTT and what they may do there. Those who
//! enforce these rules say what fits, over [`ObjectRules`].

use std::sync::Arc;

use schemars::SchemaGenerator;
use serde_json::Value;

use super::{Accept, Accepted, Declared, Kind, Names};
use crate::access::Role;
use crate::app::App;
use crate::call;
use crate::problem::Problem;
use store::Objects;

/// A kind of objects whose meaning is known elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuledKind {
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

impl RuledKind {
    /// Its name in the store.
    pub fn stored_as(self) -> &'static str {
        names_of(self).kind
    }

    /// The field that holds the id.
    pub fn id_field(self) -> &'static str {
        names_of(self).id_field
    }
}

/// What a client wrote is not an object of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
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
pub trait ObjectRules: Send + Sync + 'static {
    /// From what a client wrote, without the id, to what is stored. `current` is what is stored now: secrets that are
    /// left out stay what they are.
    fn accept(
        &self,
        kind: RuledKind,
        id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, Invalid>;

    /// Whether no other object has what has to be unique of an accepted one. If one has, the answer is 409.
    fn check_unique(&self, kind: RuledKind, id: &str, stored: &Value) -> Result<(), Invalid> {
        let _ = (kind, id, stored);
        Ok(())
    }

    /// Whether an object may go, or why not.
    fn may_go(&self, kind: RuledKind, id: &str) -> Result<(), String> {
        let _ = (kind, id);
        Ok(())
    }

    /// What an accepted object hardly means as it is written, for the answer to whoever wrote it.
    fn warnings(&self, kind: RuledKind, stored: &Value) -> Vec<String> {
        let _ = (kind, stored);
        Vec::new()
    }

    /// The objects of this kind that the configuration declares.
    fn declared(&self, kind: RuledKind) -> Vec<DeclaredObject> {
        let _ = kind;
        Vec::new()
    }

    /// What is shown of a stored object: everything but its secrets.
    fn show(&self, kind: RuledKind, stored: &Value) -> Value;

    /// JSON schemas (2020-12) of objects: of what is written and what is shown. They hold no references.
    fn schemas(&self, kind: RuledKind) -> (Value, Value);
}

pub(super) fn kinds(rules: &Arc<dyn ObjectRules>) -> Vec<Ruled> {
    [
        RuledKind::User,
        RuledKind::Authenticator,
        RuledKind::AclRule,
        RuledKind::Ban,
        RuledKind::Rule,
        RuledKind::Connector,
        RuledKind::Sink,
        RuledKind::Source,
        RuledKind::Product,
        RuledKind::Notification,
        RuledKind::Chain,
        RuledKind::DeviceGroup,
        RuledKind::PullSource,
    ]
    .into_iter()
    .map(|kind| of(kind, rules))
    .collect()
}

pub(super) fn of(kind: RuledKind, rules: &Arc<dyn ObjectRules>) -> Ruled {
    Ruled {
        kind,
        names: names_of(kind),
        declared: rules
            .declared(kind)
            .into_iter()
            .map(|object| (object.id.clone(), object))
            .collect(),
        rules: rules.clone(),
    }
}

pub(super) struct Ruled {
    kind: RuledKind,
    names: Names,
    /// By id.
    declared: Declared,
    rules: Arc<dyn ObjectRules>,
}

fn names_of(kind: RuledKind) -> Names {
    match kind {
        RuledKind::User => Names {
            kind: "user",
            path: "users",
            one: "a user",
            many: "users",
            type_name: "User",
            id_field: "username",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "Those who may connect over MQTT with a name and a password.",
        },
        RuledKind::Authenticator => Names {
            kind: "authenticator",
            path: "authenticators",
            one: "an authenticator",
            many: "authenticators",
            type_name: "Authenticator",
            id_field: "id",
            tag: "rules",
            // They say where the credentials of others are kept.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            about: "Ways in which those who connect over MQTT prove who they are, asked one after the other.",
        },
        RuledKind::AclRule => Names {
            kind: "acl_rule",
            path: "acl-rules",
            one: "an ACL rule",
            many: "ACL rules",
            type_name: "AclRule",
            id_field: "id",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: Some("rule-"),
            about: "Who may publish and subscribe what. The first rule that fits decides.",
        },
        RuledKind::Ban => Names {
            kind: "ban",
            path: "bans",
            one: "a ban",
            many: "bans",
            type_name: "Ban",
            id_field: "id",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: Some("ban-"),
            about: "Clients, users and addresses that are shut out.",
        },
        RuledKind::Rule => Names {
            kind: "rule",
            path: "rules",
            one: "a rule",
            many: "rules",
            type_name: "Rule",
            id_field: "name",
            tag: "rules",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "Statements over what happens, and what is done with what comes out.",
        },
        RuledKind::Connector => Names {
            kind: "connector",
            path: "connectors",
            one: "a connector",
            many: "connectors",
            type_name: "Connector",
            id_field: "name",
            tag: "connectors",
            // They say where the credentials of others are kept.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            about: "Outside systems with their addresses and credentials, shared by sinks.",
        },
        RuledKind::Sink => Names {
            kind: "sink",
            path: "sinks",
            one: "a sink",
            many: "sinks",
            type_name: "Sink",
            id_field: "name",
            tag: "connectors",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "What rules send their outputs to: which connector, what is written there, and how.",
        },
        RuledKind::Source => Names {
            kind: "source",
            path: "sources",
            one: "a source",
            many: "sources",
            type_name: "Source",
            id_field: "name",
            tag: "connectors",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "What is received from outside systems, for rules with FROM \"$bridges/TYPE:NAME\".",
        },
        RuledKind::Product => Names {
            kind: "product",
            path: "products",
            one: "a product",
            many: "products",
            type_name: "Product",
            id_field: "id",
            tag: "devices",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "What devices of a kind have in common: their thing model, topics, credentials and storage.",
        },
        RuledKind::Notification => Names {
            kind: "notification",
            path: "notifications",
            one: "a notification",
            many: "notifications",
            type_name: "Notification",
            id_field: "name",
            tag: "alarms",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "Who is told of which alarms, and how: by a sink (a webhook, mail ...) or by a message.",
        },
        RuledKind::Chain => Names {
            kind: "chain",
            path: "chains",
            one: "a rule chain",
            many: "rule chains",
            type_name: "Chain",
            id_field: "id",
            tag: "devices",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "What happens to each row that devices report, node by node. A product names its chain; the one called root is for \
                    those that name none.",
        },
        RuledKind::DeviceGroup => Names {
            kind: "device_group",
            path: "device-groups",
            one: "a group of devices",
            many: "groups of devices",
            type_name: "DeviceGroup",
            id_field: "id",
            tag: "devices",
            read: Role::Viewer,
            write: Role::Operator,
            id_prefix: None,
            about: "Devices that belong together: some that are named, and all of a product or with some tags.",
        },
        RuledKind::PullSource => Names {
            kind: "pull_source",
            path: "pull-sources",
            one: "a pull source",
            many: "pull sources",
            type_name: "PullSource",
            id_field: "name",
            tag: "devices",
            // They say where the credentials of others are kept, and make the node ask any address.
            read: Role::Admin,
            write: Role::Admin,
            id_prefix: None,
            about: "Systems that are asked on a schedule for values of devices: Prometheus, HTTP servers, IPMI.",
        },
    }
}

impl Kind for Ruled {
    fn names(&self) -> &Names {
        &self.names
    }

    /// Bans are not declared: they come and go while the node runs.
    fn declared(&self) -> Option<&Declared> {
        (self.kind != RuledKind::Ban).then_some(&self.declared)
    }

    /// A rule object of EMQX is known by its `id` and may have a `name` besides.
    fn foreign_id_field(&self) -> Option<&'static str> {
        (self.kind == RuledKind::Rule).then_some("id")
    }

    fn schemas(&self, _generator: &mut SchemaGenerator) -> (Value, Value) {
        self.rules.schemas(self.kind)
    }

    fn accept<'a>(
        &'a self,
        _app: &'a App,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> Accepted<'a> {
        let (rules, kind) = (self.rules.clone(), self.kind);
        let (id, current) = (id.to_owned(), current.cloned());
        Box::pin(async move {
            // It may hash a password or look at files.
            let accept = move || {
                let stored = rules.accept(kind, &id, input, current.as_ref());
                let stored = stored.map_err(|invalid| match invalid.field.as_str() {
                    "" => Problem::unprocessable(invalid.detail),
                    field => Problem::field(field, format!("{field}: {}", invalid.detail)),
                })?;
                let unique = rules.check_unique(kind, &id, &stored);
                unique.map_err(|Invalid { field, detail }| {
                    Problem::conflict(format!("{field}: {detail}"))
                })?;
                let warnings = rules.warnings(kind, &stored);
                Ok((stored, warnings))
            };
            let accepted = call::blocking(accept, "The object cannot be checked now.").await?;
            let (stored, warnings) = accepted?;
            let mut accept = Accept::from(stored);
            if !warnings.is_empty() {
                accept.once.insert("warnings".to_owned(), warnings.into());
            }
            Ok(accept)
        })
    }

    fn show(&self, _app: &App, stored: &Value) -> Value {
        self.rules.show(self.kind, stored)
    }

    fn may_become(&self, _: &Objects, id: &str, next: Option<&Value>) -> Result<(), Problem> {
        match next {
            Some(_) => Ok(()),
            None => self.rules.may_go(self.kind, id).map_err(Problem::conflict),
        }
    }
}
