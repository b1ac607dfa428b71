//! People: registration with invites, bans, changes of the own password and address, log out everywhere.

use std::time::Duration;

use api::HttpConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wall_clock::now_ms;

use crate::access::{bearer, local, make_operator, send, token};
use crate::client::HttpResponse;
use crate::fake::{FakeState, Server};

const PASSWORD: &str = "Correct-horse-1";

async fn server(registration_enabled: bool) -> Server {
    let config = HttpConfig {
        registration_enabled,
        max_failed_logins: 5,
        ..HttpConfig::new("127.0.0.1:0".parse().unwrap())
    };
    Server::start_with(&FakeState::with_clients(0), config).await
}

async fn admin(server: &Server, method: &str, path: &str, body: Value) -> Value {
    let answer = send(server, &local(), method, &format!("/api/v1/{path}"), &body).await;
    assert!(answer.status < 300, "{method} {path}: {}", answer.body);
    match answer.body.is_empty() {
        true => Value::Null,
        false => answer.json(),
    }
}

async fn invite(server: &Server, fields: Value) -> String {
    let made = admin(server, "POST", "invites", fields).await;
    assert!(made.get("code_hash").is_none(), "{made}");
    made["code"].as_str().unwrap().to_owned()
}

async fn register(server: &Server, code: &str, username: &str, more: Value) -> HttpResponse {
    let mut body = json!({"code": code, "username": username, "password": PASSWORD});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    send(server, "", "POST", "/api/v1/register", &body).await
}

async fn login(server: &Server, username: &str, password: &str) -> HttpResponse {
    let body = json!({"username": username, "password": password});
    send(server, "", "POST", "/api/v1/login", &body).await
}

async fn logged_in(server: &Server, username: &str, password: &str) -> String {
    let answer = login(server, username, password).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    bearer(answer.json()["token"].as_str().unwrap())
}

/// The actions of the audit log, the newest first.
async fn audited(server: &Server) -> Vec<String> {
    let log = admin(server, "GET", "audit-log", Value::Null).await;
    let rows = log["data"].as_array().unwrap().iter();
    rows.map(|row| row["action"].as_str().unwrap().to_owned())
        .collect()
}

/// Each invite of a batch is in the audit log, without its code.
async fn assert_batch_is_audited(server: &Server, codes: &[Value]) {
    let log = admin(server, "GET", "audit-log?limit=1000", Value::Null).await;
    let rows = log["data"].as_array().unwrap();
    for invite in codes {
        let mut rows = rows.iter();
        let row = rows.find(|row| row["subject"] == invite["id"]);
        let row = row.unwrap_or_else(|| panic!("{invite} is not in {log}"));
        assert_eq!([&row["action"], &row["actor"]], ["invite.create", "local"]);
        assert_eq!(row["after"]["namespace"], "acme", "{row}");
        assert!(row["after"].get("code_hash").is_none(), "{row}");
        // The id of the invite precedes the secret part.
        let (_, secret) = invite["code"].as_str().unwrap().rsplit_once('.').unwrap();
        assert!(
            !secret.is_empty() && !log.to_string().contains(secret),
            "{log}"
        );
    }
}

#[tokio::test]
async fn registration_is_off_by_default() {
    let server = server(false).await;
    let code = invite(&server, json!({})).await;
    let rejected = register(&server, &code, "ann", json!({})).await;
    assert_eq!(rejected.status, 403);
    assert!(
        rejected.problem().contains("http.registration_enabled"),
        "{}",
        rejected.body
    );
}

