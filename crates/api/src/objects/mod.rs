//! Configuration objects over HTTP: the same five routes for every kind, versions as ETags, every change in the audit log.

pub(crate) mod api_key;
mod holder;
pub(crate) mod operator;
mod preconditions;
mod ruled;
mod schema;

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use schemars::SchemaGenerator;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use store::{Expected, Object, ObjectError, Objects};

use crate::access::Role;
use crate::app::App;
use crate::audit::{self, Change};
use crate::call::{self, Call, Page};
use crate::endpoint::{Endpoint, Outcome, delete, get, post, put};
use crate::parameters::{Cursor, ID_CONTAINS};
use crate::problem::Problem;
pub(crate) use preconditions::Preconditions;
pub use ruled::{DeclaredObject, Invalid, ObjectRules, RuledKind};

/// Objects looked at for one page of a filtered list; a page may end early, its `next` goes on.
const MAX_LOOKED_AT: usize = 10_000;
const MAX_ID_BYTES: usize = 256;

/// What the routes of a kind need to know about it.
pub(crate) struct Names {
    /// In the store.
    pub(crate) kind: &'static str,
    /// Under `/api/v1/`.
    pub(crate) path: &'static str,
    /// In sentences.
    pub(crate) one: &'static str,
    pub(crate) many: &'static str,
    /// In the OpenAPI document: `Operator`.
    pub(crate) type_name: &'static str,
    /// The field that holds the id.
    pub(crate) id_field: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) read: Role,
    pub(crate) write: Role,
    /// Ids are made here, beginning so, unless the one who makes the object gives one (`None`: it must).
    pub(crate) id_prefix: Option<&'static str>,
    pub(crate) about: &'static str,
}

/// Objects that the configuration declares, by id.
pub(crate) type Declared = BTreeMap<String, DeclaredObject>;

type Accepted<'a> = Pin<Box<dyn Future<Output = Result<Accept, Problem>> + Send + 'a>>;

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What a kind made of a client's input.
pub(crate) struct Accept {
    pub(crate) stored: Value,
    /// Shown in this one answer and never again: the secret of a new API key.
    pub(crate) once: Map<String, Value>,
}

impl From<Value> for Accept {
    fn from(stored: Value) -> Self {
        Self {
            stored,
            once: Map::new(),
        }
    }
}

/// One kind of objects.
pub(crate) trait Kind: Send + Sync + 'static {
    fn names(&self) -> &Names;
    /// As JSON schemas: what a client may write, without the id, and what it sees, without id and version.
    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value);
    /// The objects that the configuration declares; `None`: it cannot declare any of this kind.
    fn declared(&self) -> Option<&Declared> {
        None
    }
    /// A field of foreign objects that holds the id, in place of the own one.
    fn foreign_id_field(&self) -> Option<&'static str> {
        None
    }
    /// Fields that are in the answer to a POST and never again, with their descriptions.
    fn once(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// From what a client wrote to what is stored; secrets that are left out stay what they are.
    fn accept<'a>(
        &'a self,
        app: &'a App,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> Accepted<'a>;
    /// The stored object without its secrets.
    fn show(&self, app: &App, stored: &Value) -> Value;
    /// Whether the object may become this (`None`: go), looking at all others. It may read files.
    fn may_become(&self, objects: &Objects, id: &str, next: Option<&Value>) -> Result<(), Problem> {
        let _ = (objects, id, next);
        Ok(())
    }
}

/// Runs what reads and writes files off the threads that answer requests.
pub(crate) async fn blocking<T: Send + 'static>(
    app: &App,
    work: impl FnOnce(&Objects) -> T + Send + 'static,
) -> Result<T, Problem> {
    let objects = app.objects.clone();
    call::blocking(move || work(&objects), "The store did not answer.").await
}

pub(crate) fn store_problem(error: &store::Error) -> Problem {
    tracing::error!(%error, "the store of configuration objects failed");
    Problem::unavailable(format!("{error}."))
}

fn object_problem(error: &ObjectError) -> Problem {
    match error {
        ObjectError::Conflict { .. } => {
            Problem::new(StatusCode::PRECONDITION_FAILED, format!("{error}."))
        }
        ObjectError::Storage(error) => store_problem(error),
        other => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{other}.")),
    }
}

