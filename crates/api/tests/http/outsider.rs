//! Roles in namespaces: every route of the API is called by an operator of another namespace. A new route is thus
//! tested without a test of its own.

mod operations;

use std::time::Duration;

use devices::alarm::{Severity, SqlRuleAlarm};
use serde_json::{Value, json};
use store::ExpectedVersion;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access::{basic, bearer, local, send, token};
use crate::client::{HttpResponse, request};
use crate::fake::{FakeState, Server};
use operations::{CREATED_OBJECTS, Operation, body_of, foreign_body, operations, query_of};

const JSON: &str = "Content-Type: application/json\r\n";
/// In the id of everything that belongs to the other namespace.
const FOREIGN: &str = "foreign";
/// Stands for the id of the foreign file, which the node chooses.
const FOREIGN_FILE: &str = "FOREIGN-FILE";

async fn admin(server: &Server, method: &str, path: &str, body: Value) -> Value {
    let answer = send(server, &local(), method, path, &body).await;
    assert!(answer.status < 300, "{method} {path}: {}", answer.body);
    match answer.body.is_empty() {
        true => Value::Null,
        false => answer.json(),
    }
}

/// Raises an alarm of a device, and waits until it is stored.
async fn raise(server: &Server, device: &str, kind: &str) {
    let found = server.registry.device(device).unwrap().unwrap();
    let alarm = SqlRuleAlarm {
        kind: kind.to_owned(),
        severity: Severity::Major,
        is_cleared: false,
        at_ms: 1_700_000_000_000,
        details: String::new(),
        rule: "r".to_owned(),
        tag: 0,
    };
    server.alarms.submit_sql_rule_alarm(&found, alarm);
    let path = format!("/api/v1/alarms?device={device}&type={kind}");
    let stored = async {
        while admin(server, "GET", &path, Value::Null).await["data"] == json!([]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), stored)
        .await
        .expect("the alarm is stored");
}

/// A server with the namespaces `acme`, which owns everything foreign, and `other`.
async fn server() -> Server {
    let server = Server::closed(&FakeState::with_clients(1)).await;
    for namespace in ["acme", "other"] {
        admin(
            &server,
            "POST",
            "/api/v1/namespaces",
            json!({"id": namespace}),
        )
        .await;
    }
    for (kind, id, value) in [
        ("product", "foreign-product", json!({"namespace": "acme"})),
        (
            "device_group",
            "foreign-group",
            json!({"namespace": "acme", "product": "foreign-product"}),
        ),
        (
            "notification",
            "foreign-notification",
            json!({"namespace": "acme"}),
        ),
        ("endpoint", "foreign-endpoint", json!({"namespace": "acme"})),
        (
            firmware::KIND,
            "foreign-firmware",
            json!({
                "namespace": "acme", "title": "foreign", "firmware_version": "1", "product": "foreign-product",
                "file": "none", "size": 1, "digest": "00",
            }),
        ),
        (
            firmware::ASSIGNMENT_KIND,
            "foreign-assignment",
            json!({"namespace": "acme", "package": "foreign-firmware", "product": "foreign-product"}),
        ),
        (
            "dashboard",
            "foreign-dashboard",
            json!({
                "namespace": "acme", "name": "", "description": "", "shares": [],
                "cards": [{
                    "id": "c", "kind": "status", "x": 0, "y": 0, "w": 1, "h": 1,
                    "sources": [{"type": "devices", "device": "foreign-device"}],
                }],
            }),
        ),
        ("product", "own-product", json!({"namespace": "other"})),
    ] {
        server
            .objects
            .put(kind, id, value, ExpectedVersion::Absent)
            .unwrap();
    }
    let key = json!({"id": "foreign-key", "namespace": "acme", "role": "owner"});
    admin(&server, "POST", "/api/v1/api-keys", key).await;
    let invite = json!({"id": "foreign-invite", "namespace": "acme"});
    admin(&server, "POST", "/api/v1/invites", invite).await;
    for (id, product) in [
        ("foreign-device", "foreign-product"),
        ("own-device", "own-product"),
    ] {
        let device = json!({"id": id, "product": product});
        admin(&server, "POST", "/api/v1/devices", device).await;
    }
    let command = json!({"method": "reboot", "wait": false});
    admin(
        &server,
        "POST",
        "/api/v1/devices/foreign-device/commands",
        command,
    )
    .await;
    raise(&server, "foreign-device", "hot").await;
    let campaign = json!({"package": "foreign-firmware", "namespace": "acme"});
    admin(&server, "POST", "/api/v1/firmware-campaigns", campaign).await;
    let owner = transfer::FileOwner {
        namespace: "acme".to_owned(),
        ..transfer::FileOwner::client("foreign-client")
    };
    let begin = transfer::TransferRequest::new(owner.clone(), "foreign-file", "foreign.bin");
    server.files.begin(begin).unwrap();
    let target = transfer::FileTarget::Transfer(&owner, "foreign-file");
    server.files.finish(target, Some(0), None).unwrap();
    for (name, namespace, role) in [
        ("insider", "acme", "owner"),
        ("reader", "acme", "viewer"),
        ("outsider", "other", "owner"),
    ] {
        let operator = json!({
            "username": name, "password": format!("{name}-secret"), "must_change_password": false,
            "namespaces": [{"namespace": namespace, "role": role}],
        });
        admin(&server, "POST", "/api/v1/operators", operator).await;
    }
    server
}

