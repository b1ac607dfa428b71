//! Tests of configuration objects: create, read, replace, delete; versions, preconditions, pages,
//! the audit log, backup.

use serde_json::{Value, json};

use crate::access::{local, send};
use crate::client::{get, request};
use crate::fake::{FakeState, Server};

async fn server() -> Server {
    Server::start(&FakeState::with_clients(0)).await
}

pub(crate) fn etag(head: &str) -> String {
    let line = head.lines().find(|line| line.starts_with("etag: "));
    line.unwrap_or_else(|| panic!("no ETag: {head}"))["etag: ".len()..].to_owned()
}

#[tokio::test]
async fn every_kind_is_made_read_replaced_and_deleted() {
    let server = server().await;
    let cases = [
        (
            "operators",
            "username",
            json!({"role": "viewer", "password": "pencil case"}),
        ),
        ("api-keys", "id", json!({"role": "viewer"})),
        ("users", "username", json!({"password": "pencil case"})),
        (
            "authenticators",
            "id",
            json!({"type": "jwt", "password": "pencil case"}),
        ),
        ("acl-rules", "id", json!({"permission": "deny"})),
        ("bans", "id", json!({"client_id": "rogue"})),
    ];
    for (path, id_field, input) in cases {
        let all = format!("/api/v1/{path}");
        let mut body = input.clone();
        body[id_field] = json!("a/b ä");
        let made = send(&server, "", "POST", &all, &body).await;
        assert_eq!(made.status, 201, "{path}: {}", made.body);
        assert!(!made.body.contains("pencil"), "{}", made.body);
        let location = made
            .head
            .lines()
            .find(|line| line.starts_with("location: "))
            .unwrap();
        assert!(location.ends_with("/a%2fb%20%c3%a4"), "{location}");
        let one = format!("{all}/a%2Fb%20%C3%A4");
        let read = get(server.address, &one).await;
        assert_eq!(
            (read.status, &read.json()[id_field]),
            (200, &json!("a/b ä")),
            "{path}"
        );
        assert_eq!(etag(&read.head), etag(&made.head));
        assert_eq!(
            send(&server, "", "POST", &all, &body).await.status,
            409,
            "{path}"
        );

        // The response of a GET can be sent back.
        let replaced = send(&server, "", "PUT", &one, &read.json()).await;
        assert_eq!(replaced.status, 200, "{path}: {}", replaced.body);
        assert_ne!(etag(&replaced.head), etag(&read.head));
        let rows = get(server.address, &all).await.json();
        assert_eq!(rows["data"].as_array().unwrap().len(), 1, "{path}");
        assert!(!rows.to_string().contains("pencil"));
        assert_eq!(
            send(&server, "", "DELETE", &one, &Value::Null).await.status,
            204,
            "{path}"
        );
        assert_eq!(get(server.address, &one).await.status, 404);
        assert_eq!(
            send(&server, "", "DELETE", &one, &Value::Null).await.status,
            404
        );
    }
}

#[tokio::test]
async fn ids_are_made_where_they_do_not_matter() {
    let server = server().await;
    let made = send(
        &server,
        "",
        "POST",
        "/api/v1/bans",
        &json!({"address": "192.0.2.1"}),
    )
    .await;
    assert_eq!(made.status, 201);
    assert!(made.json()["id"].as_str().unwrap().starts_with("ban-"));
    let nameless = send(
        &server,
        "",
        "POST",
        "/api/v1/users",
        &json!({"password": "x"}),
    )
    .await;
    assert_eq!(
        (nameless.status, nameless.problem().contains("username")),
        (422, true)
    );
}

#[tokio::test]
async fn a_change_can_be_tied_to_the_version_that_was_seen() {
    let server = server().await;
    let path = "/api/v1/acl-rules/r1";
    let rule = json!({"permission": "deny"});
    let absent = "If-None-Match: *\r\n";
    let made = send(&server, absent, "PUT", path, &rule).await;
    assert_eq!(made.status, 201);
    let first = etag(&made.head);
    assert_eq!(
        send(&server, absent, "PUT", path, &rule).await.status,
        412,
        "there is one now"
    );

    let unchanged = request(
        server.address,
        "GET",
        path,
        &format!("If-None-Match: {first}\r\n"),
        "",
    )
    .await;
    assert_eq!((unchanged.status, unchanged.body.as_str()), (304, ""));
    assert_eq!(etag(&unchanged.head), first);

    let seen = format!("If-Match: {first}\r\n");
    let changed = send(&server, &seen, "PUT", path, &json!({"permission": "allow"})).await;
    assert_eq!(changed.status, 200);
    for (method, body) in [("PUT", rule.clone()), ("DELETE", Value::Null)] {
        let late = send(&server, &seen, method, path, &body).await;
        assert_eq!(late.status, 412);
        assert!(
            late.problem().contains(&etag(&changed.head)),
            "{}",
            late.body
        );
    }
    let modified = request(
        server.address,
        "GET",
        path,
        &format!("If-None-Match: {first}\r\n"),
        "",
    )
    .await;
    assert_eq!(modified.status, 200);
    let bare = send(&server, "If-Match: 7\r\n", "DELETE", path, &Value::Null).await;
    assert_eq!(bare.status, 400);
    let seen = format!("If-Match: {}\r\n", etag(&changed.head));
    assert_eq!(
        send(&server, &seen, "DELETE", path, &Value::Null)
            .await
            .status,
        204
    );
    let gone = send(&server, "If-Match: *\r\n", "PUT", path, &rule).await;
    assert_eq!(gone.status, 412);
}