async fn get_object(app: &App, kind: &'static str, id: &str) -> Result<Option<Object>, Problem> {
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.contains('\0') {
        return Ok(None);
    }
    let id = id.to_owned();
    blocking(app, move |objects| objects.get(kind, &id))
        .await?
        .map_err(|error| store_problem(&error))
}

/// A stored object of a kind the API itself understands.
pub(crate) async fn load<T: DeserializeOwned>(
    app: &App,
    kind: &'static str,
    id: &str,
) -> Result<Option<T>, Problem> {
    let object = get_object(app, kind, id).await?;
    // One that cannot be read lets nobody in.
    Ok(
        object.and_then(|object| match serde_json::from_value(object.value) {
            Ok(stored) => Some(stored),
            Err(error) => {
                tracing::error!(kind, id, %error, "a stored object cannot be read");
                None
            }
        }),
    )
}

/// All kinds there are.
pub(crate) fn kinds(rules: &Arc<dyn ObjectRules>) -> Vec<Arc<dyn Kind>> {
    let mut kinds: Vec<Arc<dyn Kind>> =
        vec![Arc::new(operator::Operators), Arc::new(api_key::ApiKeys)];
    for kind in ruled::kinds(rules) {
        kinds.push(Arc::new(kind));
    }
    kinds
}

/// The routes of a kind.
pub(crate) fn endpoints(kind: &Arc<dyn Kind>) -> Vec<Endpoint> {
    let names = kind.names();
    let all = format!("/api/v1/{}", names.path);
    let one = format!("{all}/{{{}}}", names.id_field);
    let view = schema::view(kind.clone());
    let created = schema::created(kind.clone());
    let with_kind = |run: fn(Arc<dyn Kind>, Call) -> Running| {
        let kind = kind.clone();
        move |call| run(kind.clone(), call)
    };
    let id_about = "Its id (or name), percent-encoded.";
    let described = |endpoint: Endpoint, role: Role, summary: String| {
        endpoint.tag(names.tag).role(role).summary(summary)
    };
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
        described(list, names.read, format!("List {}", names.many))
            .description(names.about)
            .parameters(&[ID_CONTAINS])
            .pages_of(view.clone()),
        described(create, names.write, format!("Make {}", names.one))
            .body_with(schema::create_input(kind.clone()))
            .answers_with(201, "Made.", created)
            .with_location()
            .problem(409, "The id is in use, or the configuration declares an object with it."),
        described(read, names.read, format!("Look at {}", names.one))
            .path_parameter(names.id_field, id_about)
            .answers_with(200, "It, as it is now.", view.clone())
            .versioned(),
        described(write, names.write, format!("Make or replace {}", names.one))
            .description(
                "The whole object; secrets that are left out stay what they are. Fields left out otherwise get their \
                 defaults.",
            )
            .path_parameter(names.id_field, id_about)
            .body_with(schema::put_input(kind.clone()))
            .answers_with(200, "Replaced.", view.clone())
            .answers_with(201, "Made.", view)
            .problem(409, "The configuration declares this object, or it is the last admin.")
            .versioned(),
        described(remove, names.write, format!("Delete {}", names.one))
            .path_parameter(names.id_field, id_about)
            .answers_nothing(204, "Deleted.")
            .problem(
                409,
                "Other objects name it, the configuration declares it, or it is the last admin.",
            )
            .versioned(),
    ]
}

/// The object as a client sees it, without what is said of where it is kept.
fn shown_fields(kind: &dyn Kind, app: &App, id: &str, value: &Value) -> Map<String, Value> {
    let mut shown = match kind.show(app, value) {
        Value::Object(fields) => fields,
        other => Map::from_iter([("value".to_owned(), other)]),
    };
    // The id first, for readers; maps of serde_json keep their order by name, so this only adds it.
    shown.insert(kind.names().id_field.to_owned(), id.into());
    shown
}