/// The id of the file of the other namespace.
fn foreign_file(server: &Server) -> String {
    let foreign = namespaces::NamespaceSelection::All.within("acme");
    let files = server.files.list(&foreign, None, 1, &|_| true);
    files[0].id.clone()
}

async fn call(server: &Server, credentials: &str, operation: &Operation) -> HttpResponse {
    call_with(server, credentials, operation, "").await
}

/// `more` is added to the query.
async fn call_with(
    server: &Server,
    credentials: &str,
    operation: &Operation,
    more: &str,
) -> HttpResponse {
    let query = match (query_of(operation), more) {
        (query, "") => query.to_owned(),
        ("", more) => format!("?{more}"),
        (query, more) => format!("{query}&{more}"),
    };
    let target = format!("{}{query}", operation.path);
    let media_type = match operation.id.as_str() {
        "importDevices" | "restore" | "startImport" => "Content-Type: application/x-ndjson\r\n",
        _ => JSON,
    };
    let fields = format!("{credentials}{media_type}");
    let body = body_of(operation);
    if operation.is_stream {
        return head_of(server, &target, &fields).await;
    }
    let sent = request(server.address, &operation.method, &target, &fields, &body);
    let answer = timeout(Duration::from_secs(20), sent).await;
    answer.unwrap_or_else(|_| panic!("{}: no answer", operation.name()))
}

/// The beginning of an answer, which may be a stream without an end.
async fn head_of(server: &Server, target: &str, fields: &str) -> HttpResponse {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while !read.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read_buf(&mut read).await.unwrap();
        assert_ne!(count, 0, "{target}: closed");
    }
    HttpResponse::parse(&read)
}

/// Waits until the imports and exports have ended.
async fn wait_for_jobs(server: &Server) {
    let ended = async {
        loop {
            let jobs = admin(server, "GET", "/api/v1/jobs", Value::Null).await;
            if !jobs.to_string().contains("\"running\"") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), ended)
        .await
        .expect("the jobs end");
}

