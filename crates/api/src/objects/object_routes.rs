//! The routes of configuration objects: the same five for every kind, versions as ETags, and every
//! change in the audit log.

use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value};
use store::{ExpectedVersion, Object, ObjectError, Objects};

use super::kind_names::ObjectOwner;
use super::membership;
use super::object_backend::{BackendObjectKind, DeclaredObject, ObjectBackend};
use super::object_change::{ObjectChangeError, change_object};
use super::object_kind::ObjectKind;
use super::preconditions::Preconditions;
use super::{api_key, backend_objects, dashboard, invite, object_schema, operator};
use crate::access::{Role, random_id};
use crate::audit::{AuditedChange, ObjectChangeEntry};
use crate::call::{self, ApiCall, ListPage};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post, put};
use crate::endpoint_scope::AddressedKind;
use crate::object_store::{MAX_ID_BYTES, get_object, run_on_store, store_problem};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{ID_CONTAINS, NAMESPACE, PageCursor};
use crate::state::ApiState;

/// Maximum number of objects read for one page of a filtered list. A page may end early; its `next`
/// continues.
const MAX_SCANNED_OBJECTS: usize = 10_000;
type HandlerFuture = Pin<Box<dyn Future<Output = ApiResult> + Send>>;

/// All kinds of objects.
pub(crate) fn object_kinds(backend: &Arc<dyn ObjectBackend>) -> Vec<Arc<dyn ObjectKind>> {
    let mut kinds: Vec<Arc<dyn ObjectKind>> = vec![
        Arc::new(operator::Operators),
        Arc::new(api_key::ApiKeys),
        Arc::new(invite::Invites),
        Arc::new(dashboard::Dashboards),
    ];
    for kind in backend_objects::backend_object_kinds(backend) {
        kinds.push(Arc::new(kind));
    }
    kinds
}

/// The routes of a kind.
pub(crate) fn object_endpoints(kind: &Arc<dyn ObjectKind>) -> Vec<Endpoint> {
    let names = kind.names();
    let all = format!("/api/v1/{}", names.path);
    let one = format!("{all}/{{{}}}", names.id_field);
    let view = object_schema::view_schema(kind.clone());
    let created = object_schema::created_schema(kind.clone());
    let with_kind = |run: fn(Arc<dyn ObjectKind>, ApiCall) -> HandlerFuture| {
        let kind = kind.clone();
        move |call| run(kind.clone(), call)
    };
    let id_about = "Its id (or name), percent-encoded.";
    let described = |endpoint: Endpoint, (role, scope): (Role, EndpointScope), summary: String| {
        endpoint.tag(names.tag).role(role, scope).summary(summary)
    };
    let addressed = || {
        let kind_of = AddressedKind::Object {
            storage_kind: names.kind,
            declared: kind.backend_kind(),
            owner: names.owner,
        };
        EndpointScope::configuration_object(kind_of, names.id_field)
    };
    let read_scope = |scope: EndpointScope| match names.owner {
        ObjectOwner::Node => EndpointScope::Node,
        _ => scope,
    };
    // Namespaces themselves are created and changed by the node's admins.
    let write_scope = |scope: EndpointScope| match names.owner {
        ObjectOwner::Node | ObjectOwner::IsNamespace => EndpointScope::Node,
        _ => scope,
    };
    let listing = (names.read, read_scope(EndpointScope::Selected));
    let creation = (names.write, write_scope(EndpointScope::Selected));
    let reading = (names.read, read_scope(addressed()));
    let writing = (names.write, write_scope(addressed().or_new()));
    let removal = (names.write, write_scope(addressed()));
    let list = get(
        &*all,
        format!("list{}s", names.type_name),
        with_kind(|kind, call| Box::pin(list(kind, call))),
    );
    let create = post(
        &*all,
        format!("create{}", names.type_name),
        with_kind(|kind, call| Box::pin(create(kind, call))),
    );
    let read = get(
        &*one,
        format!("get{}", names.type_name),
        with_kind(|kind, call| Box::pin(read(kind, call))),
    );
    let write = put(
        &*one,
        format!("put{}", names.type_name),
        with_kind(|kind, call| Box::pin(write(kind, call))),
    );
    let remove = delete(
        &*one,
        format!("delete{}", names.type_name),
        with_kind(|kind, call| Box::pin(remove(kind, call))),
    );
    vec![
        described(list, listing, format!("List {}", names.plural))
            .description(names.description)
            .parameters(match names.owner {
                ObjectOwner::Namespace(_) | ObjectOwner::NamespaceOrNode(_) => {
                    &[ID_CONTAINS, NAMESPACE]
                }
                ObjectOwner::Node | ObjectOwner::IsNamespace => &[ID_CONTAINS],
            })
            .paged_with(view.clone()),
        described(create, creation, format!("Create {}", names.singular))
            .request_body_with(object_schema::create_input_schema(kind.clone()))
            .response_with(201, "Created.", created)
            .with_location()
            .problem_response(
                409,
                "The id is in use by a stored or declared object, or a quota of the namespace is reached.",
            ),
        described(read, reading, format!("Read {}", names.singular))
            .path_parameter(names.id_field, id_about)
            .response_with(200, "The stored object.", view.clone())
            .with_etag(),
        described(write, writing, format!("Create or replace {}", names.singular))
            .description(
                "The whole object; omitted secrets keep their values. Other omitted fields get their \
                 defaults.",
            )
            .path_parameter(names.id_field, id_about)
            .request_body_with(object_schema::put_input_schema(kind.clone()))
            .response_with(200, "Replaced.", view.clone())
            .response_with(201, "Created.", view)
            .problem_response(
                409,
                "The configuration declares this object, it is the last admin, or a quota of the namespace is reached.",
            )
            .with_etag(),
        described(remove, removal, format!("Delete {}", names.singular))
            .path_parameter(names.id_field, id_about)
            .empty_response(204, "Deleted.")
            .problem_response(
                409,
                "Other objects refer to it, the configuration declares it, or it is the last admin.",
            )
            .with_etag(),
    ]
}