#[tokio::test]
async fn errors_in_an_object_are_reported() {
    let server = server().await;
    let path = "/api/v1/operators";
    let cases = [
        (json!({"username": "a", "role": "viewer"}), "password"),
        (
            json!({"username": "a", "role": "viewer", "password": "short"}),
            "8 characters",
        ),
        (
            json!({"username": "a", "role": "king", "password": "long enough"}),
            "role",
        ),
        (json!({"username": "a", "password": "long enough"}), "role"),
        (
            json!({"username": "a", "role": "viewer", "password": "long enough", "x": 1}),
            "x",
        ),
        (
            json!({"username": 1, "role": "viewer", "password": "long enough"}),
            "username",
        ),
        (
            json!({"username": "", "role": "viewer", "password": "long enough"}),
            "username",
        ),
        (json!([]), "object"),
    ];
    for (body, hint) in cases {
        let answer = send(&server, "", "POST", path, &body).await;
        assert_eq!(answer.status, 422, "{body}: {}", answer.body);
        assert!(answer.problem().contains(hint), "{body}: {}", answer.body);
        assert!(!answer.body.contains("long enough"));
    }
    let other = send(
        &server,
        "",
        "PUT",
        &format!("{path}/a"),
        &json!({"username": "b"}),
    )
    .await;
    assert_eq!(
        (other.status, other.problem().contains("as in the path")),
        (422, true)
    );
}

#[tokio::test]
async fn lists_come_in_pages_and_can_be_filtered() {
    let server = server().await;
    for n in 0..25 {
        let ban = json!({"id": format!("b{n:02}"), "client_id": "x"});
        assert_eq!(
            send(&server, "", "POST", "/api/v1/bans", &ban).await.status,
            201
        );
    }
    for (path, expected) in [
        ("/api/v1/bans?limit=10", 25),
        ("/api/v1/bans?limit=2&id_contains=1", 12),
    ] {
        let mut seen: Vec<String> = Vec::new();
        let mut after = String::new();
        loop {
            let page = get(server.address, &format!("{path}{after}")).await.json();
            let rows = page["data"].as_array().unwrap();
            seen.extend(
                rows.iter()
                    .map(|row| row["id"].as_str().unwrap().to_owned()),
            );
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen.len(), expected, "{path}");
        assert!(seen.is_sorted());
    }
}

