//! Tests of the login of ThingsBoard's REST API.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use api::HttpConfig;

use crate::access::{bearer, local, make_operator, send};
use crate::client::HttpResponse;
use crate::fake::{FakeState, Server};

async fn closed() -> Server {
    Server::closed(&FakeState::with_clients(0)).await
}

async fn login(server: &Server, username: &str, password: &str) -> HttpResponse {
    let body = json!({"username": username, "password": password});
    send(server, "", "POST", "/api/auth/login", &body).await
}

async fn refresh(server: &Server, token: &str) -> HttpResponse {
    let body = json!({"refreshToken": token});
    send(server, "", "POST", "/api/auth/token", &body).await
}

/// The token and the refresh token.
fn pair(answer: &HttpResponse) -> (String, String) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let pair = answer.json();
    let text = |name: &str| pair[name].as_str().unwrap().to_owned();
    (text("token"), text("refreshToken"))
}

fn x_bearer(token: &str) -> String {
    format!("X-Authorization: Bearer {token}\r\n")
}

async fn me(server: &Server, credentials: &str) -> (u16, Value) {
    let me = send(server, credentials, "GET", "/api/v1/me", &Value::Null).await;
    match me.status {
        200 => (200, me.json()),
        status => (status, Value::Null),
    }
}

fn claims(token: &str) -> Value {
    let parts: Vec<&str> = token.split('.').collect();
    assert_eq!(parts.len(), 3);
    let decoded = URL_SAFE_NO_PAD.decode(parts[1]).unwrap();
    serde_json::from_slice(&decoded).unwrap()
}

#[tokio::test]
async fn a_login_gives_tokens_that_clients_can_read_and_renew() {
    let server = closed().await;
    make_operator(&server, "ann", "viewer").await;
    let (token, next) = pair(&login(&server, "ann", "ann-secret").await);
    let claims = claims(&token);
    assert_eq!(
        (&claims["sub"], &claims["role"]),
        (&json!("ann"), &json!("viewer"))
    );
    let lives = claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
    assert_eq!(lives, 3600);
    let ann = json!({"name": "ann", "role": "viewer", "authentication": "token", "must_change_password": false});
    for credentials in [bearer(&token), x_bearer(&token)] {
        assert_eq!(me(&server, &credentials).await, (200, ann.clone()));
    }
    // The Authorization header is for proxies.
    let behind_proxy = format!("Authorization: Basic cHJveHk6eA==\r\n{}", x_bearer(&token));
    assert_eq!(me(&server, &behind_proxy).await.0, 200);
    let twice = format!("{0}{0}", x_bearer(&token));
    assert_eq!(me(&server, &twice).await.0, 401);
    // The key is a viewer, and has no more rights here than with the node's own tokens.
    let key = json!({"role": "viewer"});
    let made = send(&server, &x_bearer(&token), "POST", "/api/v1/api-keys", &key).await;
    assert_eq!(made.status, 403);
    // Token and refresh token are not interchangeable, and a modified one is rejected.
    assert_eq!(refresh(&server, &token).await.status, 401);
    assert_eq!(me(&server, &x_bearer(&next)).await.0, 401);
    let mut changed = token.clone();
    changed.replace_range(
        token.len() - 1..,
        if token.ends_with('A') { "B" } else { "A" },
    );
    assert_eq!(me(&server, &x_bearer(&changed)).await.0, 401);

    // Clients that renew their tokens all the time only affect their own login.
    let (mut last, mut renewed) = (token.clone(), Vec::new());
    for _ in 0..5 {
        let (one, other) = pair(&refresh(&server, &next).await);
        assert_eq!(me(&server, &x_bearer(&one)).await.0, 200);
        assert_eq!(me(&server, &x_bearer(&last)).await.0, 200, "still in use");
        last = one;
        renewed.push(other);
    }
    assert_eq!(
        me(&server, &x_bearer(&token)).await.0,
        401,
        "the first has made room"
    );
    assert_eq!(refresh(&server, &renewed[0]).await.status, 401);
    let (other, _) = pair(&login(&server, "ann", "ann-secret").await);
    let newest = renewed.last().unwrap();
    let (last, newest) = pair(&refresh(&server, newest).await);
    let out = send(
        &server,
        &x_bearer(&last),
        "POST",
        "/api/auth/logout",
        &Value::Null,
    )
    .await;
    assert_eq!((out.status, out.body.as_str()), (200, ""));
    assert_eq!(me(&server, &x_bearer(&last)).await.0, 401);
    for ended in [&next, &newest] {
        assert_eq!(refresh(&server, ended).await.status, 401);
    }
    assert_eq!(me(&server, &x_bearer(&other)).await.0, 200, "another login");
}

