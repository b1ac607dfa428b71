//! Tests of access control: login, tokens, API keys, roles, the limit on guessing.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use api::{AnonymousRole, HttpConfig, RouteOpenness};

use crate::client::{HttpResponse, get, request};
use crate::fake::{FakeState, LOCAL_TOKEN, Server};

const JSON: &str = "Content-Type: application/json\r\n";

pub(crate) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

pub(crate) fn basic(id: &str, secret: &str) -> String {
    format!(
        "Authorization: Basic {}\r\n",
        STANDARD.encode(format!("{id}:{secret}"))
    )
}

/// Sends a request with a JSON body and these credentials.
pub(crate) async fn send(
    server: &Server,
    credentials: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> HttpResponse {
    let (fields, body) = match body {
        Value::Null => (credentials.to_owned(), String::new()),
        body => (format!("{credentials}{JSON}"), body.to_string()),
    };
    request(server.address, method, path, &fields, &body).await
}

pub(crate) fn local() -> String {
    bearer(LOCAL_TOKEN)
}

pub(crate) async fn make_operator(server: &Server, username: &str, role: &str) {
    let operator = json!({"username": username, "role": role, "password": format!("{username}-secret"), "must_change_password": false});
    let made = send(server, &local(), "POST", "/api/v1/operators", &operator).await;
    assert_eq!(made.status, 201, "{}", made.body);
}

async fn login(server: &Server, username: &str, password: &str) -> HttpResponse {
    let body = json!({"username": username, "password": password});
    send(server, "", "POST", "/api/v1/login", &body).await
}

pub(crate) async fn token(server: &Server, username: &str) -> String {
    let answer = login(server, username, &format!("{username}-secret")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["token"].as_str().unwrap().to_owned()
}

async fn closed() -> (Arc<FakeState>, Server) {
    let state = FakeState::with_clients(3);
    let server = Server::closed(&state).await;
    (state, server)
}

#[tokio::test]
async fn without_credentials_only_health_is_readable() {
    let (_state, server) = closed().await;
    for path in [
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/api/docs",
        "/api/v1/openapi.json",
    ] {
        assert_eq!(get(server.address, path).await.status, 200, "{path}");
    }
    assert!(
        !get(server.address, "/")
            .await
            .body
            .contains("127.0.0.1:1883")
    );
    for path in [
        "/api/v1/node",
        "/api/v1/clients",
        "/api/v1/users",
        "/api/v1/backup",
        "/api/v1/me",
    ] {
        let answer = get(server.address, path).await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(
            answer.has("www-authenticate: bearer realm=\"tidegate\""),
            "{}",
            answer.head
        );
        assert!(answer.problem().contains("/api/v1/login"));
    }
    let kick = send(&server, "", "DELETE", "/api/v1/clients/c000", &Value::Null).await;
    assert_eq!(kick.status, 401);
}

#[tokio::test]
async fn metrics_and_docs_can_be_closed() {
    let config = HttpConfig {
        metrics_access: RouteOpenness::Viewers,
        docs_access: RouteOpenness::Viewers,
        ..HttpConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let server = Server::start_with(&FakeState::with_clients(0), config).await;
    for path in ["/metrics", "/api/docs", "/api/v1/openapi.json"] {
        assert_eq!(get(server.address, path).await.status, 401, "{path}");
        let shown = send(&server, &local(), "GET", path, &Value::Null).await;
        assert_eq!(shown.status, 200, "{path}");
    }
}

#[tokio::test]
async fn anonymous_may_be_made_a_viewer() {
    let config = HttpConfig {
        anonymous_role: AnonymousRole::Viewer,
        ..HttpConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let server = Server::start_with(&FakeState::with_clients(3), config).await;
    assert_eq!(get(server.address, "/api/v1/clients").await.status, 200);
    let kick = send(&server, "", "DELETE", "/api/v1/clients/c000", &Value::Null).await;
    assert_eq!(kick.status, 403);
    let wrong = send(
        &server,
        &bearer("wrong"),
        "GET",
        "/api/v1/clients",
        &Value::Null,
    )
    .await;
    assert_eq!(wrong.status, 401, "wrong credentials are not none");
}

#[tokio::test]
async fn a_login_gives_a_token_that_ends_with_logout_and_with_the_password() {
    let (_state, server) = closed().await;
    make_operator(&server, "ann", "viewer").await;
    let answer = login(&server, "ann", "ann-secret").await;
    assert_eq!(answer.status, 200);
    let login_answer = answer.json();
    assert_eq!(login_answer["role"], "viewer");
    assert_eq!(login_answer["expires_in_s"], 3600);
    let credentials = bearer(login_answer["token"].as_str().unwrap());
    let me = send(&server, &credentials, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(
        me.json(),
        json!({"name": "ann", "role": "viewer", "authentication": "token", "must_change_password": false})
    );
    let out = send(
        &server,
        &credentials,
        "POST",
        "/api/v1/logout",
        &Value::Null,
    )
    .await;
    assert_eq!(out.status, 204);
    let again = send(&server, &credentials, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(again.status, 401);

    let first = bearer(&token(&server, "ann").await);
    let change = |current: &str| json!({"current_password": current, "password": "another one"});
    let path = "/api/v1/me/password";
    let wrong = send(&server, &first, "PUT", path, &change("guess")).await;
    assert_eq!(
        (wrong.status, wrong.problem().contains("current_password")),
        (422, true)
    );
    let right = send(&server, &first, "PUT", path, &change("ann-secret")).await;
    assert_eq!(right.status, 204, "{}", right.body);
    let stale = send(&server, &first, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(stale.status, 401, "tokens of the old password end");
    assert_eq!(login(&server, "ann", "ann-secret").await.status, 401);
    assert_eq!(login(&server, "ann", "another one").await.status, 200);
}

#[tokio::test]
async fn a_changed_disabled_or_deleted_operator_is_so_at_once() {
    let (_state, server) = closed().await;
    make_operator(&server, "boss", "admin").await;
    make_operator(&server, "bob", "operator").await;
    let bob = bearer(&token(&server, "bob").await);
    let path = "/api/v1/operators/bob";
    let kick = send(
        &server,
        &bob,
        "DELETE",
        "/api/v1/clients/c000",
        &Value::Null,
    )
    .await;
    assert_eq!(kick.status, 204);
    let lowered = send(&server, &local(), "PUT", path, &json!({"role": "viewer"})).await;
    assert_eq!(lowered.status, 200, "{}", lowered.body);
    let kick = send(
        &server,
        &bob,
        "DELETE",
        "/api/v1/clients/c001",
        &Value::Null,
    )
    .await;
    assert_eq!(kick.status, 403);
    assert!(kick.problem().contains("operator"), "{}", kick.body);
    let disabled = json!({"role": "viewer", "enabled": false});
    assert_eq!(
        send(&server, &local(), "PUT", path, &disabled).await.status,
        200
    );
    assert_eq!(
        send(&server, &bob, "GET", "/api/v1/me", &Value::Null)
            .await
            .status,
        401
    );
    assert_eq!(login(&server, "bob", "bob-secret").await.status, 401);
}

#[tokio::test]
async fn an_api_key_has_a_secret_that_is_shown_once_and_may_expire() {
    let (_state, server) = closed().await;
    let keys = "/api/v1/api-keys";
    let body = json!({"role": "viewer", "description": "for Prometheus"});
    let made = send(&server, &local(), "POST", keys, &body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let made = made.json();
    let (id, secret) = (
        made["id"].as_str().unwrap(),
        made["secret"].as_str().unwrap(),
    );
    let key = basic(id, secret);
    let me = send(&server, &key, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(
        me.json(),
        json!({"name": id, "role": "viewer", "authentication": "api_key", "must_change_password": false})
    );
    let path = format!("{keys}/{id}");
    let shown = send(&server, &local(), "GET", &path, &Value::Null).await;
    assert!(
        !shown.body.contains(secret) && !shown.body.contains("secret"),
        "{}",
        shown.body
    );
    for wrong in [
        basic(id, "guess"),
        basic("key-other", secret),
        "Authorization: Basic %%%\r\n".into(),
    ] {
        assert_eq!(
            send(&server, &wrong, "GET", "/api/v1/me", &Value::Null)
                .await
                .status,
            401
        );
    }
    let expired = json!({"role": "viewer", "expires_at_ms": 1});
    let put = send(&server, &local(), "PUT", &path, &expired).await;
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(
        send(&server, &key, "GET", "/api/v1/me", &Value::Null)
            .await
            .status,
        401
    );
    let alive = json!({"role": "operator"});
    assert_eq!(
        send(&server, &local(), "PUT", &path, &alive).await.status,
        200
    );
    let me = send(&server, &key, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(
        me.json()["role"],
        "operator",
        "the secret stayed what it was"
    );
    assert_eq!(
        send(&server, &local(), "DELETE", &path, &Value::Null)
            .await
            .status,
        204
    );
    assert_eq!(
        send(&server, &key, "GET", "/api/v1/me", &Value::Null)
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn guessing_a_password_is_bounded() {
    let config = HttpConfig {
        max_failed_logins: 3,
        ..HttpConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let server = Server::start_with(&FakeState::with_clients(0), config).await;
    make_operator(&server, "ann", "admin").await;
    for guess in ["one", "two", "three"] {
        let answer = login(&server, "ann", guess).await;
        assert_eq!(answer.status, 401);
        assert!(!answer.body.contains(guess), "{}", answer.body);
    }
    let answer = login(&server, "ann", "ann-secret").await;
    assert_eq!(answer.status, 429, "{}", answer.body);
    let field = answer
        .head
        .lines()
        .find(|line| line.starts_with("retry-after: "));
    let seconds: u64 = field.unwrap()["retry-after: ".len()..].parse().unwrap();
    assert!((1..=301).contains(&seconds), "{seconds}");
    // Other operators at the same address are not locked out.
    make_operator(&server, "bob", "viewer").await;
    assert_eq!(login(&server, "bob", "bob-secret").await.status, 200);
    // Existing tokens stay valid, and the owner of the machine still gets in.
    assert_eq!(
        send(&server, &local(), "GET", "/api/v1/me", &Value::Null)
            .await
            .status,
        200
    );
}

/// Routes that need no role, with the statuses of a request without credentials, parameters and
/// body. Every other route must name its role; a route that is missing in both places fails the
/// test.
const WITHOUT_ROLE: &[(&str, &[u16])] = &[
    ("index", &[200]),
    ("health", &[200]),
    ("readiness", &[200]),
    ("metrics", &[200]),
    ("openapi", &[200]),
    ("docs", &[200]),
    ("login", &[415]),
    // Without the token of a share link.
    ("getSharedDashboard", &[401]),
    ("getSharedCardData", &[401]),
    ("beginConsoleSession", &[415]),
    ("refreshConsoleSession", &[401]),
    ("endConsoleSession", &[204]),
    ("thingsboardLogin", &[415]),
    ("tusOptions", &[204]),
    // Without a signature.
    ("downloadSignedFile", &[403]),
    // Off by default.
    ("register", &[403]),
    // A WebSocket, whose first message logs in.
    ("thingsboardWebSocket", &[400]),
    ("thingsboardOlderWebSocket", &[400]),
    ("thingsboardToken", &[415]),
    ("pushToSource", &[401, 404]),
    ("provisionDevice", &[400]),
    ("postTelemetry", DEVICE),
    ("postAttributes", DEVICE),
    ("getAttributes", DEVICE),
    ("downloadFirmware", DEVICE),
    ("downloadSoftware", DEVICE),
    ("uploadDeviceFile", DEVICE),
    ("downloadDeviceFile", DEVICE),
    ("takeCommand", DEVICE),
    ("awaitAttributes", DEVICE),
    ("answerCommand", DEVICE),
    ("callPlatform", DEVICE),
    ("offerClaim", DEVICE),
];
/// No device has this token; after several such requests the response is to wait.
const DEVICE: &[u16] = &[401, 429];

/// Calls each route without credentials, with a token that is at most a device's, and with each
/// role.
#[tokio::test]
async fn roles_have_the_permissions_of_the_table() {
    let (_state, server) = closed().await;
    let document = get(server.address, "/api/v1/openapi.json").await.json();
    let roles = ["viewer", "operator", "admin"];
    let mut tokens = Vec::new();
    for role in roles {
        make_operator(&server, role, role).await;
        tokens.push(bearer(&token(&server, role).await));
    }
    let device = bearer("A-TOKEN-OF-A-DEVICE");
    let rank = |role: &str| roles.iter().position(|known| *known == role);
    let mut checked = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            let method = method.to_uppercase();
            // Names that do not exist and bodies that no route accepts: only the access check shows.
            let mut target = path.replace('{', "no-").replace('}', "");
            if path.contains("/logout") {
                target.push_str("?no=1");
            }
            let ask = async |credentials: &str| {
                send(&server, credentials, &method, &target, &Value::Null)
                    .await
                    .status
            };
            let Some(needed) = operation["x-required-role"].as_str() else {
                let open = WITHOUT_ROLE.iter().find(|(known, _)| *known == id);
                let (_, expected) =
                    open.unwrap_or_else(|| panic!("{id} names no role; is it open to all?"));
                for credentials in ["", &device]
                    .into_iter()
                    .chain(tokens.iter().map(|token| &**token))
                {
                    let status = ask(credentials).await;
                    assert!(expected.contains(&status), "{method} {path}: {status}");
                }
                continue;
            };
            for credentials in ["", &device] {
                assert_eq!(ask(credentials).await, 401, "{method} {path}");
            }
            for (role, token) in roles.iter().zip(&tokens) {
                // Streams that do not end.
                if ["events", "watchAlarms"].contains(&id) {
                    continue;
                }
                let status = ask(token).await;
                let is_let_in = ![401, 403].contains(&status);
                assert_eq!(
                    is_let_in,
                    rank(role) >= rank(needed),
                    "{role} {method} {path}: {status}"
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked} routes");
}

#[tokio::test]
async fn a_password_that_others_know_is_changed_before_anything_else() {
    let (_state, server) = closed().await;
    let operator = json!({"username": "ann", "role": "admin", "password": "given-by-bob"});
    let made = send(&server, &local(), "POST", "/api/v1/operators", &operator).await;
    assert_eq!(made.json()["must_change_password"], true, "{}", made.body);
    let begun = login(&server, "ann", "given-by-bob").await.json();
    assert_eq!(begun["must_change_password"], true);
    let ann = bearer(begun["token"].as_str().unwrap());
    let me = send(&server, &ann, "GET", "/api/v1/me", &Value::Null).await;
    assert_eq!(
        (me.status, &me.json()["must_change_password"]),
        (200, &json!(true))
    );
    let events = "/api/v1/events";
    for path in [
        "/api/v1/clients",
        "/api/v1/operators",
        events,
        "/api/auth/user",
    ] {
        let rejected = send(&server, &ann, "GET", path, &Value::Null).await;
        assert_eq!(rejected.status, 403, "{path}: {}", rejected.body);
        assert!(
            rejected.problem().contains("PUT /api/v1/me/password"),
            "{}",
            rejected.body
        );
    }
    let change = |next: &str| json!({"current_password": "given-by-bob", "password": next});
    let path = "/api/v1/me/password";
    let same = send(&server, &ann, "PUT", path, &change("given-by-bob")).await;
    assert_eq!(same.status, 422, "{}", same.body);
    let changed = send(&server, &ann, "PUT", path, &change("only-ann-knows")).await;
    assert_eq!(changed.status, 204, "{}", changed.body);
    let again = login(&server, "ann", "only-ann-knows").await.json();
    assert_eq!(again["must_change_password"], false);
    let ann = bearer(again["token"].as_str().unwrap());
    let clients = send(&server, &ann, "GET", "/api/v1/clients", &Value::Null).await;
    assert_eq!(clients.status, 200);

    // Other changes leave it as it is; a new password of somebody else does not.
    let path = "/api/v1/operators/ann";
    let described = json!({"role": "admin", "description": "on call"});
    let described = send(&server, &local(), "PUT", path, &described).await;
    assert_eq!(
        described.json()["must_change_password"],
        false,
        "{}",
        described.body
    );
    let reset = json!({"role": "admin", "password": "given-by-bob"});
    let reset = send(&server, &local(), "PUT", path, &reset).await;
    assert_eq!(reset.json()["must_change_password"], true, "{}", reset.body);
}

#[tokio::test]
async fn the_first_operator_is_made_once() {
    let (_state, server) = closed().await;
    let objects = server.objects.clone();
    let first = tokio::task::spawn_blocking(move || api::ensure_first_operator(&objects).unwrap());
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.username, "admin");
    let answer = login(&server, "admin", &first.password).await;
    assert_eq!(
        (answer.status, &answer.json()["role"]),
        (200, &json!("admin"))
    );
    assert_eq!(answer.json()["must_change_password"], true);
    let objects = server.objects.clone();
    let again = tokio::task::spawn_blocking(move || api::ensure_first_operator(&objects).unwrap());
    assert!(again.await.unwrap().is_none());
}

#[tokio::test]
async fn the_last_admin_cannot_shut_everybody_out() {
    let (_state, server) = closed().await;
    make_operator(&server, "boss", "admin").await;
    let path = "/api/v1/operators/boss";
    for (method, body) in [
        ("DELETE", Value::Null),
        ("PUT", json!({"role": "viewer"})),
        ("PUT", json!({"role": "admin", "enabled": false})),
    ] {
        let answer = send(&server, &local(), method, path, &body).await;
        assert_eq!(answer.status, 409, "{}", answer.body);
    }
    make_operator(&server, "deputy", "admin").await;
    assert_eq!(
        send(&server, &local(), "DELETE", path, &Value::Null)
            .await
            .status,
        204
    );
}