/// Everything that belongs to the other namespace: the objects, the lists of them, and the usage of the quotas.
async fn foreign_state(server: &Server) -> Value {
    wait_for_jobs(server).await;
    let mut state = Vec::new();
    for path in [
        "products/foreign-product",
        "device-groups/foreign-group",
        "notifications/foreign-notification",
        "endpoints/foreign-endpoint",
        "firmware/foreign-firmware",
        "firmware-assignments/foreign-assignment",
        "firmware-campaigns/1",
        "firmware-campaigns/1/devices",
        "devices/foreign-device/firmware",
        "dashboards/foreign-dashboard",
        "api-keys/foreign-key",
        "invites/foreign-invite",
        "namespaces/acme",
        "devices/foreign-device",
        "commands/1",
        "alarms/1",
        "devices",
        "products",
        "api-keys",
        "operators",
        "namespaces",
        "namespaces/acme/usage",
        "device-groups?namespace=acme",
        "notifications?namespace=acme",
        "endpoints?namespace=acme",
        "endpoint-status?namespace=acme",
        "dashboards?namespace=acme",
        "invites?namespace=acme",
        "firmware?namespace=acme",
        "firmware-assignments?namespace=acme",
        "firmware-campaigns?namespace=acme",
        "files?namespace=acme",
        "alarms?namespace=acme",
        "commands?namespace=acme",
        "devices?namespace=acme",
    ] {
        state.push(admin(server, "GET", &format!("/api/v1/{path}"), Value::Null).await);
    }
    let file = format!("/api/v1/files/{}", foreign_file(server));
    state.push(admin(server, "GET", &file, Value::Null).await);
    Value::Array(state)
}

#[tokio::test]
async fn an_outsider_reads_and_changes_nothing_over_any_route() {
    let server = server().await;
    let before = foreign_state(&server).await;
    let outsider = bearer(&token(&server, "outsider").await);
    for operation in operations(&server).await {
        // It would end the session of this test.
        if operation.scope == "caller" && operation.id.to_lowercase().contains("logout") {
            continue;
        }
        let answer = call(&server, &outsider, &operation).await;
        let name = operation.name();
        if operation.scope == "selected" {
            check_selected(&server, &outsider, &operation, &answer).await;
            continue;
        }
        match operation.scope.as_str() {
            "node" => assert_eq!(answer.status, 403, "{name}: {}", answer.body),
            "object" => assert_eq!(answer.status, 404, "{name}: {}", answer.body),
            "caller" => assert!(answer.status < 500, "{name}: {}", answer.body),
            other => panic!("{name} declares no scope: {other:?}"),
        }
    }
    assert_eq!(foreign_state(&server).await, before);
}

/// The answer to an operation that selects what the caller may see: nothing foreign, also with a filter for the foreign namespace, and
/// nothing is created from foreign objects.
async fn check_selected(
    server: &Server,
    outsider: &str,
    operation: &Operation,
    answer: &HttpResponse,
) {
    let name = operation.name();
    assert!(answer.status < 500, "{name}: {}", answer.body);
    assert!(
        !operation.has_body || foreign_body(operation).is_some(),
        "{name}: add a body that names foreign objects to `foreign_body`"
    );
    // These name the lines that they reject.
    let names_lines = ["importDevices", "listJobs"].contains(&operation.id.as_str());
    let shows = answer.status < 300 && answer.body.contains(FOREIGN);
    assert!(!shows || names_lines, "{name}: {}", answer.body);
    if operation.id.starts_with("create") || operation.id.starts_with("thingsboardS") {
        assert!(
            (400..500).contains(&answer.status),
            "{name}: {}",
            answer.body
        );
    }
    if operation.id == "importDevices" {
        let imported = answer.json();
        let counts = (&imported["created"], &imported["updated"]);
        assert_eq!(counts, (&json!(0), &json!(0)), "{}", answer.body);
    }
    if operation.has_namespace_filter && !operation.is_stream {
        let filtered = call_with(server, outsider, operation, "namespace=acme").await;
        assert!(filtered.status < 500, "{name}: {}", filtered.body);
        let is_empty = filtered.status >= 400 || !filtered.body.contains(FOREIGN);
        assert!(is_empty || names_lines, "{name}: {}", filtered.body);
    }
}