/// The object as a client sees it, without its origin.
fn shown_fields(
    kind: &dyn ObjectKind,
    app: &ApiState,
    id: &str,
    value: &Value,
) -> Map<String, Value> {
    let mut shown = match kind.public_view(app, value) {
        Value::Object(fields) => fields,
        other => Map::from_iter([("value".to_owned(), other)]),
    };
    // Adds the id; maps of serde_json are ordered by name.
    shown.insert(kind.names().id_field.to_owned(), id.into());
    shown
}

/// A stored object as a client sees it.
fn object_view(kind: &dyn ObjectKind, app: &ApiState, object: &Object) -> Value {
    let mut shown = shown_fields(kind, app, &object.id, &object.value);
    shown.insert("origin".to_owned(), "api".into());
    shown.insert("version".to_owned(), object.version.into());
    shown.insert("created_at_ms".to_owned(), object.created_ms.into());
    shown.insert("updated_at_ms".to_owned(), object.updated_ms.into());
    Value::Object(shown)
}

/// A declared object as a client sees it. It has no version, because it changes only with the
/// configuration at a start.
fn shown_declared(kind: &dyn ObjectKind, app: &ApiState, object: &DeclaredObject) -> Value {
    let mut shown = shown_fields(kind, app, &object.id, &object.value);
    shown.insert("origin".to_owned(), object.origin.into());
    shown.insert("declared_at".to_owned(), object.declared_at.clone().into());
    Value::Object(shown)
}

/// The declared object with this id.
fn declared<'k>(kind: &'k dyn ObjectKind, id: &str) -> Option<&'k DeclaredObject> {
    kind.declared()?.get(id)
}

/// Rejects changes of declared objects. A stored object with the same id would have no effect.
fn check_not_declared(kind: &dyn ObjectKind, id: &str) -> Result<(), ProblemDetails> {
    let Some(object) = declared(kind, id) else {
        return Ok(());
    };
    let names = kind.names();
    Err(ProblemDetails::conflict(format!(
        "The {} {id:?} is declared at {}; change or remove it there and restart the node, or choose another {}.",
        without_article(names.singular),
        object.declared_at,
        names.id_field,
    )))
}

pub(super) fn etag(version: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).expect("digits in quotes are a field value")
}

pub(crate) fn with_etag(status: StatusCode, object: &Object, body: Value) -> Response {
    let mut response = (status, axum::Json(body)).into_response();
    response
        .headers_mut()
        .insert(header::ETAG, etag(object.version));
    response
}

fn object_not_found(kind: &dyn ObjectKind, id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!(
        "There is no {} {id:?}.",
        without_article(kind.names().singular)
    ))
}

/// The name without its article: `an operator` becomes `operator`.
fn without_article(one: &str) -> &str {
    one.split_once(' ').map_or(one, |(_, noun)| noun)
}

/// A row of a list.
enum ObjectRow {
    Stored(Object),
    Declared(DeclaredObject),
}

impl ObjectRow {
    fn id(&self) -> &str {
        match self {
            Self::Stored(object) => &object.id,
            Self::Declared(object) => &object.id,
        }
    }