/// A stored object as a client sees it.
fn shown(kind: &dyn Kind, app: &App, object: &Object) -> Value {
    let mut shown = shown_fields(kind, app, &object.id, &object.value);
    shown.insert("origin".to_owned(), "api".into());
    shown.insert("version".to_owned(), object.version.into());
    shown.insert("created_at_ms".to_owned(), object.created_ms.into());
    shown.insert("updated_at_ms".to_owned(), object.updated_ms.into());
    Value::Object(shown)
}

/// A declared object as a client sees it. It has no version: it changes with the configuration, at a start.
fn shown_declared(kind: &dyn Kind, app: &App, object: &DeclaredObject) -> Value {
    let mut shown = shown_fields(kind, app, &object.id, &object.value);
    shown.insert("origin".to_owned(), object.origin.into());
    shown.insert("declared_at".to_owned(), object.declared_at.clone().into());
    Value::Object(shown)
}

/// The object of this id that the configuration declares.
fn declared<'k>(kind: &'k dyn Kind, id: &str) -> Option<&'k DeclaredObject> {
    kind.declared()?.get(id)
}

/// An object of the configuration is changed there. Without this, a stored object of the same id would have no effect.
fn check_not_declared(kind: &dyn Kind, id: &str) -> Result<(), Problem> {
    let Some(object) = declared(kind, id) else {
        return Ok(());
    };
    let names = kind.names();
    Err(Problem::conflict(format!(
        "The {} {id:?} is declared at {}; change or remove it there and restart the node, or choose another {}.",
        bare(names.one),
        object.declared_at,
        names.id_field,
    )))
}

fn etag(version: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).expect("digits in quotes are a field value")
}

fn with_etag(status: StatusCode, object: &Object, body: Value) -> Response {
    let mut response = (status, axum::Json(body)).into_response();
    response
        .headers_mut()
        .insert(header::ETAG, etag(object.version));
    response
}

fn nothing_there(kind: &dyn Kind, id: &str) -> Problem {
    Problem::not_found(format!("There is no {} {id:?}.", bare(kind.names().one)))
}

/// Without its article: `an operator` becomes `operator`.
fn bare(one: &str) -> &str {
    one.split_once(' ').map_or(one, |(_, noun)| noun)
}

/// A row of a list.
enum Row {
    Stored(Object),
    Declared(DeclaredObject),
}

impl Row {
    fn id(&self) -> &str {
        match self {
            Self::Stored(object) => &object.id,
            Self::Declared(object) => &object.id,
        }
    }
}

/// Up to `limit` objects behind `after`, stored and declared ones in the order of their ids. A declared one hides the
/// stored one of the same id.
fn rows_after(
    kind: &dyn Kind,
    objects: &Objects,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Row>, store::Error> {
    let stored = objects.list(kind.names().kind, after, limit)?.into_iter();
    let stored = stored.filter(|object| declared(kind, &object.id).is_none());
    let mut rows: Vec<_> = stored.map(Row::Stored).collect();
    if let Some(declared) = kind.declared() {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let declared = declared.range::<str, _>((from, Bound::Unbounded));
        let declared = declared.map(|(_, object)| Row::Declared(object.clone()));
        rows.extend(declared.take(limit));
        rows.sort_by(|a, b| a.id().cmp(b.id()));
        rows.truncate(limit);
    }
    Ok(rows)
}

async fn list(kind: Arc<dyn Kind>, call: Call) -> Outcome {
    let part = call.query.owned(ID_CONTAINS);
    let limit = call.query.limit();
    let mut after = call.query.after().map(|cursor| cursor.first);
    let listed = kind.clone();
    let (rows, next) = blocking(&call.app, move |objects| {
        let mut rows = Vec::new();
        let mut looked_at = 0;
        loop {
            let found = rows_after(&*listed, objects, after.as_deref(), limit + 1)?;
            let is_end = found.len() <= limit;
            for row in found {
                if rows.len() == limit || looked_at == MAX_LOOKED_AT {
                    return Ok((rows, after));
                }
                looked_at += 1;
                after = Some(row.id().to_owned());
                if part.as_deref().is_none_or(|part| row.id().contains(part)) {
                    rows.push(row);
                }
            }
            if is_end {
                return Ok((rows, None));
            }
        }
    })
    .await?
    .map_err(|error: store::Error| store_problem(&error))?;
    let app = &call.app;
    call::ok(Page {
        data: rows
            .iter()
            .map(|row| match row {
                Row::Stored(object) => shown(&*kind, app, object),
                Row::Declared(object) => shown_declared(&*kind, app, object),
            })
            .collect(),
        next: next.map(|id| Cursor::new(&id, "").encode()),
    })
}

async fn read(kind: Arc<dyn Kind>, call: Call) -> Outcome {
    let id = call.path(kind.names().id_field);
    if let Some(object) = declared(&*kind, id) {
        return call::ok(shown_declared(&*kind, &call.app, object));
    }
    let object = get_object(&call.app, kind.names().kind, id).await?;
    let object = object.ok_or_else(|| nothing_there(&*kind, id))?;
    if Preconditions::read(call.headers())?.is_not_modified(object.version) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        response
            .headers_mut()
            .insert(header::ETAG, etag(object.version));
        return Ok(response);
    }
    let body = shown(&*kind, &call.app, &object);
    Ok(with_etag(StatusCode::OK, &object, body))
}