#[tokio::test]
async fn an_invite_gives_a_person_a_namespace_of_their_own_once() {
    let server = server(true).await;
    let code = invite(&server, json!({"description": "for Ann"})).await;
    for (field, more) in [
        ("username", json!({"username": "an"})),
        ("username", json!({"username": "ann lee"})),
        ("username", json!({"username": "a".repeat(31)})),
        ("password", json!({"password": "Sh0rt"})),
        ("password", json!({"password": "all-lower-case-1"})),
        ("password", json!({"password": "No-digit-in-here"})),
        ("email", json!({"email": "nobody"})),
        ("namespace", json!({"namespace": "No Namespace"})),
    ] {
        let rejected = register(&server, &code, "Ann_1", more.clone()).await;
        assert_eq!(rejected.status, 422, "{more}: {}", rejected.body);
        let problem: Value = serde_json::from_str(&rejected.body).unwrap();
        assert_eq!(problem["parameter"], field, "{more}");
    }
    let taken = register(&server, &code, "Ann_1", json!({"namespace": "default"})).await;
    assert_eq!(taken.status, 409, "{}", taken.body);
    let made = register(&server, &code, "Ann_1", json!({"email": "ann@example.com"})).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let grants = json!([{"namespace": "ann_1", "role": "owner"}]);
    assert_eq!(
        made.json(),
        json!({"username": "Ann_1", "namespaces": grants})
    );
    let again = register(&server, &code, "Bob_1", json!({})).await;
    assert_eq!(again.status, 403, "used up");

    let ann = logged_in(&server, "Ann_1", PASSWORD).await;
    let me = send(&server, &ann, "GET", "/api/v1/me", &Value::Null)
        .await
        .json();
    assert_eq!((&me["role"], &me["namespaces"]), (&Value::Null, &grants));
    let seen = send(&server, &ann, "GET", "/api/v1/namespaces", &Value::Null)
        .await
        .json();
    let rows = seen["data"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["id"]), (1, &json!("ann_1")));
    let operator = admin(&server, "GET", "operators/Ann_1", Value::Null).await;
    assert_eq!(operator["email"], "ann@example.com");
    let invites = admin(&server, "GET", "invites", Value::Null).await;
    assert_eq!(invites["data"][0]["used_by"], json!(["Ann_1"]));
    assert!(
        !invites
            .to_string()
            .contains(code.rsplit('.').next().unwrap())
    );
    let log = audited(&server).await;
    for action in ["operator.register", "namespace.create", "invite.create"] {
        assert!(log.iter().any(|found| found == action), "{action}: {log:?}");
    }
}

#[tokio::test]
async fn an_invite_into_a_namespace_has_a_role_a_number_of_uses_and_an_end() {
    let server = server(true).await;
    admin(&server, "POST", "namespaces", json!({"id": "acme"})).await;
    let code = invite(
        &server,
        json!({"namespace": "acme", "role": "operator", "max_uses": 2}),
    )
    .await;
    for name in ["ann", "bob"] {
        assert_eq!(
            register(&server, &code, name, json!({})).await.status,
            201,
            "{name}"
        );
    }
    assert_eq!(register(&server, &code, "eve", json!({})).await.status, 403);
    let operator = admin(&server, "GET", "operators/bob", Value::Null).await;
    assert_eq!(
        operator["namespaces"],
        json!([{"namespace": "acme", "role": "operator"}])
    );

    let ended = invite(&server, json!({"namespace": "acme", "expires_at_ms": 1})).await;
    assert_eq!(
        register(&server, &ended, "eve", json!({})).await.status,
        403
    );
    let batch = json!({"count": 3, "namespace": "acme"});
    let batch = admin(&server, "POST", "invite-batches", batch).await;
    let codes = batch["data"].as_array().unwrap();
    assert_eq!(codes.len(), 3);
    assert_batch_is_audited(&server, codes).await;
    let code = codes[2]["code"].as_str().unwrap();
    let taken = register(&server, code, "ann", json!({})).await;
    assert_eq!(taken.status, 409, "{}", taken.body);
    let disabled = json!({"state": "disabled", "reason": "unpaid"});
    admin(&server, "PUT", "namespaces/acme", disabled).await;
    assert_eq!(register(&server, code, "eve", json!({})).await.status, 403);
}

#[tokio::test]
async fn the_last_use_of_an_invite_is_used_by_one_of_two_people_who_register_together() {
    let server = server(true).await;
    admin(&server, "POST", "namespaces", json!({"id": "acme"})).await;
    for round in 0..5 {
        let code = invite(&server, json!({"namespace": "acme"})).await;
        let names = [format!("ann{round}"), format!("bob{round}")];
        let (ann, bob) = tokio::join!(
            register(&server, &code, &names[0], json!({})),
            register(&server, &code, &names[1], json!({})),
        );
        let mut statuses = [ann.status, bob.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 403], "{} {}", ann.body, bob.body);
        let registered = usize::from(ann.status != 201);
        let operators = admin(&server, "GET", "operators?limit=1000", Value::Null).await;
        let is_listed = |name: &str| operators.to_string().contains(&format!("\"{name}\""));
        assert!(is_listed(&names[registered]) && !is_listed(&names[1 - registered]));
    }
}

