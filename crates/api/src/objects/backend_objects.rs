//! Objects that the API stores but does not interpret, such as users, ACL rules, rules, connectors
//! and products. The components that use them validate them through [`ObjectBackend`].

use std::sync::Arc;

use schemars::SchemaGenerator;
use serde_json::Value;
use store::Objects;

use super::kind_names::ObjectKindNames;
use super::object_backend::{BackendObjectKind, ObjectBackend, ObjectValidationError, kind_names};
use super::object_kind::{DeclaredObjects, ObjectKind, PrepareFuture, PreparedObject};
use crate::blocking::run_blocking;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

pub(super) fn backend_object_kinds(backend: &Arc<dyn ObjectBackend>) -> Vec<BackendObjects> {
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
        BackendObjectKind::RuleChain,
        BackendObjectKind::DeviceGroup,
        BackendObjectKind::RelayEndpoint,
        BackendObjectKind::PullSource,
        BackendObjectKind::Namespace,
        BackendObjectKind::Firmware,
        BackendObjectKind::FirmwareAssignment,
    ]
    .into_iter()
    .map(|kind| of(kind, backend))
    .collect()
}

pub(super) fn of(kind: BackendObjectKind, backend: &Arc<dyn ObjectBackend>) -> BackendObjects {
    BackendObjects {
        kind,
        names: kind_names(kind),
        declared: backend
            .declared(kind)
            .into_iter()
            .map(|object| (object.id.clone(), object))
            .collect(),
        backend: backend.clone(),
    }
}

pub(super) struct BackendObjects {
    kind: BackendObjectKind,
    names: ObjectKindNames,
    /// Declared objects by id.
    declared: DeclaredObjects,
    backend: Arc<dyn ObjectBackend>,
}

impl ObjectKind for BackendObjects {
    fn names(&self) -> &ObjectKindNames {
        &self.names
    }

    /// Bans cannot be declared, because they come and go while the node runs, and firmware cannot, because its images are
    /// uploaded.
    fn declared(&self) -> Option<&DeclaredObjects> {
        let cannot = matches!(
            self.kind,
            BackendObjectKind::Ban
                | BackendObjectKind::Firmware
                | BackendObjectKind::FirmwareAssignment
        );
        (!cannot).then_some(&self.declared)
    }

    fn backend_kind(&self) -> Option<BackendObjectKind> {
        Some(self.kind)
    }

    /// A rule object of EMQX is identified by its `id` and may also have a `name`.
    fn foreign_id_field(&self) -> Option<&'static str> {
        (self.kind == BackendObjectKind::Rule).then_some("id")
    }

    fn schemas(&self, _generator: &mut SchemaGenerator) -> (Value, Value) {
        self.backend.schemas(self.kind)
    }

    fn prepare<'a>(
        &'a self,
        _app: &'a ApiState,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> PrepareFuture<'a> {
        let (backend, kind) = (self.backend.clone(), self.kind);
        let (id, current) = (id.to_owned(), current.cloned());
        Box::pin(async move {
            // Preparing may hash a password or read files.
            let accept = move || {
                let stored = backend.prepare(kind, &id, input, current.as_ref());
                let stored = stored.map_err(|invalid| match invalid.field.as_str() {
                    "" => ProblemDetails::unprocessable(invalid.detail),
                    field => {
                        ProblemDetails::invalid_field(field, format!("{field}: {}", invalid.detail))
                    }
                })?;
                let unique = backend.check_unique(kind, &id, &stored);
                unique.map_err(|ObjectValidationError { field, detail }| {
                    ProblemDetails::conflict(format!("{field}: {detail}"))
                })?;
                let warnings = backend.warnings(kind, &stored);
                Ok((stored, warnings))
            };
            let accepted = run_blocking(accept, "The object cannot be checked now.").await?;
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
        self.backend.public_view(self.kind, stored)
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
                .backend
                .check_removal(self.kind, id)
                .map_err(ProblemDetails::conflict),
        }
    }
}