#[tokio::test]
async fn objects_are_created_only_in_the_own_namespace() {
    let server = server().await;
    let outsider = bearer(&token(&server, "outsider").await);
    let insider = bearer(&token(&server, "insider").await);
    // A new kind of objects in namespaces has to be in the table.
    for operation in operations(&server).await {
        let is_creation = operation.scope == "selected" && operation.id.starts_with("create");
        let has_fields = operation.path.trim_start_matches("/api/v1/");
        let is_listed = CREATED_OBJECTS.iter().any(|(path, ..)| *path == has_fields);
        let is_other = [
            "createDevice",
            "createInviteBatch",
            "createFirmwareCampaign",
        ]
        .contains(&operation.id.as_str());
        assert!(
            !is_creation || is_listed || is_other,
            "{}",
            operation.name()
        );
    }
    for (kind, _, fields) in CREATED_OBJECTS {
        let path = format!("/api/v1/{kind}/new-one");
        let body: Value = serde_json::from_str(fields).unwrap();
        let rejected = send(&server, &outsider, "PUT", &path, &body).await;
        assert_eq!(rejected.status, 422, "{path}: {}", rejected.body);
        let problem = rejected.problem();
        assert!(
            problem.contains("there is no namespace \"acme\""),
            "{path}: {problem}"
        );
        let absent = send(&server, &local(), "GET", &path, &Value::Null).await;
        assert_eq!(absent.status, 404, "{path}: {}", absent.body);
        // The same is valid for an owner of that namespace.
        let created = send(&server, &insider, "PUT", &path, &body).await;
        assert_eq!(created.status, 201, "{path}: {}", created.body);
        let hidden = send(&server, &outsider, "GET", &path, &Value::Null).await;
        assert_eq!(hidden.status, 404, "{path}: {}", hidden.body);
    }
}

#[tokio::test]
async fn jobs_of_an_outsider_contain_and_change_nothing_foreign() {
    let server = server().await;
    let outsider = bearer(&token(&server, "outsider").await);
    let before = foreign_state(&server).await;
    let lines = "{\"id\": \"new-device\", \"product\": \"foreign-product\"}\n\
         {\"id\": \"foreign-device\", \"product\": \"own-product\"}\n";
    let fields = format!("{outsider}Content-Type: application/x-ndjson\r\n");
    let import = request(
        server.address,
        "POST",
        "/api/v1/imports?kind=devices",
        &fields,
        lines,
    );
    let import = import.await;
    assert_eq!(import.status, 202, "{}", import.body);
    let export = json!({"kind": "devices"});
    let export = send(&server, &outsider, "POST", "/api/v1/exports", &export).await;
    assert_eq!(export.status, 202, "{}", export.body);
    wait_for_jobs(&server).await;
    let job = format!("/api/v1/jobs/{}", import.json()["id"].as_str().unwrap());
    let imported = send(&server, &outsider, "GET", &job, &Value::Null).await;
    assert_eq!(imported.json()["failed"], 2, "{}", imported.body);
    let id = export.json()["id"].as_str().unwrap().to_owned();
    let content = format!("/api/v1/exports/{id}/content");
    let exported = send(&server, &outsider, "GET", &content, &Value::Null).await;
    assert_eq!(exported.status, 200, "{}", exported.body);
    assert!(exported.body.contains("own-device"), "{}", exported.body);
    assert!(!exported.body.contains(FOREIGN), "{}", exported.body);
    assert_eq!(foreign_state(&server).await, before);
    // Jobs of other people are as absent as other objects.
    let insider = bearer(&token(&server, "insider").await);
    for path in [&job, &content] {
        let hidden = send(&server, &insider, "GET", path, &Value::Null).await;
        assert_eq!(hidden.status, 404, "{path}: {}", hidden.body);
    }
}

#[tokio::test]
async fn an_owner_of_the_namespace_reaches_its_objects_and_a_viewer_changes_none() {
    let server = server().await;
    let insider = bearer(&token(&server, "insider").await);
    let reader = bearer(&token(&server, "reader").await);
    let before = foreign_state(&server).await;
    for operation in operations(&server).await {
        let is_read = operation.role == "viewer";
        if operation.scope != "node" && operation.scope != "caller" && !is_read {
            let answer = call(&server, &reader, &operation).await;
            assert_eq!(answer.status, 403, "{}: {}", operation.name(), answer.body);
        }
        let is_object = operation.scope == "object" && !operation.path.contains("telemetry");
        if is_object && operation.method == "GET" && is_read && !operation.is_stream {
            let answer = call(&server, &insider, &operation).await;
            assert_eq!(answer.status, 200, "{}: {}", operation.name(), answer.body);
        }
    }
    assert_eq!(
        foreign_state(&server).await,
        before,
        "a viewer changed something"
    );
    let rows = send(&server, &insider, "GET", "/api/v1/devices", &Value::Null)
        .await
        .json();
    let rows = rows["data"].as_array().unwrap().clone();
    let ids: Vec<_> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["foreign-device"]);
    let other = send(
        &server,
        &insider,
        "GET",
        "/api/v1/devices?namespace=other",
        &Value::Null,
    )
    .await;
    assert_eq!(other.json()["data"], json!([]));
}