    fn value(&self) -> &Value {
        match self {
            Self::Stored(object) => &object.value,
            Self::Declared(object) => &object.value,
        }
    }
}

/// Up to `limit` objects after `after`, stored and declared ones ordered by id. A declared object
/// hides a stored one with the same id.
fn rows_after(
    kind: &dyn ObjectKind,
    objects: &Objects,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<ObjectRow>, store::StoreError> {
    let stored = objects.list(kind.names().kind, after, limit)?.into_iter();
    let stored = stored.filter(|object| declared(kind, &object.id).is_none());
    let mut rows: Vec<_> = stored.map(ObjectRow::Stored).collect();
    if let Some(declared) = kind.declared() {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let declared = declared.range::<str, _>((from, Bound::Unbounded));
        let declared = declared.map(|(_, object)| ObjectRow::Declared(object.clone()));
        rows.extend(declared.take(limit));
        rows.sort_by(|a, b| a.id().cmp(b.id()));
        rows.truncate(limit);
    }
    Ok(rows)
}

async fn list(kind: Arc<dyn ObjectKind>, call: ApiCall) -> ApiResult {
    let part = call.query.owned_text(ID_CONTAINS);
    let selection = call.namespaces();
    let limit = call.query.limit();
    let mut after = call.query.after().map(|cursor| cursor.first);
    let listed = kind.clone();
    let (rows, next) = run_on_store(&call.app, move |objects| {
        let mut rows = Vec::new();
        let mut looked_at = 0;
        loop {
            let found = rows_after(&*listed, objects, after.as_deref(), limit + 1)?;
            let is_end = found.len() <= limit;
            for row in found {
                if rows.len() == limit || looked_at == MAX_SCANNED_OBJECTS {
                    return Ok((rows, after));
                }
                looked_at += 1;
                after = Some(row.id().to_owned());
                if part.as_deref().is_none_or(|part| row.id().contains(part))
                    && membership::is_selected(&*listed, &selection, row.id(), row.value())
                {
                    rows.push(row);
                }
            }
            if is_end {
                return Ok((rows, None));
            }
        }
    })
    .await?
    .map_err(|error: store::StoreError| store_problem(&error))?;
    let app = &call.app;
    call::json_response(ListPage {
        data: rows
            .iter()
            .map(|row| match row {
                ObjectRow::Stored(object) => object_view(&*kind, app, object),
                ObjectRow::Declared(object) => shown_declared(&*kind, app, object),
            })
            .collect(),
        next: next.map(|id| PageCursor::new(&id, "").encode()),
    })
}

async fn read(kind: Arc<dyn ObjectKind>, call: ApiCall) -> ApiResult {
    let id = call.path(kind.names().id_field);
    if let Some(object) = declared(&*kind, id) {
        return call::json_response(shown_declared(&*kind, &call.app, object));
    }
    let object = get_object(&call.app, kind.names().kind, id).await?;
    let object = object.ok_or_else(|| object_not_found(&*kind, id))?;
    if Preconditions::read(call.headers())?.is_not_modified(object.version) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        response
            .headers_mut()
            .insert(header::ETAG, etag(object.version));
        return Ok(response);
    }
    let body = object_view(&*kind, &call.app, &object);
    Ok(with_etag(StatusCode::OK, &object, body))
}

/// Removes the id from the JSON of a request. If the compatibility field contains it, the kind's
/// own field belongs to the object.
fn take_object_id(kind: &dyn ObjectKind, input: &mut Map<String, Value>) -> Option<Value> {
    let foreign = kind.foreign_id_field();
    let foreign = foreign.and_then(|field| input.remove(field));
    foreign.or_else(|| input.remove(kind.names().id_field))
}

