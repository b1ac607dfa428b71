//! Access checks: what a client may do, and what decides.

use serde_json::{Value, json};

use crate::access::{local, send};
use crate::client::HttpResponse;
use crate::fake::{FakeState, Server};

async fn check(server: &Server, body: Value) -> HttpResponse {
    send(server, &local(), "POST", "/api/v1/access-check", &body).await
}

#[tokio::test]
async fn the_deciding_rule_is_named() {
    let server = Server::closed(&FakeState::with_clients(0)).await;
    let rules = [
        (
            "no-secrets",
            json!({"permission": "deny", "topics": ["secret/#"], "order": 1}),
        ),
        (
            "own",
            json!({"permission": "allow", "topics": ["pumps/${clientid}/#"], "order": 2}),
        ),
        ("rest", json!({"permission": "deny", "order": 3})),
    ];
    for (id, rule) in rules {
        let absent = store::ExpectedVersion::Absent;
        server.objects.put("acl_rule", id, rule, absent).unwrap();
    }
    server.auth.watch_objects(&server.objects).unwrap();
    let publish = |topic: &str| json!({"action": "publish", "topic": topic});
    let actions = json!([
        publish("secret/1"), publish("pumps/p1/t"), publish("pumps/p2/t"),
        {"action": "subscribe", "topic": "#", "qos": 1},
    ]);
    let answer = check(&server, json!({"client_id": "p1", "actions": actions})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    assert_eq!(
        (&answer["basis"], &answer["login"]),
        (&json!("rules"), &Value::Null)
    );
    let decided = |at: usize| {
        let row = &answer["actions"][at];
        (
            row["allowed"].as_bool().unwrap(),
            row["rule"].as_str().unwrap(),
        )
    };
    assert_eq!(decided(0), (false, "no-secrets"));
    assert_eq!(decided(1), (true, "own"));
    assert_eq!(decided(2), (false, "rest"));
    assert_eq!(decided(3), (false, "no-secrets"));
    assert_eq!(answer["actions"][0]["source"], "store");
}

#[tokio::test]
async fn a_login_is_tried_without_effects() {
    let server = Server::closed(&FakeState::with_clients(0)).await;
    let hash = auth::password::hash(b"right").unwrap();
    let user = json!({"password_hash": hash, "is_superuser": true});
    let absent = store::ExpectedVersion::Absent;
    server.objects.put("user", "ann", user, absent).unwrap();
    server.auth.watch_objects(&server.objects).unwrap();
    let login = |password: &str| {
        json!({
            "client_id": "c", "username": "ann", "password": password, "login": true, "listener": "mqtt",
            "actions": [{"action": "publish", "topic": "t"}],
        })
    };
    let wrong = check(&server, login("wrong")).await.json();
    assert_eq!(wrong["login"]["accepted"], false);
    assert_eq!(
        (&wrong["login"]["step"], &wrong["login"]["reason_code"]),
        (&json!("authentication"), &json!(134))
    );
    assert_eq!(wrong["actions"], json!([]));
    let right = check(&server, login("right")).await.json();
    assert_eq!(right["login"]["accepted"], true, "{right}");
    assert_eq!(right["login"]["is_superuser"], true);
    assert_eq!(right["actions"][0]["source"], "superuser");
    let authenticators = right["login"]["authenticators"].as_array().unwrap();
    assert!(
        authenticators
            .iter()
            .any(|each| each["id"] == "users" && each["answer"] == "accepted")
    );
    let counted = server.auth.authenticator_statuses();
    assert!(
        counted
            .iter()
            .all(|status| status.accepted + status.rejected == 0)
    );
    let audit = send(&server, &local(), "GET", "/api/v1/audit-log", &Value::Null)
        .await
        .body;
    assert!(
        audit.contains("access.try_login") && !audit.contains("right"),
        "{audit}"
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_check_is_named() {
    let server = Server::closed(&FakeState::with_clients(0)).await;
    for (field, body) in [
        (
            "actions[0].topic",
            json!({"client_id": "c", "actions": [{"action": "publish", "topic": "a/#"}]}),
        ),
        (
            "actions[0].qos",
            json!({"client_id": "c", "actions": [{"action": "publish", "topic": "a", "qos": 3}]}),
        ),
        ("password", json!({"client_id": "c", "password": "x"})),
        (
            "listener",
            json!({"client_id": "c", "login": true, "listener": "none"}),
        ),
        (
            "actions",
            json!({"client_id": "c", "actions": vec![json!({"action": "publish", "topic": "a"}); 101]}),
        ),
    ] {
        let rejected = check(&server, body).await;
        assert_eq!(rejected.status, 422, "{field}: {}", rejected.body);
        let problem: Value = serde_json::from_str(&rejected.body).unwrap();
        assert_eq!(problem["parameter"], field);
    }
    let denied = send(
        &server,
        &local(),
        "GET",
        "/api/v1/denied-actions",
        &Value::Null,
    )
    .await;
    assert_eq!(denied.json()["data"], json!([]));
}