#[tokio::test]
async fn tokens_end_with_their_operator_or_key() {
    let server = closed().await;
    make_operator(&server, "bob", "operator").await;
    let (token, next) = pair(&login(&server, "bob", "bob-secret").await);
    let lowered = json!({"role": "viewer"});
    let put = send(&server, &local(), "PUT", "/api/v1/operators/bob", &lowered).await;
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(me(&server, &x_bearer(&token)).await.1["role"], "viewer");
    let (renewed, _) = pair(&refresh(&server, &next).await);
    assert_eq!(claims(&renewed)["role"], "viewer");
    let disabled = json!({"role": "viewer", "enabled": false});
    let put = send(&server, &local(), "PUT", "/api/v1/operators/bob", &disabled).await;
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(refresh(&server, &next).await.status, 401);
    assert_eq!(me(&server, &x_bearer(&renewed)).await.0, 401);
    let put = send(&server, &local(), "PUT", "/api/v1/operators/bob", &lowered).await;
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(refresh(&server, &next).await.status, 401, "it has ended");

    // A key's id and secret also work as name and password.
    let wanted = json!({"role": "operator"});
    let made = send(&server, &local(), "POST", "/api/v1/api-keys", &wanted).await;
    let made = made.json();
    let (id, secret) = (
        made["id"].as_str().unwrap(),
        made["secret"].as_str().unwrap(),
    );
    assert_eq!(login(&server, id, "guess").await.status, 401);
    let (token, next) = pair(&login(&server, id, secret).await);
    let key = json!({"name": id, "role": "operator", "authentication": "api_key", "must_change_password": false});
    assert_eq!(me(&server, &x_bearer(&token)).await, (200, key));
    let path = format!("/api/v1/api-keys/{id}");
    let deleted = send(&server, &local(), "DELETE", &path, &Value::Null).await;
    assert_eq!(deleted.status, 204);
    assert_eq!(me(&server, &x_bearer(&token)).await.0, 401);
    assert_eq!(refresh(&server, &next).await.status, 401);
    let audit = send(
        &server,
        &local(),
        "GET",
        "/api/v1/audit-log?action=login",
        &Value::Null,
    )
    .await;
    let audit = audit.json();
    let logins = audit["data"].as_array().unwrap().iter();
    let logins: Vec<_> = logins
        .map(|entry| (&entry["actor"], &entry["action"]))
        .collect();
    let (key, bob) = (json!(id), json!("bob"));
    let (right, wrong) = (json!("login"), json!("login.failed"));
    assert_eq!(logins, [(&key, &right), (&key, &wrong), (&bob, &right)]);
}

#[tokio::test]
async fn guessing_is_bounded_together_with_the_other_login() {
    let config = HttpConfig {
        max_failed_logins: 3,
        ..HttpConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let server = Server::start_with(&FakeState::with_clients(0), config).await;
    make_operator(&server, "ann", "admin").await;
    for path in ["/api/auth/login", "/api/v1/login", "/api/auth/login"] {
        let body = json!({"username": "ann", "password": "guess"});
        assert_eq!(send(&server, "", "POST", path, &body).await.status, 401);
    }
    let answer = login(&server, "ann", "ann-secret").await;
    assert_eq!(answer.status, 429, "{}", answer.body);
    assert!(answer.head.contains("retry-after: "), "{}", answer.head);
}
