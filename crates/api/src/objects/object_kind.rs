//! What distinguishes the kinds of configuration objects.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use schemars::SchemaGenerator;
use serde_json::{Map, Value};
use store::Objects;

use super::kind_names::ObjectKindNames;
use super::object_backend::{BackendObjectKind, DeclaredObject};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Objects that the configuration declares, by id.
pub(crate) type DeclaredObjects = BTreeMap<String, DeclaredObject>;

pub(crate) type PrepareFuture<'a> =
    Pin<Box<dyn Future<Output = Result<PreparedObject, ProblemDetails>> + Send + 'a>>;

/// An object prepared from the JSON of a request.
pub(crate) struct PreparedObject {
    pub(crate) stored: Value,
    /// Fields shown in this response only: the secret of a new API key.
    pub(crate) shown_once: Map<String, Value>,
}

impl From<Value> for PreparedObject {
    fn from(stored: Value) -> Self {
        Self {
            stored,
            shown_once: Map::new(),
        }
    }
}

/// A kind of objects.
pub(crate) trait ObjectKind: Send + Sync + 'static {
    fn names(&self) -> &ObjectKindNames;
    /// JSON schemas: of the written object without the id, and of the shown object without id and
    /// version.
    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value);
    /// The objects that the configuration declares; `None`: the kind cannot be declared.
    fn declared(&self) -> Option<&DeclaredObjects> {
        None
    }
    /// The kind in the backend that knows the declared objects.
    fn backend_kind(&self) -> Option<BackendObjectKind> {
        None
    }
    /// A compatibility field that may contain the id instead of the kind's own field.
    fn foreign_id_field(&self) -> Option<&'static str> {
        None
    }
    /// Fields shown only in the response to the POST, with their descriptions.
    fn shown_once(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// Converts the JSON of a request to the stored form; omitted secrets keep their values.
    fn prepare<'a>(
        &'a self,
        app: &'a ApiState,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> PrepareFuture<'a>;
    /// The stored object without its secrets.
    fn public_view(&self, app: &ApiState, stored: &Value) -> Value;
    /// Whether the object may change to this value (`None`: be deleted), given all others. May read
    /// files.
    fn check_change(
        &self,
        objects: &Objects,
        id: &str,
        next: Option<&Value>,
    ) -> Result<(), ProblemDetails> {
        let _ = (objects, id, next);
        Ok(())
    }
}
