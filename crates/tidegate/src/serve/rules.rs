//! Who understands the objects that the API keeps: `auth` users, authenticators, ACL rules and bans; `engine`
//! rules; `connect` connectors and sinks.

use std::sync::Arc;

use ::devices::alarm::MAX_NOTIFICATIONS;
use api::{DeclaredObject, Invalid, ObjectRules, RuleTools, RuledKind};
use auth::{Auth, objects};
use engine::{Condition, Count, Engine, Status, Trial};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::connectors::{self, Connectors};
use super::devices::{self, Devices};
use super::fleet::{Fleet, FleetKind};
use super::notifications;
use super::uses::Uses;

pub(super) struct Rules {
    pub(super) auth: Auth,
    pub(super) engine: Engine,
    pub(super) connectors: Connectors,
    pub(super) devices: Devices,
    pub(super) fleet: Fleet,
    pub(super) uses: Uses,
}

/// The name of a kind that `auth` understands.
fn name(kind: RuledKind) -> Option<&'static str> {
    match kind {
        RuledKind::User => Some(objects::USER),
        RuledKind::Authenticator => Some(objects::AUTHENTICATOR),
        RuledKind::AclRule => Some(objects::ACL_RULE),
        RuledKind::Ban => Some(objects::BAN),
        RuledKind::Rule
        | RuledKind::Connector
        | RuledKind::Sink
        | RuledKind::Source
        | RuledKind::Product
        | RuledKind::Notification
        | RuledKind::Chain
        | RuledKind::DeviceGroup
        | RuledKind::PullSource => None,
    }
}

impl Rules {
    /// Whether it may be written, whatever it names.
    fn accept_alone(
        &self,
        kind: RuledKind,
        id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, Invalid> {
        if let Some(object) = connectors::object(kind) {
            return self.connectors.accept(object, id, input, current);
        }
        if let Some(kind) = FleetKind::of(kind) {
            return self.fleet.accept(kind, input, current);
        }
        if kind == RuledKind::Product {
            let product = self.devices.accept_product(id, input, current)?;
            self.fleet.check_retention(id, &product)?;
            return Ok(product);
        }
        if kind == RuledKind::Notification {
            if current.is_none() {
                self.fleet.check_room(kind.stored_as(), MAX_NOTIFICATIONS)?;
            }
            return notifications::accept(&input);
        }
        let Some(name) = name(kind) else {
            return self.engine.accept(id, &input).map_err(invalid);
        };
        let accepted = self.auth.accept(name, input, current);
        accepted.map_err(|error| {
            // `field: what is wrong`
            let (field, detail) = match error.message.split_once(": ") {
                Some((field, detail)) if is_field(field) => (field, detail),
                _ => ("", error.message.as_str()),
            };
            Invalid {
                field: field.to_owned(),
                detail: detail.to_owned(),
            }
        })
    }
}

impl ObjectRules for Rules {
    fn accept(
        &self,
        kind: RuledKind,
        id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, Invalid> {
        let stored = kind.stored_as();
        let accepted = self.accept_alone(kind, id, input, current)?;
        self.uses.check_named(stored, &accepted)?;
        Ok(accepted)
    }

    fn declared(&self, kind: RuledKind) -> Vec<DeclaredObject> {
        let declared = self.uses.of_kind(kind.stored_as());
        declared
            .map(|object| DeclaredObject {
                id: object.id.clone(),
                value: object.value.clone(),
                origin: object.origin.part(),
                declared_at: object.origin.place(),
            })
            .collect()
    }

    fn show(&self, kind: RuledKind, stored: &Value) -> Value {
        if let Some(object) = connectors::object(kind) {
            return connect::objects::shown(object, stored.clone());
        }
        if let Some(kind) = FleetKind::of(kind) {
            return kind.show(stored);
        }
        if kind == RuledKind::Product {
            return Devices::show_product(stored);
        }
        if kind == RuledKind::Notification {
            return stored.clone();
        }
        match name(kind) {
            Some(name) => objects::shown(name, stored.clone()),
            // A rule has no secrets; those of its sinks stand elsewhere.
            None => stored.clone(),
        }
    }

    fn schemas(&self, kind: RuledKind) -> (Value, Value) {
        if let Some(object) = connectors::object(kind) {
            return connect::objects::schemas(object);
        }
        if let Some(kind) = FleetKind::of(kind) {
            return kind.schemas();
        }
        if kind == RuledKind::Product {
            return devices::product_schemas();
        }
        if kind == RuledKind::Notification {
            return notifications::schemas();
        }
        match name(kind) {
            Some(name) => objects::schemas(name),
            None => self.engine.schemas(),
        }
    }

    fn check_unique(&self, kind: RuledKind, id: &str, stored: &Value) -> Result<(), Invalid> {
        match kind {
            RuledKind::Product => self.devices.check_product_is_unique(id, stored),
            _ => Ok(()),
        }
    }

    fn warnings(&self, kind: RuledKind, stored: &Value) -> Vec<String> {
        match kind {
            RuledKind::Rule => self.engine.warnings(stored),
            _ => Vec::new(),
        }
    }

    fn may_go(&self, kind: RuledKind, id: &str) -> Result<(), String> {
        self.uses.check_unused(kind.stored_as(), id)
    }
}

fn is_field(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

fn invalid(problem: engine::Invalid) -> Invalid {
    Invalid {
        field: problem.field,
        detail: problem.detail,
    }
}

/// What the API asks of the rule engine beside its objects.
pub(super) struct Tools(pub(super) Engine);

impl RuleTools for Tools {
    fn test(&self, rule: &Value, event: &Value) -> Result<Value, Invalid> {
        let trial = Trial::from_json(event).map_err(|problem| Invalid {
            field: format!("event.{}", problem.field),
            detail: problem.detail,
        })?;
        self.0.test(rule, &trial).map_err(invalid)
    }

    fn status(&self, name: &str) -> Option<Value> {
        self.0.status(name).map(|status| shown(&status))
    }

    fn statuses(&self, after: Option<&str>, limit: usize) -> Vec<Value> {
        self.0.statuses(after, limit).iter().map(shown).collect()
    }

    fn watch(&self, name: &str) -> Option<broadcast::Receiver<Arc<Value>>> {
        self.0.watch(name)
    }
}

fn shown(status: &Status) -> Value {
    let (condition, problem) = match &status.condition {
        Condition::Running => ("running", None),
        Condition::Disabled => ("disabled", None),
        Condition::Broken(problem) => ("broken", Some(problem.to_string())),
    };
    let counters =
        Count::ALL.map(|(count, name)| (name.to_owned(), status.totals.get(count).into()));
    json!({
        "name": status.name,
        "condition": condition,
        "problem": problem,
        "is_declared": status.is_declared,
        "counters": serde_json::Map::from_iter(counters),
        "p50_ns": status.totals.quantile_ns(0.5),
        "p99_ns": status.totals.quantile_ns(0.99),
        "last_error": status.last_error.as_ref().map(|error| json!({
            "at_ms": error.at_ms,
            "kind": error.kind,
            "text": error.text,
            "action": error.action,
        })),
        "warnings": status.warnings,
    })
}