async fn create(kind: Arc<dyn ObjectKind>, mut call: ApiCall) -> ApiResult {
    let names = kind.names();
    let input = fields_of(call.body_value().await?)?;
    let (object, body) = create_object(&kind, &call, input).await?;
    let mut response = with_etag(StatusCode::CREATED, &object, body);
    let segment = url_encode(&object.id);
    let location = format!("/api/v1/{}/{segment}", names.path);
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Creates an object, and returns it with what is shown in the response. The route has checked the
/// role of the caller.
pub(crate) async fn create_object(
    kind: &Arc<dyn ObjectKind>,
    call: &ApiCall,
    mut input: Map<String, Value>,
) -> Result<(Object, Value), ProblemDetails> {
    let names = kind.names();
    let id = match (take_object_id(&**kind, &mut input), names.id_prefix) {
        (Some(Value::String(id)), _) => id,
        (None, Some(prefix)) => {
            random_id(prefix).map_err(|error| ProblemDetails::unavailable(format!("{error}.")))?
        }
        (Some(_), _) => {
            let detail = format!("{}: expected a string.", names.id_field);
            return Err(ProblemDetails::invalid_field(names.id_field, detail));
        }
        (None, None) => {
            let detail = format!("{} is missing.", names.id_field);
            return Err(ProblemDetails::invalid_field(names.id_field, detail));
        }
    };
    check_id(names.id_field, &id)?;
    check_not_declared(&**kind, &id)?;
    membership::complete_namespace(&**kind, call, &id, &mut input, None)?;
    let (id, input) = (&*id, &Value::Object(input));
    change_object(&call.app, (names.kind, id), |current| async move {
        if current.is_some() {
            let detail = format!("There is {} {id:?} already.", names.singular);
            return Err(ProblemDetails::conflict(detail).into());
        }
        store_input(None, kind, call, id, input.clone()).await
    })
    .await
}

/// Stores what a client has sent for an object in place of `current`, or as a new one; returns it with what is shown in the
/// response. The caller holds `changing`.
async fn store_input(
    current: Option<Object>,
    kind: &Arc<dyn ObjectKind>,
    call: &ApiCall,
    id: &str,
    input: Value,
) -> Result<(Object, Value), ObjectChangeError> {
    let stored_now = current.as_ref().map(|object| &object.value);
    let accepted = kind.prepare(&call.app, id, input, stored_now).await?;
    let (object, mut body) = save_object(kind, call, id, accepted.stored, current).await?;
    if let Some(fields) = body.as_object_mut() {
        fields.extend(accepted.shown_once);
    }
    Ok((object, body))
}

/// Creates an object of a backend kind unless it exists. The caller's role must allow it.
pub(crate) async fn create_if_absent(
    call: &ApiCall,
    kind: BackendObjectKind,
    id: &str,
    input: Value,
) -> Result<(), ProblemDetails> {
    let kind: Arc<dyn ObjectKind> = Arc::new(backend_objects::of(kind, &call.app.object_backend));
    let names = kind.names();
    // Roles in namespaces are checked with the namespace of the object.
    let role = call.identity.authority.node_role();
    if role.is_some_and(|role| role < names.write) {
        let detail = format!("This request needs the role {}.", names.write.name());
        return Err(ProblemDetails::new(StatusCode::FORBIDDEN, detail));
    }
    check_id(names.id_field, id)?;
    let mut input = fields_of(input)?;
    membership::complete_namespace(&*kind, call, id, &mut input, None)?;
    let (kind, input) = (&kind, &Value::Object(input));
    change_object(&call.app, (names.kind, id), |current| async move {
        if current.is_none() {
            store_input(None, kind, call, id, input.clone()).await?;
        }
        Ok(())
    })
    .await
}

async fn write(kind: Arc<dyn ObjectKind>, mut call: ApiCall) -> ApiResult {
    let names = kind.names();
    let id = call.path(names.id_field).to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    let mut input = fields_of(call.body_value().await?)?;
    // The response to a GET may be sent back; fields that cannot change must have their current
    // value.
    match take_object_id(&*kind, &mut input) {
        None => {}
        Some(Value::String(given)) if given == id => {}
        Some(_) => {
            let detail = format!("{}: expected {id:?}, as in the path.", names.id_field);
            return Err(ProblemDetails::invalid_field(names.id_field, detail));
        }
    }
    for field in ["version", "created_at_ms", "updated_at_ms"] {
        if input.get(field).is_some_and(Value::is_u64) {
            input.remove(field);
        }
    }
    if input.get("origin").is_some_and(|origin| origin == "api") {
        input.remove("origin");
    }
    check_id(names.id_field, &id)?;
    check_not_declared(&*kind, &id)?;
    let (kind, call, id) = (&kind, &call, &*id);
    let (preconditions, input) = (&preconditions, &input);
    let (status, object, body) = change_object(&call.app, (names.kind, id), |current| async move {
        preconditions.check(current.as_ref().map(|object| object.version))?;
        let (status, stored_now) = match &current {
            Some(object) => (StatusCode::OK, Some(&object.value)),
            None => (StatusCode::CREATED, None),
        };
        let mut input = input.clone();
        membership::complete_namespace(&**kind, call, id, &mut input, stored_now)?;
        let input = Value::Object(input);
        let (object, body) = store_input(current, kind, call, id, input).await?;
        Ok((status, object, body))
    })
    .await?;
    Ok(with_etag(status, &object, body))
}

/// Checks whether the object may change to this value, and returns the value.
async fn run_check_change(
    kind: &Arc<dyn ObjectKind>,
    call: &ApiCall,
    id: &str,
    before: Option<Value>,
    next: Option<Value>,
) -> Result<Option<Value>, ProblemDetails> {
    let (kind, id) = (kind.clone(), id.to_owned());
    let namespaces = call.app.namespaces.clone();
    run_on_store(&call.app, move |objects| {
        kind.check_change(objects, &id, next.as_ref())?;
        if let Some(next) = &next {
            let change = (before.as_ref(), next);
            membership::check_quotas(&*kind, objects, &namespaces, &id, change)?;
        }
        Ok(next)
    })
    .await?
}

/// Stores the object, records the change in the audit log, and returns the object as it is now. The
/// caller holds `changing`.
pub(crate) async fn save_object(
    kind: &Arc<dyn ObjectKind>,
    call: &ApiCall,
    id: &str,
    value: Value,
    current: Option<Object>,
) -> Result<(Object, Value), ObjectChangeError> {
    let before = current.as_ref().map(|object| object.value.clone());
    membership::check_node_fields(&**kind, call, id, (before.as_ref(), &value))?;
    let value = run_check_change(kind, call, id, before, Some(value))
        .await?
        .unwrap_or_default();
    let expected = current.as_ref().map_or(ExpectedVersion::Absent, |object| {
        ExpectedVersion::Version(object.version)
    });
    let (store_kind, store_id) = (kind.names().kind, id.to_owned());
    let change = AuditedChange {
        kind: store_kind,
        id,
        before: current.map(|before| (before.version, kind.public_view(&call.app, &before.value))),
        after: Some(kind.public_view(&call.app, &value)),
    };
    let entry = ObjectChangeEntry::new(call, change);
    let object = run_on_store(&call.app, move |objects| {
        let entry_of = |object: &Object| entry.journal_entry(Some(object.version));
        let stored = objects.put_with_entry(store_kind, &store_id, value, expected, &entry_of)?;
        entry.log(Some(stored.version));
        Ok::<_, ObjectError>(stored)
    })
    .await??;
    let body = object_view(&**kind, &call.app, &object);
    Ok((object, body))
}

async fn remove(kind: Arc<dyn ObjectKind>, call: ApiCall) -> ApiResult {
    let names = kind.names();
    let id = call.path(names.id_field).to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    check_not_declared(&*kind, &id)?;
    let (kind, call, id, preconditions) = (&kind, &call, &*id, &preconditions);
    change_object(&call.app, (names.kind, id), |current| async move {
        let current = current.ok_or_else(|| object_not_found(&**kind, id))?;
        preconditions.check(Some(current.version))?;
        remove_version(current, kind, call, id).await
    })
    .await?;
    call::no_content()
}

/// Deletes the object unless it has changed since `current` was read. The caller holds `changing`.
async fn remove_version(
    current: Object,
    kind: &Arc<dyn ObjectKind>,
    call: &ApiCall,
    id: &str,
) -> Result<(), ObjectChangeError> {
    run_check_change(kind, call, id, None, None).await?;
    let (store_kind, store_id) = (kind.names().kind, id.to_owned());
    let expected = ExpectedVersion::Version(current.version);
    let change = AuditedChange {
        kind: store_kind,
        id,
        before: Some((current.version, kind.public_view(&call.app, &current.value))),
        after: None,
    };
    let entry = ObjectChangeEntry::new(call, change);
    run_on_store(&call.app, move |objects| {
        let recorded = entry.journal_entry(None);
        objects.delete_with_entry(store_kind, &store_id, expected, &recorded)?;
        entry.log(None);
        Ok::<_, ObjectError>(())
    })
    .await??;
    Ok(())
}

fn fields_of(input: Value) -> Result<Map<String, Value>, ProblemDetails> {
    match input {
        Value::Object(fields) => Ok(fields),
        _ => Err(ProblemDetails::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The body is invalid: expected a JSON object.",
        )),
    }
}

fn check_id(field: &'static str, id: &str) -> Result<(), ProblemDetails> {
    let fits = !id.is_empty() && id.len() <= MAX_ID_BYTES && !id.chars().any(char::is_control);
    match fits {
        true => Ok(()),
        false => Err(ProblemDetails::invalid_field(
            field,
            format!("{field}: expected 1 to {MAX_ID_BYTES} bytes without control characters."),
        )),
    }
}