#[tokio::test]
async fn objects_of_an_owner_belong_to_the_own_namespace_and_stay_clear_of_the_node() {
    let server = server().await;
    let owner = bearer(&token(&server, "outsider").await);
    let put = |path: &'static str, body: Value| {
        let (server, owner) = (&server, &owner);
        async move { send(server, owner, "PUT", &format!("/api/v1/{path}"), &body).await }
    };
    let made = put("products/pump", json!({})).await;
    assert_eq!(
        (made.status, made.json()["namespace"].clone()),
        (201, json!("other")),
        "{}",
        made.body
    );
    for (field, body) in [
        ("chain", json!({"chain": "root"})),
        ("storage.sinks", json!({"storage": {"sinks": ["archive"]}})),
    ] {
        let rejected = put("products/pump", body).await;
        assert_eq!(rejected.status, 403, "{}", rejected.body);
        assert!(rejected.problem().starts_with(field), "{}", rejected.body);
    }
    let to = |topic: &str| json!({"to": {"mqtt": {"topic": topic}}});
    assert_eq!(put("notifications/n", to("plant/stop")).await.status, 403);
    assert_eq!(
        put("notifications/n", to("namespaces/otherwise/x"))
            .await
            .status,
        403
    );
    assert_eq!(
        put("notifications/n", to("namespaces/other/alarms"))
            .await
            .status,
        201
    );
    // What an admin has set may stay.
    let set = json!({"namespace": "other", "chain": "root"});
    admin(&server, "PUT", "/api/v1/products/pump", set).await;
    assert_eq!(
        put("products/pump", json!({"chain": "root", "name": "Pump"}))
            .await
            .status,
        200
    );

    // Keys of the node do not exist for the owner.
    let of_node = json!({"id": "node-key", "role": "viewer"});
    admin(&server, "POST", "/api/v1/api-keys", of_node).await;
    let rejected = put("api-keys/node-key", json!({"role": "viewer"})).await;
    assert_eq!(rejected.status, 404, "{}", rejected.body);
    // A key of the owner is limited as the owner is.
    for role in ["admin", "none"] {
        let body = json!({"role": role, "namespace": "other"});
        assert_eq!(put("api-keys/k", body).await.status, 422, "{role}");
    }
    assert_eq!(
        put("api-keys/k", json!({"role": "viewer", "namespace": null}))
            .await
            .status,
        422
    );
    assert_eq!(
        put("api-keys/k", json!({"role": "viewer", "namespace": "acme"}))
            .await
            .status,
        422
    );
    let key = put("api-keys/k", json!({"role": "viewer"})).await;
    assert_eq!(
        (key.status, key.json()["namespace"].clone()),
        (201, json!("other"))
    );
    let key = basic("k", key.json()["secret"].as_str().unwrap());
    let get = |path: &'static str| {
        let (server, key) = (&server, &key);
        async move { send(server, key, "GET", &format!("/api/v1/{path}"), &Value::Null).await }
    };
    assert_eq!(get("devices/own-device").await.status, 200);
    assert_eq!(get("devices/foreign-device").await.status, 404);
    assert_eq!(
        get("api-keys").await.status,
        403,
        "a viewer does not read keys"
    );
    assert_eq!(get("clients").await.status, 403);
    let me = get("me").await.json();
    assert_eq!(
        me["namespaces"],
        json!([{"namespace": "other", "role": "viewer"}])
    );
    assert_eq!(me["role"], Value::Null);
}