#[tokio::test]
async fn owners_invite_into_their_own_namespace_only() {
    let server = server(true).await;
    for namespace in ["acme", "other"] {
        admin(&server, "POST", "namespaces", json!({"id": namespace})).await;
    }
    let code = invite(&server, json!({"namespace": "acme", "role": "owner"})).await;
    assert_eq!(register(&server, &code, "ann", json!({})).await.status, 201);
    let ann = logged_in(&server, "ann", PASSWORD).await;
    let post = |path: &'static str, body: Value| {
        let (server, ann) = (&server, &ann);
        async move { send(server, ann, "POST", &format!("/api/v1/{path}"), &body).await }
    };
    assert_eq!(
        post("invites", json!({"namespace": "other"})).await.status,
        422
    );
    assert_eq!(
        post("invites", json!({"namespace": null})).await.status,
        422
    );
    let made = post("invites", json!({"role": "viewer"})).await;
    assert_eq!(
        (made.status, made.json()["namespace"].clone()),
        (201, json!("acme"))
    );
    let batch = post("invite-batches", json!({"count": 2, "namespace": "other"})).await;
    assert_eq!(batch.status, 422, "{}", batch.body);
    assert_eq!(
        post("invite-batches", json!({"count": 2})).await.status,
        201
    );
    let listed = send(&server, &ann, "GET", "/api/v1/invites", &Value::Null)
        .await
        .json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn guessing_codes_is_bounded() {
    let server = server(true).await;
    let code = invite(&server, json!({})).await;
    for _ in 0..5 {
        assert_eq!(
            register(&server, "inv-1.guess", "eve", json!({}))
                .await
                .status,
            403
        );
    }
    let blocked = register(&server, &code, "eve", json!({})).await;
    assert_eq!(blocked.status, 429, "{}", blocked.body);
}

#[tokio::test]
async fn a_banned_operator_is_logged_out_at_once_with_the_reason() {
    let server = server(false).await;
    for (name, role) in [("boss", "admin"), ("bob", "viewer")] {
        make_operator(&server, name, role).await;
    }
    let boss = bearer(&token(&server, "boss").await);
    let bob = bearer(&token(&server, "bob").await);
    let ban = |credentials: String, name: &'static str, body: Value| {
        let server = &server;
        async move {
            let path = format!("/api/v1/operators/{name}/ban");
            send(server, &credentials, "POST", &path, &body).await
        }
    };
    let why = json!({"reason": "shares the password"});
    assert_eq!(ban(bob.clone(), "boss", why.clone()).await.status, 403);
    let own = ban(boss.clone(), "boss", why.clone()).await;
    assert_eq!(own.status, 409);
    assert!(own.problem().contains("themselves"), "{}", own.body);
    let last = ban(local(), "boss", why.clone()).await;
    assert_eq!(last.status, 409);
    assert!(last.problem().contains("last admin"), "{}", last.body);
    assert_eq!(
        ban(boss.clone(), "bob", json!({"reason": " "}))
            .await
            .status,
        422
    );
    let past = json!({"reason": "x", "until_ms": 1});
    assert_eq!(ban(boss.clone(), "bob", past).await.status, 422);
    assert_eq!(ban(boss.clone(), "nobody", why.clone()).await.status, 404);

    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request =
        format!("GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{bob}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    stream.read_buf(&mut read).await.unwrap();
    assert!(read.starts_with(b"HTTP/1.1 200"));
    assert_eq!(ban(boss.clone(), "bob", why).await.status, 204);
    let ended = timeout(Duration::from_secs(10), stream.read_to_end(&mut read)).await;
    ended.expect("the stream ends").unwrap();
    let me = send(&server, &bob, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(me.status, 401, "the token is revoked");
    let rejected = login(&server, "bob", "bob-secret").await;
    assert_eq!(rejected.status, 403);
    assert!(
        rejected.problem().contains("shares the password"),
        "{}",
        rejected.body
    );
    assert_eq!(
        login(&server, "bob", "wrong").await.status,
        401,
        "told only with the password"
    );
    let shown = admin(&server, "GET", "operators/bob", Value::Null).await;
    assert_eq!(
        (&shown["ban"]["by"], &shown["ban"]["until_ms"]),
        (&json!("boss"), &Value::Null)
    );
    // A change of other fields keeps the ban.
    let mut body = shown.clone();
    body["description"] = "suspicious".into();
    admin(&server, "PUT", "operators/bob", body).await;
    assert_eq!(login(&server, "bob", "bob-secret").await.status, 403);

    let unban = "/api/v1/operators/bob/unban";
    assert_eq!(
        send(&server, &boss, "POST", unban, &Value::Null)
            .await
            .status,
        204
    );
    assert_eq!(
        send(&server, &boss, "POST", unban, &Value::Null)
            .await
            .status,
        409
    );
    assert_eq!(login(&server, "bob", "bob-secret").await.status, 200);
    let soon = json!({"reason": "cool down", "until_ms": now_ms() + 500});
    assert_eq!(ban(boss, "bob", soon).await.status, 204);
    assert_eq!(login(&server, "bob", "bob-secret").await.status, 403);
    let over = async {
        while login(&server, "bob", "bob-secret").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), over)
        .await
        .expect("the ban ends by itself");
    let log = audited(&server).await;
    assert!(log.iter().any(|action| action == "operator.ban"), "{log:?}");
    assert!(
        log.iter().any(|action| action == "operator.unban"),
        "{log:?}"
    );
}