/// The id in what a client wrote; where there is a foreign one, the own field is the object's business.
fn take_id(kind: &dyn Kind, input: &mut Map<String, Value>) -> Option<Value> {
    let foreign = kind.foreign_id_field();
    let foreign = foreign.and_then(|field| input.remove(field));
    foreign.or_else(|| input.remove(kind.names().id_field))
}

async fn create(kind: Arc<dyn Kind>, mut call: Call) -> Outcome {
    let names = kind.names();
    let mut input = fields_of(call.value().await?)?;
    let id = match (take_id(&*kind, &mut input), names.id_prefix) {
        (Some(Value::String(id)), _) => id,
        (None, Some(prefix)) => crate::access::random_id(prefix)
            .map_err(|error| Problem::unavailable(format!("{error}.")))?,
        (Some(_), _) => {
            let detail = format!("{}: expected a string.", names.id_field);
            return Err(Problem::field(names.id_field, detail));
        }
        (None, None) => {
            let detail = format!("{} is missing.", names.id_field);
            return Err(Problem::field(names.id_field, detail));
        }
    };
    check_id(names.id_field, &id)?;
    check_not_declared(&*kind, &id)?;
    let _changing = call.app.changing.lock().await;
    if get_object(&call.app, names.kind, &id).await?.is_some() {
        let detail = format!("There is {} {id:?} already.", names.one);
        return Err(Problem::conflict(detail));
    }
    let accepted = kind
        .accept(&call.app, &id, Value::Object(input), None)
        .await?;
    let (object, mut body) = save(&kind, &call, &id, accepted.stored, None).await?;
    if let Some(fields) = body.as_object_mut() {
        fields.extend(accepted.once);
    }
    let mut response = with_etag(StatusCode::CREATED, &object, body);
    let segment = percent_encode(&id);
    let location = format!("/api/v1/{}/{segment}", names.path);
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Creates an object of a kind that others understand, unless there is one. The caller may create such objects.
pub(crate) async fn create_if_absent(
    call: &Call,
    kind: RuledKind,
    id: &str,
    input: Value,
) -> Result<(), Problem> {
    let kind: Arc<dyn Kind> = Arc::new(ruled::of(kind, &call.app.rules));
    let names = kind.names();
    if call.who.role_or_none() < Some(names.write) {
        let detail = format!("This needs the role {}.", names.write.name());
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    check_id(names.id_field, id)?;
    let _changing = call.app.changing.lock().await;
    if get_object(&call.app, names.kind, id).await?.is_some() {
        return Ok(());
    }
    let accepted = kind.accept(&call.app, id, input, None).await?;
    save(&kind, call, id, accepted.stored, None).await?;
    Ok(())
}

async fn write(kind: Arc<dyn Kind>, mut call: Call) -> Outcome {
    let names = kind.names();
    let id = call.path(names.id_field).to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    let mut input = fields_of(call.value().await?)?;
    // What a GET answered may be put back: what cannot be changed has to be what it is.
    match take_id(&*kind, &mut input) {
        None => {}
        Some(Value::String(given)) if given == id => {}
        Some(_) => {
            let detail = format!("{}: expected {id:?}, as in the path.", names.id_field);
            return Err(Problem::field(names.id_field, detail));
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
    let _changing = call.app.changing.lock().await;
    let current = get_object(&call.app, names.kind, &id).await?;
    preconditions.check(current.as_ref().map(|object| object.version))?;
    let stored_now = current.as_ref().map(|object| &object.value);
    let accepted = kind
        .accept(&call.app, &id, Value::Object(input), stored_now)
        .await?;
    let status = match current {
        Some(_) => StatusCode::OK,
        None => StatusCode::CREATED,
    };
    let (object, mut body) = save(&kind, &call, &id, accepted.stored, current).await?;
    if let Some(fields) = body.as_object_mut() {
        fields.extend(accepted.once);
    }
    Ok(with_etag(status, &object, body))
}

/// Whether the object may become this; gives it back.
async fn may_become(
    kind: &Arc<dyn Kind>,
    call: &Call,
    id: &str,
    next: Option<Value>,
) -> Result<Option<Value>, Problem> {
    let (kind, id) = (kind.clone(), id.to_owned());
    blocking(&call.app, move |objects| {
        kind.may_become(objects, &id, next.as_ref())?;
        Ok(next)
    })
    .await?
}

/// Writes the object, tells the audit log, and answers how the object looks now. The caller holds `changing`.
async fn save(
    kind: &Arc<dyn Kind>,
    call: &Call,
    id: &str,
    value: Value,
    current: Option<Object>,
) -> Result<(Object, Value), Problem> {
    let value = may_become(kind, call, id, Some(value))
        .await?
        .unwrap_or_default();
    let expected = current
        .as_ref()
        .map_or(Expected::Absent, |object| Expected::Version(object.version));
    let (store_kind, store_id) = (kind.names().kind, id.to_owned());
    let object = blocking(&call.app, move |objects| {
        objects.put(store_kind, &store_id, value, expected)
    })
    .await?
    .map_err(|error| object_problem(&error))?;
    let body = shown(&**kind, &call.app, &object);
    let change = Change {
        kind: store_kind,
        id,
        before: current.map(|before| (before.version, kind.show(&call.app, &before.value))),
        after: Some((object.version, kind.show(&call.app, &object.value))),
    };
    audit::object(call, change).await;
    Ok((object, body))
}

async fn remove(kind: Arc<dyn Kind>, call: Call) -> Outcome {
    let names = kind.names();
    let id = call.path(names.id_field).to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    check_not_declared(&*kind, &id)?;
    let _changing = call.app.changing.lock().await;
    let current = get_object(&call.app, names.kind, &id).await?;
    let current = current.ok_or_else(|| nothing_there(&*kind, &id))?;
    preconditions.check(Some(current.version))?;
    may_become(&kind, &call, &id, None).await?;
    let (store_kind, store_id) = (names.kind, id.clone());
    let expected = Expected::Version(current.version);
    blocking(&call.app, move |objects| {
        objects.delete(store_kind, &store_id, expected)
    })
    .await?
    .map_err(|error| object_problem(&error))?;
    let change = Change {
        kind: names.kind,
        id: &id,
        before: Some((current.version, kind.show(&call.app, &current.value))),
        after: None,
    };
    audit::object(&call, change).await;
    call::done()
}

fn fields_of(input: Value) -> Result<Map<String, Value>, Problem> {
    match input {
        Value::Object(fields) => Ok(fields),
        _ => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The body is not what was expected: expected a JSON object.",
        )),
    }
}

fn check_id(field: &'static str, id: &str) -> Result<(), Problem> {
    let fits = !id.is_empty() && id.len() <= MAX_ID_BYTES && !id.chars().any(char::is_control);
    match fits {
        true => Ok(()),
        false => Err(Problem::field(
            field,
            format!("{field}: expected 1 to {MAX_ID_BYTES} bytes without control characters."),
        )),
    }
}

/// As a part of a path.
pub(crate) fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            other => drop(write!(encoded, "%{other:02X}")),
        }
        encoded
    })
}