#[tokio::test]
async fn a_disabled_namespace_locks_its_operators_out_and_ends_their_streams() {
    let server = server().await;
    let reader = bearer(&token(&server, "reader").await);
    let outsider = bearer(&token(&server, "outsider").await);
    let mut streams = Vec::new();
    for credentials in [&reader, &outsider] {
        streams.push(alarm_stream(&server, credentials).await);
    }
    let disabled = json!({"state": "disabled", "reason": "The contract has ended."});
    admin(&server, "PUT", "/api/v1/namespaces/acme", disabled).await;
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_secs(10), streams[0].read_to_end(&mut rest)).await;
    ended
        .expect("the stream of the disabled namespace ends")
        .unwrap();
    let open = timeout(Duration::from_millis(200), streams[1].read_buf(&mut rest)).await;
    assert!(!matches!(open, Ok(Ok(0))), "the other stream ended, too");

    let rejected = send(&server, &reader, "GET", "/api/v1/devices", &Value::Null).await;
    assert_eq!(rejected.status, 403);
    assert!(
        rejected.problem().contains("The contract has ended."),
        "{}",
        rejected.body
    );
    let me = send(&server, &reader, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(me.status, 200);
    admin(&server, "PUT", "/api/v1/namespaces/acme", json!({})).await;
    let again = send(&server, &reader, "GET", "/api/v1/devices", &Value::Null).await;
    assert_eq!(again.status, 200);
}

/// The open stream of alarm changes.
async fn alarm_stream(server: &Server, credentials: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "GET /api/v1/alarm-events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{credentials}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while !read.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
    assert!(read.starts_with(b"HTTP/1.1 200"));
    stream
}

#[tokio::test]
async fn a_stream_shows_alarms_of_the_own_namespace_only() {
    let server = server().await;
    let outsider = bearer(&token(&server, "outsider").await);
    let mut stream = alarm_stream(&server, &outsider).await;
    raise(&server, "foreign-device", "cold").await;
    raise(&server, "own-device", "warm").await;
    let mut read = Vec::new();
    let own = async {
        while !String::from_utf8_lossy(&read).contains("own-device") {
            assert_ne!(
                stream.read_buf(&mut read).await.unwrap(),
                0,
                "the stream ended"
            );
        }
    };
    timeout(Duration::from_secs(10), own)
        .await
        .expect("the own alarm");
    assert!(!String::from_utf8_lossy(&read).contains(FOREIGN));
    let listed = send(&server, &outsider, "GET", "/api/v1/alarms", &Value::Null)
        .await
        .json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test]
async fn an_operator_has_either_a_node_wide_role_or_roles_in_namespaces() {
    let server = server().await;
    let grant = |namespace: &str| json!([{"namespace": namespace, "role": "viewer"}]);
    for (field, role, namespaces) in [
        ("namespaces", json!("viewer"), grant("acme")),
        ("role", Value::Null, json!([])),
        ("namespaces", Value::Null, grant("none")),
        (
            "namespaces",
            Value::Null,
            json!([grant("acme")[0], grant("acme")[0]]),
        ),
    ] {
        let operator = json!({"username": "x", "password": "x-secret-1", "role": role, "namespaces": namespaces});
        let rejected = send(&server, &local(), "POST", "/api/v1/operators", &operator).await;
        assert_eq!(rejected.status, 422, "{operator}: {}", rejected.body);
        assert!(rejected.problem().starts_with(field), "{}", rejected.body);
    }
    // A changed grant is effective at once.
    let outsider = bearer(&token(&server, "outsider").await);
    let change = json!({"namespaces": [{"namespace": "acme", "role": "viewer"}]});
    admin(&server, "PUT", "/api/v1/operators/outsider", change).await;
    let device = send(
        &server,
        &outsider,
        "GET",
        "/api/v1/devices/foreign-device",
        &Value::Null,
    )
    .await;
    assert_eq!(device.status, 200, "{}", device.body);
    let own = send(
        &server,
        &outsider,
        "GET",
        "/api/v1/devices/own-device",
        &Value::Null,
    )
    .await;
    assert_eq!(own.status, 404);
}