#[tokio::test]
async fn the_audit_log_records_who_changed_what_without_secrets() {
    let server = Server::closed(&FakeState::with_clients(3)).await;
    let operator = json!({"username": "ann", "role": "admin", "password": "the first secret"});
    let made = send(&server, &local(), "POST", "/api/v1/operators", &operator).await;
    assert_eq!(made.status, 201);
    let change = json!({"role": "admin", "description": "new", "password": "the other secret"});
    send(&server, &local(), "PUT", "/api/v1/operators/ann", &change).await;
    let guess = json!({"username": "ann", "password": "a secret guess"});
    assert_eq!(
        send(&server, "", "POST", "/api/v1/login", &guess)
            .await
            .status,
        401
    );
    send(
        &server,
        &local(),
        "DELETE",
        "/api/v1/clients/c000",
        &Value::Null,
    )
    .await;

    let audit = send(&server, &local(), "GET", "/api/v1/audit-log", &Value::Null).await;
    assert!(
        !audit.body.contains("secret") && !audit.body.contains("argon2"),
        "{}",
        audit.body
    );
    let audit = audit.json();
    let rows = audit["data"].as_array().unwrap();
    let actions: Vec<_> = rows
        .iter()
        .map(|row| row["action"].as_str().unwrap())
        .collect();
    assert_eq!(
        actions,
        [
            "client.disconnect",
            "login.failed",
            "operator.change",
            "operator.create"
        ]
    );
    let changed = &rows[2];
    assert_eq!(
        (&changed["actor"], &changed["address"]),
        (&json!("local"), &json!("127.0.0.1"))
    );
    assert_eq!(
        (&changed["subject"], &changed["role"]),
        (&json!("ann"), &json!("admin"))
    );
    assert!(changed["version_after"].as_u64() > changed["version_before"].as_u64());
    assert_eq!(changed["before"]["description"], "");
    assert_eq!(changed["after"]["description"], "new");
    assert_eq!(
        (&rows[1]["actor"], &rows[1]["role"]),
        (&json!("ann"), &Value::Null)
    );

    let page = "/api/v1/audit-log?action=operator.&limit=1";
    let first = send(&server, &local(), "GET", page, &Value::Null)
        .await
        .json();
    assert_eq!(first["data"][0]["action"], "operator.change");
    let next = format!("{page}&after={}", first["next"].as_str().unwrap());
    let second = send(&server, &local(), "GET", &next, &Value::Null)
        .await
        .json();
    assert_eq!(second["data"][0]["action"], "operator.create");

    let at_ms = rows[0]["at_ms"].as_u64().unwrap();
    for (range, expected) in [
        (format!("from_ms={at_ms}&to_ms={}", at_ms + 1), true),
        (format!("to_ms={at_ms}"), false),
        (format!("from_ms={}", at_ms + 1), false),
        // Entries that old end the list, without a further page.
        (format!("from_ms={}", at_ms + 100 * 86_400_000), false),
    ] {
        let path = format!("/api/v1/audit-log?{range}");
        let list = send(&server, &local(), "GET", &path, &Value::Null)
            .await
            .json();
        let numbers = list["data"].as_array().unwrap().iter();
        let mut numbers = numbers.map(|row| &row["number"]);
        assert_eq!(
            numbers.any(|number| *number == rows[0]["number"]),
            expected,
            "{range}: {list}"
        );
        assert_eq!(list["next"], Value::Null, "{range}");
    }
    let wrong = "/api/v1/audit-log?from_ms=2&to_ms=1";
    let wrong = send(&server, &local(), "GET", wrong, &Value::Null).await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
}

#[tokio::test]
async fn a_backup_brings_everything_back() {
    let server = server().await;
    let user = json!({"username": "ada", "password": "pencil case"});
    send(&server, "", "POST", "/api/v1/users", &user).await;
    let operator = json!({"username": "ann", "role": "admin", "password": "pencil case"});
    send(&server, "", "POST", "/api/v1/operators", &operator).await;
    let backup = get(server.address, "/api/v1/backup").await;
    assert!(
        backup.has("content-type: application/x-ndjson"),
        "{}",
        backup.head
    );

    send(&server, "", "DELETE", "/api/v1/users/ada", &Value::Null).await;
    send(
        &server,
        "",
        "POST",
        "/api/v1/bans",
        &json!({"id": "b", "client_id": "x"}),
    )
    .await;
    let fields = "Content-Type: application/x-ndjson\r\n";
    let path = "/api/v1/restore";
    let damaged = request(
        server.address,
        "POST",
        path,
        fields,
        &format!("{}x", backup.body),
    )
    .await;
    assert_eq!(damaged.status, 422, "{}", damaged.body);
    assert_eq!(
        get(server.address, "/api/v1/users/ada").await.status,
        404,
        "nothing was done"
    );
    let merged = request(server.address, "POST", path, fields, &backup.body).await;
    // The user, the operator, and a row each of the device registry and the index of alarms.
    assert_eq!(merged.json(), json!({"written": 4, "removed": 0}));
    assert_eq!(get(server.address, "/api/v1/users/ada").await.status, 200);
    assert_eq!(get(server.address, "/api/v1/bans/b").await.status, 200);
    let replaced = request(
        server.address,
        "POST",
        "/api/v1/restore?replace=true",
        fields,
        &backup.body,
    )
    .await;
    // The ban, and rows that the device registry has written since.
    let replaced = replaced.json();
    assert_eq!(replaced["written"], 4, "{replaced}");
    assert!(replaced["removed"].as_u64() >= Some(1), "{replaced}");
    assert_eq!(get(server.address, "/api/v1/bans/b").await.status, 404);
    let login = json!({"username": "ann", "password": "pencil case"});
    assert_eq!(
        send(&server, "", "POST", "/api/v1/login", &login)
            .await
            .status,
        200
    );
    let typeless = request(server.address, "POST", path, "", &backup.body).await;
    assert_eq!(typeless.status, 415);
}