#[tokio::test]
async fn an_operator_logs_out_everywhere_and_changes_password_and_address() {
    let server = server(true).await;
    admin(&server, "POST", "namespaces", json!({"id": "acme"})).await;
    let code = invite(&server, json!({"namespace": "acme"})).await;
    assert_eq!(register(&server, &code, "ann", json!({})).await.status, 201);
    let (first, second) = (
        logged_in(&server, "ann", PASSWORD).await,
        logged_in(&server, "ann", PASSWORD).await,
    );
    let everywhere = "/api/v1/me/logout-everywhere";
    let key = send(&server, &local(), "POST", everywhere, &Value::Null).await;
    assert_eq!(key.status, 409, "the token file is no login");
    assert_eq!(
        send(&server, &first, "POST", everywhere, &Value::Null)
            .await
            .status,
        204
    );
    for token in [&first, &second] {
        assert_eq!(
            send(&server, token, "GET", "/api/v1/me", &Value::Null)
                .await
                .status,
            401
        );
    }

    let ann = logged_in(&server, "ann", PASSWORD).await;
    let put = |path: &'static str, body: Value| {
        let (server, ann) = (&server, &ann);
        async move { send(server, ann, "PUT", &format!("/api/v1/me/{path}"), &body).await }
    };
    let email =
        |password: &str, email: Value| json!({"current_password": password, "email": email});
    assert_eq!(
        put("email", email("wrong", json!("ann@example.com")))
            .await
            .status,
        422
    );
    assert_eq!(
        put("email", email(PASSWORD, json!("ann"))).await.status,
        422
    );
    assert_eq!(
        put("email", email(PASSWORD, json!("ann@example.com")))
            .await
            .status,
        204
    );
    let shown = admin(&server, "GET", "operators/ann", Value::Null).await;
    assert_eq!(shown["email"], "ann@example.com");
    let password = |new: &str| json!({"current_password": PASSWORD, "password": new});
    assert_eq!(
        put("password", password("all-lower-case")).await.status,
        422
    );
    assert_eq!(
        put("password", password("Battery-staple-2")).await.status,
        204
    );
    assert_eq!(login(&server, "ann", "Battery-staple-2").await.status, 200);
    assert_eq!(
        register(&server, "inv.x", "eve", json!({})).await.status,
        403
    );
    let log = audited(&server).await;
    for action in [
        "logout.everywhere",
        "operator.email",
        "operator.password",
        "operator.register_failed",
    ] {
        assert!(log.iter().any(|found| found == action), "{action}: {log:?}");
    }
    let shown = admin(&server, "GET", "operators/ann", Value::Null).await;
    assert_eq!(shown["email"], "ann@example.com", "other fields are kept");
}
